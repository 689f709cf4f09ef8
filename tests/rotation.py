"""What a run tests of something that takes too long as a whole: others for each commit, all with `DCIR_TEST_ALL`.

`DCIR_TEST_ROTATION` takes the place of the commit, to find again what failed on another one. Where there is no git, the day decides.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def chosen(names: Iterable[str], count: int) -> list[str]:
    """At most ``count`` of the names, in their order, and all of them with `DCIR_TEST_ALL`; the same for the same commit."""
    every = list(names)
    if os.environ.get("DCIR_TEST_ALL") or count >= len(every):
        return every
    # Names that are alike (of one library) get ranks that are not.
    rank = {name: hashlib.sha256(f"{turn()} {name}".encode()).digest() for name in every}
    taken = set(sorted(every, key=rank.__getitem__)[:count])
    return [name for name in every if name in taken]


def taken(cases: Sequence[T], count: int) -> list[T]:
    """At most ``count`` of the cases, as `chosen` takes names: by their places, for cases may hold what has no lasting name."""
    return [cases[int(place)] for place in chosen(map(str, range(len(cases))), count)]


def has_turn(name: str, every: int) -> bool:
    """Whether it is the turn of what runs with one commit in ``every``; always with `DCIR_TEST_ALL`."""
    number = int.from_bytes(hashlib.sha256(f"{turn()} {name}".encode()).digest()[:8])
    return bool(os.environ.get("DCIR_TEST_ALL")) or number % every == 0


def turn() -> str:
    """What decides whose turn it is: `DCIR_TEST_ROTATION`, the commit that is tested, or the day."""
    return os.environ.get("DCIR_TEST_ROTATION") or _commit()


@functools.cache
def _commit() -> str:
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        said = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):  # git may be missing, or refuse somebody else's folder
        return datetime.datetime.now(datetime.UTC).date().isoformat()
    return said.stdout.strip()
