"""Element types: dcir's short names, what NumPy, torch, DaCe and C++ call them, and how they count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ElementType:
    """One element type: what every part of dcir calls it, and how it counts.

    Attributes:
        name: dcir's short name.
        itemsize: bytes of one stored element.
        kind: "float", "int", "uint", "bool", "complex", or "bits" of a number that only torch can read.
        compute: name of the type that arithmetic on it is done in (half types are storage only).
        numpy: NumPy name of the stored element (an unsigned integer carries the bits of a type that NumPy lacks).
        torch: torch's name.
        cpp: name of the stored element in generated C++; empty where generated code does not read it.
        dace: name of DaCe's type of the stored element.
        digits: significant binary digits of a number, of a part of it if complex; 0 for "bits".
        words: how much of it generated code understands: "all"; "casts", loads, stores and conversions; or "none".
    """

    name: str
    itemsize: int
    kind: str
    compute: str
    numpy: str
    torch: str
    cpp: str
    dace: str
    digits: int
    words: str = "all"

    @property
    def epsilon(self) -> float:
        """The step from 1 to the next number of a floating-point type."""
        return 2.0 ** (1 - self.digits)


def _bits(name: str) -> ElementType:
    return ElementType(name, 1, "bits", name, "uint8", f"float8_{name[2:]}", "", "uint8", 0, "none")


_ALL = (
    ElementType("f32", 4, "float", "f32", "float32", "float32", "float", "float32", 24),
    ElementType("f64", 8, "float", "f64", "float64", "float64", "double", "float64", 53),
    ElementType("bf16", 2, "float", "f32", "uint16", "bfloat16", "unsigned short", "uint16", 8),
    ElementType("f16", 2, "float", "f32", "float16", "float16", "_Float16", "float16", 11),
    ElementType("i64", 8, "int", "i64", "int64", "int64", "long long", "int64", 63),
    ElementType("i32", 4, "int", "i32", "int32", "int32", "int", "int32", 31),
    ElementType("i16", 2, "int", "i16", "int16", "int16", "short", "int16", 15),
    ElementType("i8", 1, "int", "i8", "int8", "int8", "signed char", "int8", 7),
    ElementType("u8", 1, "uint", "u8", "uint8", "uint8", "unsigned char", "uint8", 8),
    ElementType("bool", 1, "bool", "bool", "bool", "bool", "bool", "bool_", 1),
    ElementType("u16", 2, "uint", "u16", "uint16", "uint16", "unsigned short", "uint16", 16, "casts"),
    ElementType("u32", 4, "uint", "u32", "uint32", "uint32", "unsigned int", "uint32", 32, "casts"),
    ElementType("u64", 8, "uint", "u64", "uint64", "uint64", "unsigned long long", "uint64", 64, "casts"),
    ElementType("c64", 8, "complex", "c64", "complex64", "complex64", "", "complex64", 24, "none"),
    ElementType("c128", 16, "complex", "c128", "complex128", "complex128", "", "complex128", 53, "none"),
    *map(_bits, ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu")),
)
TYPES: dict[str, ElementType] = {t.name: t for t in _ALL}
FLOATS = tuple(t.name for t in _ALL if t.kind == "float" and t.compute == t.name)
"""The floating-point types that arithmetic is done in."""
HALVES = tuple(t.name for t in _ALL if t.kind == "float" and t.compute != t.name)
"""The floating-point types that are storage only."""
INTEGERS = tuple(t.name for t in _ALL if t.kind in ("int", "uint") and t.words == "all")
"""The integers that generated code computes with."""


def itemsize(name: str) -> int:
    """Bytes of one stored element of type ``name``."""
    return TYPES[name].itemsize


def compute_type(name: str) -> str:
    """The type arithmetic on ``name`` is done in."""
    return TYPES[name].compute


def is_float(name: str) -> bool:
    """Whether ``name`` is a real floating-point type."""
    return TYPES[name].kind == "float"


def words(name: str) -> str:
    """How much of ``name`` generated code understands: "all", "casts" or "none" (see ``ElementType``)."""
    return TYPES[name].words


def keeps_values(source: str, target: str) -> bool:
    """Whether another real type ``target`` has every number of ``source``."""
    a, b = TYPES[source], TYPES[target]
    real = ("float", "int", "uint", "bool")
    if source == target or a.kind not in real or b.kind not in real:
        return False
    if a.kind == "float":
        return b.kind == "float" and b.itemsize > a.itemsize
    return b.digits >= a.digits and (a.kind != "int" or b.kind in ("int", "float"))


def wrapped(value: int, name: str) -> int:
    """The number of integer type ``name`` that has the low bits of ``value``."""
    bits = 8 * TYPES[name].itemsize
    low: int = value % 2**bits
    return low - 2**bits if TYPES[name].kind == "int" and low >> (bits - 1) else low


def to_numpy(name: str) -> np.dtype[np.generic]:
    """NumPy type of the stored element (bf16 and 8-bit floats are carried as their bits)."""
    return np.dtype(TYPES[name].numpy)


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widen bf16 bits (uint16) to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bf16 bits, to nearest even; NaN stays NaN."""
    values = np.asarray(values, dtype=np.float32)  # any layout; a scalar stays one
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
