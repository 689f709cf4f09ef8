"""Pages of the functions of one tensor: arithmetic, rounding, exponentials, trigonometry, tests of special values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import is_float
from dcir.ops.lowering import BOOL, INT_TO_FLOAT, Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import Fn, call, clamp, numeric, scalar, where
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials, unary
from dcir.ops.torch_types import FROM_NAME


def _ints(make: Callable[[], Iterable[Sample]]) -> Callable[[], Iterable[Sample]]:
    def more() -> Iterable[Sample]:
        yield from make()
        yield Sample((rand(3, 9, dtype=torch.int32, low=0, high=4),), name="int32")
        yield Sample((rand(9, dtype=torch.bool),), name="bool")

    return more


def _to_float(fn: Fn) -> Callable[..., Ref]:
    def page(ctx: Lowering, x: Ref) -> Ref:
        """A function of floats; integers become floats first."""
        return ctx.pointwise(fn, x, kind=INT_TO_FLOAT)

    return page


def _same(fn: Fn, *, bools: bool = False, integers: bool = True) -> Callable[..., Ref]:
    def page(ctx: Lowering, x: Ref) -> Ref:
        """A function within the tensor's type."""
        if x.dtype == "bool" and not bools:
            numeric(ctx, x)
        if not integers and not is_float(x.dtype):
            return x
        return ctx.pointwise(fn, x)

    return page


# name: (lowest, highest sample); the scalar operators of these names mean what torch means.
_RANGES: dict[str, tuple[float, float]] = {
    "exp": (-4, 4), "exp2": (-4, 4), "expm1": (-2, 2), "log": (0.1, 9), "log2": (0.1, 9), "log10": (0.1, 9),
    "log1p": (-0.5, 5), "sqrt": (0, 9), "rsqrt": (0.1, 9), "reciprocal": (0.2, 4), "sin": (-7, 7), "cos": (-7, 7),
    "tan": (-1.4, 1.4), "asin": (-1, 1), "acos": (-1, 1), "atan": (-4, 4), "sinh": (-3, 3), "cosh": (-3, 3),
    "asinh": (-4, 4), "acosh": (1, 5), "atanh": (-0.9, 0.9), "erf": (-3, 3), "erfc": (-2, 3), "erfinv": (-0.95, 0.95),
    "lgamma": (0.3, 6), "digamma": (0.3, 6),
}  # fmt: skip

for _name, (_low, _high) in _RANGES.items():
    # Far from zero the gamma functions cancel, and eager's own values there differ from platform to platform.
    _special = _name not in ("lgamma", "digamma", "erfinv")
    operator(f"aten.{_name}.default", samples=_ints(unary(low=_low, high=_high, special=_special)) if _special else
             unary(low=_low, high=_high, special=False))(_to_float(scalar(_name)))  # fmt: skip

operator("aten.deg2rad.default", samples=unary(low=-360, high=360))(_to_float(lambda x: x * (math.pi / 180.0)))
operator("aten.rad2deg.default", samples=unary(low=-7, high=7))(_to_float(lambda x: x * (180.0 / math.pi)))


def _sinc(x: Expr) -> Expr:
    angle = x * math.pi
    return where(x.eq(0.0), 1.0, call("sin", angle) / angle)


def _entropy(x: Expr) -> Expr:
    return where(x > 0.0, -x * call("log", x), where(x.eq(0.0), x, where(x < 0.0, -math.inf, x)))


operator("aten.sinc.default", samples=unary(low=-4, high=4))(_to_float(_sinc))
operator("aten.special_entr.default", samples=unary(low=0, high=3))(_to_float(_entropy))
operator("aten.special_ndtr.default", samples=unary(low=-2, high=3))(
    _to_float(lambda x: (call("erf", x * math.sqrt(0.5)) + 1.0) * 0.5)
)


@operator("aten.angle.default", samples=_ints(unary()))
def angle(ctx: Lowering, x: Ref) -> Ref:
    """0 or pi by the sign; NaN stays."""
    return ctx.pointwise(
        lambda v: where(v < 0.0, math.pi, where(call("isnan", v, dtype="bool"), v, 0.0)), x, kind=INT_TO_FLOAT
    )


operator("aten.neg.default", samples=unary(ints=True))(_same(lambda x: -x))
operator("aten.abs.default", samples=unary(ints=True))(_same(scalar("abs")))
operator("aten.sign.default", "aten.sgn.default", samples=unary(ints=True))(_same(scalar("sign")))
operator("aten.square.default", samples=unary(ints=True))(_same(lambda x: x * x))
for _name in ("floor", "ceil", "trunc", "round"):
    operator(f"aten.{_name}.default", samples=unary(low=-9, high=9, ints=True))(_same(scalar(_name), integers=False))
operator("aten.frac.default", samples=unary(low=-9, high=9))(_same(lambda x: x - call("trunc", x)))


@operator("aten.positive.default", "aten.conj_physical.default", "aten.conj.default", "aten.resolve_conj.default",
          "aten.resolve_neg.default", samples=lambda: [Sample((rand(3, 4).t(),))], view=True)  # fmt: skip
def same(ctx: Lowering, x: Ref) -> Ref:
    """Real numbers as they are."""
    if x.dtype in ("c64", "c128"):
        raise NotNative("complex numbers")
    return x


@operator("aten.round.decimals", samples=lambda: [
    Sample((rand(3, 9),), {"decimals": 2}), Sample((rand(9, low=-900, high=900),), {"decimals": -2}),
    Sample((rand(9, dtype=torch.float64),), {"decimals": 0}),
])  # fmt: skip
def round_decimals(ctx: Lowering, x: Ref, *, decimals: int = 0) -> Ref:
    """To so many digits after (or, if negative, before) the point."""
    if not is_float(x.dtype):
        raise NotNative("decimals of integers")
    ten = float(10 ** abs(decimals))

    def fn(v: Expr) -> Expr:
        if decimals == 0:
            return call("round", v)
        return call("round", v * ten) / ten if decimals > 0 else call("round", v / ten) * ten

    return ctx.pointwise(fn, x)


def _tests() -> Iterable[Sample]:
    yield Sample((specials(),))
    yield Sample((specials(torch.float64).reshape(2, 7).t(),), name="double")
    yield Sample((specials(torch.bfloat16),), name="bf16")
    yield Sample((rand(9, dtype=torch.int64, low=-5, high=6),), name="int64")
    yield Sample((rand(5, dtype=torch.bool),), name="bool")
    yield Sample((rand(0),), name="empty")


def _test(fn: Fn) -> Callable[..., Ref]:
    def page(ctx: Lowering, x: Ref) -> Ref:
        """A property of every element."""
        return ctx.pointwise(fn, x, kind=BOOL)

    return page


for _name in ("isnan", "isinf", "isfinite", "signbit"):
    operator(f"aten.{_name}.default", samples=_tests)(_test(scalar(_name, "bool")))


def _infinite(sign: float) -> Fn:
    def fn(x: Expr) -> Expr:
        return x.eq(sign * math.inf) if is_float(x.dtype) else x.ne(x)

    return fn


operator("aten.isposinf.default", samples=_tests)(_test(_infinite(1.0)))
operator("aten.isneginf.default", samples=_tests)(_test(_infinite(-1.0)))


@operator("aten.nan_to_num.default", samples=lambda: [
    *_tests(), Sample((specials(), 1.0, 2.0, -3.0), name="numbers"), Sample((specials(torch.float16),), name="f16"),
    Sample((specials(), math.inf, -math.inf, 7.0), name="each in place of another"),
])  # fmt: skip
def nan_to_num(
    ctx: Lowering, x: Ref, nan: float | None = None, up: float | None = None, down: float | None = None
) -> Ref:
    """NaN and the infinities replaced, by default by 0 and the largest finite numbers of the type."""
    if not is_float(x.dtype):
        return x
    limits = torch.finfo(FROM_NAME[x.dtype])

    def fn(v: Expr) -> Expr:
        above_low = where(v.eq(-math.inf), limits.min if down is None else down, v)
        finite = where(v.eq(math.inf), limits.max if up is None else up, above_low)
        return where(call("isnan", v, dtype="bool"), nan or 0.0, finite)

    return ctx.pointwise(fn, x)


@operator("aten.logit.default", "aten.special_logit.default", samples=lambda: [
    *unary(low=0.05, high=0.95)(), Sample((rand(3, 9, low=0, high=1), 0.1), name="clamped"),
    Sample((rand(3, low=0, high=1, dtype=torch.bfloat16), 0.2), name="clamped bf16"),
])  # fmt: skip
def logit(ctx: Lowering, x: Ref, eps: float | None = None) -> Ref:
    """log(x / (1 - x)), after a clamp to [eps, 1 - eps]."""
    if eps is not None and eps > 0.5:
        raise NotNative("an empty range")

    def fn(v: Expr) -> Expr:
        v = v if eps is None else clamp(v, eps, 1.0 - eps)
        return call("log", v / (1.0 - v))

    return ctx.pointwise(fn, x, kind=INT_TO_FLOAT)
