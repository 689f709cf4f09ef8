"""Runs what depends on the processor for the instruction sets it was not run for: those it has by running, others by compiling.

python -m tests.processors [arguments of pytest]
"""

from __future__ import annotations

import os
import subprocess
import sys

from dcir.isa import ISAS, executable, host_isa

MARK = "processor"


def main(arguments: list[str]) -> int:
    """Run pytest once for each of the other sets; the first exit code that is not 0."""
    done = {}
    for name in ISAS:
        if name == host_isa().name:
            continue
        print(
            f"\n{name}: {'running' if name in executable() else 'compiling only, this processor lacks it'}", flush=True
        )
        command = [sys.executable, "-m", "pytest", "-m", MARK, *arguments]
        done[name] = subprocess.run(command, env=os.environ | {"DCIR_ISA": name}, check=False).returncode
    print("\ninstruction sets:", f"{host_isa().name} by all tests,", ", ".join(map(_told, done)))
    return next((code for code in done.values() if code), 0)


def _told(name: str) -> str:
    return f"{name} {'run' if name in executable() else 'compiled'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
