"""Dropout draws the mask that eager torch draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dcir
from dcir.frontends.torch.importer import import_graph
from tests.harness import graph_of, run_interpreted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_mask_from_the_same_seed(dtype: torch.dtype) -> None:
    """Mask and result are those of eager torch, bit by bit."""
    x = torch.arange(600, dtype=torch.float32).reshape(4, 150).to(dtype)
    op = torch.ops.aten.native_dropout.default
    gm, tensors = graph_of(op, (x, 0.3, True), {})
    done = import_graph(gm)
    assert not done.fallbacks
    torch.manual_seed(5)
    want = op(x, 0.3, True)
    torch.manual_seed(5)
    got = run_interpreted(done, tensors)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0])


def test_mask_in_another_order_stays_with_torch() -> None:
    """A transposed argument has its mask drawn in the order of its memory, which one call into torch reproduces."""
    gm, _ = graph_of(torch.ops.aten.native_dropout.default, (torch.ones(3, 4).t(), 0.5, True), {})
    assert [name for name, _ in import_graph(gm).fallbacks] == ["aten.native_dropout.default"]


def test_chance_of_the_users_is_listed() -> None:
    """The page's own draw is no lack of code; a call that the user makes of the same operator is."""
    gm, _ = graph_of(torch.ops.aten.bernoulli.p, (torch.rand(3, 4), 0.3), {})
    assert [name for name, _ in import_graph(gm).fallbacks] == ["aten.bernoulli.p"]


@pytest.mark.parametrize("turned", [False, True])
def test_nothing_is_drawn_where_everything_is_dropped(turned: bool) -> None:
    """As ``F.dropout`` of a chance of 1: zeros, of what is not finite NaN, and the generator stays as it is."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(x.t() if turned else x, 1.0), torch.rand(3)

    x = torch.tensor([[1.0, -1, float("inf")], [0, 2, float("nan")]])
    got, want = [], []
    for run, seen in ((dcir.optimize(fn), got), (fn, want)):
        for trains in (False, True):
            torch.manual_seed(0)
            leaf = x.clone().requires_grad_(trains)
            seen += run(leaf)
            if trains:
                seen += torch.autograd.grad(seen[-2], leaf, torch.full_like(seen[-2], 3.0))
            seen.append(torch.rand(2))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, equal_nan=True)
