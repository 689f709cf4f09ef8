"""Results of an imported graph: torch's strides exactly, and no copy where torch returns a view of another result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dcir
from dcir.frontends.torch.context import GraphContext
from dcir.frontends.torch.importer import import_graph
from tests.harness import run_interpreted

CASES: dict[str, Callable[[Any], Any]] = {
    "unbind of a result": lambda x: ((x * 2).view(3, 4, 5).unbind(1), x),
    "split of a result": lambda x: (x * 2).split(5, dim=1),
    "expanded result": lambda x: (x * 2)[:, :1].expand(3, 7),
    "view with gaps": lambda x: ((x + 1)[:, ::2], (x * 3).t()),
    "several results": lambda x: torch.ops.aten.max.dim(x, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_strides(name: str) -> None:
    """Strides and values are eager's: a backward graph is compiled for them."""
    fn, x = CASES[name], torch.arange(60, dtype=torch.float32).reshape(3, 20)
    gm = make_fx(fn, tracing_mode="fake")(x)
    want = torch.utils._pytree.tree_leaves(fn(x))
    flat = gm.graph.find_nodes(op="output")[0]
    flat.args = (tuple(torch.utils._pytree.tree_leaves(flat.args[0])),)
    for got, w in zip(run_interpreted(import_graph(gm), [x]), want, strict=True):
        assert got.stride() == w.stride()
        assert torch.equal(got, w)


def test_parts_share_a_container() -> None:
    """Parts of one computed tensor are windows of it, not copies."""
    gm = make_fx(lambda x: tuple((x * 2).view(3, 4, 5).unbind(1)), tracing_mode="fake")(torch.rand(3, 20))
    assert len(import_graph(gm).network.ops()) == 1


ALIASES: dict[str, Callable[[Any], Any]] = {
    "a clone and its view": lambda x: (lambda y: (y, y.view(-1)))(x.clone()),
    "views of a clone": lambda x: (lambda y: (y[0], y.t(), y[:, 1:3], y[1]))(x.clone()),
    "a clone of another layout": lambda x: (lambda y: (y.t(), y[1]))(
        x.t().clone(memory_format=torch.contiguous_format)
    ),
    "the same twice": lambda x: (lambda y: (y, y))(x.contiguous().clone()),
    "two clones": lambda x: (x.clone(), x.clone()),
    "a view and a copy": lambda x: (lambda y: (y.view(-1), y.view(-1).clone()))(x * 2),
}


@pytest.mark.parametrize("name", ALIASES)
def test_what_is_written_to_one_result_is_read_in_those_that_share_its_memory(name: str) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return ALIASES[name](x)

    x = torch.arange(60, dtype=torch.float32).reshape(3, 20)
    with torch.no_grad():
        got, want = dcir.optimize(Net())(x), Net()(x)
    for number in range(len(want)):
        got[number].fill_(-number)
        want[number].fill_(-number)
        for g, w in zip(got, want, strict=True):
            assert g.stride() == w.stride()
            assert torch.equal(g, w)
    assert torch.equal(x, torch.arange(60, dtype=torch.float32).reshape(3, 20))


def two_orders(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch lays a sum out as its first operand, here by columns."""
    total = x.t() + y
    return total.tanh().sum(0), total


def test_sums_of_operands_in_two_orders_are_rows() -> None:
    """A sum that only we see is row by row where an operand is; a result has torch's strides."""
    x, y = torch.rand(3, 20), torch.rand(20, 3)
    gm = make_fx(two_orders, tracing_mode="fake")(x, y)
    assert two_orders(x, y)[1].stride() == (1, 20)
    done = import_graph(gm)
    total = done.network.outs(done.network.ops()[0])[0].data
    assert done.network.containers[total].strides == (3, 1)
    for got, want in zip(run_interpreted(done, [x, y]), two_orders(x, y), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def test_saved_sums_stay_as_they_are() -> None:
    """What is saved for the backward pass alone is not copied into torch's order; that pass is told."""
    gm = make_fx(two_orders, tracing_mode="fake")(torch.rand(3, 20), torch.rand(20, 3))
    net = import_graph(gm, GraphContext("forward", first_saved=1)).network
    assert net.results[1].strides == (3, 1) and 1 in net.free
    assert net.results[1].data == net.outs(net.ops()[0])[0].data


def test_gradients_through_sums_of_operands_in_two_orders() -> None:
    class Mixer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = torch.nn.Conv2d(3, 16, 4, 4), torch.nn.LayerNorm(16)
            self.token, self.channel = torch.nn.Linear(9, 9), torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2)
            for _ in range(2):
                x = x + self.token(self.norm(x).transpose(1, 2)).transpose(1, 2)
                x = x + torch.nn.functional.gelu(self.channel(self.norm(x)))
            return x

    torch.manual_seed(0)
    m, x = Mixer(), torch.randn(2, 3, 12, 12, requires_grad=True)
    want = m(x)
    grads = torch.autograd.grad(want.square().sum(), [x, *m.parameters()])
    got = dcir.optimize(m)(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for a, b in zip(torch.autograd.grad(got.square().sum(), [x, *m.parameters()]), grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
