"""Result buffers that are used again once nobody holds them: a fresh large block costs a page fault per 4 KiB.

glibc returns large blocks to the kernel when they are freed, so a training step that allocates its activations anew
touches every page for the first time, every time. A buffer here is handed out again only when its storage has no other
owner: tensors, views, NumPy arrays and autograd's saved tensors all count as owners, so a held result never changes.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Collection, Sequence

import torch
from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined]  # not in its stub

from dcir.ops.torch_types import FROM_NAME
from dcir.runtime.blocks import in_huge_pages
from dcir.runtime.program_info import BufferInfo

# Below this the allocator serves from its own lists without page faults.
POOLED_BYTES = 1 << 20
# Buffers kept per result: one in use by the caller and one free is what loops need.
_KEPT = 2
# Room beyond what was asked for, so that sizes that grow bit by bit do not want a new block each time; nobody touches its pages.
_ROOM = 1.25
# Half the time of torch.empty_strided, which asks the dispatcher where memory is to be; that it is this machine's is known here.
_EMPTY: Callable[..., torch.Tensor] = _empty_strided_cpu

Take = Callable[[], torch.Tensor]
"""Gives a buffer that nobody else holds."""


Prepare = Callable[[torch.Tensor], None]
"""Called with every buffer when it is made."""


class BufferPool:
    """Buffers of one result."""

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, prepare: Prepare | None = None
    ) -> None:
        self.shape, self.strides, self.dtype = shape, strides, dtype
        self._prepare = prepare
        self._kept: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self) -> torch.Tensor:
        """A buffer that nobody else holds."""
        with self._lock:
            for t in self._kept:
                if _owners(t) == 1:
                    return t.detach()  # a tensor of its own, which makes its caller the second owner
            fresh = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
            if self._prepare is not None:
                self._prepare(fresh)
            if len(self._kept) == _KEPT:
                self._kept.pop(0)
            self._kept.append(fresh)
            return fresh.detach()


class SizedPool:
    """Memory for one result whose size may be another one in each call.

    Args:
        hidden: the user never sees the result. A larger block may hold it then; whoever saves or sends a tensor takes its whole block.
    """

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden
        self._kept: list[torch.Tensor] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes kept, held by others or not."""
        return sum(t.nbytes for t in self._kept)

    def take(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A buffer that nobody else holds."""
        needed = _reach(shape, strides) * dtype.itemsize
        with self._lock:
            free = [t for t in self._kept if _owners(t) == 1]
            for t in free:
                if t.numel() == needed or (self._hidden and t.numel() > needed):
                    return window(t, 0, shape, strides, dtype)
            new = torch.empty(int(needed * _ROOM) if self._hidden else needed, dtype=torch.uint8)
            if self._hidden:
                in_huge_pages(new)
            # Of what the user never sees a larger block does all that a smaller one does.
            kept = [t for t in self._kept if not (self._hidden and any(t is f for f in free))]
            self._kept = [*kept[1 - _KEPT :], new]
            return window(new, 0, shape, strides, dtype)


class SizedBuffers:
    """What gives the buffers of the results of one library, whatever the sizes of a call.

    Args:
        hidden: numbers of the results that only the library of its backward sees.
    """

    def __init__(self, hidden: Collection[int] = ()) -> None:
        self._hidden = frozenset(hidden)
        self._pools: dict[int, SizedPool] = {}

    def take(self, number: int, info: BufferInfo) -> Take:
        """What gives the buffers of the result ``number`` in calls of certain sizes."""
        if not pooled(info):
            return new_buffer(info)
        pool = self._pools.setdefault(number, SizedPool(number in self._hidden))
        return functools.partial(pool.take, info.shape, info.strides, FROM_NAME[info.dtype])

    def nbytes(self, number: int) -> int:
        """Bytes kept for a result, held by others or not."""
        return self._pools[number].nbytes if number in self._pools else 0


def new_buffer(info: BufferInfo) -> Take:
    """What gives the buffers of a result of one size."""
    dtype = FROM_NAME[info.dtype]
    if pooled(info):
        return BufferPool(info.shape, info.strides, dtype).take
    return functools.partial(_EMPTY, info.shape, info.strides, dtype)


def pooled(info: BufferInfo) -> bool:
    """Whether buffers are lent again once nobody holds them."""
    return math.prod(info.shape) * FROM_NAME[info.dtype].itemsize >= POOLED_BYTES


def window(
    block: torch.Tensor, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor in the memory of ``block``, ``offset`` bytes from its beginning, with a count of writes of its own."""
    made = torch.empty(0, dtype=dtype)
    return made.set_(block.untyped_storage(), offset // dtype.itemsize, tuple(shape), tuple(strides))


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 0


def _owners(t: torch.Tensor) -> int:
    """Tensors that share the storage of ``t``."""
    storage = t.untyped_storage()
    # The Python storage object made here counts for one.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1
