"""Pages of the reductions to one number per row: sums, products, extreme values, truth, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.types import compute_type
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.reducing import ReducedDims, axes, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials

Fold = Callable[[LoopNestBuilder, Expr], Expr]


def fold(ctx: Lowering, x: Ref, dims: int | Iterable[int] | None, of: Fold, compute: str | None = None) -> Ref:
    """One reduction program: ``of`` makes the result's value from the element's, converted to ``compute``."""
    refuse_complex(ctx, x)
    space, dst = ReducedDims(x.shape, axes(dims, len(x.shape))), ctx.result()
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x), dtype=compute or compute_type(dst.dtype))
    k.store(dst, of(k.body, v), space.of_result(dst))
    k.done()
    return dst


def _along(*, ints: bool = True, dims: bool = True, whole: bool = False) -> Callable[[], Iterable[Sample]]:
    """Samples of (tensor, dim, keepdim): one dimension, or a list of them."""

    def make() -> Iterable[Sample]:
        def at(*d: int) -> Any:
            return list(d) if dims else d[0]

        yield Sample((rand(3, 37), at(1)))
        yield Sample((rand(4, 5, 6), at(0, 2), True), name="keepdim")
        yield Sample((rand(2, 5, 3, 4).to(memory_format=torch.channels_last), at(-2, -1)), name="channels last")
        yield Sample((rand(6, 40).t(), at(-1)), name="columns")
        yield Sample((rand(), at(-1)), name="scalar")
        yield Sample((rand(5, 9, dtype=torch.bfloat16), at(1)), name="bf16")
        yield Sample((torch.stack([specials(), specials().roll(3), torch.ones(14)]), at(1)), name="special values")
        if ints:
            yield Sample((rand(5, 9, dtype=torch.int64, low=-5, high=6), at(0)), name="int64")
        if whole:
            yield Sample((rand(4, 3), None), name="all dimensions")
        yield Sample((rand(0, 4), at(1)), name="no rows")

    return make


def _everything(*, ints: bool = True, nothing: bool = True) -> Callable[[], Iterable[Sample]]:
    """Samples of a reduction of all dimensions."""

    def make() -> Iterable[Sample]:
        yield Sample((rand(7, 31),))
        yield Sample((rand(3, 4, 5).permute(2, 0, 1),), name="permuted")
        yield Sample((rand(),), name="scalar")
        yield Sample((rand(90, dtype=torch.float64),), name="double")
        yield Sample((rand(90, dtype=torch.float16),), name="f16")
        if ints:
            yield Sample((rand(40, dtype=torch.int32, low=-9, high=9),), name="int32")
            yield Sample((rand(4, 9, dtype=torch.bool),), name="bool")
        if nothing:
            yield Sample((rand(0, 3),), name="empty")

    return make


def _typed(make: Callable[[], Iterable[Sample]], *args: Any) -> Callable[[], Iterable[Sample]]:
    """The samples, and some that ask for another element type."""

    def more() -> Iterable[Sample]:
        yield from make()
        yield Sample((rand(5, 6), *args), {"dtype": torch.float64}, name="to double")
        ints = rand(5, 6, dtype=torch.int64, low=-5, high=5)
        yield Sample((ints, *args), {"dtype": torch.float32}, name="from int64")

    return more


def _empty(make: Callable[[], Iterable[Sample]], dim: Any) -> Callable[[], Iterable[Sample]]:
    """The samples, and one of rows without elements."""

    def more() -> Iterable[Sample]:
        yield from make()
        yield Sample((rand(3, 0), dim), name="empty rows")

    return more


def _sum(b: LoopNestBuilder, v: Expr) -> Expr:
    return b.reduce("sum", v)


@operator("aten.sum.default", samples=_typed(_everything()))
def sum_all(ctx: Lowering, x: Ref, *, dtype: Any = None) -> Ref:
    """The sum of all elements; integers and truth values in i64."""
    return fold(ctx, x, None, _sum)


@operator("aten.sum.dim_IntList", samples=_typed(_empty(_along(whole=True), [1]), [0]))
def sum_dims(ctx: Lowering, x: Ref, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    """Sums over some dimensions."""
    return fold(ctx, x, dim, _sum)


@operator("aten.nansum.default", samples=_typed(_along(whole=True), [0]))
def nansum(ctx: Lowering, x: Ref, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    """Sums that pass over NaN."""

    def of(b: LoopNestBuilder, v: Expr) -> Expr:
        return b.reduce("sum", b.where(b.op("isnan", v, dtype="bool"), b.const(0, v.dtype), v))

    return fold(ctx, x, dim, of)


def _mean(ctx: Lowering, x: Ref, dims: Any) -> Ref:
    n = ReducedDims(x.shape, axes(dims, len(x.shape))).count
    return fold(ctx, x, dims, lambda b, v: b.reduce("sum", v) / n)


@operator("aten.mean.default", samples=_typed(_everything(ints=False)))
def mean_all(ctx: Lowering, x: Ref, *, dtype: Any = None) -> Ref:
    """The mean of all elements; NaN of none."""
    return _mean(ctx, x, None)


@operator("aten.mean.dim", samples=_typed(_empty(_along(ints=False, whole=True), [1]), [1]))
def mean_dims(ctx: Lowering, x: Ref, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    """Means over some dimensions."""
    return _mean(ctx, x, dim)


@operator("aten.prod.default", samples=_typed(_everything()))
def prod_all(ctx: Lowering, x: Ref, *, dtype: Any = None) -> Ref:
    """The product of all elements."""
    return fold(ctx, x, None, lambda b, v: b.reduce("prod", v))


@operator("aten.prod.dim_int", samples=_typed(_empty(_along(dims=False), 1), 0))
def prod_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    """Products along one dimension."""
    return fold(ctx, x, dim, lambda b, v: b.reduce("prod", v))


@operator("aten.amax.default", samples=_along())
def amax(ctx: Lowering, x: Ref, dim: Sequence[int] = (), keepdim: bool = False) -> Ref:
    """Largest elements; NaN wins."""
    return fold(ctx, x, dim, lambda b, v: b.reduce("max", v))


@operator("aten.amin.default", samples=_along())
def amin(ctx: Lowering, x: Ref, dim: Sequence[int] = (), keepdim: bool = False) -> Ref:
    """Smallest elements; NaN wins."""
    return fold(ctx, x, dim, lambda b, v: b.reduce("min", v))


@operator("aten.max.default", samples=_everything(nothing=False))
def max_all(ctx: Lowering, x: Ref) -> Ref:
    """The largest of all elements."""
    return fold(ctx, x, None, lambda b, v: b.reduce("max", v))


@operator("aten.min.default", samples=_everything(nothing=False))
def min_all(ctx: Lowering, x: Ref) -> Ref:
    """The smallest of all elements."""
    return fold(ctx, x, None, lambda b, v: b.reduce("min", v))


def _truth(kind: str) -> Fold:
    return lambda b, v: b.reduce(kind, b.convert(v, "bool"))


@operator("aten.any.default", samples=lambda: [
    Sample((rand(3, 4, dtype=torch.bool),)), Sample((torch.zeros(7),)), Sample((specials(),)), Sample((rand(0, 2),)),
    Sample((torch.zeros(3, dtype=torch.uint8),)),
])  # fmt: skip
def any_all(ctx: Lowering, x: Ref) -> Ref:
    """Whether any element is not zero."""
    return fold(ctx, x, None, _truth("any"), compute_type(x.dtype))


@operator("aten.all.default", samples=lambda: [
    Sample((rand(3, 4, dtype=torch.bool),)), Sample((torch.ones(7),)), Sample((specials(),)), Sample((rand(0, 2),)),
    Sample((torch.ones(3, dtype=torch.uint8),)),
])  # fmt: skip
def all_all(ctx: Lowering, x: Ref) -> Ref:
    """Whether all elements are not zero."""
    return fold(ctx, x, None, _truth("all"), compute_type(x.dtype))


def _truths() -> Iterable[Sample]:
    many = torch.tensor([[0, 0, 0], [0, 5, 0], [1, 2, 3]])
    for d in (1, [0, 1]):
        yield Sample((many.bool(), d), name="bool")
        yield Sample((many.float(), d, True), name="float")
    yield Sample((many.t(), -1), name="columns")
    yield Sample((torch.full((2, 2), float("nan")), 0), name="NaN")
    yield Sample((torch.ones(2, 0), 1), name="empty rows")
    yield Sample((many.float(), []), name="no dimension")


def _truths_along() -> Iterable[Sample]:
    return (s for s in _truths() if isinstance(s.args[1], int))


def _truths_over() -> Iterable[Sample]:
    return (s for s in _truths() if not isinstance(s.args[1], int))


def _true(ctx: Lowering, x: Ref, dim: Any, kind: str) -> Ref:
    if isinstance(dim, Sequence) and not dim:  # unlike elsewhere, no dimension means none
        return ctx.pointwise(not_zero, x, compute=compute_type(x.dtype))
    return fold(ctx, x, dim, _truth(kind), compute_type(x.dtype))


def not_zero(v: Expr) -> Expr:
    """Whether a value is not zero."""
    return v.body.convert(v, "bool")


@operator("aten.any.dim", samples=_truths_along)
def any_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> Ref:
    """Whether any element along a dimension is not zero."""
    return _true(ctx, x, dim, "any")


@operator("aten.any.dims", samples=_truths_over)
def any_dims(ctx: Lowering, x: Ref, dim: Sequence[int] | None = None, keepdim: bool = False) -> Ref:
    """Whether any element over some dimensions is not zero."""
    return _true(ctx, x, dim, "any")


@operator("aten.all.dim", samples=_truths_along)
def all_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> Ref:
    """Whether all elements along a dimension are not zero."""
    return _true(ctx, x, dim, "all")


@operator("aten.all.dims", samples=_truths_over)
def all_dims(ctx: Lowering, x: Ref, dim: Sequence[int] | None = None, keepdim: bool = False) -> Ref:
    """Whether all elements over some dimensions are not zero."""
    return _true(ctx, x, dim, "all")


def _count(b: LoopNestBuilder, v: Expr) -> Expr:
    return b.reduce("sum", b.convert(v.ne(0) if v.dtype != "bool" else v, "i64"))


@operator("aten.count_nonzero.default", samples=lambda: [
    Sample((rand(4, 5, dtype=torch.int64, low=-1, high=2),)), Sample((rand(4, 5, dtype=torch.bool), 1)),
    Sample((specials(), 0)), Sample((rand(),)),
])  # fmt: skip
def count_nonzero(ctx: Lowering, x: Ref, dim: int | None = None) -> Ref:
    """How many elements are not zero."""
    return fold(ctx, x, dim, _count, compute_type(x.dtype))


@operator("aten.count_nonzero.dim_IntList", samples=lambda: [
    Sample((rand(4, 5, 3, dtype=torch.int64, low=-1, high=2), [0, 2])), Sample((rand(4, 5, dtype=torch.bool), [1])),
])  # fmt: skip
def count_nonzero_dims(ctx: Lowering, x: Ref, dim: Sequence[int]) -> Ref:
    """How many elements over some dimensions are not zero."""
    return fold(ctx, x, dim, _count, compute_type(x.dtype))
