"""Sorting along one dimension: a library node that gives the first of the sorted elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import Operator, Steps
from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, is_float, itemsize
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

    def steps(self) -> Steps:
        """The same as two loop nests, for stock DaCe and no kernel: count what comes before each element, then fetch by that number."""
        rank, rows = len(self.rows), contiguous((*self.rows, self.n))
        count = LoopNestBuilder((*self.rows, self.n), (self.n,))
        source = count.input(self.dtype)
        mine, other = count.load(source, (*self.x, 0)), count.load(source, (*self.x[:-1], 0, self.x[-1]))
        low, high = (mine, other) if self.descending else (other, mine)
        before = low < high
        if is_float(self.dtype):  # NaN is the largest
            low_nan, high_nan = (count.op("isnan", v, dtype="bool") for v in (low, high))
            before = ~low_nan & (high_nan | before)
            same = (low_nan & high_nan) | mine.eq(other)
        else:
            same = mine.eq(other)
        first = before | (same & (count.index(rank + 1) < count.index(rank)))
        count.store(count.output("i64"), (*rows, 0), count.reduce("sum", count.convert(first, "i64")))

        fetch = LoopNestBuilder((*self.rows, self.k), (self.n,))
        number = fetch.load(fetch.input("i64"), (*rows[:-1], 0, 1))
        at = fetch.where(number.eq(fetch.index(rank)), fetch.index(rank + 1), fetch.const(-1, "i64"))
        place = fetch.reduce("max", at)
        value = fetch.gather(
            fetch.input(self.dtype), (*self.x[:-1], 0, 0), [place], [self.n], [self.x[-1]], checked=False
        )
        fetch.store(fetch.output(self.dtype), (*self.values, 0), value)
        fetch.store(fetch.output("i64"), (*self.positions, 0), place)
        number_of = ("number", "i64", math.prod(self.rows) * self.n)
        return [number_of], [(count.finish(), ["a0"], ["number"]), (fetch.finish(), ["number", "a0"], ["o0", "o1"])]
