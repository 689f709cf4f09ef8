"""Blocks of memory: aligned, and a process's own."""

import ctypes
import os
import sys

import pytest

from dcir.runtime.blocks import ALIGNMENT, HUGE_PAGE, Block


@pytest.mark.parametrize("nbytes", [100, 1 << 20, 3 * HUGE_PAGE])
def test_alignment(nbytes: int) -> None:
    block = Block(nbytes)
    assert block.address % (HUGE_PAGE if nbytes > 2 * HUGE_PAGE else ALIGNMENT) == 0
    ctypes.memset(block.address, 1, nbytes)


@pytest.mark.skipif(sys.platform != "linux", reason="what other systems do with it is not known")
def test_more_than_there_is_may_be_asked_for() -> None:
    """Of which what is touched counts."""
    block = Block(1 << 42)
    ctypes.memset(block.address + (1 << 41), 1, 100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("nbytes", [100, 3 * HUGE_PAGE])
def test_a_forked_process_writes_into_memory_of_its_own(nbytes: int) -> None:
    block = Block(nbytes)
    first = ctypes.c_char.from_address(block.address)
    first.value = b"a"
    child = os.fork()
    if child == 0:
        first.value = b"b"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert first.value == b"a"
