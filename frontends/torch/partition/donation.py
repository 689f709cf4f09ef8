"""Saved tensors whose memory a backward uses for other things: copied first where somebody may still read them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

Call = Callable[[list[Any]], list[Any]]

Home = tuple[int, int]
"""Where a saved tensor lies: number of a block of memory, and a byte offset in it."""


class DonatedSpaces(Protocol):
    """Blocks of memory that saved tensors lie in, and that a backward uses for other things."""

    @property
    def homes(self) -> Mapping[int, Home]:
        """Of the backward's arguments, by number."""

    def settled(self, args: list[Any]) -> bool:
        """Whether the arguments lie there."""

    def settle(self, args: list[Any]) -> None:
        """Put copies there, in blocks of their own."""


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

    def backward(self, call: Call, spaces: DonatedSpaces) -> Call:
        """``call``, whose arguments in ``spaces`` are copied where others may need them, or the memory next to them, afterwards."""
        numbers = sorted(spaces.homes)

        def spared(args: list[Any]) -> list[Any]:
            # With many references, somebody looks at the node's saved tensors.
            shown = self.hooked or _KEEPS_GRAPH() or any(sys.getrefcount(args[i]) > _REFERENCES for i in numbers)
            if shown or not spaces.settled(args):
                spaces.settle(args)
            return call(args)

        return spared
