"""What a session tests of something that takes too long as a whole: other names for each commit, all with `DCIR_TEST_ALL`.

`DCIR_TEST_ROTATION` takes the place of the commit, to find again what failed on another one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

ALL = bool(os.environ.get("DCIR_TEST_ALL"))


def chosen(names: Iterable[str], count: int) -> list[str]:
    """At most ``count`` of the names, in their order, and all of them with `DCIR_TEST_ALL`; the same for the same commit."""
    every = list(names)
    if ALL or count >= len(every):
        return every
    rank = {name: zlib.crc32(f"{turn()} {name}".encode()) for name in every}
    taken = set(sorted(every, key=lambda name: (rank[name], name))[:count])
    print(f"{count} of {len(every)}, chosen for {turn() or 'no commit'}; DCIR_TEST_ALL=1 takes all")
    return [name for name in every if name in taken]


@functools.cache
def turn() -> str:
    """What decides whose turn it is: `DCIR_TEST_ROTATION`, or the commit that is tested; nothing outside of a repository."""
    given = os.environ.get("DCIR_TEST_ROTATION")
    if given:
        return given
    command = ["git", "rev-parse", "HEAD"]
    try:
        said = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()
