"""An architecture called at two sizes: how it follows eager PyTorch, and what it is run by from the second size on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import dcir
from tests.endtoend.follows_eager import compared, seen, without_dropout, without_zeros

ONE_PROGRAM, PIECES = "one program", "pieces of a batch"


@dataclass
class Seen:
    """What two sizes came to.

    Attributes:
        outcome: ``ONE_PROGRAM``, ``PIECES``, or why every combination is compiled.
        wrong: what does not follow eager PyTorch, with the number of the call.
    """

    outcome: str
    wrong: list[str] = field(default_factory=list)


def at_two_sizes(module: nn.Module, first: dict[str, Any], second: dict[str, Any]) -> Seen:
    """Call a module at one size, at another, and at the first again, by the rule of ``follows_eager``."""
    module = without_zeros(without_dropout(module)).eval()
    torch._dynamo.reset()
    fast, wrong = dcir.optimize(copy.deepcopy(module)), []
    for i, inputs in enumerate((first, second, first)):
        wrong += [f"call {i}: {w}" for w in compared(module, inputs, seen(fast, inputs, False), False).wrong]
    return Seen(_outcome(fast.dcir.explain().graphs), wrong)


def _outcome(graphs: list[Any]) -> str:
    """What a second size was run by."""
    remarks = [g.remark for g in graphs if g.remark]
    refused = [r.split(": ", 1)[1] for r in remarks if "compiled for itself" in r]
    if refused:
        return refused[-1]
    if any("piece of any batch" in r for r in remarks):
        return PIECES
    moving = sum(bool(g.bounds) for g in graphs)
    # Each graph of the first call has its one for all sizes.
    return ONE_PROGRAM if 2 * moving == len(graphs) else f"{len(graphs)} graphs, {moving} of them for all sizes"
