"""Pages of the operators that resample an image, nearest and linear."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.program import Expr
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.movement import real
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

Scales = Sequence[float | None]


def _whole_factors(small: Sequence[int], large: Sequence[int], scales: Scales) -> list[int] | None:
    """Factors of an enlargement by whole numbers, along every dimension; None if it is none."""
    factors = []
    for n, m, s in zip(small, large, scales, strict=True):
        if m % n or (s is not None and s * n != m):
            return None
        factors.append(m // n)
    return factors


def _ratio(n: int, m: int, scale: float | None) -> float:
    return 1.0 / scale if scale is not None and scale > 0 else n / m


def _nearest(ctx: Lowering, x: Ref, scales: Scales, half: float) -> Ref:
    real(ctx)
    dst, n = ctx.result(), len(scales)
    small, large = x.shape[-n:], dst.shape[-n:]
    lead = len(x.shape) - n
    if not half and n > 1:  # torch overrules the given scale for these two sizes
        scales = [None if m in (e, 2 * e) else s for e, m, s in zip(small, large, scales, strict=True)]
    factors = _whole_factors(small, large, scales)
    if factors is not None:
        # [.., h f] <- [.., h]: every dimension as two loops, the source stands still in the second.
        k = ctx.kernel([*x.shape[:lead], *_pairs(small, factors)])
        into = _pairs([s * f for s, f in zip(dst.strides[-n:], factors, strict=True)], dst.strides[-n:])
        v = k.load(x, [*x.strides[:lead], *_pairs(x.strides[-n:], [0] * n)])
        k.store(dst, v, [*dst.strides[:lead], *into])
        k.done()
        return dst
    k = ctx.kernel(dst.shape)
    places = []
    for d in range(n):
        i, extent = k.body.index(lead + d), small[d]
        if extent != large[d] or scales[d] is not None:
            at = (k.body.convert(i, "f32") + half) * _ratio(extent, large[d], scales[d])
            i = k.body.op("min", k.body.convert(k.body.op("floor", at), "i64"), k.body.const(extent - 1, "i64"))
        places.append(i)
    k.store(dst, k.gather(x, (*x.strides[:lead], *(0,) * n), places, range(lead, lead + n), how="trusted"))
    k.done()
    return dst


def _pairs(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [e for pair in zip(a, b, strict=True) for e in pair]


def _nearest_gradient(ctx: Lowering, grad: Ref, scales: Scales) -> Ref:
    """Every pixel sums the window it filled."""
    real(ctx)
    dst, n = ctx.result(), len(scales)
    factors = _whole_factors(dst.shape[-n:], grad.shape[-n:], scales)
    if factors is None:
        raise NotNative("the gradient of a resize by a fraction")
    lead = len(dst.shape) - n
    k = ctx.kernel(dst.shape, factors)
    steps = [s * f for s, f in zip(grad.strides[-n:], factors, strict=True)]
    k.store(dst, k.body.reduce("sum", k.load(grad, [*grad.strides[:lead], *steps, *grad.strides[-n:]])))
    k.done()
    return dst


def _axis(k: Kernel, d: int, n: int, m: int, scale: float | None, *, corners: bool, compute: str) -> Any:
    """The two source positions of an output position, and the weight of the second, as torch's kernels have them."""
    b = k.body
    i = b.index(d)
    if n == m:
        return [(i, None)]
    at = b.convert(i, compute)
    if corners:
        at = at * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        at = b.op("max", (at + 0.5) * _ratio(n, m, scale) - 0.5, b.const(0, compute))
    low = b.op("min", b.convert(b.op("floor", at), "i64"), b.const(n - 1, "i64"))
    high = b.op("min", low + 1, b.const(n - 1, "i64"))
    part = at - b.convert(low, compute)
    part = b.op("min", b.op("max", part, b.const(0, compute)), b.const(1, compute))
    return [(low, 1.0 - part), (high, part)]


def _linear(ctx: Lowering, x: Ref, scales: Scales, *, corners: bool) -> Ref:
    """A weighted sum of the 2^n neighbours."""
    if x.dtype not in ("f32", "f64", "bf16", "f16"):
        raise NotNative(f"linear resize of {x.dtype}")
    dst, n = ctx.result(), len(scales)
    lead = len(x.shape) - n
    compute = "f64" if x.dtype == "f64" else "f32"
    k = ctx.kernel(dst.shape)
    axes = [
        _axis(k, lead + d, x.shape[lead + d], dst.shape[lead + d], scales[d], corners=corners, compute=compute)
        for d in range(n)
    ]
    total: Expr | None = None
    strides = (*x.strides[:lead], *(0,) * n)
    for corner in itertools.product(*axes):
        v = k.gather(x, strides, [at for at, _ in corner], range(lead, lead + n), how="trusted")
        for _, weight in corner:
            v = v if weight is None else v * weight
        total = v if total is None else total + v
    assert total is not None
    k.store(dst, total)
    k.done()
    return dst


def _linear_gradient(ctx: Lowering, grad: Ref, scales: Scales, *, corners: bool) -> Ref:
    """Every pixel sums the outputs it took part in: a reduction over the window that can reach it.

    Output o reads pixels floor(s(o)) and the next with s(o) = o * ratio (+ a shift), so pixel i is read from
    i - 1 < s(o) < i + 1: about 2 / ratio outputs, which the inner loops walk; the weights are those of the forward.
    """
    dst, n = ctx.result(), len(scales)
    lead, rank = len(dst.shape) - n, len(dst.shape)
    compute = "f64" if dst.dtype == "f64" else "f32"
    ratios = []
    for d in range(n):
        small, large = dst.shape[lead + d], grad.shape[lead + d]
        if corners:
            ratios.append((small - 1) / (large - 1) if large > 1 else 0.0)
        else:
            ratios.append(_ratio(small, large, scales[d]))
    sizes = []
    for d, r in enumerate(ratios):
        small, large = dst.shape[lead + d], grad.shape[lead + d]
        # One more on either side for the rounding of the window's start and of the forward's own positions.
        sizes.append(1 if small == large else min(large, math.ceil(2 / r) + 3) if r else large)
    k = ctx.kernel(dst.shape, sizes)
    b = k.body
    zero, one = b.const(0, compute), b.const(1, compute)
    ok: Expr | None = None
    places, weight = [], one
    for d, r in enumerate(ratios):
        small, large = dst.shape[lead + d], grad.shape[lead + d]
        i = b.index(lead + d)
        if small == large:
            places.append(i)
            continue
        shift = 0.0 if corners else 0.5
        first = b.const(0, "i64")
        if r and sizes[d] < large:
            start = b.op("floor", (b.convert(i, "f64") - (1.0 - shift)) * (1.0 / r) - (shift + 0.5))
            first = b.op("min", b.op("max", b.convert(start, "i64"), first), b.const(large - sizes[d], "i64"))
        o = first + b.index(rank + d)
        at = b.convert(o, compute)
        at = at * r if corners else b.op("max", (at + 0.5) * r - 0.5, zero)
        low = b.op("min", b.convert(b.op("floor", at), "i64"), b.const(small - 1, "i64"))
        part = b.op("min", b.op("max", at - b.convert(low, compute), zero), one)
        high = b.op("min", low + 1, b.const(small - 1, "i64"))
        share = b.where(low.eq(i), 1.0 - part, zero) + b.where(high.eq(i), part, zero)
        weight = weight * share
        here = share.ne(0.0)
        ok = here if ok is None else ok & here
        places.append(o)
    ok = ok if ok is not None else b.const(True, "bool")
    v = k.gather(
        grad, (*grad.strides[:lead], *(0,) * (2 * n)), places, range(lead, rank), how="trusted", mask=ok, other=zero
    )
    k.store(dst, b.reduce("sum", v * weight))
    k.done()
    return dst


_SIZES = ((5,), (3, 4), (2, 3, 2))
_TYPES = (torch.float32, torch.bfloat16, torch.float64)


def _scaled(size: Sequence[int], f: Sequence[float]) -> list[int]:
    return [int(a * b) for a, b in zip(size, f, strict=True)]


def _cases(n: int, *middle: Any) -> Iterable[tuple[tuple[int, ...], list[int], list[float | None], Any]]:
    """(input shape, output size, scales, element type), whole factors and fractions."""
    size = _SIZES[n - 1]
    none: list[float | None] = [None] * n
    yield (2, 3, *size), _scaled(size, [2] * n), none, torch.float32
    yield (1, 2, *size), _scaled(size, [3, 1, 2][:n]), none, torch.bfloat16
    yield (1, 2, *size), _scaled(size, [2] * n), [2.0] * n, torch.float64
    yield (2, 1, *size), [s + 2 for s in size], none, torch.float32
    yield (1, 2, *size), [max(s - 2, 1) for s in size], none, torch.float64
    yield (1, 2, *size), _scaled(size, [1.6] * n), [1.6] * n, torch.float32


def _samples(n: int, *middle: Any, backward: bool = False, whole: bool = False) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for i, (shape, size, scales, dtype) in enumerate(_cases(n)):
            if whole and i > 2:
                continue
            for m in middle or ((),):
                x = rand(*shape[:2], *size, dtype=dtype) if backward else rand(*shape, dtype=dtype)
                yield Sample((x, size, *([list(shape)] if backward else []), *m, *scales))

    return make


def _vector_samples(n: int, *middle: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        x = rand(1, 2, *_SIZES[n - 1])
        for m in middle or ((),):
            yield Sample((x, None, *m, [2.0] * n))
            yield Sample((x, [s + 1 for s in x.shape[2:]], *m, None))

    return make


def _register_nearest(n: int, name: str, half: float) -> None:
    @operator(f"aten.{name}{n}d.default", samples=_samples(n))
    def forward(ctx: Lowering, x: Ref, size: Sequence[int], *scales: float | None, **named: float | None) -> Ref:
        """The pixel under every output position."""
        return _nearest(ctx, x, _all(n, scales, named), half)

    @operator(f"aten.{name}{n}d.vec", samples=_vector_samples(n))
    def forward_vector(ctx: Lowering, x: Ref, size: Any, scale_factors: Sequence[float] | None) -> Ref:
        """The pixel under every output position."""
        return _nearest(ctx, x, scale_factors or [None] * n, half)

    @operator(f"aten.{name}{n}d_backward.default", samples=_samples(n, backward=True, whole=True))
    def backward(ctx: Lowering, grad: Ref, size: Any, shape: Any, *scales: float | None, **named: float | None) -> Ref:
        """Every pixel sums the window it filled."""
        return _nearest_gradient(ctx, grad, _all(n, scales, named))


def _all(n: int, scales: Sequence[float | None], named: dict[str, float | None]) -> list[float | None]:
    """Scales given by position, then by name, along the last n dimensions."""
    names = ("scales",) if n == 1 else ("scales_d", "scales_h", "scales_w")[-n:]
    return [*scales, *(named.get(name) for name in names[len(scales) :])]


_CORNERS = ((False,), (True,))


def _register_linear(n: int, name: str) -> None:
    @operator(f"aten.{name}.default", samples=_samples(n, *_CORNERS))
    def forward(ctx: Lowering, x: Ref, size: Any, corners: bool, *scales: float | None, **named: float | None) -> Ref:
        """A weighted sum of the neighbours of every output position."""
        return _linear(ctx, x, _all(n, scales, named), corners=corners)

    @operator(f"aten.{name}.vec", samples=_vector_samples(n, *_CORNERS))
    def forward_vector(ctx: Lowering, x: Ref, size: Any, corners: bool, scale_factors: Sequence[float] | None) -> Ref:
        """A weighted sum of the neighbours of every output position."""
        return _linear(ctx, x, scale_factors or [None] * n, corners=corners)

    @operator(f"aten.{name}_backward.default", samples=_samples(n, *_CORNERS, backward=True))
    def backward(
        ctx: Lowering, grad: Ref, size: Any, shape: Any, corners: bool, *scales: float | None, **named: float | None
    ) -> Ref:
        """Every pixel sums the outputs it took part in."""
        return _linear_gradient(ctx, grad, _all(n, scales, named), corners=corners)


for _n in (1, 2, 3):
    _register_nearest(_n, "upsample_nearest", 0.0)
    _register_nearest(_n, "_upsample_nearest_exact", 0.5)
for _n, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    _register_linear(_n, _name)
