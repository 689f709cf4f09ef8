"""An architecture called at two sizes: how it follows eager PyTorch, and what it is run by from the second size on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dcir
from tests.endtoend.follows_eager import _ROUNDINGS, _compare, _Double, _seen, _widen, without_dropout, without_zeros
from tests.fuzz.check import _Disturbed

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
        wrong += [f"call {i}: {w}" for w in _wrong(module, inputs, _seen(fast, inputs, False))]
    return Seen(_outcome(fast.dcir.explain().graphs), wrong)


def _wrong(module: nn.Module, inputs: dict[str, Any], got: dict[str, Tensor]) -> list[str]:
    wide, wide_inputs = copy.deepcopy(module).double(), pytree.tree_map(_widen, inputs)
    own, disturbed = [_seen(copy.deepcopy(module), inputs, False)], []
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            exact = _seen(copy.deepcopy(wide), wide_inputs, False)
            for seed in range(2):
                with _Disturbed(seed):
                    disturbed.append(_seen(copy.deepcopy(wide), wide_inputs, False))
    finally:
        torch.set_default_dtype(before)
    if set(got) != set(own[0]):
        return [f"{sorted(set(got) ^ set(own[0]))} are there on one side only"]
    found = []
    for name, ours in got.items():
        near = [d[name] for d in disturbed]
        for count in range(1, _ROUNDINGS + 2):
            if count > len(own):
                with _Disturbed(count):
                    own.append(_seen(copy.deepcopy(module), inputs, False))
            done = _compare(name, ours, [o[name] for o in own[:count]], exact[name], near, 0.0)
            if not done.wrong:
                break
        found += done.wrong
    return found


def _outcome(graphs: list[Any]) -> str:
    """What a second size was run by."""
    remarks = [g.remark for g in graphs if g.remark]
    refused = [r.split(": ", 1)[1] for r in remarks if "compiled for itself" in r]
    if refused:
        return refused[-1]
    if any("piece of any batch" in r for r in remarks):
        return PIECES
    return ONE_PROGRAM if any(g.bounds for g in graphs) else f"{len(graphs)} graphs, none for all sizes"
