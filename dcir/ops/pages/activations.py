"""Pages of the activation functions; their gradients are in ``activation_gradients``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ops.lowering import INT_TO_FLOAT, Lowering, NotNative, Ref
from dcir.ops.pages.movement import window
from dcir.ops.pages.pointwise import call, clamp, const, maximum, minimum, scalar, where
from dcir.ops.pages.views import dim_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials, unary

_ROOT_HALF = math.sqrt(0.5)
_ROOT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBE = 0.044715


def _with(
    *calls: tuple[Any, ...], low: float = -4.0, high: float = 4.0, special: bool = True
) -> Callable[[], Iterable[Sample]]:
    """The samples of a function of one tensor, then one for every further argument list."""

    def make() -> Iterable[Sample]:
        yield from unary(low=low, high=high, special=special)()
        for args in calls:
            yield Sample((rand(3, 9, low=low, high=high), *args), name=f"with {args}")

    return make


def gelu_parts(x: Expr, approximate: str) -> tuple[Expr, Expr | None]:
    """The normal distribution's value at ``x``, and for the tanh form the tanh itself."""
    if approximate == "none":
        return (call("erf", x * _ROOT_HALF) + 1.0) * 0.5, None
    t = call("tanh", (x + x * x * x * _CUBE) * _ROOT_2_OVER_PI)
    return (t + 1.0) * 0.5, t


@operator("aten.gelu.default", samples=lambda: [
    *_with(special=False)(), Sample((rand(3, 37, low=-6, high=6),), {"approximate": "tanh"}, name="tanh"),
    Sample((rand(3, 37, dtype=torch.bfloat16),), {"approximate": "tanh"}, name="tanh bf16"),
])  # fmt: skip
def gelu(ctx: Lowering, x: Ref, *, approximate: str = "none") -> Ref:
    """x times the normal distribution at x."""
    return ctx.pointwise(lambda v: v * gelu_parts(v, approximate)[0], x)


@operator("aten.relu.default", samples=_with())
def relu(ctx: Lowering, x: Ref) -> Ref:
    """max(x, 0)."""
    return ctx.pointwise(lambda v: maximum(v, 0), x)


@operator("aten.silu.default", samples=_with())
def silu(ctx: Lowering, x: Ref) -> Ref:
    """x * sigmoid(x), as one division."""
    return ctx.pointwise(lambda v: v / (call("exp", -v) + 1.0), x)


def tanh_of_softplus(x: Expr) -> Expr:
    """tanh(log(1 + e)) = n / (n + 2) with e = exp(x), n = e (e + 2); 1 to the last bit from x = 20 on."""
    e = call("exp", minimum(x, 20.0))
    n = e * (e + 2.0)
    return n / (n + 2.0)


@operator("aten.mish.default", samples=_with(special=False))
def mish(ctx: Lowering, x: Ref) -> Ref:
    """x * tanh(log(1 + exp(x)))."""
    return ctx.pointwise(lambda v: v * tanh_of_softplus(v), x)


@operator("aten.leaky_relu.default", samples=_with((0.2,), (-0.5,)))
def leaky_relu(ctx: Lowering, x: Ref, slope: float = 0.01) -> Ref:
    """x where positive, else slope * x."""
    return ctx.pointwise(lambda v: where(v > 0, v, v * slope), x)


@operator("aten.rrelu_with_noise_functional.default", samples=lambda: [
    Sample((rand(3, 5), rand(3, 5), 0.1, 0.4, False)), Sample((specials(), specials(), 0.25, 0.25)),
])  # fmt: skip
def rrelu(
    ctx: Lowering,
    x: Ref,
    noise: Ref,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: None = None,
) -> tuple[Ref, Ref]:
    """Outside of training a leaky ReLU with the mean of both slopes; the noise stays as it was."""
    if training:
        raise NotNative("slopes by chance")
    return leaky_relu(ctx, x, (lower + upper) / 2), noise


def _elu(x: Ref, ctx: Lowering, alpha: float, scale: float, input_scale: float) -> Ref:
    def fn(v: Expr) -> Expr:
        return where(v > 0, v * scale, call("expm1", v * input_scale) * (alpha * scale))

    return ctx.pointwise(fn, x)


@operator("aten.elu.default", samples=_with((0.5,), (1.5, 2.0, 0.7)))
def elu(ctx: Lowering, x: Ref, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Ref:
    """scale * x where positive, else scale * alpha * (exp(input_scale * x) - 1)."""
    return _elu(x, ctx, alpha, scale, input_scale)


@operator("aten.celu.default", samples=_with((0.5,)))
def celu(ctx: Lowering, x: Ref, alpha: float = 1.0) -> Ref:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""
    return _elu(x, ctx, alpha, 1.0, 1.0 / alpha)


@operator("aten.selu.default", samples=_with())
def selu(ctx: Lowering, x: Ref) -> Ref:
    """elu with the constants that keep mean and variance."""
    return _elu(x, ctx, 1.6732632423543772, 1.0507009873554805, 1.0)


@operator("aten.hardtanh.default", samples=_with((-0.5, 2.0)))
def hardtanh(ctx: Lowering, x: Ref, low: float = -1.0, high: float = 1.0) -> Ref:
    """x between two numbers."""
    return ctx.pointwise(lambda v: clamp(v, low, high), x)


@operator("aten.relu6.default", samples=_with(low=-8, high=8))
def relu6(ctx: Lowering, x: Ref) -> Ref:
    """x between 0 and 6."""
    return ctx.pointwise(lambda v: clamp(v, 0.0, 6.0), x)


@operator("aten.hardsigmoid.default", samples=_with())
def hardsigmoid(ctx: Lowering, x: Ref) -> Ref:
    """clamp(x + 3, 0, 6) / 6."""
    return ctx.pointwise(lambda v: clamp(v + 3.0, 0.0, 6.0) / 6.0, x)


@operator("aten.hardswish.default", samples=_with())
def hardswish(ctx: Lowering, x: Ref) -> Ref:
    """x * clamp(x + 3, 0, 6) / 6."""
    return ctx.pointwise(lambda v: v * clamp(v + 3.0, 0.0, 6.0) / 6.0, x)


@operator("aten.softplus.default", samples=_with((2.0,), (1.0, 1.5)))
def softplus(ctx: Lowering, x: Ref, beta: float = 1.0, threshold: float = 20.0) -> Ref:
    """log(1 + exp(beta x)) / beta; x itself beyond the threshold."""
    return ctx.pointwise(lambda v: where(v * beta > threshold, v, call("log1p", call("exp", v * beta)) / beta), x)


@operator("aten.threshold.default", samples=lambda: [
    Sample((rand(3, 9), 0.5, -7.0)), Sample((specials(), 1.0, 2.0)), Sample((rand(9, dtype=torch.bfloat16), 0.0, 0.1)),
])  # fmt: skip
def threshold(ctx: Lowering, x: Ref, threshold: float, value: float) -> Ref:
    """x above the threshold, else the value; NaN stays."""
    return ctx.pointwise(lambda v: where(v <= threshold, const(v, value), v), x)


@operator("aten.softshrink.default", samples=_with((1.5,)))
def softshrink(ctx: Lowering, x: Ref, lambd: float = 0.5) -> Ref:
    """x moved towards zero by lambda, NaN stays."""
    return ctx.pointwise(lambda v: where(v > lambd, v - lambd, where(v < -lambd, v + lambd, v * 0.0)), x)


@operator("aten.hardshrink.default", samples=_with((1.5,)))
def hardshrink(ctx: Lowering, x: Ref, lambd: float = 0.5) -> Ref:
    """0 within lambda of zero."""
    return ctx.pointwise(lambda v: where((v >= -lambd) & (v <= lambd), 0.0, v), x)


@operator("aten._prelu_kernel.default", samples=lambda: [
    Sample((rand(2, 3, 5), rand(1, 3, 1, seed=1))),
    Sample((rand(4, dtype=torch.bfloat16), rand(1, dtype=torch.bfloat16))),
])  # fmt: skip
def prelu(ctx: Lowering, x: Ref, weight: Ref) -> Ref:
    """x where positive, else weight * x."""
    return ctx.pointwise(lambda v, w: where(v > 0, v, v * w), x, weight)


@operator("aten.log_sigmoid_forward.default", samples=_with(special=False))
def log_sigmoid(ctx: Lowering, x: Ref) -> tuple[Ref, Ref]:
    """min(x, 0) - log(1 + exp(-|x|)), and exp(-|x|) for the gradient where torch keeps it."""
    dst, buffer = ctx.result(0), ctx.result(1)
    k = ctx.kernel(dst.shape)
    v = k.load(x)
    z = call("exp", -call("abs", v))
    k.store(dst, minimum(v, 0.0) - call("log1p", z))
    if buffer.numel:
        if buffer.shape != dst.shape:
            raise NotNative("a buffer of another shape")
        k.store(buffer, z)
    k.done()
    return dst, buffer


def _halves() -> Iterable[Sample]:
    yield Sample((rand(3, 6),))
    yield Sample((rand(2, 4, 5).transpose(1, 2), 2), name="permuted")
    yield Sample((rand(4, 3, dtype=torch.bfloat16), 0), name="bf16")
    yield Sample((rand(2, 4, dtype=torch.float64), 1), name="double")


@operator("aten.glu.default", samples=_halves)
def glu(ctx: Lowering, x: Ref, dim: int = -1) -> Ref:
    """The first half times the sigmoid of the second."""
    d = dim_of(dim, len(x.shape))
    half = x.shape[d] // 2
    return ctx.pointwise(lambda a, b: a * call("sigmoid", b), window(x, d, 0, half), window(x, d, half, half))


@operator(
    "aten.sigmoid.default",
    "aten.special_expit.default",
    samples=lambda: [*_with()(), Sample((rand(5, dtype=torch.int64),))],
)
def sigmoid(ctx: Lowering, x: Ref) -> Ref:
    """1 / (1 + exp(-x))."""
    return ctx.pointwise(scalar("sigmoid"), x, kind=INT_TO_FLOAT)


@operator("aten.tanh.default", samples=lambda: [*_with()(), Sample((rand(5, dtype=torch.int64),))])
def tanh(ctx: Lowering, x: Ref) -> Ref:
    """Hyperbolic tangent."""
    return ctx.pointwise(scalar("tanh"), x, kind=INT_TO_FLOAT)
