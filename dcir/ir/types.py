"""Element types: dcir's short names and what NumPy calls them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
        name: dcir's short name.
        itemsize: bytes of one stored element.
        kind: "float", "int", "uint", "bool", "complex", or "bits" of a number that only torch can read.
        compute: name of the type that arithmetic on it is done in (half types are storage only).
        numpy: NumPy name of the stored element (an unsigned integer carries the bits of a type that NumPy lacks).
        words: how much of it generated code understands: "all"; "casts", loads, stores and conversions; or "none".
    """

    name: str
    itemsize: int
    kind: str
    compute: str
    numpy: str
    words: str = "all"


_ALL = (
    ElementType("f32", 4, "float", "f32", "float32"),
    ElementType("f64", 8, "float", "f64", "float64"),
    ElementType("bf16", 2, "float", "f32", "uint16"),
    ElementType("f16", 2, "float", "f32", "float16"),
    ElementType("i64", 8, "int", "i64", "int64"),
    ElementType("i32", 4, "int", "i32", "int32"),
    ElementType("i16", 2, "int", "i16", "int16"),
    ElementType("i8", 1, "int", "i8", "int8"),
    ElementType("u8", 1, "uint", "u8", "uint8"),
    ElementType("bool", 1, "bool", "bool", "bool"),
    ElementType("u16", 2, "uint", "u16", "uint16", "casts"),
    ElementType("u32", 4, "uint", "u32", "uint32", "casts"),
    ElementType("u64", 8, "uint", "u64", "uint64", "casts"),
    ElementType("c64", 8, "complex", "c64", "complex64", "none"),
    ElementType("c128", 16, "complex", "c128", "complex128", "none"),
    ElementType("f8e4m3fn", 1, "bits", "f8e4m3fn", "uint8", "none"),
    ElementType("f8e4m3fnuz", 1, "bits", "f8e4m3fnuz", "uint8", "none"),
    ElementType("f8e5m2", 1, "bits", "f8e5m2", "uint8", "none"),
    ElementType("f8e5m2fnuz", 1, "bits", "f8e5m2fnuz", "uint8", "none"),
    ElementType("f8e8m0fnu", 1, "bits", "f8e8m0fnu", "uint8", "none"),
)
TYPES: dict[str, ElementType] = {t.name: t for t in _ALL}


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
