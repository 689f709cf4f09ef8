"""Pages of adaptive pooling: windows between evenly spaced bounds, of a size that may differ by one or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.many_sizes import windows_between
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.max_pooling import flat, gathered_gradient, lowest
from dcir.ops.pages.moving_edges import hidden
from dcir.ops.pages.pooling_windows import both
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


@dataclass(frozen=True)
class _Adaptive:
    """Window o of one dimension is floor(o size / out) .. ceil((o + 1) size / out).

    Where the size moves nothing but products is made of it in the open: a sum may be another number at a sample, and a division is a shift
    where it happens to be a power of two.
    """

    size: int
    out: int

    @property
    def unit(self) -> int | None:
        """What the windows of all pools divide, where there are several and the size moves, and it alone."""
        unit = windows_between(self.size, self.out) if self.out > 1 else None
        return unit if unit is not None and unit % self.out == 0 else None

    @property
    def even(self) -> bool:
        """Whether all windows are equally large and next to each other, at whatever sizes the graph is for."""
        return self.size % self.out == 0 and self.unit is None

    @property
    def largest(self) -> int:
        """Elements of the largest window; for many sizes at least as many, by the quotient that their ladders have."""
        if (unit := self.unit) is not None:
            return unit // self.out * -(-self.size // unit) + 1
        return max(-(-(o + 1) * self.size // self.out) - o * self.size // self.out for o in range(self.out))

    @property
    def covering(self) -> int:
        """How many windows at most hold one element."""
        if self.unit is not None:
            return self.out  # of an image as small as that
        return max(-(-(i + 1) * self.out // self.size) - i * self.out // self.size for i in range(self.size))

    def start(self, b: LoopNestBuilder, o: Expr) -> Expr:
        """First element of window ``o``."""
        by = self.size // self.out
        return o * by if self.even else b.op("idiv_floor", o * self.size, b.const(self.out, "i64"))

    def count(self, b: LoopNestBuilder, o: Expr) -> Expr:
        """Elements of window ``o``."""
        if self.even:
            return b.const(self.size // self.out, "i64")
        last = b.op("idiv_floor", o * self.size + (self._size(b) - 1), b.const(self.out, "i64"))
        return last + 1 - self.start(b, o)

    def window(self, b: LoopNestBuilder, at: Expr, which: Expr) -> Expr:
        """Number of a window that may hold the element ``at``; ``which`` counts from the first that does."""
        return b.op("idiv_floor", at * self.out, self._size(b)) + which

    def covers(self, b: LoopNestBuilder, at: Expr, window: Expr) -> Expr:
        """Whether the window, counted from the first that does, holds the element ``at``."""
        return window <= b.op("idiv_floor", at * self.out + (self.out - 1), self._size(b))

    def _size(self, b: LoopNestBuilder) -> Expr:
        return b.const(self.size, "i64") if self.unit is None else hidden(b, self.size)


def _dimensions(x: Ref, out: Sequence[int], n: int) -> list[_Adaptive]:
    return [_Adaptive(s, o) for s, o in zip(x.shape[-n:], out[-n:], strict=True)]


def _load(k: Kernel, x: Ref, dims: Sequence[_Adaptive], other: float) -> tuple[Expr, list[Expr]]:
    """The elements of windows, ``other`` beyond a window's end, and their positions."""
    b, n = k.body, len(dims)
    lead = len(x.shape) - n
    taps = range(lead + n, lead + 2 * n)
    positions = [d.start(b, b.index(lead + i)) + b.index(t) for i, (d, t) in enumerate(zip(dims, taps, strict=True))]
    if all(d.even for d in dims):
        steps = [s * (d.size // d.out) for s, d in zip(x.strides[lead:], dims, strict=True)]
        return k.load(x, (*x.strides[:lead], *steps, *x.strides[lead:])), positions
    mask = both([None if d.even else b.index(t) < d.count(b, b.index(lead + i))
                 for i, (d, t) in enumerate(zip(dims, taps, strict=True))])  # fmt: skip
    strides = (*x.strides[:lead], *(0,) * (2 * n))
    where = range(lead, lead + n)
    fill = b.const(other, compute_type(x.dtype))
    return k.gather(x, strides, positions, where, checked=False, mask=mask, other=fill), positions


def _average(ctx: Lowering, x: Ref, n: int) -> Ref:
    refuse_complex(ctx, x)
    dst, lead = ctx.result(), len(x.shape) - n
    dims = _dimensions(x, dst.shape, n)
    k = ctx.kernel(dst.shape, [d.largest for d in dims])
    total = k.body.reduce("sum", _load(k, x, dims, 0)[0])
    by = _count(k.body, dims, [k.body.index(lead + d) for d in range(n)], total.dtype)
    k.store(dst, total / by, dst.strides + (0,) * n)
    k.done()
    return dst


def _count(b: LoopNestBuilder, dims: Sequence[_Adaptive], windows: Sequence[Expr], dtype: str) -> Expr:
    even = 1
    for d in dims:
        even *= d.size // d.out if d.even else 1
    result = b.const(even, "i64")
    for d, o in zip(dims, windows, strict=True):
        if not d.even:
            result = d.count(b, o) * result
    return b.convert(result, dtype)


def _average_gradient(ctx: Lowering, grad: Ref, x: Ref, n: int) -> Ref:
    refuse_complex(ctx, grad)
    dst, rank = ctx.result(), len(x.shape)
    lead = rank - n
    dims = _dimensions(x, grad.shape, n)
    k = ctx.kernel(x.shape, [d.covering for d in dims])
    b = k.body
    places = [d.window(b, b.index(lead + i), b.index(rank + i)) for i, d in enumerate(dims)]
    mask = both([d.covers(b, b.index(lead + i), o) for i, (d, o) in enumerate(zip(dims, places, strict=True))])
    zero = b.const(0, compute_type(grad.dtype))
    strides = (*grad.strides[:lead], *(0,) * (2 * n))
    g = k.gather(grad, strides, places, range(lead, rank), checked=False, mask=mask, other=zero)
    assert mask is not None
    # Past the last window the reckoned count could be zero.
    k.store(dst, b.reduce("sum", b.where(mask, g / _count(b, dims, places, g.dtype), zero)), dst.strides + (0,) * n)
    k.done()
    return dst


def _calls(n: int) -> Iterable[tuple[str, torch.Tensor, list[int]]]:
    tail = {1: (11,), 2: (7, 6), 3: (5, 4, 6)}[n]
    x = rand(2, 3, *tail)
    yield "uneven", x, [3, 4, 4][:n]
    yield "even", x[..., : tail[-1] // 2 * 2], [*tail[:-1], tail[-1] // 2]
    yield "one", x, [1] * n
    yield "larger than the input", x, [d + 2 for d in tail]
    if n == 2:
        yield "channels last", x.to(memory_format=torch.channels_last), [3, 4]
    yield "no batch, double", x[0].double(), [2] * n


def _forward_samples(n: int) -> Callable[[], Iterable[Sample]]:
    return lambda: [Sample((x, out), name=name) for name, x, out in _calls(n)]


def _backward_samples(n: int, *, maximum: bool) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for name, x, out in _calls(n):
            if maximum:
                forward: Any = torch.ops.aten.adaptive_max_pool2d if n == 2 else torch.ops.aten.adaptive_max_pool3d
                y, indices = forward(x, out)
                yield Sample((rand(*y.shape, seed=3).to(x.dtype), x, indices), name=name)
            else:
                shape = (*x.shape[: x.dim() - n], *out)
                yield Sample((rand(*shape, seed=3).to(x.dtype), x), name=name)

    return make


def _register_average(n: int) -> None:
    @operator(f"aten._adaptive_avg_pool{n}d.default", samples=_forward_samples(n))
    def forward(ctx: Lowering, x: Ref, output_size: Sequence[int]) -> Ref:
        """Means of windows that divide the input evenly."""
        return _average(ctx, x, n)

    @operator(f"aten._adaptive_avg_pool{n}d_backward.default", samples=_backward_samples(n, maximum=False))
    def backward(ctx: Lowering, grad: Ref, x: Ref) -> Ref:
        """Each element gathers its share from the windows that hold it."""
        return _average_gradient(ctx, grad, x, n)


def _register_maximum(n: int) -> None:
    @operator(f"aten.adaptive_max_pool{n}d.default", samples=_forward_samples(n))
    def forward(ctx: Lowering, x: Ref, output_size: Sequence[int]) -> tuple[Ref, Ref]:
        """Largest elements of windows that divide the input evenly, and where each stands."""
        refuse_complex(ctx, x)
        values, indices = ctx.result(0), ctx.result(1)
        lead, dims = len(x.shape) - n, _dimensions(x, values.shape, n)
        taps = [d.largest for d in dims]
        k = ctx.kernel(values.shape, taps)
        b = k.body
        v, _ = _load(k, x, dims, lowest(x.dtype))
        k.store(values, b.reduce("max", v), values.strides + (0,) * n)
        best: list[Expr] = []
        rest = b.reduce("argmax", v)
        for d in range(n - 1, -1, -1):
            extent = b.const(taps[d], "i64")
            best.insert(0, dims[d].start(b, b.index(lead + d)) + (b.op("mod", rest, extent) if d else rest))
            rest = b.op("idiv_floor", rest, extent)
        k.store(indices, flat(best, x.shape[lead:]), indices.strides + (0,) * n)
        k.done()
        return values, indices

    @operator(f"aten.adaptive_max_pool{n}d_backward.default", samples=_backward_samples(n, maximum=True))
    def backward(ctx: Lowering, grad: Ref, x: Ref, indices: Ref) -> Ref:
        """Each element gathers from the windows that took it."""
        dims = _dimensions(x, grad.shape, n)
        covering = [d.covering for d in dims]
        return gathered_gradient(ctx, grad, x, indices, covering, lambda b, d, at, o: dims[d].window(b, at, o))


for _n in (2, 3):
    _register_average(_n)
    _register_maximum(_n)
