"""Reference meaning of the scalar operators of loop nests, as NumPy functions with torch's semantics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dcir.ir.many_sizes import many_sizes
from dcir.ir.statements import Cast, Compute, Narrow, Statement
from dcir.ir.types import bf16_to_f32, f32_to_bf16, to_numpy

Fn = Callable[..., Any]

COSTLY = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf", "erfc", "erfinv", "pow"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("lgamma", "digamma", "sqrt", "rsqrt", "div", "reciprocal", "idiv_floor", "idiv_trunc", "mod", "fmod"),
    }
)
"""Operators that take many cycles: what they make is not computed again for another reader."""


def _elementwise(fn: Callable[[float], float]) -> Fn:
    """A Python float function over arrays, NaN where it raises."""

    def one(x: float) -> float:
        try:
            return fn(float(x))
        except (ValueError, OverflowError):
            return math.nan

    def over(x: Any) -> Any:
        x = np.asarray(x)
        return np.vectorize(one, otypes=[np.float64])(x).astype(x.dtype) if x.size else x

    return over


def _sigmoid(x: Any) -> Any:
    return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _wrapping(fn: Fn, by_zero: int = 0) -> Fn:
    """Integer division: x / 0 gives ``by_zero``; the lowest number over -1 wraps."""

    def over(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(a, b)
        zero = b == 0
        minus = b == -1 if b.dtype.kind == "i" else np.zeros(b.shape, bool)
        safe = np.where(zero | minus, np.ones((), b.dtype), b)
        result = fn(a, safe)
        result = np.where(minus, (0 - a).astype(a.dtype) if fn is not np.remainder and fn is not np.fmod else 0, result)
        return np.where(zero, np.asarray(by_zero, a.dtype), result).astype(a.dtype)

    return over


def _trunc_div(a: Any, b: Any) -> Any:
    q = np.floor_divide(a, b)
    return q + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _mod(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        r = np.fmod(a, b)
        return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
    return _wrapping(np.remainder)(a, b)


def _pow(a: Any, b: Any) -> Any:
    a, b = np.broadcast_arrays(a, b)
    if a.dtype.kind == "f":
        # One exponent for all: NumPy would take a root for 0.5, which is another function at -inf and at -0.0.
        return np.power(a, b.copy())
    out = np.power(a, np.where(b < 0, 0, b))
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, negative, out)


def _max(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


def _erfinv(x: Any) -> Any:
    import torch

    return torch.erfinv(torch.as_tensor(np.asarray(x))).numpy()


def _torch(name: str) -> Fn:
    def over(x: Any) -> Any:
        import torch

        return getattr(torch, name)(torch.as_tensor(np.ascontiguousarray(x))).numpy()

    return over


def _polygamma(n: Any, x: Any) -> Any:
    import torch

    out = np.empty(np.broadcast_shapes(np.shape(n), np.shape(x)), x.dtype)
    n, x = np.broadcast_arrays(n, x)
    for order in np.unique(n):  # torch takes one order for a whole tensor
        here = n == order
        out[here] = torch.special.polygamma(int(order), torch.as_tensor(np.ascontiguousarray(x[here]))).numpy()
    return out


def _polynomial(name: str) -> Fn:
    def over(x: Any, n: Any) -> Any:
        import torch

        x, n = (torch.as_tensor(np.ascontiguousarray(v)) for v in (x, n))
        return getattr(torch.special, name)(x, n).numpy()

    return over


def _shift(left: bool) -> Fn:
    def over(a: Any, b: Any) -> Any:
        width = a.dtype.itemsize * 8
        big = (b < 0) | (b >= width)
        safe = np.where(big, 0, b)
        r = np.left_shift(a, safe) if left else np.right_shift(a, safe)
        gone = np.zeros((), a.dtype) if left else np.right_shift(a, width - 1)
        return np.where(big, gone, r)

    return over


def _sign(x: Any) -> Any:
    return np.where(np.isnan(x), 0, np.sign(x)).astype(x.dtype) if x.dtype.kind == "f" else np.sign(x)


TABLE: dict[str, Fn] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "idiv_floor": _wrapping(np.floor_divide), "idiv_trunc": _wrapping(_trunc_div),
    "mod": _mod, "fmod": lambda a, b: np.fmod(a, b) if a.dtype.kind == "f" else _wrapping(np.fmod)(a, b),
    "floor_div": lambda a, b: np.floor_divide(a, b), "pow": _pow, "neg": np.negative, "abs": np.abs, "sign": _sign,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "tanh": np.tanh, "sigmoid": _sigmoid, "erf": _elementwise(math.erf),
    "erfc": _elementwise(math.erfc), "erfinv": _erfinv, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype), "reciprocal": lambda x: (1 / x).astype(x.dtype),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "min": np.minimum, "max": _max, "fmin": np.fmin, "fmax": np.fmax,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "bitnot": np.invert,
    "shl": _shift(True), "shr": _shift(False),
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit, "copysign": np.copysign,
    "nextafter": np.nextafter, "hypot": np.hypot, "lgamma": _torch("lgamma"), "digamma": _torch("digamma"),
    "polygamma": _polygamma,
    "chebyshev_t": _polynomial("chebyshev_polynomial_t"), "chebyshev_u": _polynomial("chebyshev_polynomial_u"),
    "chebyshev_v": _polynomial("chebyshev_polynomial_v"), "chebyshev_w": _polynomial("chebyshev_polynomial_w"),
    "hermite_h": _polynomial("hermite_polynomial_h"), "hermite_he": _polynomial("hermite_polynomial_he"),
    "laguerre_l": _polynomial("laguerre_polynomial_l"), "legendre_p": _polynomial("legendre_polynomial_p"),
    "where": np.where, "fma": lambda a, b, c: a * b + c,
}  # fmt: skip


def _cast(dtype: str) -> Fn:
    target = to_numpy(dtype)

    def convert(x: Any) -> Any:
        if dtype == "bool":
            return x != 0
        if x.dtype.kind == "f" and target.kind in "iu":
            # As generated code converts: the low bits of the 32-bit result, and of the 64-bit one for unsigned numbers.
            wide = target if target.itemsize == 8 else np.dtype("int32" if target.kind == "i" else "int64")
            limits: Any = np.iinfo(str(wide))
            low = float(limits.min)
            x = x.astype(np.float64)
            inside = (x >= low) & (x < limits.max + 1.0)
            return np.where(inside, x, low).astype(wide).astype(target)
        return x.astype(target)

    return convert


def reference(name: str) -> Fn:
    """The reference function of a scalar operator; "cast:f32" converts to f32."""
    return _cast(name[5:]) if name.startswith("cast:") else TABLE[name]


_SMOOTH = frozenset({"add", "sub", "mul", "neg", "div", "pow", "sqrt", "exp", "log"})


def _the_same_beyond(s: Statement, arguments: Sequence[tuple[Any, str]]) -> bool:
    if isinstance(s, Cast):
        return s.dtype != "bool" and all(float(v).is_integer() for v, _ in arguments)
    return isinstance(s, Compute) and (s.op in _SMOOTH or all(t == "bool" for _, t in arguments))


def evaluate(s: Statement, arguments: Sequence[tuple[Any, str]]) -> bool | int | float | None:
    """The value of one scalar statement whose arguments are numbers, or None where it has none.

    None, too, in a graph for many sizes, if it is another function of its arguments beyond some number, as ``min`` and ``floor`` are: an
    argument may be a size.

    Args:
        s: a ``Compute``, ``Cast`` or ``Narrow``; others have no value of their own.
        arguments: (value, element type) of each argument.
    """
    if many_sizes() and not _the_same_beyond(s, arguments):
        return None
    arrays = [np.full((1,), v, to_numpy(t)) for v, t in arguments]
    with np.errstate(all="ignore"):
        if isinstance(s, Narrow):
            half = f32_to_bf16(arrays[0]) if s.storage == "bf16" else arrays[0].astype(np.float16)
            result = bf16_to_f32(half) if s.storage == "bf16" else half.astype(np.float32)
        elif isinstance(s, Cast):
            result = reference("cast:" + s.dtype)(arrays[0])
        elif isinstance(s, Compute):
            result = np.asarray(TABLE[s.op](*arrays)).astype(to_numpy(s.dtype))
        else:
            return None
    value: bool | int | float = result.item()
    return value
