"""Pages of the gradients of activation functions: the incoming gradient times the derivative, as torch works it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.activations import gelu_parts
from dcir.ops.pages.movement import window
from dcir.ops.pages.pointwise import call, const, minimum, where
from dcir.ops.pages.views import dim_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials

_CUBE = 0.044715
_SIXTH = 0.1666666716337204  # 1/6 in single precision, which torch multiplies doubles by too


def _pairs(*args: Any, low: float = -4.0, high: float = 4.0, special: bool = True) -> Callable[[], Iterable[Sample]]:
    """Samples of (gradient, saved tensor, further arguments)."""

    def make() -> Iterable[Sample]:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            x = rand(3, 7, low=low, high=high, dtype=dtype, seed=1)
            yield Sample((rand(3, 7, dtype=dtype), x, *args), name=str(dtype))
        yield Sample((rand(7, 3).t(), rand(3, 14, low=low, high=high, seed=1)[:, ::2], *args), name="strided")
        yield Sample((rand(0, 3), rand(0, 3), *args), name="empty")
        if special:
            yield Sample((torch.ones(14), specials(), *args), name="special values")

    return make


def _more(base: Callable[[], Iterable[Sample]], *calls: tuple[Any, ...], low: float = -4.0, high: float = 4.0) -> Any:
    def make() -> Iterable[Sample]:
        yield from base()
        for args in calls:
            yield Sample((rand(3, 9), rand(3, 9, low=low, high=high, seed=1), *args), name=f"with {args}")

    return make


@operator("aten.threshold_backward.default", samples=_more(_pairs(0), (1.5,)))
def threshold_backward(ctx: Lowering, grad: Ref, x: Ref, threshold: float) -> Ref:
    """The gradient where x lies above the threshold."""
    return ctx.pointwise(lambda g, v: where(v <= threshold, 0.0, g), grad, x)


@operator("aten.sigmoid_backward.default", samples=_pairs(low=0, high=1, special=False))
def sigmoid_backward(ctx: Lowering, grad: Ref, y: Ref) -> Ref:
    """g (1 - y) y."""
    return ctx.pointwise(lambda g, v: g * (1.0 - v) * v, grad, y)


@operator("aten.tanh_backward.default", samples=_pairs(low=-1, high=1, special=False))
def tanh_backward(ctx: Lowering, grad: Ref, y: Ref) -> Ref:
    """g (1 - y²)."""
    return ctx.pointwise(lambda g, v: g * (1.0 - v * v), grad, y)


def _gelu_derivative(x: Expr, approximate: str) -> Expr:
    half, t = gelu_parts(x, approximate)
    if t is None:
        density = call("exp", x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        return half + x * density
    slope = (x * x * (3.0 * _CUBE) + 1.0) * math.sqrt(2.0 / math.pi)
    return half + x * 0.5 * (1.0 - t * t) * slope


@operator("aten.gelu_backward.default", samples=lambda: [
    *_pairs(special=False)(), Sample((rand(3, 9), rand(3, 9, seed=1)), {"approximate": "tanh"}, name="tanh"),
    Sample((rand(9, dtype=torch.bfloat16), rand(9, dtype=torch.bfloat16)), {"approximate": "tanh"}, name="tanh bf16"),
])  # fmt: skip
def gelu_backward(ctx: Lowering, grad: Ref, x: Ref, *, approximate: str = "none") -> Ref:
    """The derivative of x times the normal distribution at x."""
    return ctx.pointwise(lambda g, v: g * _gelu_derivative(v, approximate), grad, x)


@operator("aten.silu_backward.default", samples=_pairs(special=False))
def silu_backward(ctx: Lowering, grad: Ref, x: Ref) -> Ref:
    """g s (1 + x (1 - s)) with s = sigmoid(x), whose last bits for very negative x count for nothing here."""

    def fn(g: Expr, v: Expr) -> Expr:
        s = 1.0 / (call("exp", -v) + 1.0)
        return g * s * (v * (1.0 - s) + 1.0)

    return ctx.pointwise(fn, grad, x)


@operator("aten.mish_backward.default", samples=_pairs(special=False))
def mish_backward(ctx: Lowering, grad: Ref, x: Ref) -> Ref:
    """g (t + x s (1 - t²)) with s = sigmoid(x) and t = tanh(softplus(x)), from one exponential and one division.

    With e = exp(x) and n = e (e + 2), t = n / (n + 2) and s (1 - t²) = 4 e (e + 1) / (n + 2)².
    """

    def fn(g: Expr, v: Expr) -> Expr:
        e = call("exp", minimum(v, 20.0))
        n = e * (e + 2.0)
        r = 1.0 / (n + 2.0)
        return g * (r * (n + v * e * (e + 1.0) * r * 4.0))

    return ctx.pointwise(fn, grad, x)


@operator("aten.leaky_relu_backward.default", samples=_pairs(0.2, False))
def leaky_relu_backward(ctx: Lowering, grad: Ref, x: Ref, slope: float, is_result: bool) -> Ref:
    """The slope where x is not positive; a result has its argument's sign."""
    return ctx.pointwise(lambda g, v: where(v > 0, g, g * slope), grad, x)


def _elus() -> Iterable[Sample]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        g, x = rand(3, 7, dtype=dtype), rand(3, 7, low=-3, high=3, dtype=dtype, seed=1)
        yield Sample((g, 1.0, 1.0, 1.0, False, x), name=f"argument {dtype}")
        yield Sample((g, 0.7, 1.5, 0.6, True, x * 0.3), name=f"result {dtype}")
    yield Sample((torch.ones(14), 0.7, 1.5, 0.6, False, specials()), name="special values")


@operator("aten.elu_backward.default", samples=_elus)
def elu_backward(
    ctx: Lowering, grad: Ref, alpha: float, scale: float, input_scale: float, is_result: bool, saved: Ref
) -> Ref:
    """The derivative of elu, from its argument or from its result."""

    def fn(g: Expr, v: Expr) -> Expr:
        if is_result:
            low = g * input_scale * (v + alpha * scale)
        else:
            low = g * (input_scale * alpha * scale) * call("exp", v * input_scale)
        return where(v <= 0, low, g * scale)

    return ctx.pointwise(fn, grad, saved)


@operator("aten.hardtanh_backward.default", samples=_pairs(-1.0, 2.0))
def hardtanh_backward(ctx: Lowering, grad: Ref, x: Ref, low: float, high: float) -> Ref:
    """The gradient strictly inside the bounds."""
    return ctx.pointwise(lambda g, v: where((v <= low) | (v >= high), 0.0, g), grad, x)


@operator("aten.hardsigmoid_backward.default", samples=_pairs())
def hardsigmoid_backward(ctx: Lowering, grad: Ref, x: Ref) -> Ref:
    """g / 6 between -3 and 3."""
    return ctx.pointwise(lambda g, v: where((v > -3.0) & (v < 3.0), g * _SIXTH, 0.0), grad, x)


@operator("aten.hardswish_backward.default", samples=_pairs())
def hardswish_backward(ctx: Lowering, grad: Ref, x: Ref) -> Ref:
    """0 up to -3, g (x / 3 + 1/2) below 3, g from there."""
    return ctx.pointwise(lambda g, v: where(v <= -3.0, 0.0, where(v < 3.0, g * (v / 3.0 + 0.5), g)), grad, x)


@operator("aten.softplus_backward.default", samples=_more(_pairs(1.0, 20.0, special=False), (2.0, 1.5)))
def softplus_backward(ctx: Lowering, grad: Ref, x: Ref, beta: float, threshold: float) -> Ref:
    """g sigmoid(beta x), g beyond the threshold."""
    return ctx.pointwise(lambda g, v: where(v * beta > threshold, g, g * call("sigmoid", v * beta)), grad, x)


@operator("aten.softshrink_backward.default", "aten.hardshrink_backward.default", samples=_pairs(0.5))
def shrink_backward(ctx: Lowering, grad: Ref, x: Ref, lambd: float) -> Ref:
    """The gradient further than lambda from zero."""
    return ctx.pointwise(lambda g, v: where((v >= -lambd) & (v <= lambd), 0.0, g), grad, x)


@operator("aten.log_sigmoid_backward.default", samples=lambda: [
    Sample((g, x, torch.exp(-x.abs())), name=str(dtype))
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
    for g, x in [(rand(3, 7, dtype=dtype), rand(3, 7, low=-4, high=4, dtype=dtype, seed=1))]
])  # fmt: skip
def log_sigmoid_backward(ctx: Lowering, grad: Ref, x: Ref, buffer: Ref) -> Ref:
    """g sigmoid(-x); the kept exp(-|x|) costs more to read than to work out again."""
    return ctx.pointwise(lambda g, v: g * call("sigmoid", -v), grad, x)


@operator("aten._prelu_kernel_backward.default", samples=lambda: [
    Sample((rand(2, 3, 5), rand(2, 3, 5, seed=1), rand(1, 3, 1, seed=2))),
    Sample((rand(4, dtype=torch.bfloat16), rand(4, dtype=torch.bfloat16, seed=1), rand(1, dtype=torch.bfloat16))),
])  # fmt: skip
def prelu_backward(ctx: Lowering, grad: Ref, x: Ref, weight: Ref) -> tuple[Ref, Ref]:
    """Gradients of the argument and, before its reduction, of the weight."""
    first, second = ctx.result(0), ctx.result(1)
    k = ctx.kernel(first.shape)
    compute = "f64" if x.dtype == "f64" else "f32"
    g, v, w = (k.load(r, dtype=compute) for r in (grad, x, weight))
    k.store(first, where(v > 0, g, g * w))
    k.store(second, where(v > 0, 0.0, v * g))
    k.done()
    return first, second


@operator("aten.glu_backward.default", samples=lambda: [
    Sample((rand(3, 3), rand(3, 6, seed=1), -1)), Sample((rand(2, 5, 2), rand(2, 4, 5, seed=1).transpose(1, 2), 2)),
    Sample((rand(2, 3, dtype=torch.bfloat16), rand(4, 3, dtype=torch.bfloat16, seed=1), 0)),
])  # fmt: skip
def glu_backward(ctx: Lowering, grad: Ref, x: Ref, dim: int) -> Ref:
    """Both halves in one pass: g s and g a s (1 - s)."""
    dst, d = ctx.result(), dim_of(dim, len(x.shape))
    half = x.shape[d] // 2
    k = ctx.kernel(grad.shape)
    g, a = k.load(grad), k.load(window(x, d, 0, half))
    s = call("sigmoid", k.load(window(x, d, half, half)))
    k.store(window(dst, d, 0, half), g * s)
    k.store(window(dst, d, half, half), g * a * s * (1.0 - s))
    k.done()
    return dst


@operator("aten.logit_backward.default", samples=_more(_pairs(low=0.1, high=0.9), (0.2,), low=0, high=1))
def logit_backward(ctx: Lowering, grad: Ref, x: Ref, eps: float | None = None) -> Ref:
    """g / (x (1 - x)); outside the clamp 0, outside [0, 1] NaN."""
    low, high, outside = (0.0, 1.0, math.nan) if eps is None or eps < 0 else (eps, 1.0 - eps, 0.0)
    if eps is not None and eps > 0.5:
        raise NotNative("an empty range")

    def fn(g: Expr, v: Expr) -> Expr:
        inside = g / (v * (1.0 - v))
        if outside != 0.0:
            inside = where(v.eq(0.0) | v.eq(1.0), g * math.inf, inside)
        return where((v < low) | (v > high), const(v, outside), inside)

    return ctx.pointwise(fn, grad, x)
