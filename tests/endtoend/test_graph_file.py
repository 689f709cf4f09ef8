"""Whole small networks through stock DaCe, and graphs through a file: the IR stands on its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dcir
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.registry import pages
from tests.harness import example_models, keeping

models = example_models()


class Ranked(nn.Module):
    """The best of a list, what lies before them, and running sums and extremes of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, where = self.score(x).squeeze(-1).topk(4)
        sums, highest = best.cumsum(-1), torch.cummax(x.sum(-1), -1)
        order = torch.sort(highest.values, descending=True)
        return torch.cat([best, sums, order.values, (where + order.indices[:, :4] + highest.indices[:, :4]).float()], 1)


def case(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A small network and its input."""
    torch.manual_seed(0)
    if name == "convolutions":
        return models.SmallConvNet(), torch.randn(2, 3, 16, 16)
    if name == "ranked":
        return Ranked(), torch.randn(3, 9, 8)
    return models.Bert(size=32, layers=1, heads=2, tokens=50), torch.randint(0, 50, (2, 8))


@pytest.mark.parametrize("name", ["convolutions", "transformer", "ranked"])
def test_network_through_dace(name: str) -> None:
    """Forward and gradients of a training step, every graph expanded and compiled by DaCe alone."""
    module, x = case(name)
    fast = dcir.optimize(module, target="dace")
    ours, eager = fast(x), module(x)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(eager)
    wanted = torch.autograd.grad((eager * weights).sum(), list(module.parameters()), allow_unused=True)
    got = torch.autograd.grad((ours * weights).sum(), list(module.parameters()), allow_unused=True)
    for g, w in zip(got, wanted, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4)


def test_graph_through_a_file(tmp_path: Path) -> None:
    """A fused network saved and read again is valid and says the same."""
    module, x = case("transformer")
    backend, kept = keeping()
    with torch.no_grad():
        torch.compile(module.eval(), backend=backend)(x)
    pages()  # the classes of all nodes
    net = kept[0]
    net.save(tmp_path / "network.zip")
    again = Network.load(tmp_path / "network.zip")
    verify(again)
    again.validate()
    assert [op.spec for op in again.ops()] == [op.spec for op in net.ops()]
    assert [again.ins(op) for op in again.ops()] == [net.ins(op) for op in net.ops()]
    assert (again.memory, again.results, again.bytes_moved()) == (net.memory, net.results, net.bytes_moved())
