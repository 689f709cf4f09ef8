"""Packed sequences: where the elements of several lengths lie, behind each other step by step, in a table of steps and sequences.

packed [elements, width]  --> spread [steps, sequences, width]   what has no element reads another's, and is masked by who asks
                          <-- packed                             its gradient a gather, too: no scatter, no zeros that are added
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Packing:
    """The places of packed elements.

    Args:
        sizes: [steps], of integers: how many sequences have an element at each step; none has more than the one before.
        sequences: how many there are.
        elements: of all of them.
    """

    def __init__(self, sizes: Tensor, sequences: int, elements: int) -> None:
        steps = sizes.shape[0]
        ends = sizes.cumsum(0)
        starts = ends - sizes
        columns, rows = torch.arange(sequences), torch.arange(elements)
        some = columns < sizes[:, None]
        self.there = some[..., None]
        """[steps, sequences, 1]: whether there is an element."""
        self._from = torch.where(some, starts[:, None] + columns, 0)
        step = (rows[:, None] >= ends).sum(1)
        place = rows - starts[step]
        ordered = (sizes[1:] <= sizes[:-1]).all() & (sizes[0] == sequences) & (ends[-1] == elements)
        # What no packed sequence is shall fail as an index does, not give numbers.
        self._to = torch.where(ordered, step * sequences + place, steps * sequences)

    def spread(self, x: Tensor) -> Tensor:
        """[elements, width] -> [steps, sequences, width]; where there is none, any."""
        return _Spread.apply(x, self._from, self._to)  # type: ignore[no-any-return, no-untyped-call]

    def packed(self, y: Tensor) -> Tensor:
        """[steps, sequences, width] -> [elements, width]."""
        return _Packed.apply(y, self._from, self._to, self.there)  # type: ignore[no-any-return, no-untyped-call]


class _Spread(torch.autograd.Function):
    """Gradients of places without an element must be 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: Tensor, back: Tensor) -> Any:
        ctx.save_for_backward(back)
        return x[given]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (back,) = ctx.saved_tensors
        return gradients[0].flatten(0, 1)[back], None, None


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, given: Tensor, back: Tensor, there: Tensor) -> Any:
        ctx.save_for_backward(given, there)
        return y.flatten(0, 1)[back]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given, there = ctx.saved_tensors
        return torch.where(there, gradients[0][given], 0), None, None, None
