"""Runs what depends on the processor for instruction sets it was not run for: those it has by running, others by compiling.

python -m tests.processors [arguments of pytest]

Two of them with each commit, all with DCIR_TEST_ALL=1 (``tests/rotation.py``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dcir.isa import ISAS, executable, host_isa
from tests.rotation import chosen

MARK = "processor"
_AT_ONCE = 2
_TESTS = Path(__file__).parent
_TILES = _TESTS / "codegen/cpp/tiles"


def files() -> list[str]:
    """Those with such a test: the tile kernels' and whichever use the mark. To collect all others takes longer than to run these."""
    every = sorted(_TESTS.rglob("test_*.py"))
    return [str(f) for f in every if _TILES in f.parents or f"mark.{MARK}" in f.read_text(encoding="utf-8")]


def main(arguments: list[str]) -> int:
    """Run pytest once for each of the other sets; the first exit code that is not 0."""
    done = {}
    for name in chosen([n for n in ISAS if n != host_isa().name], _AT_ONCE):
        print(
            f"\n{name}: {'running' if name in executable() else 'compiling only, this processor lacks it'}", flush=True
        )
        command = [sys.executable, "-m", "pytest", "-m", MARK, *arguments, *files()]
        done[name] = subprocess.run(command, env=os.environ | {"DCIR_ISA": name}, check=False).returncode
    print("\ninstruction sets:", f"{host_isa().name} by all tests,", ", ".join(map(_told, done)))
    return next((code for code in done.values() if code), 0)


def _told(name: str) -> str:
    return f"{name} {'run' if name in executable() else 'compiled'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
