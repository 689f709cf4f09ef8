"""Small tools of the pointwise pages: calls of scalar operators, constants, conditions that keep their own type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import elementwise_dtypes

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import DEFAULT, Lowering, NotNative, Ref
from dcir.ops.torch_types import FROM_NAME, TORCH_TYPES

Fn = Callable[..., Expr]


def call(name: str, *args: Expr, dtype: str | None = None) -> Expr:
    """A scalar operator by name."""
    return args[0].body.op(name, *args, dtype=dtype)


def scalar(name: str, dtype: str | None = None) -> Fn:
    """A scalar operator as a function of values."""
    return lambda *args: call(name, *args, dtype=dtype)


def const(like: Expr, value: float) -> Expr:
    """A constant of the same type."""
    return like.body.const(value, like.dtype)


def where(cond: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """``a`` where the condition holds, else ``b``; at most one of them is a number."""
    if isinstance(a, Expr):
        return cond.body.where(cond, a, b if isinstance(b, Expr) else const(a, b))
    assert isinstance(b, Expr)
    return cond.body.where(cond, const(b, a), b)


def maximum(a: Expr, b: Expr | float) -> Expr:
    """The larger one; NaN wins."""
    return call("max", a, b if isinstance(b, Expr) else const(a, b))


def minimum(a: Expr, b: Expr | float) -> Expr:
    """The smaller one; NaN wins."""
    return call("min", a, b if isinstance(b, Expr) else const(a, b))


def clamp(x: Expr, low: float, high: float) -> Expr:
    """``x`` between two numbers; NaN stays."""
    return minimum(maximum(x, low), high)


def rounded(x: Expr, storage: str) -> Expr:
    """``x`` as it would be after a store to ``storage`` and a load: half types lose digits."""
    if compute_type(storage) == storage or x.dtype != "f32":
        return x
    return x.body.narrow(x, storage)


def result_type(*args: Any) -> str:
    """The element type torch promotes Refs and numbers to.

    Raises:
        NotNative: a complex one.
    """
    like = [
        torch.empty(a.shape, dtype=FROM_NAME[a.dtype], device="meta") if isinstance(a, Ref) else a
        for a in args
        if a is not None
    ]
    _, dtype = elementwise_dtypes(*like, type_promotion_kind=DEFAULT)
    if dtype not in TORCH_TYPES or dtype.is_complex:
        raise NotNative(f"arithmetic in {dtype}")
    return TORCH_TYPES[dtype]


def numeric(ctx: Lowering, *args: Any) -> None:
    """Refuse bools where torch has no such operator or gives it another meaning.

    Raises:
        NotNative: the operands promote to bool.
    """
    if result_type(*args) == "bool":
        raise NotNative("arithmetic on bools")


def finite_for(value: float, dtype: str) -> bool:
    """Whether a number can be held by a type: integers hold no infinities."""
    return dtype[0] == "f" or math.isfinite(value)


def selected(ctx: Lowering, cond: Ref, a: Any, b: Any) -> Ref:
    """``a`` where the condition holds, else ``b``, in the result's type; the condition keeps its own."""
    dst = ctx.result()
    compute = compute_type(dst.dtype)
    if compute in ("c64", "c128") or cond.dtype not in ("bool", "u8"):
        raise NotNative(f"a choice by {cond.dtype} of {compute}")
    if not all(isinstance(v, Ref) or finite_for(v, compute) for v in (a, b)):
        raise NotNative("an infinite integer")
    k = ctx.kernel(dst.shape)
    values = [k.load(v, dtype=compute) if isinstance(v, Ref) else k.body.const(v, compute) for v in (a, b)]
    k.store(dst, k.body.where(k.load(cond, dtype="bool"), *values))
    k.done()
    return dst
