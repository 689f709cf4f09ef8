"""The prelude for a device and the CPU's have the same scalar functions, and the twin has what the prelude has."""

from __future__ import annotations

import re

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr
from dcir.codegen.cuda.prelude import prelude_text, twin_text
from dcir.ir.types import words

_NAME = re.compile(r"\bd_\w+")


def _used() -> set[str]:
    """Functions that loop nests may call."""
    found: set[str] = set()
    for op in SCALAR_OPS.values():
        for dtype in op.dtypes:
            found |= set(_NAME.findall(op.cpp([f"x{k}" for k in range(op.arity)], dtype)))
            if op.name in ("min", "max") and dtype[0] == "f":
                found |= set(_NAME.findall(op.cpp(["x", "0x1p+0f"], dtype)))
    for source in CPP_TYPE:
        for target in CPP_TYPE:
            if words(target) == "all":
                found |= set(_NAME.findall(cast_expr("x", source, target)))
    return found


def _defined(text: str) -> set[str]:
    """Functions of a prelude, those that macros define among them."""
    found = set(re.findall(r"\b(d_\w+)\(", text))
    found |= {f"d_{n}" for n in re.findall(r"^D_(?:UNARY|BINARY|POLYNOMIAL)\((\w+),", text, re.MULTILINE)}
    found |= {
        f"d_{s}_to_{t}"
        for s in re.findall(r"^D_TO_INT\(\w+, (\w+)\)", text, re.MULTILINE)
        for t in ("i32", "i64", "i16", "i8", "u8", "bool")
    }
    return found


def test_every_scalar_function_of_the_cpu_is_there() -> None:
    used = _used()
    assert {"d_exp", "d_idiv_floor", "d_polygamma", "d_f32_to_bf16", "d_f64_to_i8", "d_max_constant"} <= used
    for text in (prelude_text(), twin_text()):
        assert used - _defined(text) == set()


def test_the_twin_has_what_a_device_has() -> None:
    device = set(re.findall(r"\b[dD]_\w+", prelude_text())) - {"D_DEVICE"}
    twin = set(re.findall(r"\b[dD]_\w+", twin_text()))
    assert device - twin == set()


def test_no_header_of_a_toolkit_is_needed() -> None:
    assert "#include" not in prelude_text()
    assert "__builtin_" not in prelude_text()
