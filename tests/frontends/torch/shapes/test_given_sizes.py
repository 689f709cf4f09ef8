"""A graph traced with symbolic sizes, for values of them: the graph that a trace for those sizes gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from dcir.frontends.torch.importer import import_graph
from dcir.frontends.torch.shapes.given_sizes import GivenSizes, extents, places, symbols
from tests.harness import run_interpreted


def traced(fn: Any, *inputs: torch.Tensor) -> fx.GraphModule:
    """``fn`` with a symbol for every extent above 1; equal extents have one symbol."""
    return make_fx(torch.func.functionalize(lambda *a: tuple(fn(*a))), tracing_mode="symbolic")(*inputs)


def views(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    b, n = x.shape
    return [
        x.t()[1:].reshape(-1) * n,
        torch.cat((x, x[:, : n // 2]), 1),
        (x @ y).view(2, -1) / b,
        x.split((1, n - 1), 1)[1] + 1,
    ]


def test_one_trace_serves_all_sizes() -> None:
    gm = traced(views, torch.randn(4, 6), torch.randn(6, 10))
    names, given = symbols(gm), GivenSizes(gm)
    assert len(names) == 3
    for b, n, m in ((4, 6, 10), (8, 6, 4), (2, 6, 12)):
        done = import_graph(given.at(dict(zip(names, (b, n, m), strict=True))))
        x, y = torch.randn(b, n), torch.randn(n, m)
        for g, w in zip(run_interpreted(done, [x, y]), views(x, y), strict=True):
            torch.testing.assert_close(g, w)


def test_the_traced_graph_stays_as_it_is() -> None:
    gm = traced(views, torch.randn(4, 6), torch.randn(6, 10))
    names, code = symbols(gm), gm.code
    GivenSizes(gm).at(dict.fromkeys(names, 6))
    assert symbols(gm) == names and gm.code == code
    assert not symbols(GivenSizes(gm).at(dict.fromkeys(names, 6)))


def test_arguments_may_lie_otherwise() -> None:
    gm = traced(views, torch.randn(4, 6), torch.randn(6, 10))
    values, given = dict(zip(symbols(gm), (4, 6, 10), strict=True)), GivenSizes(gm)
    done = import_graph(given.at(values, layouts={1: (1, 6)}))
    x, y = torch.randn(4, 6), torch.randn(10, 6).t()
    for g, w in zip(run_interpreted(done, [x, y]), views(x, y), strict=True):
        torch.testing.assert_close(g, w)
    assert done.network.containers[done.network.inputs[1]].strides == (1, 6)
    again = import_graph(given.at(values)).network
    assert again.containers[again.inputs[1]].strides == (10, 1)


def test_extents_that_do_not_move_are_known() -> None:
    gm = traced(lambda x: [x[:1] * torch.ones(3, 1)], torch.randn(5, 7))
    assert {1, 3} <= extents(gm) and not {5, 7} & extents(gm)


def chosen(x: torch.Tensor) -> list[torch.Tensor]:
    """A branch, in one side of another."""

    def inner(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.cond(x.mean() > 1, lambda y: (y * 2,), lambda y: (y.sin(),), (x,))[0],)

    (y,) = torch.cond(x.sum() > 1, inner, lambda x: (x.flip(0),), (x,))
    return [y + x.shape[0]]


def test_graphs_that_are_called_have_the_sizes_too() -> None:
    """At every depth, in copies of their own."""
    gm = make_fx(lambda x: tuple(chosen(x)), tracing_mode="symbolic")(torch.randn(6, 4))
    names, given = symbols(gm), GivenSizes(gm)
    for n, m in ((6, 4), (3, 9)):
        done = import_graph(given.at({k: (n, m)[d or 0] for k, (_, d) in places(gm).items()}))
        assert not done.fallbacks and "branch" in [op.spec.kind for op in done.network.ops()]
        for sign in (-1, 1, 3):
            x = sign * torch.rand(n, m)
            torch.testing.assert_close(run_interpreted(done, [x]), chosen(x))
    called = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    assert len(called) == 5 and all(symbols(m) for m in called)
    assert not any(symbols(m) for m in given.at(dict.fromkeys(names, 6)).modules() if isinstance(m, fx.GraphModule))
