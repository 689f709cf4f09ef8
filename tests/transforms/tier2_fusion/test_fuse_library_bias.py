"""A bias added by the library that multiplies: where it is, where it is not and why, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dcir
from dcir.cost.cuda import SETTING, TWIN
from dcir.ir.network import Network
from dcir.ir.verify import verify
from dcir.ops.library.library_call import LibraryCall
from dcir.transforms.tier1_operator.call_libraries import CallLibraries
from dcir.transforms.tier2_fusion.fuse_library_bias import FuseLibraryBias
from tests.harness import check_close, double, run_interpreted
from tests.transforms.imported import imported


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


ARGS = rand(2, 6, 8), rand(5, 8), rand(5)


def applied(fn: Callable[..., Any], *args: torch.Tensor) -> tuple[Network, Any, torch.Tensor]:
    """A function's network with the pass applied, its outcome, and what it computes as calls of libraries."""
    done = imported(fn, *args)
    outcome = FuseLibraryBias().apply(done.network)
    CallLibraries().apply(done.network)
    verify(done.network)
    done.network.validate()
    return done.network, outcome, run_interpreted(done, args)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_one_call(dtype: torch.dtype) -> None:
    args = tuple(t.to(dtype) for t in ARGS)
    net, outcome, got = applied(F.linear, *args)
    assert outcome.changed == 1 and outcome.saved_bytes > 0
    (call,) = [op for op in net.ops() if isinstance(op.spec, LibraryCall)]
    assert len(net.ops()) == 1 and len(call.spec.ins) == 3
    check_close(got, F.linear(*args), F.linear(*map(double, args)))
    made = torch.empty(12, 5, dtype=dtype)
    call.spec.call([args[0].reshape(12, 8), args[1].t(), args[2]], [made])
    check_close(made.view(2, 6, 5), F.linear(*args), F.linear(*map(double, args)))


def test_a_product_without_a_bias_stays() -> None:
    assert not applied(torch.mm, rand(3, 4), rand(4, 5))[1].changed


@pytest.mark.parametrize(("fn", "args", "why"), [
    (lambda x, w, b: (x @ w, x @ w + b), (rand(3, 4), rand(4, 5), rand(5)), "the product has other readers"),
    (lambda x, w, b: x @ w + b.exp(), (rand(3, 4), rand(4, 5), rand(5)), "what is added may not be there yet"),
])  # fmt: skip
def test_refused(fn: Any, args: tuple[torch.Tensor, ...], why: str) -> None:
    done = imported(fn, *args)
    from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions

    MergeCommonSubexpressions().apply(done.network)
    outcome = FuseLibraryBias().apply(done.network)
    assert not outcome.changed and why in outcome.refused


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_a_training_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers whose sums are kept for the backward, through the kernels' twin."""
    monkeypatch.setenv(SETTING, TWIN)
    torch._dynamo.reset()
    torch.manual_seed(0)

    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 7))

    model, x = made().to(dtype), rand(6, 5, 12, dtype=dtype)
    plain, exact = made().to(dtype), made().double()
    plain.load_state_dict(model.state_dict())
    exact.load_state_dict(model.state_dict())
    fast = dcir.optimize(model, target="cuda")
    for m, given in ((fast, x), (plain, x), (exact, x.double())):
        m(given).square().sum().backward()
    # Products of halves that memory binds have a kernel of their own, with the bias inside.
    by = "fuse-library-bias" if dtype == torch.float32 else "fuse-around-products"
    assert any(p.name == by and p.changed for g in fast.dcir.explain().graphs for p in g.passes)
    for p, q, e in zip(model.parameters(), plain.parameters(), exact.parameters(), strict=True):
        check_close(p.grad, q.grad, e.grad, factor=4, units=16)
