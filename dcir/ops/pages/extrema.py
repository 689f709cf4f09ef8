"""Pages of the reductions that say where the extreme value stands, or give both extremes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.types import compute_type
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.reducing import ReducedDims, axes, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _samples(*, none: bool) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        nan = rand(3, 8)
        nan[0, 3] = nan[0, 5] = nan[2, 7] = float("nan")
        yield Sample((rand(3, 37), 1))
        yield Sample((rand(4, 5, 6), 1, True), name="keepdim")
        yield Sample((rand(6, 20).t(), -1), name="columns")
        yield Sample((rand(2, 5, 3, 4).to(memory_format=torch.channels_last), 1), name="channels last")
        yield Sample((nan, 1), name="NaN")
        yield Sample((torch.full((2, 3), float("-inf")), 1), name="infinite")
        yield Sample((rand(5, 9, dtype=torch.int32, low=-3, high=3), 0), name="ties")
        yield Sample((rand(), 0), name="scalar")
        yield Sample((rand(5, 9, dtype=torch.bfloat16), 1), name="bf16")
        if none:
            yield Sample((rand(4, 5).t(),), name="flattened")

    return make


def _with_index(ctx: Lowering, x: Ref, dim: int, kind: str) -> tuple[Ref, Ref]:
    refuse_complex(ctx, x)
    space = ReducedDims(x.shape, axes(dim, len(x.shape)))
    values, indices = ctx.result(0), ctx.result(1)
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x))
    k.store(values, k.body.reduce(kind, v), space.of_result(values))
    k.store(indices, k.body.reduce("arg" + kind, v), space.of_result(indices))
    k.done()
    return values, indices


@operator("aten.max.dim", samples=_samples(none=False))
def max_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    """Largest elements along a dimension and where each stands first; NaN counts as largest."""
    return _with_index(ctx, x, dim, "max")


@operator("aten.min.dim", samples=_samples(none=False))
def min_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    """Smallest elements along a dimension and where each stands first; NaN counts as smallest."""
    return _with_index(ctx, x, dim, "min")


def _where(ctx: Lowering, x: Ref, dim: int | None, kind: str) -> Ref:
    refuse_complex(ctx, x)
    space, dst = ReducedDims(x.shape, axes(dim, len(x.shape))), ctx.result()
    k = space.kernel(ctx)
    k.store(dst, k.body.reduce(kind, k.load(x, space.strides(x))), space.of_result(dst))
    k.done()
    return dst


@operator("aten.argmax.default", samples=_samples(none=True))
def argmax(ctx: Lowering, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    """Where the largest element stands first."""
    return _where(ctx, x, dim, "argmax")


@operator("aten.argmin.default", samples=_samples(none=True))
def argmin(ctx: Lowering, x: Ref, dim: int | None = None, keepdim: bool = False) -> Ref:
    """Where the smallest element stands first."""
    return _where(ctx, x, dim, "argmin")


@operator("aten.aminmax.default", samples=lambda: [
    Sample((rand(4, 5),)), Sample((rand(4, 5),), {"dim": 1}), Sample((rand(4, 5),), {"dim": 0, "keepdim": True}),
    Sample((rand(6, dtype=torch.int64, low=-9, high=9),)), Sample((torch.tensor([1.0, float("nan")]),)),
])  # fmt: skip
def aminmax(ctx: Lowering, x: Ref, *, dim: int | None = None, keepdim: bool = False) -> tuple[Ref, Ref]:
    """Both extremes in one sweep."""
    refuse_complex(ctx, x)
    space = ReducedDims(x.shape, axes(dim, len(x.shape)))
    results: list[Any] = [ctx.result(0), ctx.result(1)]
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x), dtype=compute_type(x.dtype))
    for dst, kind in zip(results, ("min", "max"), strict=True):
        k.store(dst, k.body.reduce(kind, v), space.of_result(dst))
    k.done()
    return results[0], results[1]
