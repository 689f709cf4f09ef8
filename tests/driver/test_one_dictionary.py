"""An optimised module and the user's have one dictionary: what is set on either, or learnt by it, is of both."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
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


def test_a_shallow_copy_has_attributes_of_its_own() -> None:
    """And the parameters of both, as in eager mode."""
    torch._dynamo.reset()
    module = Root().eval()
    fast: Any = dcir.optimize(module)
    twin = copy.copy(fast)
    twin.scale, twin.training, twin.extra = 3.0, True, 1
    assert module.scale == fast.scale == 1.0 and not module.training and not hasattr(fast, "extra")
    assert twin.linear is fast.linear and twin.dcir is not fast.dcir and type(twin) is not Root
    x = torch.ones(3, 4)
    torch.testing.assert_close(fast(x), module.linear(x))
    torch.testing.assert_close(twin.eval()(x), module.linear(x) * 3)


class Child(nn.Module):
    """Knows whose child it is."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent: list[Any] = [parent]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.parent[0].scale


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child, self.scale, self.linear = Child(self), 2.0, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.child(self.linear(x))
        return y


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_child_of_a_copy_knows_the_copy(copied: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    module = Parent()
    twin = copied(dcir.optimize(module))
    twin.scale = 5.0
    x = torch.ones(3, 4)
    torch.testing.assert_close(twin(x), module.linear(x) * 5)
    assert module.scale == 2.0


def test_a_module_that_has_a_compiled_call_keeps_it() -> None:
    torch._dynamo.reset()
    module: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    module._compiled_call_impl = lambda x: "the user's"
    fast, x = dcir.optimize(module), torch.randn(5, 6)
    assert module(x) == "the user's" and fast(x).shape == (5, 3)
    fast._compiled_call_impl = None
    torch.testing.assert_close(fast(x), fast.forward(x))
