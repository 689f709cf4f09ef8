"""What is known of a joint graph's nodes: which show their argument's memory, and which read what the forward writes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import dcir
from dcir.frontends.torch.partition.joint_graph import base, is_view

aten = torch.ops.aten


def test_a_view_shows_a_tensor_and_no_number() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    shown = graph.call_function(aten.view.default, (graph.call_function(aten.t.default, (x,)), [4]))
    number = graph.call_function(aten._conj.default, (1j,))
    assert is_view(shown)
    assert base(shown) is x
    assert not is_view(number)
    assert base(number) is number


class Rotary(nn.Module):
    """Turns pairs of numbers by angles that are learnt; the derivative takes the conjugate of the imaginary unit."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = nn.Parameter(torch.linspace(0, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * torch.exp(1j * self.angles))


def test_training_with_a_complex_number_follows_eager_mode() -> None:
    torch.manual_seed(0)
    net = Rotary()
    eager = copy.deepcopy(net)
    x = torch.randn(3, 6, 2)
    found = []
    fast = dcir.optimize(net)
    for call, owner in ((fast, net), (eager, eager)):
        y = x.clone().requires_grad_()
        out = call(y)
        (out * x.flip(0)).sum().backward()
        found.append((out.detach(), y.grad, owner.angles.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert {g.kind for g in fast.dcir.explain().graphs} == {"forward", "backward"}


class Blocks(nn.Module):
    """Blocks with statistics of batches; ``again`` computes them again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(2)
        )
        self.again = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


@pytest.mark.parametrize("options", [{}, {"memory_limit": "64KB"}, {"dynamic": True}], ids=str)
def test_statistics_that_are_written_are_kept_under_checkpointing(options: dict[str, Any]) -> None:
    """Eager mode updates them a second time as it computes again; a compiled step does once, as where nothing is checkpointed."""
    torch.manual_seed(0)
    net = Blocks()
    eager = copy.deepcopy(net)
    net.again = True
    x = torch.randn(4, 3, 8, 8)
    fast = dcir.optimize(net, **options)
    for call in (fast, eager):
        call(x).square().sum().backward()
    for (name, a), b in zip(net.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=name)
    for (name, a), b in zip(net.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    assert {g.kind for g in fast.dcir.explain().graphs} == {"forward", "backward"}
