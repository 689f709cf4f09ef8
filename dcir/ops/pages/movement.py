"""Pages of the operators that put elements elsewhere: joined, repeated, reversed, rolled, shuffled, one triangle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.network import contiguous
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.copies import converted
from dcir.ops.pages.views import dim_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def window(x: Ref, dim: int, start: int, length: int) -> Ref:
    """The range start .. start + length of one dimension."""
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return replace(x, shape=shape, offset=x.offset + (start * x.strides[dim] if all(shape) else 0))


def real(ctx: Lowering) -> None:
    """Refuse results of complex numbers.

    Raises:
        NotNative: the result is complex.
    """
    if ctx.out.dtype in ("c64", "c128"):
        raise NotNative("complex numbers")


def _cats() -> Iterable[Sample]:
    yield Sample(([rand(2, 3), rand(2, 5, seed=1), rand(2, 1, seed=2)], 1))
    yield Sample(([rand(2, 3), rand(4, 3, seed=1)],), name="first dimension")
    yield Sample(([rand(2, 3), rand(2, 3, dtype=torch.int64, low=-5, high=5)], -1), name="mixed types")
    yield Sample(([rand(0), rand(2, 3), rand(0, 3)],), name="empty parts")
    yield Sample(([rand(3, 2).t(), rand(2, 4, seed=1)[:, ::2]], 1), name="strided")
    image = torch.channels_last
    yield Sample(
        ([rand(2, 3, 2, 2).to(memory_format=image), rand(2, 1, 2, 2).to(memory_format=image)], 1), name="channels last"
    )
    yield Sample(([rand(0), rand(0)],), name="nothing")


@operator("aten.cat.default", samples=_cats)
def cat(ctx: Lowering, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    """Every part written into its window of the result, so that its producer may write there at once."""
    real(ctx)
    d = dim_of(dim, len(ctx.out.shape))
    parts = [t for t in tensors if len(t.shape) == len(ctx.out.shape) and t.numel]
    if len(parts) == 1:
        return converted(ctx, parts[0])
    dst, start = ctx.result(), 0
    for t in parts:
        ctx.copy(t, window(dst, d, start, t.shape[d]))
        start += t.shape[d]
    return dst


@operator("aten.stack.default", samples=lambda: [
    Sample(([rand(2, 3), rand(2, 3, seed=1)], d)) for d in (0, 1, -1)
] + [Sample(([rand(), rand(seed=1).double()],), name="scalars")])  # fmt: skip
def stack(ctx: Lowering, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    """Every part written into its index of the new dimension."""
    real(ctx)
    d, dst = dim_of(dim, len(ctx.out.shape)), ctx.result()
    strides = (*dst.strides[:d], *dst.strides[d + 1 :])
    for i, t in enumerate(tensors):
        ctx.copy(t, replace(dst, shape=t.shape, strides=strides, offset=dst.offset + i * dst.strides[d]))
    return dst


@operator("aten.flip.default", samples=lambda: [
    Sample((rand(3, 4), [0])), Sample((rand(2, 3, 4), [-1, 0])), Sample((rand(0, 2), [0])), Sample((rand(3), []))
])  # fmt: skip
def flip(ctx: Lowering, x: Ref, dims: Sequence[int]) -> Ref:
    """Some dimensions backwards: a copy, since few operators read backwards."""
    real(ctx)
    return ctx.copy(_backwards(x, dims), ctx.result())


def _backwards(x: Ref, dims: Sequence[int]) -> Ref:
    if not x.numel:
        return x
    turned = {dim_of(d, len(x.shape)) for d in dims} if x.shape else set()
    offset = x.offset + sum((x.shape[d] - 1) * x.strides[d] for d in turned)
    return replace(x, strides=tuple(-s if d in turned else s for d, s in enumerate(x.strides)), offset=offset)


@operator("aten.rot90.default", samples=lambda: [
    Sample((rand(2, 3, 2), k, dims)) for k, dims in ((1, [0, 1]), (2, [0, 2]), (-1, [1, 2]), (4, [0, 1]))
])  # fmt: skip
def rot90(ctx: Lowering, x: Ref, k: int = 1, dims: Sequence[int] = (0, 1)) -> Ref:
    """A quarter turn is a transposition with one dimension backwards."""
    real(ctx)
    a, b = (dim_of(d, len(x.shape)) for d in dims)
    turned = _backwards(x, {0: [], 1: [b], 2: [a, b], 3: [a]}[k % 4])
    order = list(range(len(x.shape)))
    if k % 2:
        order[a], order[b] = b, a
    return ctx.copy(replace(turned, shape=ctx.out.shape, strides=tuple(turned.strides[d] for d in order)), ctx.result())


def _rolls() -> Iterable[Sample]:
    yield Sample((rand(5, 4), [2], [0]))
    yield Sample((rand(2, 5, 6), [-1, 2], [1, -1]), name="two dimensions")
    yield Sample((rand(3, 4), [5]), name="flattened")
    yield Sample((rand(3, 4).t(), [0], [1]), name="by nothing")
    yield Sample((rand(0, 4), [1], [1]), name="empty")


@operator("aten.roll.default", samples=_rolls)
def roll(ctx: Lowering, x: Ref, shifts: Sequence[int], dims: Sequence[int] = ()) -> Ref:
    """Two windows change places along every rolled dimension: 2^n copies."""
    real(ctx)
    shape = x.shape
    if not dims:
        x, dims = ctx.reshape(x, (x.numel,)), (0,)
    by: dict[int, int] = {}
    for d, s in zip(dims, shifts, strict=True):
        at = dim_of(d, len(x.shape))
        by[at] = (by.get(at, 0) + s) % max(x.shape[at], 1)
    moves = [(d, s) for d, s in by.items() if s]
    if not moves or not x.numel:
        return x if x.shape == shape else ctx.reshape(x, shape)
    dst = ctx.result() if x.shape == shape else ctx.new(x.shape, x.dtype)
    for wrapped in itertools.product((False, True), repeat=len(moves)):
        src, to = x, dst
        for (d, s), w in zip(moves, wrapped, strict=True):
            n = x.shape[d]
            src = window(src, d, n - s if w else 0, s if w else n - s)
            to = window(to, d, 0 if w else s, s if w else n - s)
        ctx.copy(src, to)
    return dst if x.shape == shape else replace(dst, shape=shape, strides=contiguous(shape))


@operator("aten.repeat.default", samples=lambda: [
    Sample((rand(2, 3), [2, 1])), Sample((rand(3), [2, 2])), Sample((rand(2, 3).t(), [3, 1, 2])),
    Sample((rand(), [3])), Sample((rand(2), [0])),
])  # fmt: skip
def repeat(ctx: Lowering, x: Ref, repeats: Sequence[int]) -> Ref:
    """Every dimension as two loops, repetition and element; the source stands still in the first."""
    real(ctx)
    dst, pad = ctx.result(), len(repeats) - len(x.shape)
    shape, source = (1,) * pad + x.shape, (0,) * pad + x.strides
    dims = [e for r, n in zip(repeats, shape, strict=True) for e in (r, n)]
    k = ctx.kernel(dims)
    into = [e for n, s in zip(shape, dst.strides, strict=True) for e in (n * s, s)]
    k.store(dst, k.load(x, [e for s in source for e in (0, s)]), into)
    k.done()
    return dst


def _triangles() -> Iterable[Sample]:
    yield Sample((rand(4, 5),))
    yield Sample((rand(2, 4, 4), 1), name="above")
    yield Sample((rand(4, 3).t(), -1), name="below")
    yield Sample((rand(3, 3, dtype=torch.bool),), name="bool")
    yield Sample((torch.full((3, 3), float("-inf")), 1), name="infinite")
    yield Sample((rand(3, 3, dtype=torch.bfloat16),), name="bf16")


def _triangle(ctx: Lowering, x: Ref, keep: Callable[[Expr], Expr]) -> Ref:
    real(ctx)
    dst, rank = ctx.result(), len(x.shape)
    k = ctx.kernel(dst.shape)
    v = k.load(x)
    k.store(dst, k.body.where(keep(k.body.index(rank - 1) - k.body.index(rank - 2)), v, k.body.const(0, v.dtype)))
    k.done()
    return dst


@operator("aten.tril.default", samples=_triangles)
def tril(ctx: Lowering, x: Ref, diagonal: int = 0) -> Ref:
    """What lies on or below a diagonal, else zero."""
    return _triangle(ctx, x, lambda over: over <= diagonal)


@operator("aten.triu.default", samples=_triangles)
def triu(ctx: Lowering, x: Ref, diagonal: int = 0) -> Ref:
    """What lies on or above a diagonal, else zero."""
    return _triangle(ctx, x, lambda over: over >= diagonal)


def _shuffled(ctx: Lowering, x: Ref, dims: Sequence[int], source: Sequence[int], into: Sequence[int]) -> Ref:
    """One copy whose loops ``dims`` step through ``x`` by ``source`` and through a row-major result by ``into``."""
    real(ctx)
    dst = ctx.new(ctx.out.shape, ctx.out.dtype)
    k = ctx.kernel(dims)
    k.store(dst, k.load(x, source), into)
    k.done()
    return dst


@operator("aten.pixel_shuffle.default", samples=lambda: [
    Sample((rand(2, 8, 3, 2), 2)), Sample((rand(9, 2, 2), 3)), Sample((rand(1, 4, 2, 2, dtype=torch.bfloat16), 2))
])  # fmt: skip
def pixel_shuffle(ctx: Lowering, x: Ref, r: int) -> Ref:
    """[.., c r r, h, w] --> [.., c, h r, w r]."""
    *lead, c, h, w = x.shape
    *ls, cs, hs, ws = x.strides
    out = contiguous(ctx.out.shape)
    dims = [*lead, c // (r * r), h, r, w, r]
    return _shuffled(ctx, x, dims, [*ls, cs * r * r, hs, cs * r, ws, cs], [*out[:-2], r * out[-2], out[-2], r, 1])


@operator("aten.pixel_unshuffle.default", samples=lambda: [Sample((rand(2, 2, 6, 4), 2)), Sample((rand(1, 3, 3), 3))])
def pixel_unshuffle(ctx: Lowering, x: Ref, r: int) -> Ref:
    """[.., c, h r, w r] --> [.., c r r, h, w]."""
    *lead, c, h, w = x.shape
    *ls, cs, hs, ws = x.strides
    *lo, co, ho, wo = contiguous(ctx.out.shape)
    dims = [*lead, c, r, r, h // r, w // r]
    return _shuffled(ctx, x, dims, [*ls, cs, hs, ws, r * hs, r * ws], [*lo, co * r * r, co * r, co, ho, wo])


@operator("aten.channel_shuffle.default", "aten.native_channel_shuffle.default", samples=lambda: [
    Sample((rand(2, 6, 2, 3), 3)), Sample((rand(1, 4, 5), 2))
])  # fmt: skip
def channel_shuffle(ctx: Lowering, x: Ref, groups: int) -> Ref:
    """[n, g c, ..] --> [n, c g, ..]."""
    n, c, *rest = x.shape
    ns, cs, *rs = x.strides
    no, co, *ro = contiguous(ctx.out.shape)
    each = c // groups
    return _shuffled(ctx, x, [n, each, groups, *rest], [ns, cs, each * cs, *rs], [no, groups * co, co, *ro])


@operator("aten.block_diag.default", samples=lambda: [Sample(([rand(2, 3), rand(1, 2), rand(2)],))])
def block_diag(ctx: Lowering, tensors: Sequence[Ref]) -> Ref:
    """Matrices along the diagonal: every block written, and the zeros left and right of it."""
    real(ctx)
    dst, row, column = ctx.result(), 0, 0
    for t in tensors:
        t = replace(t, shape=(1,) * (2 - len(t.shape)) + t.shape, strides=(0,) * (2 - len(t.shape)) + t.strides)
        band = window(dst, 0, row, t.shape[0])
        ctx.copy(t, window(band, 1, column, t.shape[1]))
        ctx.full(0, window(band, 1, 0, column))
        right = column + t.shape[1]
        ctx.full(0, window(band, 1, right, dst.shape[1] - right))
        row, column = row + t.shape[0], right
    return dst
