"""Pages of max pooling with indices: windows as inner loops, and gradients gathered by comparing the stored index."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.many_sizes import many_sizes
from dcir.ir.types import compute_type, is_float
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.pooling_windows import Windows, per_dimension
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

# Windows up to this many taps are written out in the program; larger ones are loops.
UNROLLED = 16


def lowest(dtype: str) -> float:
    """What every value of an element type is at least."""
    if is_float(dtype):
        return -math.inf
    return {"u8": 0, "bool": 0, "i8": -(2**7), "i16": -(2**15), "i32": -(2**31), "i64": -(2**63)}[dtype]


def flat(positions: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """The number of a position in row-major order."""
    result = positions[0]
    for p, extent in zip(positions[1:], extents[1:], strict=True):
        result = result * extent + p
    return result


def _best(b: LoopNestBuilder, w: Windows, position: Expr, lead: int) -> list[Expr]:
    """Input position per dimension of the best tap; a window of nothing but -inf shows its first tap inside."""
    result: list[Expr] = []
    rest = position
    for d in range(w.n - 1, -1, -1):
        extent = b.const(w.kernel[d], "i64")
        tap = b.op("mod", rest, extent) if d else rest
        rest = b.op("idiv_floor", rest, extent)
        start = b.index(lead + d) * w.stride[d] - w.padding[d]
        if w.padding[d]:
            step = b.const(w.dilation[d], "i64")
            first = b.op("idiv_floor", b.op("neg", start) + (w.dilation[d] - 1), step)
            tap = b.op("max", tap, first)
        result.insert(0, start + tap * w.dilation[d])
    return result


def _forward(
    ctx: Lowering, x: Ref, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, rounded_up: bool
) -> tuple[Ref, Ref]:
    refuse_complex(ctx, x)
    values, indices = ctx.result(0), ctx.result(1)
    kernel, padding, dilation = (per_dimension(v, n) for v in (kernel, padding, dilation))
    stride = per_dimension(stride, n) if isinstance(stride, int) or len(stride) else kernel
    lead = len(x.shape) - n
    w = Windows(x.shape[lead:], values.shape[lead:], kernel, stride, padding, dilation, rounded_up)
    dense = all(w.dilation[d] == 1 or w.inside(d) for d in range(n))
    if math.prod(kernel) <= UNROLLED and math.prod(w.size) < 2**31 and dense:
        _chosen(ctx, x, w, values, indices)
        return values, indices
    k = ctx.kernel(values.shape, kernel)
    v = w.load(k, x, lead, lowest(x.dtype))
    inner = (0,) * n
    k.store(values, k.body.reduce("max", v), values.strides + inner)
    best = _best(k.body, w, k.body.reduce("argmax", v), lead)
    k.store(indices, flat(best, w.size), indices.strides + inner)
    k.done()
    return values, indices


def _chosen(ctx: Lowering, x: Ref, w: Windows, values: Ref, indices: Ref) -> None:
    """A small window tap by tap in one pointwise program, whose vectors run over the outputs.

    A tap outside stands for the nearest one inside, which is in the window too: that changes neither the maximum nor
    where it stands first, and spares the masks that keep a loop from being vectorised. Positions are kept in 32 bits,
    as wide as most values.
    """
    n, lead = w.n, len(x.shape) - w.n
    k = ctx.kernel(values.shape)
    b = k.body
    strides = (*x.strides[:lead], *(0,) * n)
    best = place = None
    for taps in itertools.product(*(range(size) for size in w.kernel)):
        at = [_nearest(b, w, d, b.index(lead + d) * w.stride[d] + (t * w.dilation[d] - w.padding[d]))
              for d, t in enumerate(taps)]  # fmt: skip
        v = k.gather(x, strides, at, range(lead, lead + n), checked=False)
        here = flat([b.convert(p, "i32") for p in at], w.size)
        if best is None or place is None:
            best, place = v, here
            continue
        better = v > best
        if is_float(x.dtype):
            better = better | b.op("isnan", v, dtype="bool")
        best, place = b.where(better, v, best), b.where(better, here, place)
    assert best is not None and place is not None
    k.store(values, best)
    k.store(indices, b.convert(place, "i64"))
    k.done()


def _nearest(b: LoopNestBuilder, w: Windows, d: int, position: Expr) -> Expr:
    """The position, or the edge of the input nearest to it."""
    if w.inside(d):
        return position
    if w.padding[d]:
        position = b.op("max", position, b.const(0, "i64"))
    return b.op("min", position, b.const(w.size[d] - 1, "i64"))


def gathered_gradient(
    ctx: Lowering, grad: Ref, x: Ref, indices: Ref, around: Sequence[int],
    window: Callable[[LoopNestBuilder, int, Expr, Expr], Expr],
) -> Ref:  # fmt: skip
    """dx = sum of the gradients of the windows around an element whose stored index is the element's.

    ``window`` gives (dimension, element, which of the ``around`` windows) --> number of the window, which need not
    be one that covers the element, nor even exist.
    """
    refuse_complex(ctx, grad)
    dst = ctx.result()
    n, rank = len(around), len(x.shape)
    lead, unrolled = rank - n, math.prod(around) <= UNROLLED
    k = ctx.kernel(x.shape, () if unrolled else around)
    b = k.body
    dims, loops = range(lead, rank), len(k.dims)
    mine = flat([b.index(d) for d in dims], x.shape[lead:])
    zero = b.const(0, compute_type(grad.dtype))

    def share(which: Sequence[Expr]) -> Expr:
        places = [window(b, d, b.index(lead + d), o) for d, o in enumerate(which)]

        def read(ref: Ref, other: Expr) -> Expr:
            strides = (*ref.strides[:lead], *(0,) * (loops - lead))
            return k.gather(ref, strides, places, dims, checked=False, mask=b.const(1, "bool"), other=other)

        return b.where(read(indices, b.const(-1, "i64")).eq(mine), read(grad, zero), zero)

    if unrolled:
        choices = itertools.product(*(range(c) for c in around))
        shares = [share([b.const(o, "i64") for o in which]) for which in choices]
        k.store(dst, sum(shares[1:], shares[0]))
    else:
        total = b.reduce("sum", share([b.index(rank + d) for d in range(n)]))
        k.store(dst, total, dst.strides + (0,) * n)
    k.done()
    return dst


def _gradient_by_phase(ctx: Lowering, grad: Ref, indices: Ref, w: Windows) -> Ref:
    """The same for windows whose stride divides the input: all elements of one stride together, in one program.

    An element and its windows are then a fixed distance apart, so that reads are in order and every window is read
    once for all the elements it may have taken. The nearest window stands for one that does not exist, and none has
    taken element -1: reads without conditions, which stay in vectors.
    """
    refuse_complex(ctx, grad)
    dst, n = ctx.result(), w.n
    lead = len(dst.shape) - n
    k = ctx.kernel((*dst.shape[:lead], *(size // step for size, step in zip(w.size, w.stride, strict=True))))
    b, dims = k.body, range(lead, lead + n)
    zero, nobody = b.const(0, compute_type(grad.dtype)), b.const(-1, "i64")

    def read(ref: Ref, places: Sequence[Expr]) -> Expr:
        return k.gather(ref, (*ref.strides[:lead], *(0,) * n), places, dims, checked=False)

    def place(d: int, distance: int) -> tuple[Expr, Expr | None]:
        """The window, or the nearest; and whether there is one, if that is not certain."""
        at, last = b.index(lead + d) + distance, w.out[d] - 1
        near, exists = at, None
        if distance < 0:
            near, exists = b.op("max", near, b.const(0, "i64")), at >= 0
        if k.dims[lead + d] - 1 + distance > last:
            near, below = b.op("min", near, b.const(last, "i64")), at <= last
            exists = below if exists is None else exists & below
        return near, exists

    into = (*dst.strides[:lead], *(s * step for s, step in zip(dst.strides[lead:], w.stride, strict=True)))
    for phase in itertools.product(*(range(step) for step in w.stride)):
        mine = flat([b.index(d) * w.stride[i] + phase[i] for i, d in enumerate(dims)], w.size)
        total = zero
        for windows in itertools.product(*(w.distances(i, phase[i]) for i in range(n))):
            places, exist = zip(*(place(i, windows[i]) for i in range(n)), strict=True)
            wanted = mine
            for one in exist:
                wanted = wanted if one is None else b.where(one, wanted, nobody)
            share = b.where(read(indices, places).eq(wanted), read(grad, places), zero)
            total = share if total is zero else total + share
        offset = dst.offset + sum(p * s for p, s in zip(phase, dst.strides[lead:], strict=True))
        k.store(replace(dst, offset=offset), total, into)
    k.done()
    return dst


def _calls(n: int) -> Iterable[tuple[str, torch.Tensor, tuple[Any, ...]]]:
    """(name, input, (kernel, stride, padding, dilation, ceil_mode)) of the samples."""
    tail = (7, 6) if n == 2 else (5, 4, 4)
    image = torch.channels_last if n == 2 else torch.channels_last_3d
    x = rand(2, 3, *tail)
    low = torch.full((1, 1, *tail), -math.inf)
    yield "", x, ([2] * n, [2] * n, [0] * n, [1] * n, False)
    yield "padding", x, ([3] * n, [2] * n, [1] * n, [1] * n, False)
    yield "ceil mode", x, ([2] * n, [2] * n, [0] * n, [1] * n, True)
    yield "dilation", x, ([2] * n, [1] * n, [1] * n, [2] * n, False)
    yield "channels last", x.to(memory_format=image), ([3] * n, [2] * n, [1] * n, [1] * n, False)
    yield "no batch, bf16", x[0].bfloat16(), ([2, 3, 2][:n], [], [0] * n, [1] * n, False)
    even = rand(2, 2, *((8, 6) if n == 2 else (4, 4, 6)))
    yield "even", even, ([3] * n, [2] * n, [1] * n, [1] * n, False)
    yield "both borders", even, ([4] * n, [1] * n, [0] * n, [1] * n, False)
    yield "large window", x, ([5] * n, [1] * n, [2] * n, [1] * n, False)
    yield "infinite", low, ([3] * n, [2] * n, [1] * n, [1] * n, False)


def _forward_samples(n: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for name, x, args in _calls(n):
            yield Sample((x, *args), name=name)
        if n == 2:
            nan = rand(1, 1, 4, 4)
            nan[0, 0, 1, 2] = math.nan
            yield Sample((nan, [3, 3], [1, 1]), name="NaN")
            yield Sample((rand(1, 2, 5, 5, dtype=torch.int64, low=-9, high=9), [2, 2], [2, 2], [1, 1]), name="int64")

    return make


def _backward_samples(n: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        op = torch.ops.aten.max_pool2d_with_indices if n == 2 else torch.ops.aten.max_pool3d_with_indices
        for name, x, (kernel, stride, *rest) in _calls(n):
            y, indices = op(x, kernel, stride, *rest)
            grad = rand(*y.shape, seed=3).to(y.dtype)
            image = torch.channels_last if n == 2 else torch.channels_last_3d
            if name == "channels last":
                grad = grad.contiguous(memory_format=image)
            yield Sample((grad, x, kernel, stride, *rest, indices), name=name)

    return make


def _register(n: int) -> None:
    @operator(f"aten.max_pool{n}d_with_indices.default", samples=_forward_samples(n))
    def forward(
        ctx: Lowering, x: Ref, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Ref, Ref]:  # fmt: skip
        """Largest elements of windows and where each stands, counted row by row."""
        return _forward(ctx, x, n, kernel_size, stride, padding, dilation, ceil_mode)

    @operator(f"aten.max_pool{n}d_with_indices_backward.default", samples=_backward_samples(n))
    def backward(
        ctx: Lowering, grad: Ref, x: Ref, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, indices: Ref,
    ) -> Ref:  # fmt: skip
        """Each element gathers from the windows that took it."""
        lead = len(x.shape) - n
        kernel, p, dil = (per_dimension(v, n) for v in (kernel_size, padding, dilation))
        step = per_dimension(stride, n) if isinstance(stride, int) or len(stride) else kernel
        w = Windows(x.shape[lead:], grad.shape[lead:], kernel, step, p, dil, ceil_mode)
        even = all(size % by == 0 for size, by in zip(w.size, step, strict=True)) and not many_sizes()
        if even and math.prod(kernel) <= UNROLLED:
            return _gradient_by_phase(ctx, grad, indices, w)
        return gathered_gradient(ctx, grad, x, indices, [w.covering(d) for d in range(n)], w.window)


for _n in (2, 3):
    _register(_n)
