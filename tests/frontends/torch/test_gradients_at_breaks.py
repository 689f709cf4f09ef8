"""Gradients that a model asks for at a graph break: compiled, and Dynamo does not look into what computes them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dcir


class Forces(nn.Module):
    """An energy's derivative by places, which Dynamo leaves to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(x).sum(), x)
        return -slope


class OwnStep(nn.Module):
    """Calls ``backward`` itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.net(x).square().mean()
        loss.backward()
        return loss.detach()


@pytest.mark.filterwarnings("ignore::dcir.errors.NotCompiledWarning", "ignore::dcir.errors.RecompileWarning")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("model", [Forces, OwnStep])
def test_a_backward_at_a_break_is_nothing_that_dynamo_traces(model: type[nn.Module], kept: bool) -> None:
    torch.manual_seed(0)
    net = model()
    for _ in range(1 + kept):  # the second time from the cache
        own, eager = copy.deepcopy(net), copy.deepcopy(net)
        fast = dcir.optimize(own, keep_graphs=kept)
        for rows in (4, 4, 7, 9):  # some backwards are compiled when they are first called
            x = torch.randn(rows, 3)
            torch.testing.assert_close(fast(x), eager(x), rtol=1e-5, atol=1e-6)
        for a, b in zip(own.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
        explained = fast.dcir.explain()
        assert explained.breaks and all("test_gradients_at_breaks.py" in str(b) for b in explained.breaks)
        assert {"forward", "backward"} <= {g.kind for g in explained.graphs}
        torch._dynamo.reset()
