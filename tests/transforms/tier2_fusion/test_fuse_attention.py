"""Attention that is written out: which forms become one operator, which do not and why, and their numbers in every back end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.attention import AttentionSpec
from dcir.transforms.base import PassResult
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tier2_fusion.fuse_attention import FuseAttention
from dcir.transforms.tier2_fusion.fuse_epilogues import FuseEpilogues
from tests.harness import check_close, double, run_cpp, run_dace, run_interpreted
from tests.transforms.imported import imported

Attend = Callable[..., Tensor]


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def heads(m: int, n: int, d: int = 16, h: int = 3, b: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [values(b, h, m, d, dtype=dtype), *(values(b, h, n, d, seed=i, dtype=dtype) for i in (1, 2))]


def upper(m: int, n: int) -> Tensor:
    return torch.ones(m, n, dtype=torch.bool).triu(1)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.transpose(-1, -2)) * 0.3
    return torch.softmax(s.masked_fill(upper(*s.shape[-2:]), -math.inf), -1) @ v


def causal_where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.transpose(-1, -2)) * 0.3
    at = torch.arange(s.shape[-1])
    return torch.softmax(torch.where(at[None] <= torch.arange(s.shape[-2])[:, None], s, -math.inf), -1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose(-1, -2)
    at = torch.arange(s.shape[-1])
    return torch.softmax(s.masked_fill((at[None] - at[: s.shape[-2], None]).abs() > 2, -math.inf), -1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.5 + mask, -1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.transpose(-1, -2) * 0.5).masked_fill(mask == 0, -math.inf), -1) @ v


def seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(torch.where(mask > 0, q @ k.transpose(-1, -2), -math.inf), -1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries of several heads on one head of keys, and a mask over each head's positions."""
    b, h, m, d = q.shape
    g, n = h // k.shape[1], k.shape[2]
    s = (q.reshape(b, h // g, g * m, d) @ k.transpose(-1, -2)).view(b, h // g, g, m, n) * 0.25
    s = s.masked_fill(upper(m, n), -math.inf).view(b, h // g, g * m, n)
    return (torch.softmax(s, -1) @ v).view(b, h, m, d)


def packed(x: Tensor) -> Tensor:
    """Queries, keys and values side by side in one tensor; heads side by side in the result."""
    b, n, w = x.shape
    q, k, v = x.view(b, n, 3, 4, w // 12).permute(2, 0, 3, 1, 4)
    return plain(q, k, v).transpose(1, 2).reshape(b, n, w // 3)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.T * 0.2, -1) @ v


def holes(*shape: int, empty: bool = False) -> Tensor:
    m = values(*shape, seed=9)
    m[m < 0] = -math.inf
    m[..., 0] = 0.0
    if empty:
        m[..., 1, :] = -math.inf
    return m


CASES: list[tuple[str, Attend, list[Tensor]]] = [
    ("plain", plain, heads(11, 19)),
    ("few queries", plain, heads(2, 19)),
    ("one query", plain, heads(1, 40)),
    ("one batch", plain, heads(20, 20, b=1)),
    ("no factor, more blocks", unscaled, heads(70, 150, d=24)),
    ("double", plain, heads(9, 13, dtype=torch.float64)),
    ("causal", causal, heads(37, 37)),
    ("causal, more keys", causal, heads(12, 30)),
    ("causal, more queries", causal, heads(30, 12)),
    ("causal by comparison", causal_where, heads(21, 21)),
    ("causal, few queries", causal, heads(3, 9)),
    ("window", window, heads(20, 20)),
    ("addend of a key", added, [*heads(11, 19), holes(2, 1, 1, 19)]),
    ("addend of a pair", added, [*heads(11, 19), holes(11, 19)]),
    ("addend, a row of nothing", added, [*heads(11, 19), holes(2, 3, 11, 19, empty=True)]),
    ("addend, few queries, a row of nothing", added, [*heads(2, 19), holes(2, 3, 2, 19, empty=True)]),
    ("filled", filled, [*heads(11, 19), (holes(2, 1, 1, 19) > -1).long()]),
    ("filled, a row of nothing", filled, [*heads(40, 19), (holes(40, 19, empty=True) > -1).float()]),
    ("seen, few queries", seen, [*heads(3, 19), (holes(3, 19) > -1).float()]),
    ("grouped", grouped, [values(2, 6, 40, 8), values(2, 2, 40, 8, seed=1), values(2, 2, 40, 8, seed=2)]),
    ("packed", packed, [values(2, 15, 96)]),
    ("one head", one_head, [values(9, 8), values(14, 8), values(14, 8, seed=3)]),
]


def fused(fn: Attend, inputs: list[Tensor]) -> tuple[Network, PassResult, Any]:
    done = imported(fn, *inputs)
    FoldConstants().apply(done.network)
    FuseEpilogues().apply(done.network)
    outcome = FuseAttention().apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, done


def attentions(net: Network) -> list[AttentionSpec]:
    return [op.spec for op in net.ops() if isinstance(op.spec, AttentionSpec)]


@pytest.mark.parametrize(("fn", "inputs"), [pytest.param(f, i, id=name) for name, f, i in CASES])
def test_one_operator(fn: Attend, inputs: list[Tensor]) -> None:
    """Both products and the softmax are one operator, right in the interpreter and in generated code."""
    net, outcome, done = fused(fn, inputs)
    assert outcome.changed == len(attentions(net)) == 1
    assert outcome.saved_bytes > 0
    assert all(net.writers(n) or net.readers(n) for n, c in net.containers.items() if c.role == "transient")
    want, exact = fn(*inputs), fn(*[double(t) for t in inputs])
    for run in (run_interpreted, run_cpp):
        (got,) = run(done, inputs)
        assert torch.equal(torch.isnan(got), torch.isnan(want))
        check_close(torch.nan_to_num(got), torch.nan_to_num(want), torch.nan_to_num(exact), what=run.__name__)


def test_stock_dace() -> None:
    """The expansion has the same mask, and the same rows that are not a number."""
    inputs = [*heads(2, 19), holes(2, 3, 2, 19, empty=True) > -1]
    _, _, done = fused(seen, inputs)
    (got,) = run_dace(done, inputs)
    want = seen(*inputs)
    assert torch.equal(torch.isnan(got), torch.isnan(want))
    check_close(torch.nan_to_num(got), torch.nan_to_num(want), torch.nan_to_num(seen(*map(double, inputs))))


def test_above_the_diagonal_nothing_is_computed() -> None:
    """A mask of positions is the operator's own; a mask that is given is an operand of it."""
    net, _, _ = fused(causal, heads(37, 37))
    assert attentions(net)[0].causal and not attentions(net)[0].mask
    net, _, _ = fused(causal_where, heads(21, 21))
    assert attentions(net)[0].causal
    net, _, _ = fused(window, heads(20, 20))
    assert not attentions(net)[0].causal and attentions(net)[0].mask_dtype == "bool"
    net, _, _ = fused(added, [*heads(11, 19), holes(2, 1, 1, 19)])
    assert attentions(net)[0].mask == (19, 0, 0, 1)


def test_masked_scores_do_not_count() -> None:
    """A score that is not a number, and not seen, changes nothing."""
    q, k, v = heads(11, 19)
    k[..., 5, :] = math.nan
    mask = torch.ones(19)
    mask[5] = 0
    net, _, done = fused(filled, [q, k, v, mask])
    assert attentions(net)
    want = filled(q, k, v, mask)
    assert torch.isfinite(want).all()
    check_close(run_cpp(done, [q, k, v, mask])[0], want, filled(*map(double, (q, k, v, mask))))


def half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1)[..., : v.shape[-2]] @ v


def returned(q: Tensor, k: Tensor, v: Tensor) -> Any:
    p = torch.softmax(q @ k.transpose(-1, -2), -1)
    return p @ v, p


def with_itself(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = torch.softmax(q @ k.transpose(-1, -2), -1)
    return p @ p.transpose(-1, -2) + v.sum()


REFUSED: list[tuple[str, Attend, list[Tensor]]] = [
    ("read by others", returned, heads(5, 7)),
    ("read by others", with_itself, heads(7, 7)),
    ("not between two products", lambda q, k, v: torch.softmax(q * 2, -1) @ v, [values(4, 6), values(4, 6), values(6, 5)]),
    ("another dimension", lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v, heads(7, 7)),
    ("something else than -inf", lambda q, k, v: torch.softmax(
        (q @ k.transpose(-1, -2)).masked_fill(upper(5, 7), -1e9), -1) @ v, heads(5, 7)),
    ("scaled after", lambda q, k, v, m: torch.softmax((q @ k.transpose(-1, -2) + m) * 2, -1) @ v,
     [*heads(5, 7), values(5, 7)]),
    ("go through tanh", lambda q, k, v: torch.softmax(torch.tanh(q @ k.transpose(-1, -2)), -1) @ v, heads(5, 7)),
    ("differ in length", lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v,
     [*heads(5, 7)[:2], values(2, 3, 7, 9)]),
    ("another part", half, [*heads(5, 7)[:2], values(2, 3, 4, 16)]),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "fn", "inputs"), [pytest.param(*c, id=c[0]) for c in REFUSED])
def test_refused(reason: str, fn: Attend, inputs: list[Tensor]) -> None:
    """What is not attention stays as it is, and the report says why."""
    done = imported(fn, *inputs)
    FoldConstants().apply(done.network)
    FuseEpilogues().apply(done.network)
    before = [op.spec for op in done.network.ops()]
    outcome = FuseAttention().apply(done.network)
    assert outcome.changed == 0 and [op.spec for op in done.network.ops()] == before
    assert any(reason in text for text in outcome.refused), outcome.refused
