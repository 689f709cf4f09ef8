"""Pages of the operators that write a part of a tensor: scatters into slices, and the gradients of views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import HALVES
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.pages.copies import converted
from dcir.ops.pages.movement import real, window
from dcir.ops.pages.views import dim_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _range(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    def bound(v: int | None, default: int) -> int:
        return default if v is None else min(max(v + n if v < 0 else v, 0), n)

    first = bound(start, 0)
    return first, max(bound(end, n), first)


def _slices() -> Iterable[Sample]:
    yield Sample((rand(5, 3), rand(2, 3, seed=1), 0, 1, 3))
    yield Sample((rand(2, 7), rand(2, 3, seed=1), 1, 1, 7, 2), name="step")
    yield Sample((rand(4, 3).t(), rand(3, 2, seed=1), -1, -2), name="from the end")
    yield Sample((rand(4, dtype=torch.bfloat16), rand(4, seed=1)), name="all of it")
    yield Sample((rand(4), rand(0), 0, 2, 2), name="nothing")


@operator("aten.slice_scatter.default", samples=_slices)
def slice_scatter(
    ctx: Lowering, x: Ref, source: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Ref:
    """The source in its window of the result, and the windows that remain: every producer may write in place."""
    real(ctx)
    d = dim_of(dim, len(x.shape))
    first, last = _range(x.shape[d], start, end)
    if first == last:
        return x
    if last - first == x.shape[d] and step == 1:
        return converted(ctx, source)
    dst = ctx.result()
    taken = (last - first + step - 1) // step
    for rest in range(step):
        count = (last - first - rest + step - 1) // step
        part = source if rest == 0 else _every(x, d, first + rest, step, count)
        ctx.copy(part, _every(dst, d, first + rest, step, taken if rest == 0 else count))
    ctx.copy(window(x, d, 0, first), window(dst, d, 0, first))
    ctx.copy(window(x, d, last, x.shape[d] - last), window(dst, d, last, x.shape[d] - last))
    return dst


def _every(x: Ref, dim: int, start: int, step: int, count: int) -> Ref:
    part = window(x, dim, start, count)
    return replace(part, strides=(*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :]))


@operator("aten.select_scatter.default", samples=lambda: [
    Sample((rand(3, 4), rand(4, seed=1), 0, 1)), Sample((rand(3, 4).t(), rand(4, seed=1), 1, -1)),
    Sample((rand(3, dtype=torch.float64), rand(seed=1), 0, 0)),
])  # fmt: skip
def select_scatter(ctx: Lowering, x: Ref, source: Ref, dim: int, index: int) -> Ref:
    """The source at one index of the result, the rest around it."""
    d = dim_of(dim, len(x.shape))
    i = index + x.shape[d] if index < 0 else index
    shape = (*x.shape[:d], 1, *x.shape[d + 1 :])
    part = replace(source, shape=shape, strides=(*source.strides[:d], 0, *source.strides[d:]))
    result: Ref = slice_scatter(ctx, x, part, d, i, i + 1)
    return result


def _masked(ctx: Lowering, source: Ref, dims: Sequence[int], where: Any, background: Ref | None = None) -> Ref:
    """The result read from ``source`` where ``where(kernel)`` says so, else from the background or zero.

    ``where`` gives a condition and one position of ``source`` for each of its ``dims``; its other dimensions are the
    result's, in order, and their strides come with them.
    """
    real(ctx)
    dst = ctx.result()
    k = ctx.kernel(dst.shape)
    ok, places, strides = where(k)
    compute = "f32" if source.dtype in HALVES else source.dtype
    other = k.body.const(0, compute) if background is None else k.load(background, dtype=compute)
    k.store(dst, k.gather(source, strides, places, dims, checked=False, mask=ok, other=other))
    k.done()
    return dst


@operator("aten.slice_backward.default", samples=lambda: [
    Sample((rand(2, 3), [5, 3], 0, 1, 3, 1)), Sample((rand(2, 3), [2, 7], 1, 1, 7, 2)),
    Sample((rand(3, 2, dtype=torch.bfloat16).t(), [2, 5], -1, -3, 9, 1)), Sample((rand(0), [4], 0, 2, 2, 1)),
])  # fmt: skip
def slice_backward(ctx: Lowering, grad: Ref, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Ref:
    """Zero outside the slice; one masked read, which fuses with the sum of gradients that follows."""
    d = dim_of(dim, len(sizes))
    first, last = _range(sizes[d], start, end)
    if not grad.numel:
        return ctx.full(0, ctx.result())

    def where(k: Kernel) -> tuple[Expr, list[Expr], list[int]]:
        over = k.body.index(d) - first
        ok = (over >= 0) & (over < last - first)
        strides = [0 if i == d else s for i, s in enumerate(grad.strides)]
        if step == 1:
            return ok, [over], strides
        at = k.body.op("idiv_floor", over, k.body.const(step, "i64"))
        return ok & (at * step).eq(over), [at], strides

    return _masked(ctx, grad, [d], where)


@operator("aten.select_backward.default", samples=lambda: [
    Sample((rand(3), [3, 4], 1, 2)), Sample((rand(2, 3, dtype=torch.float16), [2, 4, 3], 1, -1)),
    Sample((rand(), [3], 0, 0)),
])  # fmt: skip
def select_backward(ctx: Lowering, grad: Ref, sizes: Sequence[int], dim: int, index: int) -> Ref:
    """Zero but at one index."""
    real(ctx)
    d = dim_of(dim, len(sizes))
    i = index + sizes[d] if index < 0 else index
    dst = ctx.result()
    k = ctx.kernel(dst.shape)
    compute = "f32" if grad.dtype in HALVES else grad.dtype
    strides = (*grad.strides[:d], 0, *grad.strides[d:])
    k.store(dst, k.load(grad, strides, mask=k.body.index(d).eq(i), other=k.body.const(0, compute)))
    k.done()
    return dst


def _on_diagonal(source: Ref, offset: int, a: int, b: int, shape: Sequence[int]) -> Any:
    """Reads of ``source``, whose last dimension runs along the diagonal of dimensions a and b of ``shape``."""

    def where(k: Kernel) -> tuple[Expr, list[Expr], list[int]]:
        row, column = k.body.index(a), k.body.index(b)
        strides = [0] * len(shape)
        others = (d for d in range(len(shape)) if d not in (a, b))
        for d, s in zip(others, source.strides[:-1], strict=True):
            strides[d] = s
        return (column - row).eq(offset), [row if offset >= 0 else column], strides

    return where


def _diagonal(ctx: Lowering, source: Ref, offset: int, dim1: int, dim2: int, background: Ref | None = None) -> Ref:
    shape = ctx.out.shape
    a, b = dim_of(dim1, len(shape)), dim_of(dim2, len(shape))
    if not source.numel:
        return background if background is not None else ctx.full(0, ctx.result())
    return _masked(ctx, source, [len(source.shape) - 1], _on_diagonal(source, offset, a, b, shape), background)


@operator("aten.diagonal_scatter.default", samples=lambda: [
    Sample((rand(3, 4), rand(3, seed=1))), Sample((rand(2, 4, 3), rand(2, 2, seed=1), 1, 1, 2)),
    Sample((rand(3, 4, 2), rand(4, 2, seed=1), -1, 0, 2)),
])  # fmt: skip
def diagonal_scatter(ctx: Lowering, x: Ref, source: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    """The source along a diagonal of ``x``."""
    if source.dtype != x.dtype:
        raise NotNative("another type on the diagonal")
    return _diagonal(ctx, source, offset, dim1, dim2, x)


@operator("aten.diagonal_backward.default", samples=lambda: [
    Sample((rand(3), [3, 4], 0, 0, 1)), Sample((rand(2, 2), [2, 4, 3], 1, 1, 2)), Sample((rand(2), [4, 2], -1, 0, 1)),
])  # fmt: skip
def diagonal_backward(ctx: Lowering, grad: Ref, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Ref:
    """Zero but along a diagonal."""
    return _diagonal(ctx, grad, offset, dim1, dim2)


@operator("aten.diag_embed.default", samples=lambda: [
    Sample((rand(3),)), Sample((rand(2, 3), 1, 0, 2)), Sample((rand(2, 3), -2, -1, 0)),
])  # fmt: skip
def diag_embed(ctx: Lowering, x: Ref, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Ref:
    """The last dimension along a diagonal, zeros around it."""
    return _diagonal(ctx, x, offset, dim1, dim2)


def _columns() -> Iterable[Sample]:
    yield Sample((rand(2, 3, 5, 4), [3, 2], [1, 1], [1, 0], [2, 1]))
    yield Sample((rand(2, 4, 4), [2, 2], [2, 1], [0, 1], [1, 1]), name="dilated, no batch")
    yield Sample((rand(1, 1, 4, 4, dtype=torch.bfloat16), [2, 2], [1, 1], [0, 0], [2, 2]), name="bf16")


@operator("aten.im2col.default", samples=_columns)
def im2col(
    ctx: Lowering, x: Ref, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Ref:
    """y[n, c kh kw, oh ow] = x[n, c, oh*stride - padding + kh*dilation, ..], zero outside x."""
    real(ctx)
    dst = ctx.new(ctx.out.shape, ctx.out.dtype)
    *lead, c, h, w = x.shape
    rank = len(lead)
    sizes = [(n + 2 * p - d * (e - 1) - 1) // s + 1
             for n, p, d, e, s in zip((h, w), padding, dilation, kernel, stride, strict=True)]  # fmt: skip
    k = ctx.kernel([*lead, c, *kernel, *sizes])
    places = [_input_place(k, rank + 3 + i, rank + 1 + i, stride[i], padding[i], dilation[i]) for i in (0, 1)]
    ok = _inside(places, (h, w))
    other = k.body.const(0, "f64" if x.dtype == "f64" else "f32")
    v = k.gather(
        x, (*x.strides[: rank + 1], 0, 0, 0, 0), places, (rank + 1, rank + 2), checked=False, mask=ok, other=other
    )
    columns, area = sizes[0] * sizes[1], kernel[0] * kernel[1]
    k.store(dst, v, (*dst.strides[:rank], area * columns, kernel[1] * columns, columns, sizes[1], 1))
    k.done()
    return dst


def _input_place(k: Kernel, out: int, tap: int, stride: int, padding: int, dilation: int) -> Expr:
    return k.body.index(out) * stride + k.body.index(tap) * dilation - padding


def _inside(places: Sequence[Expr], extents: Sequence[int]) -> Expr:
    ok = (places[0] >= 0) & (places[0] < extents[0])
    for p, n in zip(places[1:], extents[1:], strict=True):
        ok = ok & (p >= 0) & (p < n)
    return ok


def _folds() -> Iterable[Sample]:
    yield Sample((rand(2, 18, 6), [5, 4], [3, 2], [1, 1], [1, 0], [2, 2]))
    yield Sample((rand(4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), name="no batch")
    yield Sample((rand(1, 4, 4, dtype=torch.bfloat16), [4, 4], [2, 2], [2, 2], [0, 0], [1, 1]), name="bf16")


@operator("aten.col2im.default", samples=_folds)
def col2im(
    ctx: Lowering, x: Ref, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Ref:  # fmt: skip
    """Every pixel sums the columns it lies in: a reduction over the kernel."""
    real(ctx)
    dst = ctx.result()
    rank = len(x.shape) - 2
    sizes = [(n + 2 * p - d * (e - 1) - 1) // s + 1
             for n, p, d, e, s in zip(size, padding, dilation, kernel, stride, strict=True)]  # fmt: skip
    k = ctx.kernel(dst.shape, kernel)
    b, ok = k.body, None
    places: list[Expr] = []
    for i in (0, 1):
        over = b.index(rank + 1 + i) + padding[i] - b.index(rank + 3 + i) * dilation[i]
        at = over if stride[i] == 1 else b.op("idiv_floor", over, b.const(stride[i], "i64"))
        good = (at >= 0) & (at < sizes[i])
        good = good if stride[i] == 1 else good & (at * stride[i]).eq(over)
        places, ok = [*places, at], good if ok is None else ok & good
    assert ok is not None
    *lead, row, column = x.strides
    area = kernel[0] * kernel[1]
    grid = replace(x, shape=tuple(sizes), strides=(sizes[1] * column, column))
    strides = (*lead, area * row, 0, 0, kernel[1] * row, row)
    other = b.const(0, "f64" if x.dtype == "f64" else "f32")
    v = k.gather(grid, strides, places, (0, 1), checked=False, mask=ok, other=other)
    k.store(dst, b.reduce("sum", v))
    k.done()
    return dst
