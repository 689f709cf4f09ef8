"""Sorting along one dimension: a library node that gives the first of the sorted elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.ir.describe import sizes_text
from dcir.ir.operator import Operator
from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, itemsize
from dcir.ops.library.scan import grid


@register
@dataclass(frozen=True)
class SortSpec(Operator):
    """The first ``k`` elements of every row in order, and where each stood; equal elements keep their order.

    NaN counts as larger than everything.

    Attributes:
        dtype: element type.
        rows: extents of the other dimensions.
        n: extent of the sorted dimension.
        k: how many are wanted, at most ``n``.
        descending: largest first.
        x: strides of the source over (*rows, n).
        values, positions: strides of the results over (*rows, k).
    """

    dtype: str
    rows: tuple[int, ...]
    n: int
    k: int
    descending: bool
    x: tuple[int, ...]
    values: tuple[int, ...]
    positions: tuple[int, ...]

    kind = "sort"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of source and results."""
        rows, size = math.prod(self.rows), itemsize(self.dtype)
        return (rows * self.n * size,), (rows * self.k * size, rows * self.k * 8)

    def operations(self) -> int:
        """Comparisons of a merge sort."""
        return math.prod(self.rows) * self.n * max((self.n - 1).bit_length(), 1)

    def describe(self) -> str:
        """Its extents."""
        return f"{self.kind} {sizes_text((*self.rows, self.n))}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers."""
        stored = ins[0][grid((*self.rows, self.n), self.x)]
        v = bf16_to_f32(stored) if self.dtype == "bf16" else stored
        if self.descending:  # from the back, so that equal elements keep their order
            order = self.n - 1 - np.argsort(np.flip(v, -1), axis=-1, kind="stable")
            order = np.flip(order, -1)
        else:
            order = np.argsort(v, axis=-1, kind="stable")
        order = order[..., : self.k]
        shape = (*self.rows, self.k)
        outs[0][grid(shape, self.values)] = np.take_along_axis(stored, order, -1)
        outs[1][grid(shape, self.positions)] = order
