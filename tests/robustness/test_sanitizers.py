"""Generated code reads and writes only what it may, and no two threads meet: it runs under three sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcir.codegen.cpp.toolchain import sanitizer_environment
from dcir.errors import CompilerNotFound
from tests.robustness.team import team_environment

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, team: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run under the address and undefined-behaviour sanitizers, or with a folder for ``team`` under the one for threads."""
    try:
        sanitizers = sanitizer_environment() if team is None else team_environment(team)
    except CompilerNotFound as e:
        pytest.skip(str(e))
    command = [sys.executable, "-W", "ignore", "-m", "tests.robustness.sanitized", *arguments]
    return subprocess.run(
        command, env=os.environ | sanitizers, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_read_behind_an_operand_is_found() -> None:
    """Otherwise the other tests here could not fail."""
    done = _run("broken")
    assert done.returncode == 99, done.stderr[-2000:]
    assert "heap-buffer-overflow" in done.stderr


def test_a_race_is_found(tmp_path: Path) -> None:
    """Otherwise no race could be."""
    done = _run("raced", team=tmp_path)
    assert done.returncode == 99, done.stderr[-2000:]
    assert "data race" in done.stderr


def test_no_races(tmp_path: Path) -> None:
    """Threads that list points by place, fold them, share out groups of channels, heads and rows."""
    done = _run("kernels", team=tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.startswith("done")


@pytest.mark.parametrize(
    "what",
    [("families", "3"), ("networks",), ("kernels",), ("moving",), ("images",), ("image_training",)],
    ids=["operators", "networks", "kernels", "moving", "images", "image-training"],
)
def test_clean(what: tuple[str, ...]) -> None:
    """Samples of every family of operators; networks, forward and backward; odd sizes and indices outside; images of any size."""
    done = _run(*what)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.startswith("done")
