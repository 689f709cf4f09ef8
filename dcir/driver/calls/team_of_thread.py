"""The team of threads that the calling thread has: its size for a while, and the processors that it and its team stay on.

OpenMP keeps the size of a team for each thread that opens some, and so does what torch runs; Dynamo guards on it. A team that is made
while its thread is pinned stays on the same processors.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import torch

from dcir import cores

_SYSTEM = Path("/sys/devices/system/cpu")


class _Here(threading.local):
    before: Set[int] | None = None  # where the thread might run before it was pinned
    pinned: Set[int] = frozenset()


_HERE = _Here()


def set_team(threads: int) -> int:
    """Give the calling thread a team of so many threads, itself included; gives what it had."""
    before = torch.get_num_threads()  # in a new thread torch sets it at this call
    if before != threads:
        _openmp().omp_set_num_threads(threads)
    return before


@contextlib.contextmanager
def team_of(threads: int) -> Iterator[None]:
    """Give the calling thread such a team until the end."""
    before = set_team(threads)
    try:
        yield
    finally:
        if before != threads:
            _openmp().omp_set_num_threads(before)


@functools.cache
def _openmp() -> Any:
    """A library that is linked with the OpenMP run time that torch has, which is that of compiled code."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def pin(to: Set[int]) -> None:
    """Have the calling thread, and those that it makes, run on these processors only; nothing where they are none."""
    if to:
        _HERE.before, _HERE.pinned = os.sched_getaffinity(0), to
        os.sched_setaffinity(0, to)


@contextlib.contextmanager
def unpinned() -> Iterator[None]:
    """Have the calling thread run where it might before it was pinned: a compilation has the whole machine, and so do its compilers."""
    if _HERE.before is None:
        yield
        return
    os.sched_setaffinity(0, _HERE.before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, _HERE.pinned)


def shares(streams: int, threads: int, system: Path = _SYSTEM) -> list[frozenset[int]]:
    """Processors of each of several teams, neighbours together; empty sets where the process does not have the machine to itself.

    A process that was given a part of the machine, by a mask or by a quota of its time, may have neighbours who chose the same
    processors, and the system knows better.

    Args:
        streams: how many teams.
        threads: of each.
        system: where the processors' topology is read.
    """
    nowhere = [frozenset[int]()] * streams
    if not hasattr(os, "sched_setaffinity"):
        return nowhere
    mask = os.sched_getaffinity(0)
    if len(mask) < (os.cpu_count() or 1) or cores.usable_threads() < len(mask) or streams * threads > len(mask):
        return nowhere
    rows = sorted((*_place(system, number), number) for number in mask)
    firsts = [r for r in rows if r == min(other for other in rows if other[:2] == r[:2])]
    taken = [number for *_, number in (firsts if streams * threads <= len(firsts) else rows)]
    return [frozenset(taken[i * threads : (i + 1) * threads]) for i in range(streams)]


def _place(system: Path, number: int) -> tuple[int, int]:
    """The socket of a processor, and its core there."""
    folder = system / f"cpu{number}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return 0, number
