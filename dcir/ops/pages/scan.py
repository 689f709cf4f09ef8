"""Pages of running sums, products and extremes along one dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ops.library.scan import ScanSpec
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials


def rows_of(x: Ref, dim: int) -> tuple[tuple[int, ...], int, Callable[[Ref], tuple[int, ...]]]:
    """(extents of the other dimensions, extent of ``dim``, strides over both of a tensor of that shape)."""
    if not x.shape:
        return (), 1, lambda ref: (0,)
    d = dim % len(x.shape)
    order = [*(i for i in range(len(x.shape)) if i != d), d]
    return tuple(x.shape[i] for i in order[:-1]), x.shape[d], lambda ref: tuple(ref.strides[i] for i in order)


def _scan(ctx: Lowering, x: Ref, dim: int, op: str) -> tuple[Ref, ...]:
    refuse_complex(ctx, x)
    results = [ctx.result(i) for i in range(len(ctx.outs))]
    if not x.numel:
        return tuple(results)
    if op in ("sum", "prod") and results[0].dtype == "bool":
        raise NotNative("running sums of truth values")
    rows, n, over = rows_of(x, dim)
    positions = over(results[1]) if len(results) > 1 else None
    spec = ScanSpec(op, x.dtype, results[0].dtype, rows, n, over(x), over(results[0]), positions)
    ctx.emit(spec, [x], results)
    return tuple(results)


def _samples(*, ints: bool = True, special: bool = True) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        yield Sample((rand(3, 17), 1))
        yield Sample((rand(17, 9), 0), name="columns")
        yield Sample((rand(4, 5, 6).permute(2, 0, 1), -2), name="permuted")
        yield Sample((rand(2, 5, 3, 4).to(memory_format=torch.channels_last), 1), name="channels last")
        yield Sample((rand(5, 9, dtype=torch.bfloat16), -1), name="bf16")
        yield Sample((rand(), 0), name="scalar")
        yield Sample((rand(0, 3), 1), name="empty")
        if ints:
            yield Sample((rand(4, 6, dtype=torch.int32, low=-3, high=4), 0), name="int32")
        if special:
            yield Sample((specials(), 0), name="special values")

    return make


def _typed(make: Callable[[], Iterable[Sample]]) -> Callable[[], Iterable[Sample]]:
    def more() -> Iterable[Sample]:
        yield from make()
        yield Sample((rand(5, 6), 0), {"dtype": torch.float64}, name="to double")
        yield Sample((rand(5, 6, dtype=torch.bool), 0), name="bool")

    return more


@operator("aten.cumsum.default", samples=_typed(_samples()))
def cumsum(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    """Running sums; integers in i64."""
    return _scan(ctx, x, dim, "sum")[0]


@operator("aten.cumprod.default", samples=_typed(_samples()))
def cumprod(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    """Running products; integers in i64."""
    return _scan(ctx, x, dim, "prod")[0]


@operator("aten.logcumsumexp.default", samples=_samples(ints=False, special=False))
def logcumsumexp(ctx: Lowering, x: Ref, dim: int) -> Ref:
    """Logarithms of running sums of exponentials."""
    return _scan(ctx, x, dim, "logsumexp")[0]


@operator("aten.cummax.default", samples=_samples())
def cummax(ctx: Lowering, x: Ref, dim: int) -> tuple[Ref, ...]:
    """Running maxima and the last position of each; NaN stays."""
    return _scan(ctx, x, dim, "max")


@operator("aten.cummin.default", samples=_samples())
def cummin(ctx: Lowering, x: Ref, dim: int) -> tuple[Ref, ...]:
    """Running minima and the last position of each; NaN stays."""
    return _scan(ctx, x, dim, "min")
