"""Result buffers that are used again once nobody holds them: a fresh large block costs a page fault per 4 KiB.

glibc returns large blocks to the kernel when they are freed, so a training step that allocates its activations anew
touches every page for the first time, every time. A buffer here is handed out again only when its storage has no other
owner: tensors, views, NumPy arrays and autograd's saved tensors all count as owners, so a held result never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

# Below this the allocator serves from its own lists without page faults.
POOLED_BYTES = 1 << 20
# Buffers kept per result: one in use by the caller and one free is what loops need.
_KEPT = 2


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


def _owners(t: torch.Tensor) -> int:
    """Tensors that share the storage of ``t``."""
    storage = t.untyped_storage()
    # The Python storage object made here counts for one.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1
