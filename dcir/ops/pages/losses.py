"""Pages of losses that compare element by element: one program for value and reduction, one for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

NONE, MEAN, SUM = range(3)


def reduced(ctx: Lowering, of: Callable[..., Expr], tensors: Sequence[Ref | None], reduction: int) -> Ref:
    """The element's loss ``of`` (body, *values), as it is, averaged or summed; absent tensors give None."""
    refuse_complex(ctx, *tensors)
    dst = ctx.result()
    shape = tuple(torch.broadcast_shapes(*(t.shape for t in tensors if t is not None)))
    k = ctx.kernel(shape) if reduction == NONE else ctx.kernel((), shape)
    compute = compute_type(dst.dtype)
    if compute not in FLOATS:
        raise NotNative("losses of integers")
    v = of(k.body, *(t if t is None else k.load(t, dtype=compute) for t in tensors))
    if reduction == NONE:
        k.store(dst, v)
    else:
        total = k.body.reduce("sum", v)
        count = 1
        for d in shape:
            count *= d
        k.store(dst, total / count if reduction == MEAN else total, (0,) * len(shape))
    k.done()
    return dst


def gradient(ctx: Lowering, of: Callable[..., Expr], grad: Ref, tensors: Sequence[Ref | None], reduction: int) -> Ref:
    """The gradient ``of`` (body, *values) times the incoming one, divided by the count where the loss was a mean."""
    refuse_complex(ctx, grad, *tensors)
    dst = ctx.result()
    k = ctx.kernel(dst.shape)
    compute = compute_type(dst.dtype)
    g = k.load(grad, dtype=compute)
    if reduction == MEAN:
        g = g / max(dst.numel, 1)
    k.store(dst, of(k.body, *(t if t is None else k.load(t, dtype=compute) for t in tensors)) * g)
    k.done()
    return dst


Pairs = Callable[[], Iterable[tuple[str, torch.Tensor, torch.Tensor]]]


def _pairs() -> Iterable[tuple[str, torch.Tensor, torch.Tensor]]:
    x, t = rand(3, 21), rand(3, 21, seed=1)
    yield "", x, t
    yield "permuted", rand(2, 3, 4).permute(2, 0, 1), rand(4, 2, 3, seed=1)
    yield "bf16", x.bfloat16(), t.bfloat16()
    yield "double", x.double(), t.double()


def _chances() -> Iterable[tuple[str, torch.Tensor, torch.Tensor]]:
    x, t = rand(3, 21, low=0.02, high=0.98), rand(3, 21, low=0, high=1, seed=1)
    yield "", x, t
    yield "certain", torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    yield "double", x.double(), t.double()


def _signs() -> Iterable[tuple[str, torch.Tensor, torch.Tensor]]:
    x, t = rand(3, 21), rand(3, 21, seed=1).sign()
    yield "", x, t
    yield "double", x.double(), t.double()


def _forward(pairs: Pairs, *more: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for reduction in (MEAN, NONE, SUM):
            for name, x, t in pairs():
                if reduction == MEAN or not name:
                    yield Sample((x, t, reduction, *more), name=f"{name or 'plain'}, reduction {reduction}")

    return make


def _backward(pairs: Pairs, *more: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for reduction in (MEAN, NONE, SUM):
            for name, x, t in pairs():
                g = rand(*(x.shape if reduction == NONE else ()), seed=5).to(x.dtype)
                if reduction == MEAN or not name:
                    yield Sample((g, x, t, reduction, *more), name=f"{name or 'plain'}, reduction {reduction}")

    return make


@operator("aten.mse_loss.default", samples=_forward(_pairs))
def mse_loss(ctx: Lowering, x: Ref, target: Ref, reduction: int = MEAN) -> Ref:
    """(x - t)^2."""
    return reduced(ctx, lambda b, x, t: (x - t) * (x - t), [x, target], reduction)


@operator("aten.mse_loss_backward.default", samples=_backward(_pairs))
def mse_loss_backward(ctx: Lowering, grad: Ref, x: Ref, target: Ref, reduction: int) -> Ref:
    """2 (x - t) g."""
    return gradient(ctx, lambda b, x, t: (x - t) * 2, grad, [x, target], reduction)


def _bent(b: LoopNestBuilder, x: Expr, t: Expr, bend: float, slope: float) -> Expr:
    """slope/2 d^2 up to ``bend``, from there a straight line, of d = |x - t|."""
    d = b.op("abs", x - t)
    line = (d - 0.5 * bend) * (slope * bend)
    return b.where(d < bend, d * d * (0.5 * slope), line) if bend else d


def _bent_slope(b: LoopNestBuilder, x: Expr, t: Expr, bend: float, slope: float) -> Expr:
    d = x - t
    if not bend:
        return b.where(d <= 0, b.const(-1, d.dtype), b.const(1, d.dtype))
    limit = b.const(bend * slope, d.dtype)
    return b.where(d <= -bend, -limit, b.where(d >= bend, limit, d * slope))


@operator("aten.smooth_l1_loss.default", samples=lambda: [*_forward(_pairs, 0.7)(), *_forward(_signs, 0.0)()])
def smooth_l1_loss(ctx: Lowering, x: Ref, target: Ref, reduction: int = MEAN, beta: float = 1.0) -> Ref:
    """|d| - beta/2 beyond beta, else d^2 / (2 beta)."""
    slope = 1 / beta if beta else 1.0
    return reduced(ctx, lambda b, x, t: _bent(b, x, t, beta, slope), [x, target], reduction)


@operator("aten.smooth_l1_loss_backward.default", samples=_backward(_pairs, 0.7))
def smooth_l1_loss_backward(ctx: Lowering, grad: Ref, x: Ref, target: Ref, reduction: int, beta: float) -> Ref:
    """The sign of d beyond beta, else d / beta."""
    slope = 1 / beta if beta else 1.0
    return gradient(ctx, lambda b, x, t: _bent_slope(b, x, t, beta, slope), grad, [x, target], reduction)


@operator("aten.huber_loss.default", samples=_forward(_pairs, 0.7))
def huber_loss(ctx: Lowering, x: Ref, target: Ref, reduction: int = MEAN, delta: float = 1.0) -> Ref:
    """delta (|d| - delta/2) beyond delta, else d^2 / 2."""
    return reduced(ctx, lambda b, x, t: _bent(b, x, t, delta, 1.0), [x, target], reduction)


@operator("aten.huber_loss_backward.default", samples=_backward(_pairs, 0.7))
def huber_loss_backward(ctx: Lowering, grad: Ref, x: Ref, target: Ref, reduction: int, delta: float) -> Ref:
    """d clamped to [-delta, delta]."""
    return gradient(ctx, lambda b, x, t: _bent_slope(b, x, t, delta, 1.0), grad, [x, target], reduction)


@operator("aten.soft_margin_loss.default", samples=_forward(_signs))
def soft_margin_loss(ctx: Lowering, x: Ref, target: Ref, reduction: int = MEAN) -> Ref:
    """log(1 + exp(-t x))."""
    return reduced(ctx, lambda b, x, t: b.op("log1p", b.op("exp", -t * x)), [x, target], reduction)


@operator("aten.soft_margin_loss_backward.default", samples=_backward(_signs))
def soft_margin_loss_backward(ctx: Lowering, grad: Ref, x: Ref, target: Ref, reduction: int) -> Ref:
    """-t sigmoid(-t x)."""
    return gradient(ctx, lambda b, x, t: -t * b.op("sigmoid", -t * x), grad, [x, target], reduction)


def _weighted(make: Callable[[], Iterable[Sample]], place: int) -> Callable[[], Iterable[Sample]]:
    """The samples with a weight argument: absent in most."""

    def more() -> Iterable[Sample]:
        for i, s in enumerate(make()):
            args = list(s.args)
            weight = rand(args[0 if place == 2 else 1].shape[-1], low=0.1, seed=7).to(args[1].dtype) if i == 0 else None
            args.insert(place, weight)
            yield Sample(tuple(args), name=f"{s.name}{', weight' if i == 0 else ''}")
            if i == 0:
                args[place] = None
                yield Sample(tuple(args), name=s.name)

    return more


@operator("aten.binary_cross_entropy.default", samples=_weighted(_forward(_chances), 2))
def binary_cross_entropy(ctx: Lowering, x: Ref, target: Ref, weight: Ref | None = None, reduction: int = MEAN) -> Ref:
    """(t - 1) log(1 - x) - t log(x), logarithms not below -100."""

    def of(b: LoopNestBuilder, x: Expr, t: Expr, w: Expr | None) -> Expr:
        low = b.const(-100, x.dtype)
        miss, hit = b.op("max", b.op("log1p", -x), low), b.op("max", b.op("log", x), low)
        v = (t - 1) * miss - t * hit
        return v if w is None else v * w

    return reduced(ctx, of, [x, target, weight], reduction)


@operator("aten.binary_cross_entropy_backward.default", samples=_weighted(_backward(_chances), 3))
def binary_cross_entropy_backward(
    ctx: Lowering, grad: Ref, x: Ref, target: Ref, weight: Ref | None = None, reduction: int = MEAN
) -> Ref:
    """(x - t) / (x (1 - x)), the denominator not below 1e-12."""

    def of(b: LoopNestBuilder, x: Expr, t: Expr, w: Expr | None) -> Expr:
        v = (x - t) / b.op("max", (1 - x) * x, b.const(1e-12, x.dtype))
        return v if w is None else v * w

    return gradient(ctx, of, grad, [x, target, weight], reduction)


def _logits() -> Iterable[Sample]:
    x, t = rand(3, 21, low=-8, high=8), rand(3, 21, low=0, high=1, seed=1)
    w, p = rand(21, low=0.1, seed=2), rand(21, low=0.5, high=3, seed=3)
    for reduction in (MEAN, NONE, SUM):
        yield Sample((x, t, None, None, reduction), name=f"reduction {reduction}")
    yield Sample((x, t, w, p), name="weights")
    yield Sample((x, t, None, p, NONE), name="weight of positives")
    yield Sample((x * 20, t.round(), None, None, NONE), name="far out")
    yield Sample((x.bfloat16(), t.bfloat16()), name="bf16")


@operator("aten.binary_cross_entropy_with_logits.default", samples=_logits)
def binary_cross_entropy_with_logits(
    ctx: Lowering, x: Ref, target: Ref, weight: Ref | None = None, pos_weight: Ref | None = None, reduction: int = MEAN
) -> Ref:
    """(1 - t) x - (1 + (p - 1) t) log(sigmoid(x))."""

    def of(b: LoopNestBuilder, x: Expr, t: Expr, w: Expr | None, p: Expr | None) -> Expr:
        log_sigmoid = b.op("min", x, b.const(0, x.dtype)) - b.op("log1p", b.op("exp", -b.op("abs", x)))
        v = (1 - t) * x - (log_sigmoid if p is None else ((p - 1) * t + 1) * log_sigmoid)
        return v if w is None else v * w

    return reduced(ctx, of, [x, target, weight, pos_weight], reduction)
