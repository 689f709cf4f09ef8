"""Pages of the functions of two tensors beyond arithmetic: powers, remainders, roundings of quotients, logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import FLOATS, INTEGERS
from dcir.ops.lowering import INT_TO_FLOAT, LeftToTorch, Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import Fn, call, const, maximum, numeric, result_type, scalar, where
from dcir.ops.reach import device
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import binary, rand, specials


def _powers() -> Iterable[Sample]:
    x = rand(3, 7, low=0.1, high=3)
    for e in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5):
        yield Sample((x, e), name=f"exponent {e}")
    yield Sample((rand(9, dtype=torch.int64, low=-4, high=5), 3), name="int64")
    yield Sample((rand(9, dtype=torch.int64, low=1, high=5), 1.5), name="int64 to a fraction")
    yield Sample((specials(), 2), name="special values")
    yield Sample((specials(), 0.5), name="roots of special values")
    yield Sample((x.bfloat16(), 3), name="bf16")
    for e in (0.5, -0.5, -1, -2):
        yield Sample((specials().half(), e), name=f"special values of f16, exponent {e}")


def _power(x: Expr, e: float, *, roots: bool) -> Expr:
    """x ** e for a number: products, and roots where asked for, for the exponents torch treats so, else the general power."""
    if e in (2, 3):
        return x * x if e == 2 else x * x * x
    if x.dtype[0] == "f":
        match e:
            case 0.5 if roots:
                return call("sqrt", x)
            case -0.5 if roots:
                return call("rsqrt", x)
            case -1:
                return call("reciprocal", x)
            case -2:
                return call("reciprocal", x * x)
    return call("pow", x, const(x, e))


@operator("aten.pow.Tensor_Scalar", samples=_powers)
def pow_number(ctx: Lowering, x: Ref, exponent: Any) -> Ref:
    """x ** number."""
    if isinstance(exponent, complex):
        raise NotNative("complex numbers")
    numeric(ctx, x, exponent)
    if exponent < 0 and ctx.out.dtype in INTEGERS:
        raise LeftToTorch("torch's error for integers to negative powers")
    if exponent == 0:
        return ctx.full(1, ctx.result())
    if exponent == 1 and ctx.out.dtype == x.dtype:
        return x
    # Of float16 torch's CPU code takes the general power, which is another one at -inf and at -0.0.
    roots = ctx.out.dtype != "f16" or device() != "cpu"
    return ctx.pointwise(lambda v: _power(v, exponent, roots=roots), x, compute=ctx.promote([x, exponent]))


@operator("aten.pow.Tensor_Tensor", samples=lambda: [
    Sample((rand(3, 7, low=0.1, high=3), rand(3, 7, seed=1))), Sample((rand(3, 1, low=0.1, high=3), rand(7, seed=1))),
    Sample((rand(9, dtype=torch.int64, low=-4, high=5), rand(9, dtype=torch.int64, low=0, high=5, seed=1))),
    Sample((rand(9, dtype=torch.bfloat16, low=0.1, high=3), rand(9, dtype=torch.bfloat16, seed=1))),
    Sample((rand(5, low=0.1, high=3), rand(5, dtype=torch.int64, low=-2, high=3))),
    Sample((specials(), torch.full((14,), 2.0)), name="special values"),
])  # fmt: skip
def pow_tensors(ctx: Lowering, x: Ref, exponent: Ref) -> Ref:
    """x ** y."""
    numeric(ctx, x, exponent)
    return ctx.pointwise(scalar("pow"), x, exponent)


@operator("aten.pow.Scalar", samples=lambda: [
    Sample((2, rand(3, 7))), Sample((1, rand(5))), Sample((0.3, rand(5, dtype=torch.bfloat16))),
    Sample((3, rand(5, dtype=torch.int64, low=0, high=5))), Sample((2.0, specials())),
])  # fmt: skip
def pow_of_number(ctx: Lowering, base: Any, x: Ref) -> Ref:
    """number ** x."""
    numeric(ctx, base, x)
    if base == 1:
        return ctx.full(1, ctx.result())
    return ctx.pointwise(scalar("pow"), base, x)


def _ordered(*, scalar_first: bool = False) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        a, b = rand(3, 7, low=-5, high=5), rand(3, 7, low=0.5, high=3, seed=1)
        yield Sample((a, b))
        yield Sample((a, -b[0]), name="negative, broadcast")
        yield Sample((a.bfloat16(), 1.5), name="bf16 and number")
        yield Sample((a.double(), b), name="double and float")
        i = rand(11, dtype=torch.int64, low=-9, high=9)
        yield Sample((i, -4), name="int64 and number")
        yield Sample((i.int(), -3), name="int32 and number")
        yield Sample((i, 2.5), name="int64 and fraction")
        if scalar_first:
            yield Sample((7, b), name="number first")

    return make


def no_zero_divisor(ctx: Lowering, a: Any, b: Any) -> None:
    """Leave to torch what it may raise an error for: integers by zero, or by a tensor that may hold one.

    On GPUs torch's kernels raise none, and leave the result open. In a body a quotient by a tensor stays, and is 0 where that is 0: the
    whole loop would run through torch.

    Raises:
        LeftToTorch: an integer quotient or remainder whose divisor is no number other than zero, on a CPU.
    """
    if isinstance(b, Ref) and ctx.inside:
        return
    if device() == "cpu" and (isinstance(b, Ref) or b == 0) and result_type(a, b) in INTEGERS:
        raise LeftToTorch("torch's error for integers divided by zero")


def _two_ways(name: str, integers: str | None = None) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Any, b: Any) -> Ref:
        """One scalar operator, in the common type."""
        numeric(ctx, a, b)
        no_zero_divisor(ctx, a, b)
        return ctx.pointwise(lambda x, y: call(name if x.dtype[0] == "f" else integers or name, x, y), a, b)

    return page


operator("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor",
         samples=_ordered(scalar_first=True))(_two_ways("mod"))  # fmt: skip
operator("aten.fmod.Tensor", "aten.fmod.Scalar", samples=_ordered())(_two_ways("fmod"))
operator("aten.floor_divide.default", "aten.floor_divide.Scalar", samples=_ordered())(
    _two_ways("floor_div", "idiv_floor")
)


def _modes() -> Iterable[Sample]:
    for mode in ("floor", "trunc", None):
        for s in _ordered()():
            yield Sample(s.args, {"rounding_mode": mode}, name=f"{s.name} {mode}")


@operator("aten.div.Tensor_mode", "aten.div.Scalar_mode", samples=_modes)
def div_mode(ctx: Lowering, a: Any, b: Any, *, rounding_mode: str | None) -> Ref:
    """A quotient, rounded down, towards zero or not at all."""
    if rounding_mode is None:
        return ctx.pointwise(lambda x, y: x / y, a, b, kind=INT_TO_FLOAT)
    numeric(ctx, a, b)
    no_zero_divisor(ctx, a, b)
    if result_type(a, b) in INTEGERS:
        return ctx.pointwise(scalar("idiv_floor" if rounding_mode == "floor" else "idiv_trunc"), a, b)
    return ctx.pointwise(scalar("floor_div") if rounding_mode == "floor" else lambda x, y: call("trunc", x / y), a, b)


@operator("aten.rsub.Tensor", "aten.rsub.Scalar", samples=lambda: [
    *binary()(), Sample((rand(3, 4), rand(3, 4, seed=1)), {"alpha": 0.5}, name="scaled"),
])  # fmt: skip
def rsub(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Ref:
    """b - alpha * a."""
    numeric(ctx, a, b)
    return ctx.pointwise(lambda x, y: y - (x if alpha == 1 else x * alpha), a, b)


def _floats(
    low: float = -3, high: float = 3, *, special: bool = True, number: bool = False
) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        a, b = rand(3, 7, low=low, high=high), rand(3, 7, low=low, high=high, seed=1)
        yield Sample((a, b))
        yield Sample((a[:, :1], b[0]), name="broadcast")
        yield Sample((a.double(), b), name="double and float")
        yield Sample((a.bfloat16(), b.bfloat16()), name="bf16")
        if special:
            yield Sample((specials().repeat_interleave(14), specials().repeat(14)), name="special values")
        if number:
            yield Sample((a, 1.5), name="number")
            yield Sample((1.5, a), name="number first")

    return make


def _pointwise(fn: Fn, kind: Any = None) -> Callable[..., Ref]:
    def page(ctx: Lowering, a: Any, b: Any) -> Ref:
        """A function of two values, in the common type."""
        if kind is None:
            numeric(ctx, a, b)
            return ctx.pointwise(fn, a, b)
        return ctx.pointwise(fn, a, b, kind=kind)

    return page


def _xlogy(inner: Fn) -> Fn:
    def fn(x: Expr, y: Expr) -> Expr:
        return where(call("isnan", y, dtype="bool"), y, where(x.eq(0.0), 0.0, x * inner(y)))

    return fn


def _log_add(log1p: Fn, exp: Fn) -> Fn:
    def fn(a: Expr, b: Expr) -> Expr:
        both = call("isinf", a, dtype="bool") & a.eq(b)
        return where(both, a, maximum(a, b) + log1p(exp(-call("abs", a - b))))

    return fn


def _heaviside(x: Expr, at_zero: Expr) -> Expr:
    return where(x.eq(0), at_zero, where(x > 0, const(x, 1), 0))


operator("aten.atan2.default", samples=_floats())(_pointwise(scalar("atan2"), INT_TO_FLOAT))
operator("aten.hypot.default", samples=_floats())(_pointwise(scalar("hypot")))
operator("aten.copysign.Tensor", "aten.copysign.Scalar", samples=_floats(number=True))(
    _pointwise(scalar("copysign"), INT_TO_FLOAT)
)
operator(
    "aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other", samples=_floats(0.1, 3, number=True)
)(_pointwise(_xlogy(scalar("log")), INT_TO_FLOAT))
operator(
    "aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar", "aten.special_xlog1py.other_scalar",
    samples=_floats(0.1, 3, number=True),
)(_pointwise(_xlogy(scalar("log1p")), INT_TO_FLOAT))  # fmt: skip
operator("aten.logaddexp.default", samples=_floats(special=False))(_pointwise(_log_add(scalar("log1p"), scalar("exp"))))
operator("aten.logaddexp2.default", samples=_floats(special=False))(
    _pointwise(_log_add(lambda x: call("log1p", x) * (1.0 / math.log(2.0)), scalar("exp2")))
)
operator("aten.heaviside.default", samples=lambda: [
    Sample((specials(), rand(14))), Sample((rand(9, dtype=torch.int64, low=-2, high=3), rand(9, dtype=torch.int64))),
])(_pointwise(_heaviside))  # fmt: skip


@operator("aten.nextafter.default", samples=lambda: [
    Sample((rand(3, 7), rand(7, seed=1))), Sample((rand(9, dtype=torch.float64), rand(9, dtype=torch.float64, seed=1))),
    Sample((specials().repeat_interleave(14), specials().repeat(14)), name="special values"),
])  # fmt: skip
def nextafter(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """The next number towards b; of half types that is another number than in single precision."""
    if result_type(a, b) not in FLOATS:
        raise NotNative("the next half-precision number")
    return ctx.pointwise(scalar("nextafter"), a, b)


@operator("aten.ldexp.Tensor", samples=lambda: [
    Sample((rand(3, 7), rand(7, dtype=torch.int64, low=-4, high=5))), Sample((rand(3), rand(3, seed=1))),
])  # fmt: skip
def ldexp(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """a * 2 ** b."""
    return ctx.pointwise(lambda x, y: x * call("exp2", y), a, b, kind=INT_TO_FLOAT)
