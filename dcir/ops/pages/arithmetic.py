"""Pages of the arithmetic operators on two tensors or a tensor and a number."""

from __future__ import annotations

from typing import Any

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import INT_TO_FLOAT, Lowering, Ref
from dcir.ops.registry import operator
from dcir.ops.samples import binary


def _scaled(x: Expr, alpha: Any) -> Expr:
    return x if alpha == 1 else x * alpha


@operator("aten.add.Tensor", "aten.add.Scalar", samples=binary())
def add(ctx: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Ref:
    """a + alpha * b; logical or for bools."""
    if ctx.out.dtype == "bool":
        return ctx.pointwise(lambda x, y: x | y, a, b)
    return ctx.pointwise(lambda x, y: x + _scaled(y, alpha), a, b)


@operator("aten.sub.Tensor", "aten.sub.Scalar", samples=binary())
def sub(ctx: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Ref:
    """a - alpha * b."""
    return ctx.pointwise(lambda x, y: x - _scaled(y, alpha), a, b)


@operator("aten.mul.Tensor", "aten.mul.Scalar", samples=binary())
def mul(ctx: Lowering, a: Any, b: Any) -> Ref:
    """a * b; logical and for bools."""
    if ctx.out.dtype == "bool":
        return ctx.pointwise(lambda x, y: x & y, a, b)
    return ctx.pointwise(lambda x, y: x * y, a, b)


@operator("aten.div.Tensor", "aten.div.Scalar", samples=binary())
def div(ctx: Lowering, a: Any, b: Any) -> Ref:
    """True division; integers become floats first."""
    return ctx.pointwise(lambda x, y: x / y, a, b, kind=INT_TO_FLOAT)
