"""The scalar operators of loop nests as C++ expressions over the prelude, and conversions between element types.

Argument expressions have the C++ type of the operator's dtype (bf16 and f16 are storage only: load them through
``cast_expr``). The meaning is torch's: NaN wins in min and max, integers wrap, ``mod`` has the divisor's sign. Where
torch raises or leaves the result open, as in integer division by zero, the prelude defines it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dcir.codegen.symbolic import Symbolic
from dcir.errors import Unsupported
from dcir.ir.scalars import TABLE
from dcir.ir.sizes import Quotient
from dcir.ir.types import FLOATS, HALVES, INTEGERS, TYPES

Expression = Callable[[Sequence[str], str], str]
Result = Literal["same", "bool"]

CPP_TYPE: dict[str, str] = {name: t.cpp for name, t in TYPES.items() if t.cpp}
DTYPES = (*FLOATS, *INTEGERS, "bool")
_FLOAT_LITERAL = re.compile(r"\(*-?0x[0-9a-f.]+p[+-][0-9]+f?\)*")


@dataclass(frozen=True)
class ScalarOp:
    """One scalar operator.

    Attributes:
        name: its name in loop nests.
        arity: number of arguments.
        cpp: (argument expressions, dtype) -> C++ expression; raises ``Unsupported`` for a dtype not in ``dtypes``.
        python: the reference over NumPy arrays.
        flops: arithmetic instructions per element in the f32 version, for estimates of compute time.
        result: "same" dtype as the arguments, or "bool".
        dtypes: element types it is defined for.
    """

    name: str
    arity: int
    cpp: Expression
    python: Callable[..., Any]
    flops: int
    result: Result
    dtypes: tuple[str, ...]


def _template(text: str) -> Expression:
    """An expression from text with {0}, {1}, {2} for the arguments and {T} for the C++ type."""

    def build(args: Sequence[str], dtype: str) -> str:
        return text.format(*(f"({arg})" if not arg.isidentifier() else arg for arg in args), T=CPP_TYPE[dtype])

    return build


_GROUPS: dict[str, tuple[str, ...]] = {
    "f": FLOATS,
    "i": INTEGERS,
    "s": tuple(t for t in INTEGERS if t != "u8"),
    "u": ("u8",),
    "b": ("bool",),
}

SCALAR_OPS: dict[str, ScalarOp] = {}


def _define(name: str, arity: int, flops: int, result: Result = "same", **texts: str) -> None:
    """Enters an operator; ``texts`` maps letters of ``_GROUPS`` to templates."""
    by_dtype = {dtype: _template(text) for letters, text in texts.items() for c in letters for dtype in _GROUPS[c]}

    def cpp(args: Sequence[str], dtype: str) -> str:
        if dtype not in by_dtype:
            known = ", ".join(by_dtype)
            raise Unsupported(f"scalar operator {name} on {dtype} is not supported", hint=f"cast to one of {known}")
        if len(args) != arity:
            raise ValueError(f"{name} takes {arity} arguments, not {len(args)}")
        return by_dtype[dtype](args, dtype)

    ordered = tuple(dtype for dtype in DTYPES if dtype in by_dtype)
    SCALAR_OPS[name] = ScalarOp(name, arity, cpp, TABLE[name], flops, result, ordered)


def _bounded(name: str, general: Expression) -> Expression:
    """``general`` for two unknown values; a constant float is no NaN, which saves half of the comparisons."""

    def build(args: Sequence[str], dtype: str) -> str:
        for value, bound in (args, args[::-1]) if len(args) == 2 and dtype in FLOATS else ():
            if _FLOAT_LITERAL.fullmatch(bound):
                return f"d_{name}_constant({value}, {bound})"
        return general(args, dtype)

    return build


_define("add", 2, 1, f="({0} + {1})", i="d_wrap_add<{T}>({0}, {1})", b="({0} | {1})")
_define("sub", 2, 1, f="({0} - {1})", i="d_wrap_sub<{T}>({0}, {1})")
_define("mul", 2, 1, f="({0} * {1})", i="d_wrap_mul<{T}>({0}, {1})", b="({0} & {1})")
_define("fma", 3, 2, f="({0} * {1} + {2})", i="d_wrap_add<{T}>(d_wrap_mul<{T}>({0}, {1}), {2})")
_define("div", 2, 1, f="({0} / {1})")
_define("idiv_floor", 2, 8, i="d_idiv_floor<{T}>({0}, {1})")
_define("idiv_trunc", 2, 4, i="d_idiv_trunc<{T}>({0}, {1})")
_define("floor_div", 2, 30, f="d_floor_div({0}, {1})", i="d_idiv_floor<{T}>({0}, {1})")
_define("mod", 2, 25, f="d_remainder({0}, {1})", i="d_imod<{T}>({0}, {1})")
_define("fmod", 2, 20, f="d_fmod({0}, {1})", i="d_imod_trunc<{T}>({0}, {1})")
_define("pow", 2, 60, f="d_pow({0}, {1})", i="d_ipow<{T}>({0}, {1})")
_define("neg", 1, 1, f="(-{0})", i="d_wrap_neg<{T}>({0})")
_define("abs", 1, 1, f="d_abs({0})", s="d_int_abs<{T}>({0})", u="{0}")
_define("sign", 1, 3, f="d_sign({0})", i="d_int_sign<{T}>({0})")
for _name, _flops in {
    "exp": 20, "exp2": 18, "expm1": 22, "log": 28, "log2": 28, "log10": 30, "log1p": 35, "tanh": 32, "sigmoid": 28,
    "erf": 40, "erfc": 60, "erfinv": 200, "sin": 55, "cos": 55, "tan": 40, "asin": 30, "acos": 30, "atan": 30,
    "sinh": 40, "cosh": 40, "asinh": 50, "acosh": 50, "atanh": 40, "sqrt": 1, "rsqrt": 2, "reciprocal": 1,
    "lgamma": 80, "digamma": 80,
}.items():  # fmt: skip
    _define(_name, 1, _flops, f=f"d_{_name}({{0}})")
for _name in ("floor", "ceil", "trunc", "round"):
    _define(_name, 1, 1, f=f"d_{_name}({{0}})", i="{0}")
for _name, _flops in {"atan2": 50, "hypot": 10, "nextafter": 10, "copysign": 2}.items():
    _define(_name, 2, _flops, f=f"d_{_name}({{0}}, {{1}})")
for _name in (
    "polygamma", "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he", "laguerre_l", "legendre_p",
):  # fmt: skip
    _define(_name, 2, 300, f=f"d_{_name}({{0}}, {{1}})")
for _name, _bool in {"min": "&", "max": "|"}.items():
    _integer, _logical = f"d_int_{_name}<{{T}}>({{0}}, {{1}})", f"({{0}} {_bool} {{1}})"
    _define(_name, 2, 1, f=f"d_{_name}({{0}}, {{1}})", i=_integer, b=_logical)
    SCALAR_OPS[_name] = replace(SCALAR_OPS[_name], cpp=_bounded(_name, SCALAR_OPS[_name].cpp))
    _define(f"f{_name}", 2, 1, f=f"d_f{_name}({{0}}, {{1}})", i=_integer, b=_logical)
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _define(_name, 2, 1, "bool", fib=f"({{0}} {_sign} {{1}})")
# Without short circuits: a branch would keep a loop from being vectorised.
for _name, _sign in {"and": "&", "or": "|", "xor": "!="}.items():
    _define(_name, 2, 1, "bool", fi=f"(({{0}} != 0) {_sign} ({{1}} != 0))", b=f"({{0}} {_sign} {{1}})")
_define("not", 1, 1, "bool", fi="({0} == 0)", b="(!{0})")
for _name, _sign in {"bitand": "&", "bitor": "|", "bitxor": "^"}.items():
    _define(_name, 2, 1, ib=f"({{T}})({{0}} {_sign} {{1}})")
_define("bitnot", 1, 1, i="({T})(~{0})", b="(!{0})")
_define("shl", 2, 2, i="d_shl<{T}>({0}, {1})")
_define("shr", 2, 2, i="d_shr<{T}>({0}, {1})")
for _name, _other in {"isnan": "false", "isinf": "false", "isfinite": "true"}.items():
    _define(_name, 1, 1, "bool", f=f"d_{_name}({{0}})", ib=_other)
_define("signbit", 1, 1, "bool", f="d_signbit({0})", s="({0} < 0)", ub="false")
_define("where", 3, 1, fib="({0} ? {1} : {2})")


def cast_expr(value: str, src: str, dst: str) -> str:
    """The C++ expression that converts ``value`` from element type ``src`` to ``dst``, as torch does on x86.

    Floats truncate towards zero; NaN and what does not fit becomes the smallest integer (its low bits for the narrow
    types). Every non-zero value, NaN too, is a true bool. Half types go through f32.

    Args:
        value: an expression of type ``CPP_TYPE[src]``.
        src: element type of the value.
        dst: element type wanted.

    Returns:
        An expression of type ``CPP_TYPE[dst]``.
    """
    for name in (src, dst):
        if name not in CPP_TYPE:
            raise Unsupported(f"element type {name} in generated code is not supported")
    if src == dst:
        return value
    if src in HALVES:
        return cast_expr(f"d_{src}_to_f32({value})", "f32", dst)
    if dst in HALVES:
        return f"d_f32_to_{dst}({cast_expr(value, src, 'f32')})"
    if src in FLOATS and dst not in FLOATS:
        return f"d_{src}_to_{dst}({value})"
    if dst == "bool":
        return f"(({value}) != 0)"
    return f"(({CPP_TYPE[dst]})({value}))"


def element(pointer: str, at: str, dtype: str) -> str:
    """The C++ expression of an element in memory, in a form that loops over it are vectorised with."""
    if dtype == "f16":
        return f"__builtin_bit_cast(_Float16, ((const d_f16_bits *){pointer})[{at}])"
    return f"{pointer}[{at}]"


def literal(value: bool | int | float, dtype: str) -> str:
    """A C++ constant of element type ``dtype`` (not a half type): the nearest float, or the integer itself."""
    if isinstance(value, Symbolic):
        return f"(({CPP_TYPE[dtype]}){value.text})"
    if isinstance(value, Quotient):
        over, under = (n.text if isinstance(n, Symbolic) else f"{n}LL" for n in (value.over, value.under))
        return f"(({CPP_TYPE[dtype]})((double){over} / (double){under}))"
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in INTEGERS:
        # The smallest i64 has no literal of its own: -9223372036854775808 is a negated number that does not fit.
        low = "(-9223372036854775807ll - 1)" if int(value) == -(2**63) else f"{int(value)}ll"
        return f"(({CPP_TYPE[dtype]}){low})"
    if dtype not in FLOATS:
        raise Unsupported(f"a constant of element type {dtype} is not supported", hint="cast a constant of f32")
    with np.errstate(over="ignore"):
        number = float(np.float32(value)) if dtype == "f32" else float(value)
    suffix = "f" if dtype == "f32" else ""
    if math.isnan(number):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(number):
        return f"({'-' if number < 0 else ''}__builtin_inf{suffix}())"
    return f"({number.hex()}{suffix})"
