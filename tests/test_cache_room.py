"""The cache keeps to its bound: the least recently used go first, what is in use stays, and nobody looks through it for nothing."""

import mmap
import os
import time

import pytest

from dcir import cache as cache_module
from dcir import cache_room
from dcir.cache import Cache, key_of
from dcir.errors import OptionError

BOUND = 1 << 20


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "base", bound=BOUND)


def put(cache, name, size, *, age=0.0):
    """A file that was last used ``age`` hours ago."""
    path = cache.get_or_build("object", key_of(name), ".o", lambda to: to.write_bytes(b"x" * size))
    os.utime(cache_room.seal_of(path), (0, time.time() - 3600 * age))
    return path


def test_the_least_recently_used_go_first(cache):
    # Each is larger than the share of the bound after which room is made, and all but the last fit.
    old = [put(cache, f"old {i}", 90_000, age=20 - i) for i in range(10)]
    new = put(cache, "new", 100_000, age=0)
    put(cache, "newest", 100_000)
    assert cache.info().size <= BOUND
    assert [path.exists() for path in old] == [False, False, *[True] * 8]
    assert new.exists()
    assert not any(cache_room.seal_of(path).exists() for path in old if not path.exists())


def test_a_use_counts(cache):
    first = put(cache, "first", 500_000, age=20)
    second = put(cache, "second", 400_000, age=10)
    assert cache.path_of("object", key_of("first"), ".o") == first
    put(cache, "third", 500_000)
    assert first.exists()
    assert not second.exists()


def test_what_was_just_found_stays(cache):
    paths = [put(cache, f"{i}", 400_000, age=0.5) for i in range(6)]
    assert all(path.exists() for path in paths)


def test_what_is_loaded_stays(cache):
    loaded, other = put(cache, "loaded", 500_000, age=20), put(cache, "other", 400_000, age=10)
    with loaded.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        if loaded not in cache_room.loaded_files(cache.folder):
            pytest.skip("this system does not show what processes have loaded")
        put(cache, "third", 500_000)
        assert loaded.exists()
        assert not other.exists()
    assert loaded not in cache_room.loaded_files(cache.folder)


def test_what_is_being_built_anew_stays(cache):
    path = put(cache, "old", 900_000, age=20)
    with cache_room.lock(cache.folder, "object", path.name):
        put(cache, "new", 900_000)
    assert path.exists()


def test_files_without_a_seal_are_swept(cache):
    path, young = put(cache, "old", 900_000, age=20), put(cache, "young", 10)
    for left in (path, young):
        cache_room.seal_of(left).unlink()
    os.utime(path, (0, 0))
    cache.prune(max_bytes=BOUND)
    assert not path.exists()
    assert young.exists()


def test_nobody_looks_for_nothing(cache, monkeypatch):
    looks = []
    monkeypatch.setattr(Cache, "ls", lambda self, kind=None: looks.append(1) or [])
    for i in range(40):
        put(cache, f"{i}", 4000)
    assert len(looks) == 3  # 40 of the 12.8 that are a twentieth
    for i in range(40):
        put(cache, f"{i}", 4000)
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("text", "wanted"), [("", 5_000_000_000), ("5G", 5_000_000_000), ("1MiB", 1 << 20), ("off", None)]
)
def test_sizes(text, wanted, monkeypatch, tmp_path):
    cache_module._default.cache_clear()
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / "base"))
    monkeypatch.setenv("DCIR_CACHE_SIZE", text)
    assert Cache.default().bound == wanted


@pytest.mark.parametrize("text", ["much", "-5G", "0", "5 apples"])
def test_what_is_no_size_is_refused_by_name(text, monkeypatch):
    cache_module._default.cache_clear()
    monkeypatch.setenv("DCIR_CACHE_SIZE", text)
    with pytest.raises(OptionError, match="DCIR_CACHE_SIZE"):
        Cache.default()
