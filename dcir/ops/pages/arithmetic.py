"""Pages of the arithmetic operators on two tensors or a tensor and a number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import INT_TO_FLOAT, Lowering, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import binary, rand


def _scaled(x: Expr, alpha: Any) -> Expr:
    return x if alpha == 1 else x * alpha


def _sums() -> Iterable[Sample]:
    yield from binary()()
    a, b = rand(3, 5) > 0, rand(5, seed=1) > 0
    for alpha in (True, False):
        yield Sample((a, b), {"alpha": alpha}, name=f"bools, {alpha}")


@operator("aten.add.Tensor", "aten.add.Scalar", samples=_sums)
def add(ctx: Lowering, a: Any, b: Any, *, alpha: Any = 1) -> Ref:
    """a + alpha * b; logical or for bools, of which a factor of False leaves the second out."""
    if ctx.out.dtype == "bool":
        return ctx.pointwise(lambda x, y: x | y if alpha else x, a, b)
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
