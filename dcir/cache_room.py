"""How much room the cache may take: the bound, what goes first, what must not go, and what killed processes left.

Nobody looks through the folder while code is made. Whoever publishes files appends a byte for every 4 KiB to a tally, and where that has
grown by a twentieth of the bound, files are removed until a twentieth is free again, those least recently used first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from dcir.errors import OptionError
from dcir.options import parse_size

SIZE_NAME = "DCIR_CACHE_SIZE"
USUAL_BYTES = 5_000_000_000
SEAL = ".seal"
TOUCH_AFTER_SECONDS = 900.0
"""A file that is used is marked so at most this often."""
KEPT_SECONDS = 4 * TOUCH_AFTER_SECONDS
"""A file that was found in this time may be about to be linked or loaded."""
_STALE_AFTER_SECONDS = 3600.0
_TALLY, _UNIT, _SHARE = "tally", 4096, 20


class Kept(Protocol):
    """What is known of a cached file, see ``cache.CacheEntry``."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def size(self) -> int: ...
    @property
    def used(self) -> float: ...
    @property
    def identity(self) -> tuple[int, int]: ...


E = TypeVar("E", bound=Kept)


def bound_from(text: str) -> int | None:
    """Bytes from a setting such as "5G", or the usual ones if it is empty; None, which is no bound, from "off".

    Raises:
        OptionError: it is no size.
    """
    text = text.strip()
    if text.lower() == "off":
        return None
    try:
        return parse_size(text) if text else USUAL_BYTES
    except OptionError as error:
        raise OptionError(
            f"{text!r} is no size of the cache", where=SIZE_NAME, hint="a size such as 5G or 512MB, or off"
        ) from error


def published(folder: Path, sizes: Sequence[int], bound: int) -> bool:
    """Note files that were published; whether it is time to make room."""
    try:
        descriptor = os.open(folder / _TALLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # not a reason to lose what was built
        return False
    try:
        os.write(descriptor, b"." * sum(-(-size // _UNIT) for size in sizes))
        return os.fstat(descriptor).st_size * _UNIT >= bound // _SHARE
    finally:
        os.close(descriptor)


def make_room(folder: Path, list_files: Callable[[], Sequence[E]], bound: int) -> list[E]:
    """Remove the least recently used files until a cache is a twentieth below its bound; the one process that does so.

    Files that were found in the last hour stay, and those that a process has loaded.

    Returns:
        What was removed.
    """
    import filelock

    with contextlib.suppress(filelock.Timeout, NotImplementedError), lock(folder, "room", _TALLY, blocking=False):
        (folder / _TALLY).unlink(missing_ok=True)
        latest, loaded = time.time() - KEPT_SECONDS, loaded_files(folder)
        removed = remove(
            folder, list_files(), lambda entry, total: total > bound - bound // _SHARE and entry.used < latest, loaded
        )
        sweep(folder, time.time())
        return removed
    return []


def remove(
    folder: Path, entries: Sequence[E], wanted: Callable[[E, int], bool], kept: Collection[Path] = ()
) -> list[E]:
    """Remove files, and their seals first, each under its lock unless somebody uses it meanwhile.

    Args:
        folder: of the cache.
        entries: all of its files in the order in which they may go.
        wanted: whether one is to go, from itself and the bytes that are left. A file of several names takes its room once.
        kept: files that stay in any case.
    """
    import filelock

    names = Counter(entry.identity for entry in entries)
    total = sum({entry.identity: entry.size for entry in entries}.values())
    removed = []
    for entry in entries:
        if not wanted(entry, total) or entry.path in kept:
            continue
        seal = seal_of(entry.path)
        with contextlib.suppress(filelock.Timeout), lock(folder, entry.kind, entry.path.name, blocking=False):
            # Whoever has found it since has marked it, and whoever has built it anew has sealed it anew.
            if not seal.exists() or seal.stat().st_mtime != entry.used:
                continue
            seal.unlink(missing_ok=True)
            entry.path.unlink(missing_ok=True)
            names[entry.identity] -= 1
            total -= 0 if names[entry.identity] else entry.size
            removed.append(entry)
    return removed


def loaded_files(folder: Path, processes: Path = Path("/proc")) -> set[Path]:
    """Files of a cache that a process of this user has in memory, as far as this system shows it."""
    found, inside = set(), os.path.realpath(folder) + os.sep
    for maps in processes.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # another user's, or it has just ended
            for line in maps.read_text(errors="replace").splitlines():
                at = line.find(inside)
                if at >= 0:
                    found.add(folder / line[at + len(inside) :])
    return found


def sweep(folder: Path, now: float) -> None:
    """Remove drafts of killed processes, files whose seal is gone, and lock files that nobody holds."""
    import filelock

    for path in [*folder.glob("*/??/*"), *folder.glob("*/??/.draft-*"), *folder.glob("locks/*")]:
        with contextlib.suppress(OSError, filelock.Timeout):
            if now - path.stat().st_mtime < _STALE_AFTER_SECONDS:
                continue
            if path.parent.name != "locks":
                if path.name.startswith(".draft-") or not (path.name.endswith(SEAL) or seal_of(path).exists()):
                    path.unlink()
                continue
            # Whoever opened the file before it goes sees that it has no name any more, and starts over.
            with filelock.FileLock(path, blocking=False):
                path.unlink()


def seal_of(path: Path) -> Path:
    """Where the seal of a file lies."""
    return path.with_name(path.name + SEAL)


@contextlib.contextmanager
def lock(folder: Path, kind: str, name: str, *, blocking: bool = True) -> Iterator[None]:
    """The lock of one key, among processes.

    Raises:
        filelock.Timeout: another has it, and ``blocking`` is not set.
        OSError: the file system has no locks.
    """
    import filelock  # costs 15 ms, and a warm start needs no lock

    locks = folder / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)
    try:
        with filelock.FileLock(locks / f"{kind}-{name}", mode=0o600, poll_interval=0.01, blocking=blocking):
            yield
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, "the file system has no locks") from error
