"""Control flow of torch whose bodies have something without generated code is one operator through torch, not a refusal of the model."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dcir
from dcir.driver.api import save
from dcir.errors import NotCompiledWarning, Unsupported
from dcir.ops.library import subgraphs


def solved(y: Tensor) -> Tensor:
    """What the solution of a linear differential equation is, which only torch computes."""
    return torch.linalg.matrix_exp(torch.eye(y.shape[0]) * y.mean()) @ y


FUNCTIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda y: solved(y.sin()), lambda y: y.cos(), (x,)) * 2, True),
    "cond in a layer": (lambda x: torch.relu(torch.cond(x.sum() > 9, lambda y: y * 2, solved, (x * 3,))).sum(), True),
    "while_loop": (
        lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, solved(y) + 1), (torch.tensor(0), x))[1] + 1, False
    ),
    "scan": (lambda x: scan(lambda c, y: (c + y, solved(c * y)), torch.zeros(3), x, dim=0), True),
    "map": (lambda x: map_rows(lambda a: solved(a.sin()), x) + 1, True),
}  # fmt: skip
NAMES = {"cond in a layer": "cond", "map": "map_impl"}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_follows_eager(name: str, positive: bool) -> None:
    fn, differentiable = FUNCTIONS[name]
    fast = dcir.optimize(fn)
    x = (torch.rand(4, 3) + 0.1) * (1 if positive else -1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", NotCompiledWarning)
        torch.testing.assert_close(fast(x), fn(x))
        torch.testing.assert_close(fast(-x), fn(-x))  # the same graph, the other branch
    graphs = fast.dcir.explain().graphs
    called = [op for g in graphs for op, _ in g.fallbacks]
    assert len(graphs) == 1 and called == [f"higher_order.{NAMES.get(name, name)}"]
    if differentiable:
        x.requires_grad_()
        want, got = (
            torch.autograd.grad(sum(t.sin().sum() for t in torch.utils._pytree.tree_leaves(f(x))), x)
            for f in (fn, fast)
        )
        torch.testing.assert_close(got, want)


def test_effects_inside_of_a_graph() -> None:
    """Solving checks its matrices, which torch takes for an effect: AOTAutograd hands a token on that nobody in the graph reads."""

    def fn(x: Tensor) -> Tensor:
        return map_rows(lambda y: torch.linalg.solve(2 * torch.eye(3) + y.sum() ** 2, y), x) + 1

    x = torch.rand(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(dcir.optimize(fn)(x), fn(x))


def test_flex_attention() -> None:
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j)) * 2

    with torch.no_grad():
        fast = dcir.optimize(fn)
        torch.testing.assert_close(fast(q, k, v), fn(q, k, v))
        assert not fast.dcir.explain().fallbacks


@pytest.mark.parametrize("name", ["bias", "mask", "capped"])
def test_flex_attention_with_functions_of_the_user(name: str) -> None:
    q, k, v = (torch.randn(2, 4, 40, 8) for _ in range(3))
    slopes = torch.rand(4)
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 9), 2, 4, 40, 40, device="cpu", BLOCK_SIZE=16)
    fn = {
        "bias": lambda *t: flex_attention(*t, score_mod=lambda s, b, h, i, j: s + slopes[h] * (i - j)),
        "mask": lambda *t: flex_attention(*t, block_mask=mask),
        "capped": lambda *t: flex_attention(
            *t, score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20), block_mask=mask
        ),
    }[name]
    with torch.no_grad():
        fast = dcir.optimize(fn)
        torch.testing.assert_close(fast(q, k, v), fn(q, k, v))
        assert not fast.dcir.explain().fallbacks


def test_random_operators_inside_a_branch_draw_eagers_numbers() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y + 1, (torch.rand_like(x),)) + torch.rand_like(x)

    results = []
    for f in (fn, dcir.optimize(fn)):
        torch.manual_seed(2)
        with torch.no_grad():
            results.append(f(torch.ones(4)))
    torch.testing.assert_close(results[1], results[0])


def test_strict_refuses_it_and_so_does_a_file(tmp_path: Any) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, solved, lambda y: y + 1, (x,))

    with torch.no_grad(), pytest.raises(Unsupported, match=r"higher_order\.cond"):
        dcir.optimize(Net(), strict=True)(torch.ones(3))
    with pytest.raises(Unsupported, match=r"higher_order\.cond"):
        save(Net(), (torch.ones(3),), tmp_path / "net.dcir")


def test_graphs_go_with_their_program() -> None:
    gc.collect()
    before = len(subgraphs._GRAPHS)
    fast: Any = dcir.optimize(FUNCTIONS["cond"][0])
    with torch.no_grad():
        fast(torch.ones(4, 3))
    assert len(subgraphs._GRAPHS) == before + 2
    del fast
    torch._dynamo.reset()
    gc.collect()
    assert len(subgraphs._GRAPHS) == before
