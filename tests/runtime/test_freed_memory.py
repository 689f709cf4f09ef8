"""Blocks that are freed and allocated again cost page faults until memory is kept; what the user says of malloc holds."""

import os
import subprocess
import sys

import pytest

from dcir.runtime import freed_memory

# As a layer's parameters come and go. Nothing but these blocks: what a larger process has beside them decides what malloc gives back.
BLOCKS = """
import ctypes, importlib.util, resource, sys

spec = importlib.util.spec_from_file_location("freed_memory", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def filled(megabytes):
    block = libc.malloc(megabytes << 20)
    libc.memset(block, 1, megabytes << 20)
    return block

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        whole = filled(28)
        parts = [filled(megabytes) for megabytes in (9, 9, 9, 9, 2, 2)]
        for block in (whole, *parts):
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
plain = faults()
kept = module.keep_freed_memory()
faults()
print(kept, plain, faults())
"""


def test_what_is_freed_is_there_for_the_next_call():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    kept, plain, after = subprocess.run(
        [sys.executable, "-c", BLOCKS, freed_memory.__file__],
        capture_output=True, text=True, check=True, timeout=60, env=environment,
    ).stdout.split()  # fmt: skip
    assert kept == "True"
    # 340 MB are 87040 pages of 4 KiB, and 170 where the system gives huge ones.
    assert int(plain) > 100 and int(after) * 10 < int(plain)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", False),
        ("MALLOC_MMAP_MAX_", "8", False),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072", False),
        ("GLIBC_TUNABLES", "glibc.cpu.x86_shstk=on", True),
    ],
)
def test_the_users_word_holds(monkeypatch, name, value, kept):
    said = []
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: Library(said))
    assert freed_memory.keep_freed_memory.__wrapped__() is kept
    assert bool(said) is kept


class Library:
    """glibc, as far as it is asked."""

    def __init__(self, said):
        self.mallopt = lambda what, value: said.append((what, value)) or 1
        self.gnu_get_libc_version = None


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: object())
    assert not freed_memory.keep_freed_memory.__wrapped__()
