"""Blocks that what a forward keeps, its backward's values and its gradients use one after the other.

The forward's program writes what it keeps into windows of these blocks; the backward's finds its other values by offsets from those
windows, and gives a gradient that lies at the beginning of a block the block's memory. A block is used again when no tensor is left
in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dcir.runtime.blocks import in_huge_pages
from dcir.runtime.buffers import BufferPool, window

BlockOffset = tuple[int, int]
"""Number of a block, and a byte offset in it."""


class BackwardBlocks:
    """The blocks of one backward graph.

    Attributes:
        arguments: where the backward's arguments lie, by number.
        buffers: where the forward's buffers lie, by number.
    """

    def __init__(
        self, sizes: Sequence[int], arguments: Mapping[int, BlockOffset], buffers: Mapping[int, BlockOffset]
    ) -> None:
        self.arguments, self.buffers = dict(arguments), dict(buffers)
        self._sizes = tuple(sizes)
        # What tells of it in another process, where it has blocks of its own.
        self._made_of = tuple(sizes), dict(arguments), dict(buffers)
        self._pools = [BufferPool((n,), (1,), torch.uint8, in_huge_pages) for n in sizes]
        # Per block the arguments in it, each with its offset.
        self._members: list[list[tuple[int, int]]] = [[] for _ in sizes]
        for number, (block, offset) in sorted(arguments.items()):
            self._members[block].append((number, offset))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def take(self) -> list[torch.Tensor]:
        """Blocks that nobody else holds; their contents are undefined."""
        return [pool.take() for pool in self._pools]

    def hold(self, args: Sequence[Any]) -> bool:
        """Whether all arguments lie where they belong, in blocks that are large enough."""
        for size, members in zip(self._sizes, self._members, strict=True):
            first = members[0][0]
            storage = args[first].untyped_storage()
            base = storage.data_ptr()
            if storage.nbytes() < size or any(args[i].data_ptr() != base + at for i, at in members):
                return False
        return True

    def copy_in(self, args: list[Any]) -> None:
        """Put copies of the arguments where they belong, in other blocks."""
        blocks = self.take()
        for number, (block, offset) in self.arguments.items():
            t = args[number]
            args[number] = window(blocks[block], offset, t.shape, t.stride(), t.dtype).copy_(t)
