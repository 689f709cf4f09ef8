"""Batched matrix product C[b,m,n] = sum_k A[b,m,k] B[b,k,n], every operand with its own strides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContractionSpec:
    """Shapes in elements; strides in elements, batch strides first. A stride of 0 broadcasts.

    Attributes:
        dtype: dcir type name of all operands ("f32", "f64", "bf16", "f16"); half types accumulate in f32.
        batch: extents of the batch dimensions (may be empty).
        a: strides of A over (*batch, m, k).
        b: strides of B over (*batch, k, n).
        c: strides of C over (*batch, m, n).
    """

    dtype: str
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
