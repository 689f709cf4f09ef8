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
from tests.rotation import chosen

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


_CLEAN = {
    "operators": ("families", "3"), "networks": ("networks",), "kernels": ("kernels",), "moving": ("moving",), "images": ("images",),
    "image-training": ("image_training",),
}  # fmt: skip


@pytest.mark.parametrize("what", chosen(_CLEAN, 2))
def test_clean(what: str) -> None:
    """Two of these with each commit: samples of every family; networks, both directions; odd sizes and indices; images of any size."""
    done = _run(*_CLEAN[what])
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.startswith("done")
