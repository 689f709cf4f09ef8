"""Pages of batch normalisation: statistics per channel, then a pointwise program that fuses with its neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.pages.layer_norm import Results, wanted
from dcir.ops.pages.moments import spread
from dcir.ops.pages.reducing import ReducedDims, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _channels(x: Ref) -> ReducedDims:
    """Channels outside, samples and positions inside."""
    return ReducedDims(x.shape, tuple(d for d in range(len(x.shape)) if d != 1))


def _outer(space: ReducedDims, ref: Ref) -> tuple[int, ...]:
    return ref.strides[0], *(0 for _ in space.reduced)


def _per_channel(k: Kernel, ref: Ref, rank: int, dtype: str) -> Expr:
    """A channel's value, in a program over all elements."""
    return k.load(ref, [ref.strides[0] if d == 1 else 0 for d in range(rank)], dtype=dtype)


def _apply(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref, scale: Ref, eps: float | None
) -> Ref:
    """(x - mean) scale weight + bias; with an ``eps``, ``scale`` is the variance."""
    dst, rank = ctx.result(0), len(x.shape)
    k = ctx.kernel(x.shape)
    v = k.load(x)
    factor = _per_channel(k, scale, rank, v.dtype)
    if eps is not None:
        factor = k.body.op("rsqrt", factor + eps)
    if weight is not None:
        factor = factor * _per_channel(k, weight, rank, v.dtype)
    y = (v - _per_channel(k, mean, rank, v.dtype)) * factor
    if bias is not None:
        y = y + _per_channel(k, bias, rank, v.dtype)
    k.store(dst, y)
    k.done()
    return dst


def _moments(k: Kernel, v: Expr, count: int) -> tuple[Expr, Expr]:
    """Mean and sum of squared differences from it, in one sweep where there is a wider type.

    Squares of float32 are exact in float64, so what is lost by subtracting large sums is ``mean^2 / variance * 2^-53``: less than
    float32 loses by rounding the elements, which is ``mean / deviation * 2^-24``, until the deviation is below the spacing of the elements.
    """
    if v.dtype != "f32":
        mean, _, squares = spread(k, v, count)
        return mean, squares
    wide = k.body.convert(v, "f64")
    total, squares = k.body.reduce("sum", wide), k.body.reduce("sum", wide * wide)
    mean = total / count
    return mean, k.body.op("max", squares - total * mean, k.body.const(0.0, "f64"))


def _batch_statistics(
    ctx: Lowering, x: Ref, running: tuple[Ref, Ref] | None, momentum: float, eps: float, at: Sequence[int]
) -> tuple[list[Ref], list[Ref], list[Ref]]:
    """Mean and reciprocal root per channel, as results and as exact; the running ones moved (results ``at``)."""
    space = _channels(x)
    saved = [ctx.result(1), ctx.result(2)]
    k = space.kernel(ctx)
    n = space.count
    v = k.load(x, space.strides(x))
    mean, squares = _moments(k, v, n)
    statistics = []
    root = k.body.convert(k.body.op("rsqrt", squares / n + eps), v.dtype)
    mean, squares = (k.body.convert(m, v.dtype) for m in (mean, squares))
    for dst, value in zip(saved, (mean, root), strict=True):
        k.store(dst, value, _outer(space, dst))
        exact = dst if dst.dtype == value.dtype else ctx.new(dst.shape, value.dtype)
        if exact is not dst:  # what is normalised by should not be rounded to a half type
            k.store(exact, value, _outer(space, exact))
        statistics.append(exact)
    moved = []
    if running is not None:
        # A single element has no unbiased variance; torch divides by zero too.
        new = mean, squares / (n - 1)
        for i, old, value in zip(at, running, new, strict=True):
            dst = ctx.result(i)
            before = k.load(old, _outer(space, old), dtype=value.dtype)
            k.store(dst, value * momentum + before * (1 - momentum), _outer(space, dst))
            moved.append(dst)
    k.done()
    return saved, statistics, moved


def _forward(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, running: tuple[Ref, Ref] | None, training: bool,
    momentum: float, eps: float, at: Sequence[int],
) -> tuple[Ref, Ref, Ref, list[Ref]]:  # fmt: skip
    refuse_complex(ctx, x)
    if math.prod(x.shape) == 0:
        raise NotNative("a batch without elements")
    if training:
        (mean, root), exact, moved = _batch_statistics(ctx, x, running, momentum, eps, at)
        return _apply(ctx, x, weight, bias, exact[0], exact[1], None), mean, root, moved
    if running is None:
        raise NotNative("evaluation without running statistics")
    return _apply(ctx, x, weight, bias, *running, eps), ctx.result(1), ctx.result(2), list(running)


def _tensors(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """(x, weight, bias, running mean, running variance)."""
    c = shape[1]
    x, w, b, mean = (rand(*s, dtype=dtype, seed=i) for i, s in enumerate((shape, (c,), (c,), (c,))))
    return x, w, b, mean, rand(c, dtype=dtype, low=0.5, high=2.0, seed=4)


def _forward_samples(*flags: bool, stats: bool = True, training: bool = False) -> Iterable[Sample]:
    x, w, b, m, v = _tensors(3, 4, 5, 2)
    known = (m, v) if stats else ()
    double = tuple(t.double() for t in (x, w, b, *known))
    yield Sample((x, w, b, *known, *flags, 0.1, 1e-5))
    yield Sample((x, None, None, *known, *flags, 0.3, 1e-3), name="no weight")
    yield Sample((x.to(memory_format=torch.channels_last), w, b, *known, *flags, 0.1, 1e-5), name="channels last")
    yield Sample((x[:, :, 0, 0].contiguous(), w, b, *known, *flags, 0.1, 1e-5), name="two dimensions")
    yield Sample((rand(2, 4, 3, 2, 2), w, b, *known, *flags, 0.1, 1e-5), name="five dimensions")
    half = tuple(t.bfloat16() for t in (x, w, b, *known))
    if not (known and training):  # torch infers f32 for the moved statistics and returns bf16
        yield Sample((*half, *flags, 0.1, 1e-5), name="bf16")
    yield Sample((*double, *flags, 0.1, 1e-5), name="double")
    yield Sample((x + 30.0, w, b, *known, *flags, 0.1, 1e-5), name="far from zero")


def _both_modes() -> Iterable[Sample]:
    yield from _forward_samples(True, training=True)
    yield next(iter(_forward_samples(False)))


def _with_weights() -> Iterable[Sample]:
    return (
        s for s in _forward_samples(training=True) if s.args[1] is not None
    )  # torch's own inference wants weights here


@operator("aten._native_batch_norm_legit_functional.default", samples=_both_modes)
def batch_norm_functional(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref, running_var: Ref,
    training: bool, momentum: float, eps: float,
) -> Results:  # fmt: skip
    """Batch normalisation that returns the moved running statistics."""
    y, mean, root, moved = _forward(ctx, x, weight, bias, (running_mean, running_var), training, momentum, eps, (3, 4))
    return y, mean, root, *moved


@operator("aten._batch_norm_with_update_functional.default", samples=_with_weights)
def batch_norm_with_update(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref, running_var: Ref,
    momentum: float, eps: float,
) -> Results:  # fmt: skip
    """The same in training, with a reserve for other back ends that stays empty."""
    y, mean, root, moved = _forward(ctx, x, weight, bias, (running_mean, running_var), True, momentum, eps, (4, 5))
    return y, mean, root, ctx.result(3), *moved


@operator("aten._native_batch_norm_legit_no_training.default", samples=_forward_samples)
def batch_norm_evaluation(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref, running_var: Ref,
    momentum: float, eps: float,
) -> Results:  # fmt: skip
    """Batch normalisation by the running statistics: one pointwise program."""
    return _forward(ctx, x, weight, bias, (running_mean, running_var), False, momentum, eps, ())[:3]


@operator("aten._native_batch_norm_legit.no_stats", samples=lambda: _forward_samples(True, stats=False))
def batch_norm_no_stats(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, training: bool, momentum: float, eps: float
) -> Results:
    """Batch normalisation that keeps no running statistics."""
    return _forward(ctx, x, weight, bias, None, training, momentum, eps, ())[:3]


def _native_samples() -> Iterable[Sample]:
    x, w, b, m, v = _tensors(3, 4, 5, 2)
    yield Sample((x, w, b, m, v, False, 0.1, 1e-5), name="evaluation")
    yield Sample((x, w, b, None, None, True, 0.1, 1e-5), name="no running statistics")


@operator("aten.native_batch_norm.default", samples=_native_samples)
def native_batch_norm(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, running_mean: Ref | None, running_var: Ref | None,
    training: bool, momentum: float, eps: float,
) -> Results:  # fmt: skip
    """The older form, where it changes nothing in place."""
    if running_mean is None or running_var is None:
        return _forward(ctx, x, weight, bias, None, training, momentum, eps, ())[:3]
    if training:
        raise NotNative("running statistics changed in place")
    return _forward(ctx, x, weight, bias, (running_mean, running_var), False, momentum, eps, ())[:3]


def _backward_samples(*, update: bool = False) -> Iterable[Sample]:
    def case(x: torch.Tensor, w: torch.Tensor | None, train: bool, mask: list[bool], name: str) -> Sample:
        c = x.shape[1]
        m, v = rand(c, seed=7).to(torch.float64), rand(c, low=0.5, high=2.0, seed=8).double()
        stat = torch.float64 if x.dtype == torch.float64 else torch.float32
        rest = [d for d in range(x.dim()) if d != 1]
        mean = x.double().mean(rest).to(stat)
        root = (x.double().var(rest, correction=0) + 1e-5).rsqrt().to(stat)
        if not train:
            mean = root = torch.empty(0, dtype=stat)
        grad = (
            rand(*x.shape, seed=9)
            .to(x.dtype)
            .contiguous(memory_format=torch.channels_last if name == "channels last" else torch.contiguous_format)
        )
        args = (grad, x, w, m.to(stat), v.to(stat), mean, root, train, 1e-5, mask)
        return Sample((*args, torch.empty(0, dtype=torch.uint8)) if update else args, name=name)

    x, w, *_ = _tensors(3, 4, 5, 2)
    every = [True, True, True]
    yield case(x, w, True, every, "training")
    yield case(x, w, False, every, "evaluation")
    yield case(x.to(memory_format=torch.channels_last), w, True, every, "channels last")
    yield case(x.double(), w.double(), True, every, "double")
    yield case(x.bfloat16(), w, True, every, "bf16 with float weights")
    yield case(x, w, True, [True, False, False], "only dx")
    yield case(x, w, False, [False, True, True], "only dweight and dbias")
    if not update:
        yield case(x, None, True, [True, False, False], "no weight")


@operator("aten.native_batch_norm_backward.default", samples=_backward_samples)
def batch_norm_backward(
    ctx: Lowering, grad: Ref, x: Ref, weight: Ref | None, running_mean: Ref | None, running_var: Ref | None,
    save_mean: Ref | None, save_root: Ref | None, train: bool, eps: float, output_mask: Sequence[bool],
) -> Results:  # fmt: skip
    """dweight = sum(g y), dbias = sum(g); dx = (g - dbias/n - y dweight/n) root weight, in evaluation g root weight."""
    refuse_complex(ctx, grad, x)
    mean, scale = (save_mean, save_root) if train else (running_mean, running_var)
    if mean is None or scale is None or not grad.numel:
        raise NotNative("no statistics, or no elements")
    dx, dw, db = wanted(ctx, output_mask)
    compute, space, rank = compute_type(x.dtype), _channels(x), len(x.shape)

    def root(k: Kernel, value: Expr) -> Expr:
        return value if train else k.body.op("rsqrt", value + eps)

    sums: list[Ref | None] = [_in_type(ctx, dst, compute, x.shape[1], dx is not None and train) for dst in (dw, db)]
    if any(s is not None for s in sums):
        k = space.kernel(ctx)
        g = k.load(grad, space.strides(grad), dtype=compute)
        v = k.load(x, space.strides(x)) - k.load(mean, _outer(space, mean), dtype=compute)
        r = root(k, k.load(scale, _outer(space, scale), dtype=compute))
        for number, dst in enumerate(sums):
            if dst is not None:
                value = k.body.reduce("sum", g) if number else k.body.reduce("sum", g * v) * r
                k.store(dst, value, _outer(space, dst))
        k.done()
    if dx is not None:
        k = ctx.kernel(x.shape)
        g = k.load(grad, dtype=compute)
        r = root(k, _per_channel(k, scale, rank, compute))
        if train:
            assert sums[0] is not None and sums[1] is not None
            y = (k.load(x) - _per_channel(k, mean, rank, compute)) * r
            tilt, even = (_per_channel(k, s, rank, compute) / space.count for s in (sums[0], sums[1]))
            g = g - even - y * tilt
        k.store(dx, g * (r if weight is None else r * _per_channel(k, weight, rank, compute)))
        k.done()
    results = [r if d is None or r is None or r.dtype == d.dtype else ctx.copy(r, d)
               for r, d in zip(sums, (dw, db), strict=True)]  # fmt: skip
    return dx, *(r if d is not None else None for r, d in zip(results, (dw, db), strict=True))


def _in_type(ctx: Lowering, dst: Ref | None, compute: str, channels: int, needed: bool) -> Ref | None:
    """Where a channel's sum goes: the result, or a transient where the result is narrower or was not asked for."""
    if dst is not None and (dst.dtype == compute or not needed):
        return dst
    return ctx.new((channels,), compute) if needed else None


@operator("aten.batch_norm_backward.default", samples=lambda: _backward_samples(update=True))
def batch_norm_backward_reserved(
    ctx: Lowering, grad: Ref, x: Ref, weight: Ref | None, running_mean: Ref | None, running_var: Ref | None,
    save_mean: Ref | None, save_root: Ref | None, update: bool, eps: float, output_mask: Sequence[bool], reserve: Ref,
) -> Results:  # fmt: skip
    """The same, with the reserve of other back ends."""
    return batch_norm_backward(  # type: ignore[no-any-return]
        ctx, grad, x, weight, running_mean, running_var, save_mean, save_root, update, eps, output_mask
    )
