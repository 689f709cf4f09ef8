"""Cores and sockets: those that this process may plan with, or those of a machine that is only imagined."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dcir.cores import runnable_threads, usable_threads
from dcir.errors import OptionError

_SYSTEM = Path("/sys/devices/system/cpu")
MOST = 1024


@dataclass(frozen=True)
class Cores:
    """Physical cores, of which sockets hold so many each; teams and pools fill one socket after the other.

    Attributes:
        total: how many there are.
        per_socket: of each socket; the last one may have fewer.
    """

    total: int
    per_socket: int

    @property
    def sockets(self) -> int:
        """How many sockets they lie in."""
        return self.sockets_of(self.total)

    def sockets_of(self, threads: int) -> int:
        """Sockets that a team of so many threads spreads over."""
        return max(1, -(-threads // self.per_socket))

    def limited(self, threads: int) -> Cores:
        """So many of them at most."""
        return Cores(min(self.total, max(1, threads)), self.per_socket)

    def to_json(self) -> dict[str, Any]:
        """Both numbers as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        where = f" in {self.sockets} sockets" if self.sockets > 1 else ""
        return f"{self.total} core{'s' * (self.total != 1)}{where}"


def parse_cores(text: str) -> Cores:
    """Cores from ``16``, which is one socket, or ``2x64``.

    Raises:
        OptionError: anything else, none, or more than a thousand.
    """
    match = re.fullmatch(r"\s*(?:([0-9]{1,2})\s*[xX]\s*)?([0-9]{1,4})\s*", text)
    sockets, each = (int(match[1] or 1), int(match[2])) if match is not None else (0, 0)
    if not 1 <= sockets * each <= MOST:
        raise OptionError(
            f"cores are a number up to {MOST}, or sockets times cores", where=f"cores={text!r}", hint="16, or 2x64"
        )
    return Cores(sockets * each, each)


def cores_here(system: Path = _SYSTEM, environ: Mapping[str, str] | None = None) -> Cores:
    """The cores that this process may plan with.

    These are the physical cores among the processors that it may run on, as many as control groups give it time for. Of a machine that
    several processes of one job share (torchrun's ``LOCAL_WORLD_SIZE``), none of which has processors of its own, each plans with its
    part.

    Args:
        system: where the processors' topology is read.
        environ: the environment.
    """
    numbers = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(runnable_threads())
    places = {_place(system, number) for number in numbers}
    usable = min(len(places), usable_threads())
    word = (os.environ if environ is None else environ).get("LOCAL_WORLD_SIZE", "")
    processes = int(word) if word.isdecimal() else 1
    if processes > 1 and len(numbers) == (os.cpu_count() or 1):
        usable //= processes
    return Cores(len(places), math.ceil(len(places) / len({socket for socket, _ in places}))).limited(usable)


def _place(system: Path, number: int) -> tuple[int, int]:
    """The socket of a processor and its core there; where the system does not tell, a core of its own."""
    folder = system / f"cpu{number}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return 0, number
