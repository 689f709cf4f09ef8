"""Common subexpressions: what is computed once, what stays apart, and that two random draws are two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dcir
from dcir.frontends.torch.partition.cse import merge_equal

aten = torch.ops.aten
Fn = Callable[..., object]

DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "randn": lambda x: torch.randn(4, 4),
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x: torch.randint_like(x, 1000),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.05),
    "rrelu": lambda x: nn.functional.rrelu(-x.detach().abs(), 0.1, 0.9, training=True),
    "dropout": lambda x: torch.dropout(torch.ones_like(x), 0.5, train=True),
}


class Noisy(nn.Module):
    """Two draws of the same kind, in a step with gradients."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y + self.draw(y), y + self.draw(y)


@pytest.mark.parametrize("name", DRAWS)
def test_two_draws_are_two(name: str) -> None:
    first, second = dcir.optimize(Noisy(DRAWS[name]))(torch.randn(4, 4))
    (first.sum() + second.sum()).backward()
    assert not torch.equal(first, second)


def merged(f: Fn, *inputs: torch.Tensor) -> int:
    """How many nodes of a function's graph give way; its results stay the same bits."""
    gm = make_fx(f, tracing_mode="fake")(*inputs)
    want = gm(*(x.clone() for x in inputs))
    count = merge_equal(gm.graph)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*(x.clone() for x in inputs)), want, rtol=0, atol=0, equal_nan=True)
    return count


X = torch.linspace(-2, 2, 6).view(2, 3)


@pytest.mark.parametrize(
    ("f", "count"),
    [
        (lambda x: x.exp() + 2 * x.exp(), 1),
        (lambda x: (x.exp().sum(0) + x.exp().sum(0)).sum(0), 2),
        (lambda x: x.max(0).values + 2 * x.max(0).values, 3),  # the operator, and the elements of its tuple
        (lambda x: (x[:, :2] + x[:, 1:]) + x[:, :2], 1),
        (lambda x: (x + 1) * (x + 1.0), 0),  # by type: with integers they are not the same
        (lambda x: torch.full((2,), 0.0).reciprocal() + torch.full((2,), -0.0).reciprocal(), 0),
        (lambda x: (x * float("nan")) + (x * float("nan")), 1),
        (lambda x: (x.exp(), x.exp()), 0),  # the caller's, each with its own memory
        (lambda x: torch.empty_like(x).fill_(1) * torch.empty_like(x).fill_(2), 0),
    ],
)
def test_what_gives_way(f: Fn, count: int) -> None:
    assert merged(f, X) == count


def test_a_write_in_between() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        before = x.exp()
        x.mul_(2)
        return before - x.exp()

    assert merged(f, X) == 0


def test_an_earlier_value_serves_a_later_chain() -> None:
    """Both chains become one, also where the second is written in another place of the graph."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    chains = []
    for _ in range(2):
        node = graph.call_function(aten.sin.default, (x,))
        chains.append(graph.call_function(aten.clamp.default, (node, None, 0.5)))
    graph.output(graph.call_function(aten.sub.Tensor, tuple(chains)))
    assert merge_equal(graph) == 2
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [
        aten.sin.default, aten.clamp.default, aten.sub.Tensor,
    ]  # fmt: skip
