"""Saved tensors whose memory a backward uses for other things: copied first where somebody may still read them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from dcir.runtime.backward_blocks import BackwardBlocks

Call = Callable[[list[Any]], list[Any]]

_KEEPS_GRAPH = torch._C._autograd._get_current_graph_task_keep_graph
_HOOKS = torch._C._autograd._top_saved_tensors_default_hooks
# The list of arguments, and the question itself.
_REFERENCES = 2


class Donation:
    """What a forward and its backward must know of each other before the backward overwrites what the forward kept.

    A backward with ``retain_graph=True`` is not the last one. A hook (``torch.autograd.graph.saved_tensors_hooks``) may hand out
    what is kept, or put something else in its place: once one was seen, every backward of this forward copies.

    Args:
        place: has the forward's program write what it keeps into blocks.
    """

    def __init__(self, place: Callable[[BackwardBlocks], None]) -> None:
        self.hooked = False
        self._place = place

    def forward(self, call: Call) -> Call:
        """``call``, watched for hooks on what it returns."""
        return _Watched(self, call)

    def backward(self, call: Call, blocks: BackwardBlocks) -> Call:
        """``call``, whose arguments lie in ``blocks`` from now on, and are copied there where others may need them, or the memory
        next to them, afterwards."""
        self._place(blocks)
        return _Spared(self, call, blocks)

    def __getstate__(self) -> dict[str, Any]:
        """What another process has to know, which has seen no hook."""
        return {"hooked": False, "_place": self._place}


class _Watched:
    """A forward whose results somebody may have hooks on."""

    def __init__(self, donation: Donation, call: Call) -> None:
        self._donation, self._call = donation, call

    def __call__(self, args: list[Any]) -> list[Any]:
        if _HOOKS(True) is not None:
            self._donation.hooked = True
        return self._call(args)


class _Spared:
    """A backward that overwrites its arguments, or copies of them."""

    def __init__(self, donation: Donation, call: Call, blocks: BackwardBlocks) -> None:
        self._donation, self._call, self._blocks = donation, call, blocks
        self._numbers = sorted(blocks.arguments)

    def __call__(self, args: list[Any]) -> list[Any]:
        # With many references, somebody looks at the node's saved tensors.
        shown = (
            self._donation.hooked
            or _KEEPS_GRAPH()
            or any(sys.getrefcount(args[i]) > _REFERENCES for i in self._numbers)
        )
        if shown or not self._blocks.hold(args):
            self._blocks.copy_in(args)
        return self._call(args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever makes it anew tells the forward where its results belong.
        return _spared, (self._donation, self._call, self._blocks)


def _spared(donation: Donation, call: Call, blocks: BackwardBlocks) -> Call:
    return donation.backward(call, blocks)
