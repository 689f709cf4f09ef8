"""Saved tensors whose memory a backward uses for other things: copied first where somebody may still read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

import torch

Call = Callable[[list[Any]], list[Any]]

_KEEPS_GRAPH = torch._C._autograd._get_current_graph_task_keep_graph
_HOOKS = torch._C._autograd._top_saved_tensors_default_hooks
# The list of arguments, and the question itself.
_REFERENCES = 2


class Donation:
    """What a forward and its backward must know of each other before the backward overwrites what the forward kept.

    A backward with ``retain_graph=True`` is not the last one. A hook (``torch.autograd.graph.saved_tensors_hooks``) may hand out
    what is kept, or put something else in its place: once one was seen, every backward of this forward copies.
    """

    def __init__(self) -> None:
        self.hooked = False

    def forward(self, call: Call) -> Call:
        """``call``, watched for hooks on what it returns."""

        def watched(args: list[Any]) -> list[Any]:
            if _HOOKS(True) is not None:
                self.hooked = True
            return call(args)

        return watched

    def backward(self, call: Call, overwrites: Collection[int]) -> Call:
        """``call``, whose arguments ``overwrites`` are copied where others may need them afterwards."""
        numbers = sorted(overwrites)

        def spared(args: list[Any]) -> list[Any]:
            every = self.hooked or _KEEPS_GRAPH()
            for i in numbers:
                if every or sys.getrefcount(args[i]) > _REFERENCES:  # or somebody looks at the node's saved tensors
                    args[i] = _copy(args[i])
            return call(args)

        return spared


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps and all."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)
