"""Generated code reads and writes only what it may: it runs under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcir.codegen.build import sanitizer_environment
from dcir.errors import CompilerNotFound

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        sanitizers = sanitizer_environment()
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


@pytest.mark.parametrize("what", [("families", "3"), ("networks",)], ids=["operators", "networks"])
def test_clean(what: tuple[str, ...]) -> None:
    """Samples of every family of operators; a CNN and a transformer, forward and backward."""
    done = _run(*what)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.startswith("done")
