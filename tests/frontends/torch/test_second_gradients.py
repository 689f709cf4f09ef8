"""Gradients of gradients: refused by name through compiled graphs, and what the error says to try is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dcir
from dcir.errors import NotDifferentiable, Unsupported

X = torch.linspace(-1, 1, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def critic() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def slopes(call: Callable[[Tensor], Tensor]) -> Tensor:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    return first


class Forces(nn.Module):
    """Takes the first gradients itself."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = critic()

    def forward(self, x: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return -first


@pytest.mark.parametrize("kept", [False, True])
def test_they_are_refused_by_name_and_first_ones_are_right(kept: bool) -> None:
    net = critic()
    eager = copy.deepcopy(net)
    for _ in range(1 + kept):  # the second time from the cache
        first = slopes(dcir.optimize(net, keep_graphs=kept))
        torch.testing.assert_close(first, slopes(eager), rtol=1e-5, atol=1e-6)
        with pytest.raises(
            NotDifferentiable, match=r"(?s)double backward.*first ones are taken at .test_second_grad.*try "
        ):
            first.square().sum().backward()
    assert issubclass(NotDifferentiable, Unsupported) and issubclass(NotDifferentiable, RuntimeError)


@pytest.mark.filterwarnings("ignore::dcir.errors.NotCompiledWarning")
def test_at_a_graph_break_too() -> None:
    fast = dcir.optimize(Forces())
    with pytest.raises(NotDifferentiable, match="double backward"):
        fast(X.clone().requires_grad_()).square().sum().backward()
    assert all("test_second_gradients.py" in str(place) for place in fast.dcir.explain().breaks)


def test_what_other_compilers_made_has_torchs_own_error() -> None:
    first = slopes(dcir.optimize(critic()))
    other = slopes(torch.compile(critic(), backend="aot_eager"))
    with pytest.raises(RuntimeError, match="double backward") as caught:
        other.sum().backward()
    assert not isinstance(caught.value, NotDifferentiable)
    assert first.requires_grad


def _through_the_module(net: Any) -> Tensor:
    dcir.optimize(net)(X)
    return slopes(net)


def _by_func(net: Any) -> Tensor:
    result: Tensor = dcir.optimize(lambda x: torch.func.grad(lambda t: net(t).sum())(x), strict=True)(X)
    return result


def _traced(net: Any) -> Tensor:
    forces = Forces()
    forces.energy = net
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        result: Tensor = -dcir.optimize(forces, strict=True)(X.clone().requires_grad_())
    return result


@pytest.mark.parametrize("way", [_through_the_module, _by_func, _traced])
def test_what_it_says_to_try_is_right(way: Callable[[Any], Tensor]) -> None:
    net = critic()
    eager = copy.deepcopy(net)
    for first in (way(net), slopes(eager)):
        F.mse_loss(first.norm(dim=1), torch.ones(4)).backward()
    for a, b in zip(net.parameters(), eager.parameters(), strict=True):
        if b.grad is not None and a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert next(net.parameters()).grad is not None
