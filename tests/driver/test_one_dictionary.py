"""An optimised module and the user's have one dictionary: what is set on either, or learnt by it, is of both."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor, nn

import dcir


class Root(nn.Module):
    """What it depends on besides children is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.calls = nn.Linear(4, 4), 1.0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.dropout(self.linear(x), 0.5, self.training) * self.scale


def test_attributes_of_the_module_itself_are_shared() -> None:
    """Whichever of the two they are set on, as with torch.compile."""
    torch._dynamo.reset()
    module = Root()
    fast: Any = dcir.optimize(module)
    x = torch.ones(3, 4)
    fast(x)
    module.eval()
    assert not fast.training
    torch.testing.assert_close(fast(x), module(x))
    fast.scale = 3.0
    torch.testing.assert_close(module(x), module.linear(x) * 3)
    torch.testing.assert_close(fast(x), module(x))
    assert module.calls == fast.calls == 6
    module.linear = nn.Linear(4, 4)
    torch.testing.assert_close(fast(x), module(x))
    assert fast.train() is fast and module.training and "dcir" not in vars(module)
    assert (
        type(module) is Root
        and type(copy.deepcopy(module)) is Root
        and type(pickle.loads(pickle.dumps(module))) is Root
    )


def test_a_module_that_has_a_compiled_call_keeps_it() -> None:
    torch._dynamo.reset()
    module: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    module._compiled_call_impl = lambda x: "the user's"
    fast, x = dcir.optimize(module), torch.randn(5, 6)
    assert module(x) == "the user's" and fast(x).shape == (5, 3)
    fast._compiled_call_impl = None
    torch.testing.assert_close(fast(x), fast.forward(x))
