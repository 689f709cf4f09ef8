"""How many processors this process may use: those it may run on, and the time that control groups allow.

A container with ``--cpus=2`` sees all processors of its machine; that it may use two of them at a time is a quota of its group, or of one
above it. A team of more threads than that is stopped in the middle of its kernels, all of it, until the next period begins.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_threads(root: Path = Path("/")) -> int:
    """Hardware threads this process may use at a time; parts of one are rounded up.

    Args:
        root: where ``proc`` and the control groups lie.
    """
    allowed = runnable_threads()
    found = quota(root)
    return allowed if found is None else max(1, min(allowed, math.ceil(found)))


def runnable_threads() -> int:
    """Hardware threads this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(root: Path = Path("/")) -> float | None:
    """Processors whose time the control groups of this process allow; None if none of them limits it."""
    allowed = []
    for folder, top in _groups(root):
        # What a group allows, those above it may not.
        for group in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):
                allowed.append(_allowed(group))
            if group == top:
                break
    return min((share for share in allowed if share is not None), default=None)


def _allowed(group: Path) -> float | None:
    """Of one group, in either version of their files."""
    new = group / "cpu.max"
    if new.exists():
        time, period = new.read_text().split()
        return None if time == "max" else int(time) / int(period)
    time = (group / "cpu.cfs_quota_us").read_text()
    return None if int(time) <= 0 else int(time) / int((group / "cpu.cfs_period_us").read_text())


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """The folders of this process's groups that may limit its time, each with the uppermost that is visible."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths = {}
    for line in memberships:
        number, controllers, path = line.split(":", 2)
        if number == "0" or "cpu" in controllers.split(","):
            paths["cgroup2" if number == "0" else "cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        shown, place = (text.replace("\\040", " ") for text in before.split()[3:5])
        kind, _, settings = after.split(" ", 2)
        if kind not in paths or (kind == "cgroup" and "cpu" not in settings.split()[-1].split(",")):
            continue
        top = root / place.lstrip("/")
        # A container may see its own group as the uppermost one, whatever its path is outside.
        inside = os.path.relpath(paths[kind], shown)
        yield (top if inside == "." or inside.startswith("..") else top / inside), top
