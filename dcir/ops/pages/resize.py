"""Pages of the operators that resample an image: nearest, linear and cubic, with their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.movement import real
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
    k.store(dst, k.gather(x, (*x.strides[:lead], *(0,) * n), places, range(lead, lead + n), checked=False))
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


Taps = list[tuple[Expr, Expr]]


def _ratio_of(n: int, m: int, scale: float | None, *, corners: bool) -> float:
    """Source positions one output position is worth."""
    return ((n - 1) / (m - 1) if m > 1 else 0.0) if corners else _ratio(n, m, scale)


def _linear_taps(out: Expr, n: int, ratio: float, *, corners: bool, compute: str) -> Taps:
    """The two source positions of an output position with their weights, as torch's kernels have them."""
    b = out.body
    zero, one, last = b.const(0, compute), b.const(1, compute), b.const(n - 1, "i64")
    at = b.convert(out, compute)
    at = at * ratio if corners else b.op("max", (at + 0.5) * ratio - 0.5, zero)
    low = b.op("min", b.convert(b.op("floor", at), "i64"), last)
    part = b.op("min", b.op("max", at - b.convert(low, compute), zero), one)
    return [(low, 1.0 - part), (b.op("min", low + 1, last), part)]


def _cubic_taps(out: Expr, n: int, ratio: float, *, corners: bool, compute: str) -> Taps:
    """Four source positions with the weights of Keys' cubic convolution, A = -3/4."""
    b, a = out.body, -0.75
    zero, last = b.const(0, "i64"), b.const(n - 1, "i64")
    at = b.convert(out, compute)
    at = at * ratio if corners else (at + 0.5) * ratio - 0.5
    floor = b.op("floor", at)
    t, low = at - floor, b.convert(floor, "i64")

    def near(x: Expr) -> Expr:
        return ((x * (a + 2.0) - (a + 3.0)) * x) * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
    return [(b.op("max", b.op("min", low + (i - 1), last), zero), w) for i, w in enumerate(weights)]


def _unchanged(n: int, m: int, scale: float | None, taps: Any) -> bool:
    """Whether a dimension stays as it is; torch's linear kernels then pass over a given scale, its cubic one does not."""
    return n == m and (taps is _linear_taps or scale is None or scale == 1)


def _interpolated(ctx: Lowering, x: Ref, scales: Scales, taps: Callable[..., Taps], *, corners: bool) -> Ref:
    """A weighted sum of the neighbours of every output position."""
    if x.dtype not in ("f32", "f64", "bf16", "f16"):
        raise NotNative(f"interpolation of {x.dtype}")
    dst, n = ctx.result(), len(scales)
    lead = len(x.shape) - n
    compute = "f64" if x.dtype == "f64" else "f32"
    k = ctx.kernel(dst.shape)
    axes: list[Taps] = []
    for d, scale in zip(range(lead, lead + n), scales, strict=True):
        if _unchanged(x.shape[d], dst.shape[d], scale, taps):
            axes.append([(k.body.index(d), k.body.const(1, compute))])
        else:
            ratio = _ratio_of(x.shape[d], dst.shape[d], scale, corners=corners)
            axes.append(taps(k.body.index(d), x.shape[d], ratio, corners=corners, compute=compute))
    strides = (*x.strides[:lead], *(0,) * n)

    def blend(at: list[Expr]) -> Expr:
        """The value where the first dimensions are chosen: one sum a dimension, the last dimension innermost."""
        if len(at) == n:
            return k.gather(x, strides, at, range(lead, lead + n), checked=False)
        axis = axes[len(at)]
        if len(axis) == 1:
            return blend([*at, axis[0][0]])
        return functools.reduce(Expr.__add__, (blend([*at, place]) * weight for place, weight in axis))

    k.store(dst, blend([]))
    k.done()
    return dst


def _interpolated_gradient(
    ctx: Lowering, grad: Ref, scales: Scales, taps: Callable[..., Taps], reach: int, *, corners: bool
) -> Ref:
    """Every pixel sums the outputs it took part in: a reduction over the window that can reach it.

    Output o reads pixels near s(o) = o * ratio (+ a shift), so pixel i is read where i - reach < s(o) < i + reach:
    about 2 reach / ratio outputs, which the inner loops walk; the weights are those of the forward.
    """
    dst, n = ctx.result(), len(scales)
    lead, rank = len(dst.shape) - n, len(dst.shape)
    compute = "f64" if dst.dtype == "f64" else "f32"
    pairs = list(zip(dst.shape[lead:], grad.shape[lead:], strict=True))
    ratios = [_ratio_of(a, z, s, corners=corners) for (a, z), s in zip(pairs, scales, strict=True)]
    # Room on either side for the rounding of the window's start and of the forward's own positions.
    room = [min(z, math.ceil(2 * reach / r) + 3) if r else z for (_, z), r in zip(pairs, ratios, strict=True)]
    whole = all(a == z for a, z in pairs)
    same = [whole or _unchanged(a, z, s, taps) for (a, z), s in zip(pairs, scales, strict=True)]
    sizes = [1 if keep else m for keep, m in zip(same, room, strict=True)]
    k = ctx.kernel(dst.shape, sizes)
    b = k.body
    zero, shift = b.const(0, compute), 0.0 if corners else 0.5
    weight, ok = b.const(1, compute), b.const(True, "bool")
    places = []
    for d, ((small, large), r) in enumerate(zip(pairs, ratios, strict=True)):
        i, first = b.index(lead + d), b.const(0, "i64")
        if same[d]:
            places.append(i)
            continue
        if r and sizes[d] < large:
            start = b.op("floor", (b.convert(i, "f64") - (reach - shift)) * (1.0 / r) - (shift + 0.5))
            first = b.op("min", b.op("max", b.convert(start, "i64"), first), b.const(large - sizes[d], "i64"))
        o = first + b.index(rank + d)
        share = zero
        for at, w in taps(o, small, r, corners=corners, compute=compute):
            share = share + b.where(at.eq(i), w, zero)
        weight, ok = weight * share, ok & share.ne(0.0)
        places.append(o)
    strides = (*grad.strides[:lead], *(0,) * (2 * n))
    v = k.gather(grad, strides, places, range(lead, rank), checked=False, mask=ok, other=zero)
    k.store(dst, b.reduce("sum", v * weight))
    k.done()
    return dst


_SIZES = ((5,), (3, 4), (2, 3, 2))


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


def _register_interpolation(n: int, name: str, taps: Callable[..., Taps], reach: int) -> None:
    # In double precision the cubic's error is compared with nothing but itself, and a rounding of the position by one
    # unit is worth several units of the result.
    def kept(backward: bool) -> Callable[[], Iterable[Sample]]:
        make = _samples(n, *_CORNERS, backward=backward)
        return lambda: [s for s in make() if reach == 1 or s.args[0].dtype != torch.float64]

    @operator(f"aten.{name}.default", samples=kept(False))
    def forward(ctx: Lowering, x: Ref, size: Any, corners: bool, *scales: float | None, **named: float | None) -> Ref:
        """A weighted sum of the neighbours of every output position."""
        return _interpolated(ctx, x, _all(n, scales, named), taps, corners=corners)

    @operator(f"aten.{name}.vec", samples=_vector_samples(n, *_CORNERS))
    def forward_vector(ctx: Lowering, x: Ref, size: Any, corners: bool, scale_factors: Sequence[float] | None) -> Ref:
        """A weighted sum of the neighbours of every output position."""
        return _interpolated(ctx, x, scale_factors or [None] * n, taps, corners=corners)

    @operator(f"aten.{name}_backward.default", samples=kept(True))
    def backward(
        ctx: Lowering, grad: Ref, size: Any, shape: Any, corners: bool, *scales: float | None, **named: float | None
    ) -> Ref:
        """Every pixel sums the outputs it took part in."""
        return _interpolated_gradient(ctx, grad, _all(n, scales, named), taps, reach, corners=corners)


for _n in (1, 2, 3):
    _register_nearest(_n, "upsample_nearest", 0.0)
    _register_nearest(_n, "_upsample_nearest_exact", 0.5)
for _n, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    _register_interpolation(_n, _name, _linear_taps, 1)
_register_interpolation(2, "upsample_bicubic2d", _cubic_taps, 2)
