"""Pages of sorts, of the first of the sorted elements, and of medians."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.types import is_float
from dcir.ops.library.sort import SortSpec
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.pages.scan import rows_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import generator, rand, specials


def sort_rows(
    ctx: Lowering, x: Ref, dim: int, values: Ref, positions: Ref, *, k: int | None = None, descending: bool = False
) -> None:
    """Add a sort node that writes ``values`` and ``positions``."""
    refuse_complex(ctx, x)
    rows, n, over = rows_of(x, dim)
    k = n if k is None else k
    if not math.prod(rows) * k:
        return
    spec = SortSpec(x.dtype, rows, n, k, descending, over(x), over(values), over(positions))
    ctx.emit(spec, [x], [values, positions])


def _unique(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers without equal ones: torch leaves open which of those comes first where a sort need not be stable."""
    n = math.prod(shape)
    return (torch.randperm(n, generator=generator()) - n // 2).reshape(shape).to(dtype)


def _samples(**kw: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for descending in (False, True):
            more = {**kw, "dim": 1, "descending": descending}
            yield Sample((rand(3, 37),), more)
            yield Sample((rand(4, 25, dtype=torch.int64, low=-3, high=4),), {"stable": True, **more}, name="ties")
            yield Sample(
                (torch.stack([specials(), specials().roll(3)]),), {"stable": True, **more}, name="special values"
            )
            for dtype in (torch.float32, torch.float64):
                many = torch.stack([specials().repeat(20), specials().repeat(20).roll(3)]).to(dtype)
                yield Sample((many,), {"stable": True, **more}, name=f"many special values, {dtype}")
            for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
                many = rand(2, 200, dtype=torch.int64, low=-70000, high=70000).to(dtype)
                yield Sample((many,), {"stable": True, **more}, name=f"many ties, {dtype}")
        yield Sample((rand(30, 4),), {**kw, "dim": 0}, name="columns")
        yield Sample((rand(150, 4),), {**kw, "dim": 0}, name="long columns")
        yield Sample((_unique(3, 120, dtype=torch.bfloat16),), {**kw, "dim": -1}, name="many of bf16")
        yield Sample((_unique(5, 9, dtype=torch.bfloat16),), {**kw, "dim": -1}, name="bf16")
        yield Sample((rand(),), {**kw, "dim": 0}, name="scalar")
        yield Sample((rand(0, 3),), {**kw, "dim": 0}, name="empty")

    return make


def _without_stable() -> Iterable[Sample]:
    for s in _samples()():
        if "stable" not in s.kwargs:
            yield replace(s, args=(*s.args, s.kwargs["dim"], s.kwargs.get("descending", False)), kwargs={})


@operator("aten.sort.stable", samples=_samples(stable=True))
def sort_stable(
    ctx: Lowering, x: Ref, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Ref, Ref]:
    """Sorted elements and where each stood."""
    values, positions = ctx.result(0), ctx.result(1)
    sort_rows(ctx, x, dim, values, positions, descending=descending)
    return values, positions


@operator("aten.sort.default", samples=_without_stable)
def sort(ctx: Lowering, x: Ref, dim: int = -1, descending: bool = False) -> tuple[Ref, Ref]:
    """Sorted elements and where each stood."""
    values, positions = ctx.result(0), ctx.result(1)
    sort_rows(ctx, x, dim, values, positions, descending=descending)
    return values, positions


@operator("aten.argsort.default", samples=_without_stable)
def argsort(ctx: Lowering, x: Ref, dim: int = -1, descending: bool = False) -> Ref:
    """Where the sorted elements stood."""
    positions = ctx.result()
    sort_rows(ctx, x, dim, ctx.new(x.shape, x.dtype), positions, descending=descending)
    return positions


@operator("aten.argsort.stable", samples=lambda: [
    Sample((rand(4, 25, dtype=torch.int64, low=-3, high=4),), {"stable": True, "dim": d, "descending": bool(d)})
    for d in (0, 1)
])  # fmt: skip
def argsort_stable(ctx: Lowering, x: Ref, *, stable: bool, dim: int = -1, descending: bool = False) -> Ref:
    """Where the sorted elements stood, equal ones in their order."""
    positions = ctx.result()
    sort_rows(ctx, x, dim, ctx.new(x.shape, x.dtype), positions, descending=descending)
    return positions


@operator("aten.msort.default", samples=lambda: [Sample((rand(9, 3),)), Sample((rand(7).double(),))])
def msort(ctx: Lowering, x: Ref) -> Ref:
    """Sorted along the first dimension."""
    values = ctx.result()
    sort_rows(ctx, x, 0, values, ctx.new(x.shape, "i64"))
    return values


def _tops() -> Iterable[Sample]:
    yield Sample((rand(3, 37), 5))
    yield Sample((rand(3, 300), 4, 1, False), name="smallest of many")
    yield Sample((rand(3, 300), 40), name="many of many")
    yield Sample((rand(25, 4), 7, 0, True, True), name="columns")
    yield Sample((_unique(6, 9, dtype=torch.int32), 9), name="all")
    yield Sample((_unique(2, 90, dtype=torch.bfloat16), 3), name="bf16")
    nan = rand(2, 80)
    nan[0, 40] = float("nan")
    yield Sample((nan, 3), name="NaN")
    yield Sample((rand(), 1), name="scalar")
    yield Sample((rand(3, 5), 0), name="none")


@operator("aten.topk.default", samples=_tops)
def topk(ctx: Lowering, x: Ref, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Ref, Ref]:
    """The k largest or smallest elements in order, and where each stood."""
    values, positions = ctx.result(0), ctx.result(1)
    sort_rows(ctx, x, dim, values, positions, k=k, descending=largest)
    return values, positions


def _selected(ctx: Lowering, x: Ref, dim: int, rank: int) -> tuple[Ref, Ref]:
    """The element of a rank in ascending order, and where it stood."""
    d = dim % max(len(x.shape), 1)
    shape = (*x.shape[:d], rank + 1, *x.shape[d + 1 :]) if x.shape else ()
    values, positions = ctx.new(shape, x.dtype), ctx.new(shape, "i64")
    sort_rows(ctx, x, dim, values, positions, k=rank + 1)
    results = []
    for i, ref in enumerate((values, positions)):
        dst = ctx.result(i)
        kept = ref if not x.shape else replace(
            ref, shape=dst.shape, offset=ref.offset + rank * ref.strides[d],
            strides=ref.strides if len(dst.shape) == len(shape) else (*ref.strides[:d], *ref.strides[d + 1 :]),
        )  # fmt: skip
        results.append(ctx.copy(kept, dst))
    return results[0], results[1]


@operator("aten.kthvalue.default", samples=lambda: [
    Sample((_unique(3, 37), 5)), Sample((_unique(30, 3), 30, 0, True)), Sample((rand(), 1)),
])  # fmt: skip
def kthvalue(ctx: Lowering, x: Ref, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The k-th smallest element and where it stood."""
    return _selected(ctx, x, dim, k - 1)


@operator("aten.median.dim", samples=lambda: [
    Sample((_unique(3, 37), 1)), Sample((_unique(30, 3), 0, True)), Sample((_unique(4, 5, dtype=torch.int64), -1)),
    Sample((_unique(3, 200), 1)),
    Sample((torch.tensor([[1.0, float("nan"), 0.0, 3.0], [3.0, 1.0, 2.0, 0.0]]), 1), name="NaN"), Sample((rand(), 0)),
])  # fmt: skip
def median_dim(ctx: Lowering, x: Ref, dim: int, keepdim: bool = False) -> tuple[Ref, Ref]:
    """The lower of the middle elements and where it stood; the first NaN where there is one."""
    n = x.shape[dim] if x.shape else 1
    if not is_float(x.dtype) or n == 1:
        return _selected(ctx, x, dim, (n - 1) // 2)
    sorted_values, sorted_positions = ctx.new(x.shape, x.dtype), ctx.new(x.shape, "i64")
    sort_rows(ctx, x, dim, sorted_values, sorted_positions)
    rows, _, over = rows_of(x, dim)
    values, positions = ctx.result(0), ctx.result(1)
    d = dim % len(x.shape)
    k = ctx.kernel(rows, (n,))
    b = k.body
    v = k.load(x, over(x))
    # NaN stand last, in their order: the first of them is where the count of numbers says.
    nans = b.reduce("sum", b.convert(b.op("isnan", v, dtype="bool"), "i64"))
    at = b.where(nans > 0, n - nans, b.const((n - 1) // 2, "i64"))
    for dst, source in ((values, sorted_values), (positions, sorted_positions)):
        strides = over(dst)[:-1] if len(dst.shape) == len(x.shape) else dst.strides
        chosen = k.gather(source, (*over(source)[:-1], 0), [at], [d], checked=False)
        k.store(dst, chosen, (*strides, 0))
    k.done()
    return values, positions


@operator("aten.median.default", samples=lambda: [
    Sample((rand(5, 6),)), Sample((torch.tensor([1.0, float("nan"), 0.0]),)), Sample((_unique(9, dtype=torch.int64),)),
])  # fmt: skip
def median(ctx: Lowering, x: Ref) -> Ref:
    """The lower of the middle elements of all; NaN where there is one."""
    if not x.numel:
        raise NotNative("the median of nothing")
    flat = ctx.reshape(x, (x.numel,))
    values, positions = ctx.new(flat.shape, x.dtype), ctx.new(flat.shape, "i64")
    sort_rows(ctx, flat, 0, values, positions)
    dst = ctx.result()
    k = ctx.kernel(())
    middle, last = (
        k.load(replace(values, shape=(), strides=(), offset=i), ()) for i in ((x.numel - 1) // 2, x.numel - 1)
    )
    if is_float(x.dtype):
        middle = k.body.where(k.body.op("isnan", last, dtype="bool"), last, middle)
    k.store(dst, middle)
    k.done()
    return dst
