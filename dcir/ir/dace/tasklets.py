"""Scalar statements as Python tasklet code for stock DaCe, and the C++ helper functions that the code calls.

This is a second, independent wording of the scalar operators: plain C library calls, no vector tricks. Tasklet code is
Python in DaCe's subset; every value is wrapped in its type, so DaCe infers exactly the types the program states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Cast, Compute, Const, Narrow, Statement
from dcir.ir.types import FLOATS, HALVES, TYPES

DACE_NAMES = {n: t.dace for n, t in TYPES.items() if t.words != "none" and n not in HALVES}

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "bitand": "&", "bitor": "|", "bitxor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_LOGICAL = {"and": "(({0} != 0) and ({1} != 0))", "or": "(({0} != 0) or ({1} != 0))",
            "xor": "(({0} != 0) != ({1} != 0))", "not": "({0} == 0)"}  # fmt: skip


def expression(op: str, args: Sequence[str], dtype: str) -> str:
    """Tasklet code for a scalar operator with a result of compute type ``dtype``."""
    if op in _LOGICAL:
        text = _LOGICAL[op].format(*args)
    elif op in _INFIX:
        text = f"({args[0]} {_INFIX[op]} {args[1]})"
    elif op == "neg":
        text = f"(-{args[0]})"
    elif op == "bitnot":
        text = f"(~{args[0]})"
    elif op == "where":
        text = f"({args[1]} if {args[0]} else {args[2]})"
    else:
        text = f"dcir_{op}({', '.join(args)})"
    return typed(text, dtype)


def value(nest: LoopNest, i: int) -> str:
    """Tasklet code for value ``i`` of a nest where it is used."""
    s = nest.body[i]
    return literal(s.value, s.dtype) if isinstance(s, Const) else f"v{i}"


def statement(s: Statement, args: Sequence[str], dtypes: Sequence[str]) -> str:
    """Tasklet code for a statement that computes with values alone, of these types."""
    if isinstance(s, Cast):
        return cast(args[0], dtypes[0], s.dtype)
    if isinstance(s, Narrow):
        return widen(narrow(args[0], s.storage), s.storage)
    assert isinstance(s, Compute)
    return expression(s.op, args, s.dtype)


def typed(text: str, dtype: str) -> str:
    """The expression in the type ``dtype``."""
    return f"dace.{DACE_NAMES[dtype]}({text})"


def cast(text: str, source: str, target: str) -> str:
    """Conversion between compute types: what does not fit an integer becomes the smallest one, as on x86."""
    if target == "bool":
        return typed(f"({text} != 0)", "bool")
    if source in FLOATS and target not in FLOATS:
        return typed(f"dcir_to_{target}({text})", target)
    return typed(text, target)


def widen(text: str, storage: str) -> str:
    """A stored element in its compute type (half types arrive as their bits)."""
    if storage in HALVES:
        return typed(f"dcir_from_{storage}({text})", "f32")
    return typed(text, storage)


def narrow(text: str, storage: str) -> str:
    """A value of the compute type as it is stored."""
    if storage in HALVES:
        return f"dace.uint16(dcir_to_{storage}({text}))"
    return typed(text, storage)


def literal(value: Any, dtype: str) -> str:
    """A constant."""
    if dtype in FLOATS:
        value = float(value)
        if math.isnan(value):
            return typed("dcir_nan()", dtype)
        if math.isinf(value):
            return typed("dcir_inf()" if value > 0 else "(-dcir_inf())", dtype)
        text = repr(value) if value >= 0 and math.copysign(1, value) > 0 else f"(-{-value!r})"
        return typed(text, dtype)
    if dtype == "bool":
        return typed("1" if value else "0", "bool")
    if abs(int(value)) >= 2**31:  # DaCe writes Python integers without a suffix
        high, low = divmod(int(value), 2**30)
        if abs(high) < 2**31:
            return typed(f"(dace.int64({high}) * dace.int64(1073741824) + dace.int64({low}))", dtype)
        top, high = divmod(high, 2**30)
        whole = f"(dace.int64({top}) * dace.int64(1073741824) + dace.int64({high}))"
        return typed(f"({whole} * dace.int64(1073741824) + dace.int64({low}))", dtype)
    return typed(str(int(value)) if value >= 0 else f"({int(value)})", dtype)


COMBINE = {
    "sum": "lambda x, y: x + y", "prod": "lambda x, y: x * y", "any": "lambda x, y: max(x, y)",
    "all": "lambda x, y: min(x, y)", "max": "lambda x, y: dcir_max(x, y)", "min": "lambda x, y: dcir_min(x, y)",
}  # fmt: skip
"""How two partial results become one. NaN wins over every number, as in torch."""

HELPERS = Path(__file__).with_name("tasklets.h").read_text()


def identity(kind: str, dtype: str) -> str:
    """What a reduction begins with, as code: of a float32 sum in f64."""
    if kind in ("sum", "any"):
        return literal(0, "i32" if kind == "any" else "f64" if dtype == "f32" else dtype)
    if kind in ("prod", "all"):
        return literal(1, "i32" if kind == "all" else dtype)
    if dtype in FLOATS:
        return literal(float("-inf" if kind == "max" else "inf"), dtype)
    if dtype in ("bool", "u8"):
        return literal(0 if kind == "max" else 255 if dtype == "u8" else 1, dtype)
    bits = int(dtype[1:]) - 1
    return literal(-(2**bits) if kind == "max" else 2**bits - 1, dtype)


def accumulator_type(kind: str, dtype: str) -> str:
    """What a reduce of that type is accumulated in."""
    return {"sum": "f64" if dtype == "f32" else dtype, "any": "i32", "all": "i32"}.get(kind, dtype)
