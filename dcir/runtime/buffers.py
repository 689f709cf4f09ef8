"""Result buffers that are used again once nobody holds them: a fresh large block costs a page fault per 4 KiB.

glibc returns large blocks to the kernel when they are freed, so a training step that allocates its activations anew
touches every page for the first time, every time. A buffer here is handed out again only when its storage has no other
owner: tensors, views, NumPy arrays, autograd's saved tensors and whoever has the storage itself all count as owners, so a held result
never changes. Owners in other processes do not count: a buffer whose memory was moved to where they can be, resized or freed is given up.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

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
        self._kept: list[_Lent] = []
        self._lock = threading.Lock()

    def take(self) -> torch.Tensor:
        """A buffer that nobody else holds."""
        with self._lock:
            for lent in self._kept:
                if lent.free():
                    return self._handed_out(lent.tensor)
            fresh = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
            if self._prepare is not None:
                self._prepare(fresh)
            self._kept = [*_in_place(self._kept)[1 - _KEPT :], _lent(fresh)]
            return self._handed_out(fresh)

    def _handed_out(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor of its own, which makes its caller the second owner."""
        if t.is_inference() == torch.is_inference_mode_enabled():
            return t.detach()
        return window(t, 0, self.shape, self.strides, self.dtype)  # a view is of the kind of what it is a view of


class SizedPool:
    """Memory for one result whose size may be another one in each call.

    Args:
        hidden: the user never sees the result. A larger block may hold it then; whoever saves or sends a tensor takes its whole block.
    """

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden
        self._kept: list[_Lent] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes kept, held by others or not."""
        return sum(lent.nbytes for lent in self._kept)

    def take(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A buffer that nobody else holds."""
        needed = _reach(shape, strides) * dtype.itemsize
        with self._lock:
            free = [lent for lent in self._kept if lent.free()]
            for lent in free:
                if lent.nbytes == needed or (self._hidden and lent.nbytes > needed):
                    return window(lent.tensor, 0, shape, strides, dtype)
            new = torch.empty(int(needed * _ROOM) if self._hidden else needed, dtype=torch.uint8)
            if self._hidden:
                in_huge_pages(new)
            # Of what the user never sees a larger block does all that a smaller one does.
            kept = [lent for lent in _in_place(self._kept) if not (self._hidden and any(lent is f for f in free))]
            self._kept = [*kept[1 - _KEPT :], _lent(new)]
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


@dataclass(frozen=True)
class _Lent:
    """A buffer that is handed out again and again, and where its memory was when it was made."""

    tensor: torch.Tensor
    address: int
    nbytes: int

    def in_place(self) -> bool:
        """Whether the memory is what it was: sharing it with other processes moves it, as resizing it may."""
        storage = self.tensor.untyped_storage()
        return storage.data_ptr() == self.address and storage.nbytes() == self.nbytes

    def free(self) -> bool:
        """Whether nobody else holds the memory, which is what it was."""
        return self.in_place() and _alone(self.tensor)


def _lent(t: torch.Tensor) -> _Lent:
    storage = t.untyped_storage()
    return _Lent(t, storage.data_ptr(), storage.nbytes())


def _in_place(kept: Sequence[_Lent]) -> list[_Lent]:
    return [lent for lent in kept if lent.in_place()]


def _alone(t: torch.Tensor) -> bool:
    """Whether nobody but ``t`` has its storage."""
    return _holders(t) == _nobody_else()


def _holders(t: torch.Tensor) -> tuple[int, int]:
    """Owners of a storage in C++, and in Python, where it is one object for everybody."""
    storage = t.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)), sys.getrefcount(storage)


@functools.cache
def _nobody_else() -> tuple[int, int]:
    """``_holders`` of a tensor that is alone: what of them is torch's and ours differs between its versions."""
    return _holders(_EMPTY((1,), (1,), torch.uint8))
