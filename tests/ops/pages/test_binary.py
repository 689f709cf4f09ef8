"""Quotients, remainders and powers of integers: native by numbers that torch divides by, else torch's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dcir
from dcir.errors import FallbackFailed
from dcir.frontends.torch.importer import import_graph
from dcir.ir.network import Network
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.binary import no_zero_divisor
from dcir.ops.reach import on_device
from tests.harness import graph_of

aten = torch.ops.aten
A = torch.tensor([4, -5, 6])
DIVIDING: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "floor_divide": (aten.floor_divide.default, aten.floor_divide.Scalar, {}),
    "remainder": (aten.remainder.Tensor, aten.remainder.Scalar, {}),
    "fmod": (aten.fmod.Tensor, aten.fmod.Scalar, {}),
    "div trunc": (aten.div.Tensor_mode, aten.div.Scalar_mode, {"rounding_mode": "trunc"}),
    "div floor": (aten.div.Tensor_mode, aten.div.Scalar_mode, {"rounding_mode": "floor"}),
}


def through_torch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has no code of its own; that is no lack."""
    done = import_graph(graph_of(op, args, kwargs)[0])
    assert not done.fallbacks
    return any(o.spec.calls_out for o in done.network.ops())


@pytest.mark.parametrize("name", DIVIDING)
def test_what_may_divide_by_zero(name: str) -> None:
    op, by_number, kwargs = DIVIDING[name]
    for number in (3, -1, 0.0, 2.5):
        assert not through_torch(by_number, (A, number), kwargs)
    assert not through_torch(op, (A, A * 0.5), kwargs)
    assert through_torch(by_number, (A, 0), kwargs) and through_torch(op, (A, A), kwargs)
    assert through_torch(op, (A.byte(), torch.tensor(2, dtype=torch.uint8)), kwargs)


def test_gpus_raise_no_error() -> None:
    ctx, ref = Lowering(Network()), Ref("x", (3,), (1,), 0, "i64")
    with pytest.raises(NotNative):
        no_zero_divisor(ctx, ref, ref)
    with on_device("cuda"):
        no_zero_divisor(ctx, ref, ref)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a // b, lambda a, b: a % b, torch.fmod, lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: a.byte() % b.byte(), lambda a, b: 7 % b, lambda a, b: a // 0, lambda a, b: a ** -1,
    ],
)  # fmt: skip
def test_torchs_error(fn: Callable[..., torch.Tensor]) -> None:
    b = torch.tensor([2, 0, 3])
    fast = dcir.optimize(fn)
    for run, kind in ((fn, RuntimeError), (fast, RuntimeError), (fast, FallbackFailed)):
        with pytest.raises(kind, match=r"ZeroDivisionError|negative integer powers"):
            run(A, b)


def test_divisors_that_are_tensors() -> None:
    b = torch.tensor([2, -3, 4])
    for dtype in (torch.int64, torch.int32, torch.int8):
        x, y = A.to(dtype), b.to(dtype)
        got = dcir.optimize(lambda x, y: (x // y, x % y, torch.fmod(x, y), 7 // y))(x, y)
        for g, w in zip(got, (x // y, x % y, torch.fmod(x, y), 7 // y), strict=True):
            assert torch.equal(g, w)


def test_negative_powers() -> None:
    op = aten.pow.Tensor_Scalar
    assert through_torch(op, (A, -1), {}) and through_torch(op, (A > 0, -2), {})
    assert not through_torch(op, (A, -1.0), {}) and not through_torch(op, (A * 0.5, -1), {})
    assert not through_torch(op, (A, 3), {})
    assert not through_torch(aten.pow.Tensor_Tensor, (A, A), {})


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("tensors", [False, True])
def test_general_powers_that_are_roots(exponent: float, tensors: bool) -> None:
    """Every number of float16, of which torch's CPU code takes the general power: that is no root at -inf and at -0.0."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.pow(x.float(), torch.full_like(x, exponent).float()).half() if tensors else x**exponent

    got, want = dcir.optimize(fn)(every), fn(every)
    same = (got == want) & (got.signbit() == want.signbit()) | got.isnan() & want.isnan()
    assert same.all(), every[~same]
