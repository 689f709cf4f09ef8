"""The cache of built files: found by content, private to the user, safe among processes and after a kill.

Layout: ``<base>/v1/<kind>/<two letters>/<key><suffix>`` with a seal beside each file (its size and digest).
A file without a matching seal does not count, so a truncated or half-published file is simply built again.
Nothing in it is trusted unless only this user can write there. Libraries are loaded from it. Kept traces (``driver/kept``) are read as
data: objects of a list of classes (``frontends/torch/kept/objects.py``). Nothing else is unpickled, from here or from anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcir.cache_room import (
    SEAL,
    SIZE_NAME,
    TOUCH_AFTER_SECONDS,
    bound_from,
    lock,
    make_room,
    published,
    remove,
    seal_of,
    sweep,
)
from dcir.errors import CacheUnavailable
from dcir.user_code import warn_user

_LOG = logging.getLogger(__name__)

ENVIRONMENT_NAME = "DCIR_CACHE_DIR"
_VERSION = "v1"
_LOCKS_AT_ONCE = 256  # each held lock is an open file, and 1024 of those is a common limit
_MIN_FREE_BYTES = 32 << 20
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK})
_KIND = re.compile(r"[a-z]+")
_KEY = re.compile(r"[A-Za-z0-9_-]{4,128}")
_SUFFIX = re.compile(r"(\.[A-Za-z0-9]+)+")


def key_of(*parts: str | bytes) -> str:
    """The blake2b address of a list of texts; lengths are hashed too, so that no two lists look alike."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class CacheEntry:
    """One cached file: its kind, key and suffix, its size in bytes and when it was last used (Unix seconds).

    Files with equal ``identity`` are one file under several names and take its room once.
    """

    kind: str
    key: str
    suffix: str
    size: int
    used: float
    path: Path
    identity: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class CacheInfo:
    """Where the cache is and what it holds: files and bytes, in all and per kind."""

    folder: Path
    files: int
    size: int
    by_kind: Mapping[str, tuple[int, int]]
    temporary: bool


class Cache:
    """Files built once per key, shared by all processes of one user."""

    def __init__(self, base: Path, *, temporary: bool = False, bound: int | None = None) -> None:
        """A cache under `base` of at most `bound` bytes.

        Raises:
            CacheUnavailable: The folder cannot be made private to this user.
        """
        self.folder = _private_folder(base)
        self.temporary, self.bound = temporary, bound

    @staticmethod
    def default() -> Cache:
        """The user's cache, or a private temporary one (with one warning) where that is not possible.

        Raises:
            OptionError: ``DCIR_CACHE_SIZE`` is no size.
        """
        return _default(os.environ.get(ENVIRONMENT_NAME, ""), os.environ.get(SIZE_NAME, ""))

    def path_of(self, kind: str, key: str, suffix: str) -> Path | None:
        """The intact file of a key, or None."""
        path = self._place(kind, key, suffix)
        seal = seal_of(path)
        # Marked first: who makes room then sees that it is wanted.
        with contextlib.suppress(OSError):
            if time.time() - seal.stat().st_mtime > TOUCH_AFTER_SECONDS:
                os.utime(seal)
        return path if _intact(path) else None

    def get_or_build(self, kind: str, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """The file of a key; `build` writes it to the path it is given unless another process has or does.

        Returns:
            A path whose content was checked. An exception of `build` passes through and leaves nothing behind.
        """
        return self.get_or_build_many(kind, [key], suffix, lambda missing: build(missing[key]))[key]

    def get_or_build_many(
        self, kind: str, keys: Sequence[str], suffix: str, build: Callable[[dict[str, Path]], None]
    ) -> dict[str, Path]:
        """The files of many keys; `build` gets the missing keys with the paths to write, at most a few hundred a call.

        Keys that another process is building are waited for, not built twice.
        """
        wanted = sorted(set(keys))
        found: dict[str, Path] = {}
        missing: list[str] = []
        for key in wanted:
            path = self.path_of(kind, key, suffix)
            if path is None:
                missing.append(key)
            else:
                found[key] = path
        _LOG.debug("%s: %d of %d in the cache", kind, len(found), len(wanted))
        if not missing:
            return found
        if not self.temporary and _is_full(self.folder):
            return found | self._spare("the disk is full").get_or_build_many(kind, missing, suffix, build)
        try:
            for start in range(0, len(missing), _LOCKS_AT_ONCE):
                found |= self._build(kind, missing[start : start + _LOCKS_AT_ONCE], suffix, build)
        except OSError as error:
            if self.temporary or error.errno not in _NO_ROOM:
                raise
            rest = [key for key in missing if key not in found]
            found |= self._spare(str(error)).get_or_build_many(kind, rest, suffix, build)
        return found

    def read(self, kind: str, key: str, suffix: str) -> bytes | None:
        """The content of a key's intact file, or None."""
        path = self.path_of(kind, key, suffix)
        return path.read_bytes() if path is not None else None

    def change(self, kind: str, key: str, suffix: str, changed: Callable[[bytes | None], bytes]) -> None:
        """Put what ``changed`` makes of a key's content in its place; of processes that do so at once each sees what the others did.

        Where nothing can be written nothing happens: it is for what can be made again.
        """
        place = self._place(kind, key, suffix)
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock(self.folder, kind, key + suffix):
                draft = _draft_of(place)
                try:
                    draft.write_bytes(changed(place.read_bytes() if _intact(place) else None))
                    _publish(draft, place)
                finally:
                    draft.unlink(missing_ok=True)
            if self.bound is not None and published(self.folder, [place.stat().st_size], self.bound):
                make_room(self.folder, self.ls, self.bound)

    def place_of(self, path: Path) -> tuple[str, str, str] | None:
        """Kind, key and suffix of a file in it; None for another one."""
        try:
            kind, _, name = path.relative_to(self.folder).parts
        except ValueError:
            return None
        key, _, suffix = name.partition(".")
        return kind, key, "." + suffix

    def private_folder(self, name: str) -> Path:
        """A folder inside the cache for files that are kept to be looked at, such as refused sources."""
        path = self.folder / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def ls(self, kind: str | None = None) -> list[CacheEntry]:
        """All sealed files, the least recently used first."""
        entries = []
        for seal in self.folder.glob(f"{kind or '*'}/*/*{SEAL}"):
            path = seal.with_name(seal.name.removesuffix(SEAL))
            if path.name.startswith("."):
                continue  # the seal of a draft
            with contextlib.suppress(OSError):
                key, _, suffix = path.name.partition(".")
                kind_of_file = path.parent.parent.name
                state, used = path.stat(), seal.stat().st_mtime
                identity = (state.st_dev, state.st_ino)
                entries.append(CacheEntry(kind_of_file, key, "." + suffix, state.st_size, used, path, identity))
        return sorted(entries, key=lambda entry: (entry.used, entry.path))

    def info(self) -> CacheInfo:
        """Number and bytes of the cached files."""
        by_kind: dict[str, tuple[int, int]] = {}
        entries = self.ls()
        names = Counter(entry.identity for entry in entries)
        total = 0
        for entry in entries:
            files, size = by_kind.get(entry.kind, (0, 0))
            names[entry.identity] -= 1
            room = 0 if names[entry.identity] else entry.size
            by_kind[entry.kind] = (files + 1, size + room)
            total += room
        return CacheInfo(self.folder, len(entries), total, by_kind, self.temporary)

    def prune(self, *, max_bytes: int | None = None, older_than: float | None = None) -> list[CacheEntry]:
        """Remove files not used for `older_than` seconds, then the least recently used above `max_bytes`.

        Leftovers of killed processes go too. A library that is loaded somewhere keeps working there.

        Returns:
            What was removed.
        """
        now = time.time()

        def wanted(entry: CacheEntry, total: int) -> bool:
            too_old = older_than is not None and now - entry.used > older_than
            return too_old or (max_bytes is not None and total > max_bytes)

        removed = remove(self.folder, self.ls(), wanted)
        sweep(self.folder, now)
        return removed

    def clear(self) -> list[CacheEntry]:
        """Remove every file."""
        removed = self.prune(older_than=-1.0)
        shutil.rmtree(self.folder / "failed", ignore_errors=True)
        return removed

    def _place(self, kind: str, key: str, suffix: str) -> Path:
        if not (_KIND.fullmatch(kind) and _KEY.fullmatch(key) and _SUFFIX.fullmatch(suffix)):
            raise ValueError(f"not a place in the cache: {kind!r}, {key!r}, {suffix!r}")
        return self.folder / kind / key[:2] / (key + suffix)

    def _build(
        self, kind: str, keys: Sequence[str], suffix: str, build: Callable[[dict[str, Path]], None]
    ) -> dict[str, Path]:
        places = {key: self._place(kind, key, suffix) for key in keys}
        with contextlib.ExitStack() as locks:
            # Keys come sorted: two processes with overlapping sets can then not wait for each other.
            for key, place in places.items():
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                locks.enter_context(lock(self.folder, kind, key + suffix))
            missing = {key: place for key, place in places.items() if not _intact(place)}
            if missing:
                drafts = {key: _draft_of(place) for key, place in missing.items()}
                try:
                    build(dict(drafts))
                    for key, place in missing.items():
                        _publish(drafts[key], place)
                finally:
                    for draft in drafts.values():
                        draft.unlink(missing_ok=True)
        if missing and self.bound is not None and not self.temporary:
            with contextlib.suppress(OSError):  # what was built is there
                if published(self.folder, [place.stat().st_size for place in missing.values()], self.bound):
                    make_room(self.folder, self.ls, self.bound)
        return places

    def _spare(self, reason: str) -> Cache:
        _warn_once(f"dcir cannot write to its cache {self.folder} ({reason}); this process keeps its code elsewhere")
        return _temporary()


def _draft_of(place: Path) -> Path:
    """A new name in the folder of `place`; what a killed process left for the same key is removed, we hold its lock."""
    prefix = f".draft-{place.name}-"
    for left in place.parent.glob(f"{prefix}*"):
        left.unlink(missing_ok=True)
    return place.parent / f"{prefix}{os.getpid()}-{threading.get_ident()}"


def _publish(draft: Path, place: Path) -> None:
    """Move a finished file to its place; readers see the old state or the new one, never a part."""
    descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, 0o700 if place.suffix == ".so" else 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    seal = draft.with_name(draft.name + SEAL)
    try:
        seal.write_text(_seal_text(draft))
        os.replace(draft, place)
        # A kill between the two moves leaves a file with a seal that is missing or does not match: built again.
        os.replace(seal, seal_of(place))
    finally:
        seal.unlink(missing_ok=True)


def _seal_text(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20))
    return f"{path.stat().st_size} {digest.hexdigest()}\n"


def _intact(path: Path) -> bool:
    """Whether a file is ours, sealed, and as it was when it was sealed."""
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
            return False
        expected = seal_of(path).read_text()
        return expected.split(" ")[0] == str(state.st_size) and expected == _seal_text(path)
    except (OSError, UnicodeDecodeError):
        return False


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    except OSError:
        return False


def _private_folder(base: Path) -> Path:
    """Make and check ``base/v1``: a folder of this user, mode 0700, that nobody else can replace."""
    if not base.is_absolute():
        raise CacheUnavailable(
            "the cache folder must be an absolute path", where=str(base), hint=f"{ENVIRONMENT_NAME}=$PWD/{base}"
        )
    folder = base / _VERSION
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_base(base)
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
            raise CacheUnavailable("the cache folder belongs to someone else", where=str(folder), hint=_ELSEWHERE)
        if state.st_mode & 0o022:
            # Others could have put or swapped files here, so what it holds is not used any more.
            aside = Path(tempfile.mkdtemp(prefix=f"{_VERSION}-distrusted-", dir=base))
            os.rename(folder, aside / _VERSION)
            folder.mkdir(mode=0o700)
            shutil.rmtree(aside, ignore_errors=True)
            _warn_once(f"others could write to dcir's cache {folder}; it was emptied and made private")
        elif state.st_mode & 0o077:
            folder.chmod(0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CacheUnavailable("the cache folder is not writable", where=str(folder), hint=_ELSEWHERE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheUnavailable(
            f"the cache folder cannot be used: {reason}", where=str(folder), hint=_ELSEWHERE
        ) from error
    return folder


_ELSEWHERE = f"set {ENVIRONMENT_NAME} to a folder of your own"


def _check_base(base: Path) -> None:
    state = base.stat()
    if state.st_uid not in (os.geteuid(), 0):
        raise CacheUnavailable("the cache folder belongs to someone else", where=str(base), hint=_ELSEWHERE)
    if state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX:
        raise CacheUnavailable("others can write to the cache folder", where=str(base), hint=f"chmod go-w {base}")


@functools.lru_cache(maxsize=8)
def _default(setting: str, size: str) -> Cache:
    bound = bound_from(size)
    try:
        if setting:
            return Cache(Path(setting), bound=bound)
        import platformdirs

        return Cache(Path(platformdirs.user_cache_dir("dcir", appauthor=False)), bound=bound)
    except CacheUnavailable as error:
        _warn_once(f"{error}\ndcir keeps compiled code in a temporary folder for this process only")
        return _temporary()


@functools.lru_cache(maxsize=1)
def _temporary() -> Cache:
    try:
        folder = tempfile.mkdtemp(prefix="dcir-")
    except OSError as error:
        raise CacheUnavailable(
            "no folder can be written to, not even a temporary one", where=tempfile.gettempdir(), hint=_ELSEWHERE
        ) from error
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child must not take its parent's files away
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Cache(Path(folder), temporary=True)


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warn_user(text, RuntimeWarning)
