"""Starts a process so that ThreadSanitizer sees the teams that generated code runs on: ``python -m tests.robustness.team COMMAND …``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dcir.codegen.cpp.toolchain import find_compiler, sanitizer_environment

SOURCE = Path(__file__).with_name("team.cpp")


def team_environment(folder: Path) -> dict[str, str]:
    """Like `sanitizer_environment`, with a team of POSIX threads, built into ``folder``, in place of libgomp's.

    Python and torch run on it too; what they do is not looked at.

    Raises:
        CompilerNotFound: the compiler has no such library.
    """
    found = sanitizer_environment("thread")
    library = folder / "libteam.so"
    flags = ("-std=c++17", "-O1", "-g", "-fsanitize=thread", "-shared", "-fPIC")
    subprocess.run([find_compiler(), *flags, str(SOURCE), "-o", str(library)], check=True)
    return found | {
        "LD_PRELOAD": f"{found['LD_PRELOAD']}:{library}",
        "TSAN_OPTIONS": "exitcode=99",
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dcir-team-") as made:
        sys.exit(subprocess.run(sys.argv[1:], env=os.environ | team_environment(Path(made)), check=False).returncode)
