"""Which of many cases one run takes: other ones with every commit, the same in every process; all of them with DCIR_TEST_ALL=1."""

from __future__ import annotations

import datetime
import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def turn(names: Iterable[str], count: int, commit: str | None = None) -> set[str]:
    """The names whose turn it is: ``count`` of them, drawn by the commit.

    Args:
        names: of all cases.
        count: how many of them run.
        commit: what draws them; the one that is checked out, or the day where there is none.
    """
    names = sorted(names)
    if os.environ.get("DCIR_TEST_ALL") == "1":
        return set(names)
    seed = commit or _commit()
    return set(sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count])


@cache
def _commit() -> str:
    """The commit of this checkout, or the day: git may be missing, or refuse somebody else's folder."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return datetime.datetime.now(datetime.UTC).date().isoformat()
    return done.stdout.strip()
