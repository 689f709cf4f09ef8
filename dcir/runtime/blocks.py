"""Blocks of memory that live as long as a program: aligned to cache lines, in huge pages where that pays.

A matrix of weights in 4 KiB pages misses the translation cache with every row: reading 67 MB of weights ran 1.5 times faster from
2 MiB pages (shared/design/kernels.md). The kernel gives them where it is asked to, and where it has some.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
# Below this the rounding to whole pages costs more than the translation cache gains.
_HUGE_FROM = 2 * HUGE_PAGE
# Memory is planned for the largest of sizes that change, and touched as far as a call's go: more than the machine has may be asked for.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0


def in_huge_pages(t: torch.Tensor) -> None:
    """Have the whole huge pages that lie inside a tensor's storage be such; where the kernel does not want to, nothing happens."""
    storage = t.untyped_storage()
    start = -(-storage.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    size = (storage.data_ptr() + storage.nbytes() - start) // HUGE_PAGE * HUGE_PAGE
    if size > 0 and _madvise is not None:
        _madvise(start, size, mmap.MADV_HUGEPAGE)


def _find_madvise() -> Callable[[int, int, int], int] | None:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found


_madvise = _find_madvise()


class Block:
    """Memory at ``address``, given back when the object dies.

    Args:
        nbytes: its size; the contents are undefined.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._owner: object
        if nbytes >= _HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
            # Python's default is shared memory, which most systems give no huge pages, and a forked process would write into ours.
            memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self._owner, alignment = memory, HUGE_PAGE
        else:
            tensor = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
            start = tensor.data_ptr()
            self._owner, alignment = tensor, ALIGNMENT
        self.address = -(-start // alignment) * alignment


@dataclass(frozen=True)
class SharedBlock:
    """Scratch memory of all direct calls (``direct.py``), which take turns.

    Attributes:
        block: the memory.
        busy: 1 while one of them runs; it is read and written while the interpreter's lock is held.
    """

    block: Block
    busy: ctypes.c_longlong


class Arenas:
    """Scratch memory that programs use in turn: one block for each call under way, as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._idle: list[Block] = []
        self._shared: SharedBlock | None = None

    def take(self, nbytes: int) -> Block:
        """A block of at least ``nbytes`` that nobody else has; a smaller one that lay idle is given back to the system."""
        try:
            block = self._idle.pop()
        except IndexError:
            return Block(nbytes)
        if block.nbytes >= nbytes:
            return block
        del block
        return Block(nbytes)

    def shared(self, nbytes: int) -> SharedBlock:
        """Memory of at least ``nbytes`` for direct calls; those that lay idle are given up, since calls went another way until now."""
        if self._shared is None or self._shared.block.nbytes < nbytes:
            self._shared = SharedBlock(self.take(nbytes), ctypes.c_longlong(0))
        self._idle.clear()  # what the next calls do not use is not kept
        return self._shared

    def give(self, block: Block) -> None:
        """Have a block of ``take`` back."""
        self._idle.append(block)
