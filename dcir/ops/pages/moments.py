"""Pages of variances and standard deviations: mean, then squares of differences, in one program of two sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.many_sizes import many_sizes, never_less
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.moving_edges import hidden
from dcir.ops.pages.reducing import ReducedDims, axes, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def spread(k: Kernel, v: Expr, count: int) -> tuple[Expr, Expr, Expr]:
    """(mean, differences from it, sum of their squares) of a value over the inner loops of ``count`` points.

    A sum rounds, so what is first taken for the mean is off by some units in its last place. The sweep over the differences from it
    sums them too and corrects both: equal values are exactly their mean.
    """
    near = k.body.reduce("sum", v) / count
    off = v - near
    rest, squares = k.body.reduce("sum", off), k.body.reduce("sum", off * off)
    correction = rest / count
    mean = near + correction
    return mean, v - mean, k.body.op("max", squares - rest * correction, k.body.const(0.0, v.dtype))


def _samples() -> Iterable[Sample]:
    yield Sample((rand(3, 37), [1]))
    yield Sample((rand(4, 5, 6), [0, 2]), {"correction": 0, "keepdim": True}, name="keepdim")
    image = rand(2, 5, 3, 4).to(memory_format=torch.channels_last)
    yield Sample((image, [2, 3]), {"correction": 2}, name="channels last")
    yield Sample((rand(30, 4) + 100.0, [0]), name="far from zero")
    yield Sample((rand(4, 5),), name="all dimensions")
    yield Sample((rand(3, 1), [1]), name="one element")
    yield Sample((rand(5, 9, dtype=torch.bfloat16), [1]), name="bf16")
    yield Sample((rand(40, dtype=torch.float64), [0]), {"correction": 0.5}, name="double")


def _moments(ctx: Lowering, x: Ref, dim: Sequence[int] | None, correction: float | None, *, root: bool) -> list[Ref]:
    refuse_complex(ctx, x)
    space = ReducedDims(x.shape, axes(dim, len(x.shape)))
    results = [ctx.result(i) for i in range(len(ctx.outs))]
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x), dtype=compute_type(results[0].dtype))
    mean, _, squares = spread(k, v, space.count)
    variance = squares / _divisor(k, space.count, 1 if correction is None else correction, squares.dtype)
    values: list[Expr] = [k.body.op("sqrt", variance) if root else variance, mean]
    for dst, value in zip(results, values, strict=False):
        k.store(dst, value, space.of_result(dst))
    k.done()
    return results


def _divisor(k: Kernel, count: int, correction: float, dtype: str) -> Expr | float:
    """How many elements the squares are spread over, or none: at many sizes it may be none at a few."""
    if correction <= 1 or not many_sizes() or never_less(count - math.ceil(correction)):
        return max(count - correction, 0)
    b = k.body
    return b.op("max", b.convert(hidden(b, count), dtype) - correction, b.const(0.0, dtype))


def _page(name: str, *, root: bool) -> None:
    @operator(f"aten.{name}.correction", samples=_samples)
    def one(
        ctx: Lowering, x: Ref, dim: Sequence[int] | None = None, *,
        correction: float | None = None, keepdim: bool = False,
    ) -> Ref:  # fmt: skip
        """The spread of the elements."""
        return _moments(ctx, x, dim, correction, root=root)[0]

    @operator(f"aten.{name}_mean.correction", samples=_samples)
    def both(
        ctx: Lowering, x: Ref, dim: Sequence[int] | None = None, *,
        correction: float | None = None, keepdim: bool = False,
    ) -> tuple[Ref, ...]:  # fmt: skip
        """The spread and the mean of the elements."""
        return tuple(_moments(ctx, x, dim, correction, root=root))


for _name, _root in (("var", False), ("std", True)):
    _page(_name, root=_root)
