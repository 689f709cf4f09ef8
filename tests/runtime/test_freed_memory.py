"""Blocks that are freed and allocated again cost page faults until memory is kept; what the user says of malloc holds."""

import subprocess
import sys

import pytest

from dcir.runtime import freed_memory

BLOCKS = """
import resource, torch
from dcir.runtime.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.empty(24 << 20, dtype=torch.uint8).zero_() for _ in range(3)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
plain = faults()
kept = keep_freed_memory()
faults()
print(kept, plain, faults())
"""


def test_what_is_freed_is_there_for_the_next_call():
    kept, plain, after = subprocess.run(
        [sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert kept == "True"
    # 720 MB are at most 184320 pages, and 360 where the system gives huge ones.
    assert int(after) * 10 < int(plain)


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
