"""Pages of the operators that choose between values: where, masks, bounds, extremes, interpolation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import call, finite_for, scalar, selected, where
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import binary, rand, specials


def _wheres() -> Iterable[Sample]:
    c = rand(3, 5, dtype=torch.bool)
    yield Sample((c, rand(3, 5), rand(3, 5, seed=1)))
    yield Sample((c, rand(5), rand(3, 1, seed=1)), name="broadcast")
    yield Sample((c[0], rand(3, 5, dtype=torch.bfloat16), rand(dtype=torch.float32)), name="bf16 and scalar")
    yield Sample((c, rand(3, 5, dtype=torch.int64), rand(3, 5, dtype=torch.float64)), name="mixed types")
    yield Sample((c, 1.5, rand(3, 5)), name="number first")
    yield Sample((c, rand(3, 5), float("-inf")), name="number second")
    yield Sample((c, 1, 0.5), name="numbers")


@operator("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", samples=_wheres)
def where_(ctx: Lowering, cond: Ref, a: Any, b: Any) -> Ref:
    """``a`` where the condition holds, else ``b``."""
    return selected(ctx, cond, a, b)


def _masks() -> Iterable[Sample]:
    m = rand(3, 5, dtype=torch.bool)
    yield Sample((rand(3, 5), m, 1.5))
    yield Sample((rand(2, 3, 5), m[:, :1], float("-inf")), name="broadcast")
    yield Sample((rand(3, 5, dtype=torch.int64), m, 7), name="int64")
    yield Sample((rand(3, 5, dtype=torch.bfloat16), m, -1e4), name="bf16")
    yield Sample((rand(3, 5), m, rand()), name="scalar tensor")
    yield Sample((rand(3, 5, dtype=torch.bool), m, rand(dtype=torch.bool, seed=3)), name="bool tensor")


@operator("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", samples=_masks)
def masked_fill(ctx: Lowering, x: Ref, mask: Ref, value: Any) -> Ref:
    """``value`` where the mask holds, in the tensor's type."""
    return selected(ctx, mask, value, x)


def _bounds() -> Iterable[Sample]:
    x = rand(3, 7, low=-3, high=3)
    yield Sample((x, -1, 2.5))
    yield Sample((x, None, 0.5), name="from above")
    yield Sample((x.bfloat16(), -0.3, None), name="from below")
    yield Sample((specials(), -1.0, 1.0), name="special values")
    yield Sample((rand(9, dtype=torch.int64, low=-5, high=6), -2, 3), name="int64")
    yield Sample((x, rand(7), None), name="tensor")
    yield Sample((x, rand(3, 1), rand(3, 7, seed=2)), name="tensors")
    yield Sample((x, 1.0, -1.0), name="crossed")


@operator("aten.clamp.default", "aten.clamp.Tensor", samples=_bounds)
def clamp(ctx: Lowering, x: Ref, low: Any = None, high: Any = None) -> Ref:
    """Not below ``low``, then not above ``high``; NaN stays."""
    given = [(op, v) for op, v in (("max", low), ("min", high)) if v is not None]

    def fn(v: Expr, *bounds: Expr) -> Expr:
        for (op, _), bound in zip(given, bounds, strict=True):
            v = call(op, v, bound)
        return v

    return ctx.pointwise(fn, x, *(v for _, v in given))


def _two() -> Iterable[Sample]:
    yield from binary()()
    yield Sample((specials(), specials().flip(0)), name="special values")
    yield Sample((rand(5, dtype=torch.bool), rand(5, dtype=torch.bool, seed=1)), name="bool")


def _simple(name: str) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Any, b: Any) -> Ref:
        """One scalar operator on both."""
        if not isinstance(b, Ref) and not finite_for(b, ctx.out.dtype):
            raise NotNative("an infinite integer")
        return ctx.pointwise(scalar(name), a, b)

    return page


for _torch, _name in (("maximum", "max"), ("minimum", "min"), ("fmax", "fmax"), ("fmin", "fmin")):
    operator(f"aten.{_torch}.default", samples=_two)(_simple(_name))
for _torch, _name in (("clamp_min", "max"), ("clamp_max", "min")):
    operator(f"aten.{_torch}.default", f"aten.{_torch}.Tensor", samples=binary())(_simple(_name))


def _ends() -> Iterable[Sample]:
    a, b = rand(3, 7), rand(3, 7, seed=1)
    yield Sample((a, b, 0.3))
    yield Sample((a, b[0], 0.8), name="broadcast")
    yield Sample((a, b, rand(3, 7, low=0, high=1)), name="tensor")
    yield Sample((a.bfloat16(), b.bfloat16(), 0.7), name="bf16")
    yield Sample((a.double(), b.double(), rand(7, dtype=torch.float64, low=0, high=1)), name="double")


@operator("aten.lerp.Scalar", "aten.lerp.Tensor", samples=_ends)
def lerp(ctx: Lowering, a: Ref, b: Ref, weight: Any) -> Ref:
    """a + w (b - a), from whichever end is nearer."""

    def fn(x: Expr, y: Expr, w: Expr) -> Expr:
        near, far = x + w * (y - x), y - (y - x) * (1.0 - w)
        if not isinstance(weight, Ref):
            return near if abs(weight) < 0.5 else far
        return where(call("abs", w) < 0.5, near, far)

    return ctx.pointwise(fn, a, b, weight)


def _three() -> Iterable[Sample]:
    a, b, c = rand(3, 7), rand(3, 7, seed=1), rand(3, 7, low=0.5, high=2, seed=2)
    yield Sample((a, b, c))
    yield Sample((a, b, c), {"value": 0.5}, name="scaled")
    yield Sample((a, b[0], c[:, :1]), {"value": -2}, name="broadcast")
    yield Sample((a.bfloat16(), b.bfloat16(), c.bfloat16()), {"value": 0.1}, name="bf16")
    yield Sample((a.double(), b, c), name="double and float")


@operator("aten.addcmul.default", samples=lambda: [
    *_three(), Sample((torch.arange(4), torch.arange(4), torch.arange(4)), {"value": 3}, name="int64"),
])  # fmt: skip
def addcmul(ctx: Lowering, a: Ref, b: Ref, c: Ref, *, value: Any = 1) -> Ref:
    """a + value * b * c."""
    return ctx.pointwise(lambda x, y, z: x + (y if value == 1 else y * value) * z, a, b, c)


@operator("aten.addcdiv.default", samples=_three)
def addcdiv(ctx: Lowering, a: Ref, b: Ref, c: Ref, *, value: Any = 1) -> Ref:
    """a + value * b / c."""
    return ctx.pointwise(lambda x, y, z: x + (y if value == 1 else y * value) / z, a, b, c)
