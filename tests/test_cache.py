"""The cache builds once among processes, survives kills and damage, and trusts no folder that others can write."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest

from dcir import cache as cache_module
from dcir.cache import Cache, key_of
from dcir.errors import CacheUnavailable

KEY = key_of("something")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "base")


@pytest.fixture(autouse=True)
def fresh_defaults(monkeypatch):
    cache_module._default.cache_clear()
    cache_module._temporary.cache_clear()
    monkeypatch.setattr(cache_module, "_warned", set())


def write(text="content"):
    return lambda path: path.write_text(text) and None


def start(code, *arguments):
    run = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(run, stdout=subprocess.PIPE, text=True)


def test_keys_do_not_confuse_neighbours():
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("a") == key_of(b"a")


def test_built_once_then_found(cache):
    calls = []
    for _ in range(2):
        path = cache.get_or_build("object", KEY, ".o", lambda draft: (calls.append(1), draft.write_text("x"))[0])
    assert calls == [1]
    assert path.read_text() == "x"
    assert cache.path_of("object", KEY, ".o") == path
    assert cache.path_of("object", key_of("else"), ".o") is None


def test_modes(cache):
    path = cache.get_or_build("library", KEY, ".so", write())
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o700
    assert cache.get_or_build("object", KEY, ".o", write()).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["", "short", "CONTENT", "content and more"])
def test_a_damaged_file_is_rebuilt(cache, damage):
    path = cache.get_or_build("object", KEY, ".o", write())
    path.write_text(damage)
    assert cache.path_of("object", KEY, ".o") is None
    assert cache.get_or_build("object", KEY, ".o", write()).read_text() == "content"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"7\n"])
def test_a_damaged_seal_means_rebuilt(cache, damage):
    path = cache.get_or_build("object", KEY, ".o", write())
    path.with_name(path.name + ".seal").write_bytes(damage)
    assert cache.path_of("object", KEY, ".o") is None
    assert cache.get_or_build("object", KEY, ".o", write("again")).read_text() == "again"


def test_a_link_or_a_file_that_others_may_write_does_not_count(cache, tmp_path):
    path = cache.get_or_build("library", KEY, ".so", write())
    path.chmod(0o777)
    assert cache.path_of("library", KEY, ".so") is None
    path.chmod(0o700)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert cache.path_of("library", KEY, ".so") is None


def test_a_failing_build_leaves_nothing(cache):
    def fail(draft):
        draft.write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get_or_build("object", KEY, ".o", fail)
    assert list(cache.folder.glob("object/*/*")) == []


def test_many_keys_build_only_what_is_missing(cache):
    keys = [key_of(str(number)) for number in range(600)]
    cache.get_or_build("object", keys[3], ".o", write("old"))
    asked = []

    def build(missing):
        asked.extend(missing)
        for key, draft in missing.items():
            draft.write_text(key)

    paths = cache.get_or_build_many("object", keys, ".o", build)
    assert sorted(asked) == sorted(set(keys) - {keys[3]})
    assert {key: path.read_text() for key, path in paths.items()} == {key: key for key in keys} | {keys[3]: "old"}


BUILD = """
    import sys, time
    from pathlib import Path
    from dcir.cache import Cache
    base, log, key, seconds = sys.argv[1:]
    def build(draft):
        with open(log, "a") as file:
            file.write("built\\n")
        draft.write_text("half")
        time.sleep(float(seconds))
        draft.write_text("whole")
    print(Cache(Path(base)).get_or_build("object", key, ".o", build).read_text())
"""


def test_processes_that_want_the_same_key_build_it_once(tmp_path):
    log = tmp_path / "log"
    running = [start(BUILD, tmp_path / "base", log, KEY, 0.5) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["whole"] * 3
    assert log.read_text() == "built\n"


def test_threads_that_want_the_same_key_build_it_once(cache):
    calls, found = [], []

    def build(draft):
        calls.append(1)
        time.sleep(0.05)
        draft.write_text("x")

    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_build("object", KEY, ".o", build))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 6


def test_a_kill_in_the_middle_of_a_build_breaks_nothing(tmp_path):
    log = tmp_path / "log"
    process = start(BUILD, tmp_path / "base", log, KEY, 60)
    while not list((tmp_path / "base").glob("v1/object/*/.draft-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = Cache(tmp_path / "base")
    assert cache.path_of("object", KEY, ".o") is None
    assert cache.get_or_build("object", KEY, ".o", write("next")).read_text() == "next"
    assert list(cache.folder.glob("object/*/.draft-*")) == []


def test_a_base_that_others_can_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(CacheUnavailable, match="others can write") as caught:
        Cache(tmp_path)
    assert caught.value.hint == f"chmod go-w {tmp_path}"
    tmp_path.chmod(0o1777)
    Cache(tmp_path)


def test_a_cache_that_others_could_write_is_emptied_and_made_private(tmp_path):
    cache = Cache(tmp_path)
    cache.get_or_build("library", KEY, ".so", write("planted"))
    cache.folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="emptied and made private"):
        again = Cache(tmp_path)
    assert again.folder.stat().st_mode & 0o777 == 0o700
    assert again.path_of("library", KEY, ".so") is None
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_someone_else_is_refused(tmp_path):
    (tmp_path / "v1").mkdir()
    os.chown(tmp_path / "v1", 65534, 65534)
    with pytest.raises(CacheUnavailable, match="belongs to someone else"):
        Cache(tmp_path)


def test_a_relative_folder_is_refused_and_work_goes_on_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DCIR_CACHE_DIR", "here")
    with pytest.warns(RuntimeWarning, match="absolute path"):
        cache = Cache.default()
    assert cache.temporary
    assert cache.get_or_build("object", KEY, ".o", write()).read_text() == "content"
    assert list(tmp_path.iterdir()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache.default() is cache


def test_a_place_that_is_no_folder_is_warned_about_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DCIR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="temporary folder"):
        cache = Cache.default()
    assert cache.get_or_build("object", KEY, ".o", write()).read_text() == "content"


@pytest.mark.parametrize("number", [28, 30, 13])
def test_a_disk_that_refuses_is_left_with_a_warning(cache, monkeypatch, number):
    def refuse(draft, place):
        if str(cache.folder) in str(draft):
            raise OSError(number, os.strerror(number))
        publish(draft, place)

    publish = cache_module._publish
    monkeypatch.setattr(cache_module, "_publish", refuse)
    with pytest.warns(RuntimeWarning, match="elsewhere"):
        path = cache.get_or_build("object", KEY, ".o", write())
    assert path.read_text() == "content"
    assert cache.folder not in path.parents


def test_a_full_disk_is_not_even_tried(cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_is_full", lambda folder: True)
    with pytest.warns(RuntimeWarning, match="full"):
        path = cache.get_or_build("object", KEY, ".o", write())
    assert cache.folder not in path.parents


def test_temporary_folder_goes_with_the_process(tmp_path):
    code = """
        import os, warnings
        warnings.simplefilter("ignore")
        os.environ["DCIR_CACHE_DIR"] = "relative"
        from dcir.cache import Cache
        print(Cache.default().folder)
    """
    folder = start(code).communicate()[0].strip()
    assert folder
    assert not Path(folder).parent.exists()


def test_info_and_prune(cache):
    keys = [key_of(str(number)) for number in range(4)]
    for age, key in enumerate(keys):
        path = cache.get_or_build("object", key, ".o", write("x" * 100))
        os.utime(path.with_name(path.name + ".seal"), (0, time.time() - 1000 * age))
    info = cache.info()
    assert (info.files, info.size, info.by_kind) == (4, 400, {"object": (4, 400)})
    assert [entry.key for entry in cache.prune(older_than=2500)] == [keys[3]]
    assert [entry.key for entry in cache.prune(max_bytes=150)] == [keys[2], keys[1]]
    assert [(entry.kind, entry.key, entry.suffix) for entry in cache.ls()] == [("object", keys[0], ".o")]
    assert len(cache.clear()) == 1
    assert cache.ls() == []


def test_one_file_under_several_names_takes_its_room_once(cache):
    keys = sorted(key_of(str(number)) for number in range(3))

    def build(missing):
        missing[keys[0]].write_text("x" * 100)
        for key in keys[1:]:
            os.link(missing[keys[0]], missing[key])

    paths = cache.get_or_build_many("object", keys, ".o", build)
    cache.get_or_build("library", KEY, ".so", write("x" * 10))
    info = cache.info()
    assert (info.files, info.size, info.by_kind) == (4, 110, {"object": (3, 100), "library": (1, 10)})
    os.utime(paths[keys[1]].with_name(paths[keys[1]].name + ".seal"), (0, 0))
    assert [entry.key for entry in cache.prune(older_than=1000)] == [keys[1]]
    assert cache.info().size == 110
    assert paths[keys[0]].read_text() == "x" * 100
    cache.prune(max_bytes=100)
    assert cache.info().size <= 100


def test_prune_sweeps_what_killed_processes_left(cache):
    path = cache.get_or_build("object", KEY, ".o", write())
    draft = path.parent / ".draft-old"
    draft.write_text("half")
    lock = next(cache.folder.glob("locks/*"))
    for left in (draft, lock):
        os.utime(left, (0, 0))
    assert cache.prune(max_bytes=1000) == []
    assert not draft.exists()
    assert not lock.exists()
    assert path.exists()


@pytest.mark.parametrize(
    ("kind", "key", "suffix"), [("../x", KEY, ".o"), ("object", "../../etc", ".o"), ("object", KEY, "/x")]
)
def test_names_cannot_leave_the_folder(cache, kind, key, suffix):
    with pytest.raises(ValueError, match="not a place"):
        cache.path_of(kind, key, suffix)


def test_a_content_that_is_changed_builds_on_the_one_before(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.read("traces", "abcdef", ".trace") is None
    for part in (b"one", b"two"):
        cache.change("traces", "abcdef", ".trace", lambda old, part=part: (old or b"") + part)  # type: ignore[misc]
    assert cache.read("traces", "abcdef", ".trace") == b"onetwo"
    path = cache.path_of("traces", "abcdef", ".trace")
    assert path is not None and cache.place_of(path) == ("traces", "abcdef", ".trace")
    path.write_bytes(b"another")  # by somebody who does not seal it
    assert cache.read("traces", "abcdef", ".trace") is None
    cache.change("traces", "abcdef", ".trace", lambda old: b"none" if old is None else old)
    assert cache.read("traces", "abcdef", ".trace") == b"none"
    assert cache.place_of(tmp_path / "elsewhere") is None
