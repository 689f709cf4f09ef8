"""Write-conflict resolution as reductions: which one a function of two values is, and what it begins with."""

from __future__ import annotations

import ast
import math
from typing import Any

import dace
from dace.frontend.operations import detect_reduction_type

from dcir.ir.dace.tasklets import COMBINE
from dcir.ir.types import TYPES

OPERATORS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
"""The scalar operator that combines two values."""


def reduction(wcr: Any) -> str | None:
    """The reduction that a function of two values, as text or as code, stands for; None if none of ours."""
    text = wcr if isinstance(wcr, str) else ast.unparse(wcr)
    for kind, known in COMBINE.items():
        if ast.unparse(ast.parse(known)) == ast.unparse(ast.parse(text)) and kind not in ("any", "all"):
            return kind
    types = dace.dtypes.ReductionType
    named = {types.Sum: "sum", types.Product: "prod", types.Max: "max", types.Min: "min"}
    return named.get(detect_reduction_type(text))


def is_identity(number: float, kind: str, dtype: str) -> bool:
    """Whether a reduction of that type may begin with a number as if there were none."""
    if kind in ("sum", "any"):
        return number == 0
    if kind in ("prod", "all"):
        return number == 1
    if dtype in ("f32", "f64"):
        return math.isinf(number) and (number < 0) == (kind == "max")
    bits = 8 * TYPES[dtype].itemsize - 1
    low, high = (0, 2 ** (bits + 1) - 1) if dtype == "u8" else (0, 1) if dtype == "bool" else (-(2**bits), 2**bits - 1)
    return number <= low if kind == "max" else number >= high
