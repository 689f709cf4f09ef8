"""One network through stock DaCe and through generated code: the same numbers, and both as near to float64's as eager PyTorch's are."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import dcir
from tests.endtoend.follows_eager import compared, seen, without_zeros

TARGETS = ("cpp", "dace")


def agree(
    module: nn.Module, inputs: dict[str, Any], *, train: bool, only_changed: bool = False, **options: Any
) -> None:
    """Results, loss, gradients and buffers of one step; generated code alone if ``only_changed`` and no pass changes the network."""
    module = without_zeros(module).train(train)
    found = {}
    for target in TARGETS:
        torch._dynamo.reset()
        fast = dcir.optimize(copy.deepcopy(module), target=target, **options)
        found[target] = seen(fast, inputs, train)
        report = fast.dcir.explain()
        assert report.graphs and not report.breaks, target
        done = compared(module, inputs, dict(found[target]), train)
        assert not done.wrong, f"{target}: {done.wrong}"
        if only_changed and not any(p.changed for g in report.graphs for p in g.passes):
            return
    same(found["dace"], found["cpp"])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Both say the same, as far as float32 does."""
    assert one.keys() == other.keys()
    # Gradients that are zero by cancellation hold the rounding of summands as large as those of others.
    unit = max((float(t.abs().max()) for n, t in other.items() if n.endswith(".grad") and t.numel()), default=0.0)
    for name, want in other.items():
        scale = float(want.double().abs().max()) if want.numel() else 0.0
        at_most = 1e-5 * (max(scale, unit) if name.endswith(".grad") else scale)
        torch.testing.assert_close(one[name], want, rtol=1e-3, atol=at_most, msg=lambda m, name=name: f"{name}: {m}")
