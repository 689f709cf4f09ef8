"""Pages of the padding operators and their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.many_sizes import many_sizes
from dcir.ir.types import HALVES, compute_type
from dcir.ops.library.scatter import Index, scatter
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.movement import real, window
from dcir.ops.pages.moving_edges import hidden
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def frame(ctx: Lowering, dst: Ref, inside: Ref, starts: Sequence[int], value: Any) -> None:
    """Fill everything of ``dst`` but the window ``inside``, which begins at ``starts``: two slabs a dimension."""
    rest = dst
    for d, start in enumerate(starts):
        end = start + inside.shape[d]
        ctx.full(value, window(rest, d, 0, start))
        ctx.full(value, window(rest, d, end, dst.shape[d] - end))
        rest = window(rest, d, start, inside.shape[d])


def _pads() -> Iterable[Sample]:
    yield Sample((rand(2, 3, 4), [1, 2]))
    yield Sample((rand(1, 2, 3, 4), [0, 1, 2, 0], 1.5), name="two dimensions")
    yield Sample((rand(3, 6), [-1, 2, -1, -1]), name="negative")
    yield Sample((rand(2, 3), [2, -3], 7.0), name="nothing of it left")
    yield Sample((rand(2, 3, dtype=torch.int64), [1, 0], 3), name="int64")
    yield Sample((rand(4, 3, dtype=torch.bfloat16).t(), [1, 1], 0.1), name="bf16")
    yield Sample((rand(3, 2, dtype=torch.bool), [0, 1], True), name="bool")
    yield Sample((rand(0, 3), [1, 1, 1, 2]), name="empty")


@operator("aten.constant_pad_nd.default", samples=_pads)
def constant_pad(ctx: Lowering, x: Ref, pad: Sequence[int], value: Any = 0) -> Ref:
    """The source copied into its window of the result, a frame of fills around it: its producer may write there."""
    real(ctx)
    rank, dst = len(x.shape), ctx.result()
    low = [0] * rank
    low[rank - len(pad) // 2 :] = _low_ends(pad)
    if many_sizes() and (moving := _moving_ends(ctx)):
        return _masked(ctx, x, low, value, moving)
    inside, starts = dst, []
    for d in range(rank):
        first, end = max(low[d], 0), min(low[d] + x.shape[d], dst.shape[d])
        length = max(end - first, 0)
        starts.append(first if length else 0)
        inside = window(inside, d, first, length)
        x = window(x, d, max(-low[d], 0), length)
    if inside.numel:
        ctx.copy(x, inside)
        frame(ctx, dst, inside, starts, value)
        return dst
    return ctx.full(value, dst)


def _moving_ends(ctx: Lowering) -> set[int]:
    """How far from the last dimension those are whose pads the graph computes."""
    given = ctx.given[1] if len(ctx.given) > 1 else ()
    return {i // 2 for i, v in enumerate(given) if not isinstance(v, int)} if isinstance(given, Sequence) else set()


def _masked(ctx: Lowering, x: Ref, low: Sequence[int], value: Any, moving: set[int]) -> Ref:
    """One gather with a mask, as a frame of fills is another network where a pad is 0 or cuts off."""
    rank, dst = len(x.shape), ctx.result()
    k = ctx.kernel(dst.shape)
    b, ok, places, dims = k.body, None, [], []

    for d in range(rank):
        padded = dst.shape[d] != x.shape[d] or low[d] != 0
        if rank - 1 - d not in moving and not padded:
            continue
        at, start = b.index(d), hidden(b, low[d])
        here = (at >= start) & (at < hidden(b, low[d] + x.shape[d]))
        ok = here if ok is None else ok & here
        places.append(at - start)
        dims.append(d)
    assert ok is not None
    strides = [0 if d in dims else s for d, s in enumerate(x.strides)]
    k.store(
        dst, k.gather(x, strides, places, dims, checked=False, mask=ok, other=b.const(value, compute_type(x.dtype)))
    )
    k.done()
    return dst


def _low_ends(pad: Sequence[int]) -> list[int]:
    return [pad[i] for i in range(len(pad) - 2, -1, -2)]


def _padded(ctx: Lowering, x: Ref, pad: Sequence[int], source: Callable[[Kernel, Expr, int], Expr]) -> Ref:
    """A gather whose padded dimensions read at ``source(kernel, position before padding, extent)``."""
    real(ctx)
    dst, n = ctx.result(), len(pad) // 2
    lead = len(x.shape) - n
    k = ctx.kernel(dst.shape)
    dims = range(lead, len(x.shape))
    places = [source(k, k.body.index(d) - p, x.shape[d]) for d, p in zip(dims, _low_ends(pad), strict=True)]
    k.store(dst, k.gather(x, (*x.strides[:lead], *(0,) * n), places, dims, checked=False))
    k.done()
    return dst


def _clamp(k: Kernel, at: Expr, high: int) -> Expr:
    zero, top = k.body.const(0, "i64"), k.body.const(high, "i64")
    return k.body.op("min", k.body.op("max", at, zero), top)


def _mirror(k: Kernel, at: Expr, extent: int) -> Expr:
    high = extent - 1
    return high - k.body.op("abs", high - k.body.op("abs", at))


def _edges(n: int, *, deep: bool = False) -> Callable[[], Iterable[Sample]]:
    pads: list[list[int]] = [[1, 2], [2, 0, 1, 1], [1, 1, 0, 1, 1, 0]]
    size = (4, 3, 3)[:n]

    def make() -> Iterable[Sample]:
        yield Sample((rand(2, 3, *size), pads[n - 1]))
        yield Sample((rand(2, *size, dtype=torch.float64), pads[n - 1]), name="without batch")
        yield Sample((rand(1, 2, *size, dtype=torch.bfloat16).transpose(0, 1), pads[n - 1]), name="bf16")
        yield Sample((rand(2, 2, *size), [-1, *pads[n - 1][1:]]), name="negative")
        yield Sample((rand(2, 2, *size), [2, -1, *(-2, 1, 1, -1)[: 2 * n - 2]]), name="negative at either end")

    def backward() -> Iterable[Sample]:
        for s in make():
            x, pad = s.args
            shape = list(x.shape)
            for i in range(n):
                shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
            yield Sample((rand(*shape, dtype=x.dtype, seed=1), x, pad), name=s.name)

    return backward if deep else make


def _mirrored_gradient(ctx: Lowering, grad: Ref, x: Ref, pad: Sequence[int]) -> Ref:
    """Every element gathers what it gave: itself, and its images beyond the low and the high edge."""
    real(ctx)
    dst, n = ctx.result(), len(pad) // 2
    lead = len(x.shape) - n
    k = ctx.kernel(dst.shape)
    b, choices = k.body, []
    for d, low in zip(range(lead, len(x.shape)), _low_ends(pad), strict=True):
        high, i = x.shape[d] - 1, b.index(d)
        # Positions in the padded tensor, and whether they exist: the edges themselves have no image.
        images = [(i + low, i >= 0), (low - i, (i >= 1) & (i <= low)), (2 * high + low - i, i < high)]
        choices.append([(at, ok & (at < grad.shape[d])) for at, ok in images])
    total, zero = None, None
    for picked in itertools.product(*choices):
        ok = picked[0][1]
        for _, other in picked[1:]:
            ok = ok & other
        zero = zero if zero is not None else b.const(0, "f64" if grad.dtype == "f64" else "f32")
        places, strides = [at for at, _ in picked], (*grad.strides[:lead], *(0,) * n)
        dims = range(lead, len(x.shape))
        v = k.gather(grad, strides, places, dims, checked=False, mask=ok, other=zero)
        total = v if total is None else total + v
    assert total is not None
    k.store(dst, total)
    k.done()
    return dst


def _clamped_gradient(ctx: Lowering, grad: Ref, x: Ref, pad: Sequence[int]) -> Ref:
    """Every padded position adds to the element that it shows; of half types sums over the positions that may, in float32."""
    real(ctx)
    dst, n = ctx.result(), len(pad) // 2
    lead = len(x.shape) - n
    if dst.dtype in HALVES:
        return _clamped_window(ctx, grad, x, pad)
    places = []
    for d, low in zip(range(lead, len(x.shape)), _low_ends(pad), strict=True):
        table = ctx.new((grad.shape[d],), "i64")
        k = ctx.kernel(table.shape)
        k.store(table, _clamp(k, k.body.index(0) - low, x.shape[d] - 1))
        k.done()
        strides = tuple(int(e == d) for e in range(len(grad.shape)))
        places.append(Index(table, strides, x.shape[d], dst.strides[d]))
    to = (*dst.strides[:lead], *(0,) * n)
    return scatter(ctx, 0.0, dst, "add", grad, places, dims=grad.shape, to=to, strides=grad.strides)


def _clamped_window(ctx: Lowering, grad: Ref, x: Ref, pad: Sequence[int]) -> Ref:
    """A reduction over the window of padded positions that may show an element; the mask keeps those that do."""
    dst, n = ctx.result(), len(pad) // 2
    lead, rank = len(x.shape) - n, len(x.shape)
    high = [pad[i] for i in range(len(pad) - 1, 0, -2)]
    low = _low_ends(pad)
    # A pad below 0 cuts off: what is left stands before its place by as much, or has no images at that edge.
    k = ctx.kernel(dst.shape, [max(a, 0) + max(c, 0) + 1 for a, c in zip(low, high, strict=True)])
    b, ok, places = k.body, None, []
    for d in range(n):
        at = b.index(lead + d) + b.index(rank + d) + min(low[d], 0)
        here = _clamp(k, at - low[d], x.shape[lead + d] - 1).eq(b.index(lead + d))
        ok = here if ok is None else ok & here
        places.append(at)
    assert ok is not None
    zero = b.const(0, "f64" if grad.dtype == "f64" else "f32")
    strides = (*grad.strides[:lead], *(0,) * (2 * n))
    v = k.gather(grad, strides, places, range(lead, rank), checked=False, mask=ok, other=zero)
    k.store(dst, b.reduce("sum", v))
    k.done()
    return dst


def _register(n: int) -> None:
    @operator(f"aten.reflection_pad{n}d.default", samples=_edges(n))
    def reflect(ctx: Lowering, x: Ref, pad: Sequence[int]) -> Ref:
        """Mirrored at the edges, which are not repeated."""
        return _padded(ctx, x, pad, _mirror)

    @operator(f"aten.replication_pad{n}d.default", samples=_edges(n))
    def replicate(ctx: Lowering, x: Ref, pad: Sequence[int]) -> Ref:
        """The edges repeated."""
        return _padded(ctx, x, pad, lambda k, at, extent: _clamp(k, at, extent - 1))

    operator(f"aten.reflection_pad{n}d_backward.default", samples=_edges(n, deep=True))(_mirrored_gradient)
    operator(f"aten.replication_pad{n}d_backward.default", samples=_edges(n, deep=True))(_clamped_gradient)


for _n in (1, 2, 3):
    _register(_n)
