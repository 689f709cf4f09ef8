"""What ``fully_shard`` gathers and reduces over gloo, sent to where it belongs.

gloo's collectives gather into memory of their own and copy it from there, and add up all gradients in every process, of which each wants
its part. What each of N processes does with n bytes:

              gloo                                          here
    gather    sends n (N - 1) / N, copies n                 sends n (N - 1) / N
    reduce    copies n, sends 2 n (N - 1) / N, copies n / N    sends n (N - 1) / N
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from dcir.runtime.blocks import in_huge_pages
from dcir.runtime.buffers import BufferPool
from dcir.runtime.freed_memory import LARGEST_KEPT

_GATHER, _REDUCE = 0xDC1, 0xDC2
"""Tags of our sends, so that they meet no others in the same group: what is gathered ahead is under way while gradients are reduced."""
_PIECE = 1 << 18
"""Elements that are added up at once, so that sums are still near when they are divided."""


class _Memory:
    """Memory for exchanges: what malloc would have anew from the system each time is kept here."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, torch.dtype], BufferPool] = {}
        self._lock = threading.Lock()

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A tensor [numel] that nobody else holds; its contents are undefined."""
        if numel * dtype.itemsize <= LARGEST_KEPT:
            return torch.empty(numel, dtype=dtype)
        with self._lock:
            pool = self._pools.setdefault((numel, dtype), BufferPool((numel,), (1,), dtype, in_huge_pages))
        return pool.take()


_MEMORY = _Memory()


def _allocated(size: Sequence[int | torch.SymInt], dtype: torch.dtype, device: torch.device) -> Tensor:
    if len(size) != 1 or device.type != "cpu":
        return torch.empty(tuple(size), dtype=dtype, device=device)
    return _MEMORY.take(int(size[0]), dtype)


class _UnderWay(dist.Work):
    """Sends and what they are answered with."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, *timeout: Any) -> bool:
        """Wait until all has come and gone."""
        while self._works:
            self._works[-1].wait(*timeout)
            self._works.pop()
        return True


def _exchange(
    sent: Mapping[int, Tensor], received: Mapping[int, Tensor], group: dist.ProcessGroup, tag: int
) -> _UnderWay:
    """Send tensors to other processes and fill tensors with what they send, by rank in the group."""
    works: list[Any] = [dist.irecv(t, group=group, tag=tag, group_src=rank) for rank, t in received.items()]
    return _UnderWay(works + [dist.isend(t, group=group, tag=tag, group_dst=rank) for rank, t in sent.items()])


class GatherBySends(DefaultAllGather):
    """Gathers the parts of all processes, while they go on: ``fully_shard`` waits where it needs the whole, and asks for some ahead."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the whole."""
        return _allocated(size, dtype, device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Begin to fill the whole.

        Args:
            output_tensor: [N n], filled with the parts of all N processes in the order of their ranks.
            input_tensor: [n], this process's part, which may lie where it belongs.
            group: the processes.
            async_op: not asked for; it always returns before it is done.

        Returns:
            What to wait for.
        """
        if not input_tensor.numel():
            return super().__call__(output_tensor, input_tensor, group, async_op)
        parts, here = output_tensor.view(group.size(), -1), group.rank()
        if parts[here].data_ptr() != input_tensor.data_ptr():
            parts[here].copy_(input_tensor)
        others = [rank for rank in range(group.size()) if rank != here]
        return _exchange(dict.fromkeys(others, input_tensor), {rank: parts[rank] for rank in others}, group, _GATHER)


class ReduceBySends(DefaultReduceScatter):
    """Adds up the parts that all processes have for this one."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for all parts, or for a sum."""
        return _allocated(size, dtype, device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        """Fill the sum, added up in the order of the ranks.

        Rounding: N - 1 additions in the tensors' type, whichever process does them, so that a sum is the same in every run and off by at
        most (N - 1) u times the sum of the terms' absolute values, u being half of the distance from 1 to the next number; a mean is
        divided once, exactly if N is a power of two. gloo's is off by as much at most, but adds along its ring: with two processes both
        are equal bit by bit, with more they differ by rounding.

        Args:
            output_tensor: [n], filled with the sum or the mean of what N processes have for this one.
            input_tensor: [N n], what this process has for all, in the order of their ranks.
            group: the processes.
            op: SUM or AVG; others are torch's.
            async_op: whether to return before it is done; then torch does it.
        """
        mean = op == dist.ReduceOp.AVG
        if async_op or not (mean or op == dist.ReduceOp.SUM) or not output_tensor.numel():
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        size, here = group.size(), group.rank()
        parts = input_tensor.view(size, -1)
        others = [rank for rank in range(size) if rank != here]
        received = {rank: _MEMORY.take(output_tensor.numel(), output_tensor.dtype) for rank in others}
        _exchange({rank: parts[rank] for rank in others}, received, group, _REDUCE).wait()
        _add_up([received.get(rank, parts[rank]) for rank in range(size)], output_tensor, size if mean else 1)
        return None


def _add_up(terms: Sequence[Tensor], into: Tensor, divisor: int) -> None:
    for start in range(0, into.numel(), _PIECE):
        first, second, *rest = (t[start : start + _PIECE] for t in terms)
        piece = into[start : start + _PIECE]
        torch.add(first, second, out=piece)
        for term in rest:
            piece.add_(term)
        if divisor != 1:
            piece.div_(divisor)
