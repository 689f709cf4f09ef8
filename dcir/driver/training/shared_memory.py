"""Tensors of a step that lie in each other's memory: a program takes what it writes to one of them for no change of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from dcir.errors import Unsupported
from dcir.frontends.torch.overlapping_inputs import reach

_ADDRESS = Tensor.data_ptr


class Apart:
    """What is known of the tensors that a program is called with: as long as they are where they were, they are looked at once.

    Their shapes and strides are the same in all calls of a program.
    """

    def __init__(self) -> None:
        self._seen: list[int] | None = None

    def refuse_shared(
        self, tensors: Sequence[Tensor], written: Collection[int], names: Callable[[], Sequence[str]]
    ) -> None:
        """Refuse tensors of which one that is written has elements of another one.

        Args:
            tensors: what a program is called with.
            written: numbers of those that it writes.
            names: of all tensors.

        Raises:
            Unsupported: there are any.
        """
        addresses = list(map(_ADDRESS, tensors))
        if addresses == self._seen:
            return
        for a, b in _near(tensors, addresses):
            if (a in written or b in written) and tensors[a] is not tensors[b] and _meet(tensors[a], tensors[b]):
                known = names()
                raise Unsupported(
                    "two tensors of a training step share memory, of which it writes one", where=f"{known[a]} and {known[b]}",
                    hint="one parameter in both places (b.weight = a.weight), or a clone",
                )  # fmt: skip
        self._seen = addresses


def _near(tensors: Sequence[Tensor], addresses: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of tensors whose first to last bytes overlap."""
    spans = sorted(
        (at, at + reach(t), i) for i, (t, at) in enumerate(zip(tensors, addresses, strict=True)) if t.numel()
    )
    found: list[tuple[int, int]] = []
    open_: list[tuple[int, int]] = []
    for begin, end, i in spans:
        open_ = [(e, j) for e, j in open_ if e > begin]
        found += [(j, i) for _, j in open_]
        open_.append((end, i))
    return found


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether tensors whose spans overlap have an element in common: columns of a matrix need not."""
    size, first = a.itemsize, min(a.data_ptr(), b.data_ptr())
    starts = [t.data_ptr() - first for t in (a, b)]
    if b.itemsize != size or any(start % size for start in starts):
        return True
    offsets = [start // size for start in starts]
    taken = torch.zeros(max(o + reach(t) // size for o, t in zip(offsets, (a, b), strict=True)), dtype=torch.bool)
    parts = [taken.as_strided(t.shape, t.stride(), o) for o, t in zip(offsets, (a, b), strict=True)]
    parts[0].fill_(1)
    return bool(parts[1].any())
