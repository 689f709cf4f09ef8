"""Scatters in two steps: the points listed by where they go, once for all scatters with these indices, and a fold of each list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.errors import IndexOutOfRange
from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import COSTLY, reference
from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, compute_type, itemsize, to_numpy
from dcir.ops.library.epilogue import run_epilogue
from dcir.ops.library.scan import grid
from dcir.ops.library.scatter import OPERATIONS

_MOST_REPEATED = 12
"""Statements of a value that is computed once more."""


@register
@dataclass(frozen=True)
class GroupSpec(Operator):
    """A counting sort of points by their indices, in compressed rows: those of group g are order[starts[g] : starts[g + 1]].

    A point's number is its row-major position in the loops, its group the row-major position of its indices in their
    extents; points of one group keep their order. Operands: the indices. Results, i32: ``starts``, groups + 1 elements, and
    ``order``, an element per point (what follows the last listed point is undefined).

    Attributes:
        dims: extents of the loops.
        indices: per index, its strides over the loops.
        index_types: per index, its element type.
        extents: per index, how many values it may take.
        wrap: whether negative indices count from the end.
        skip: a value of the first index whose points are in no group.
    """

    dims: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    index_types: tuple[str, ...]
    extents: tuple[int, ...]
    wrap: bool
    skip: int | None = None

    kind = "group"

    @property
    def points(self) -> int:
        """How many points there are."""
        return math.prod(self.dims)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return math.prod(self.extents)

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of the indices and of both results."""
        reads = (
            math.prod(d for d, s in zip(self.dims, st, strict=True) if s) * itemsize(t)
            for st, t in zip(self.indices, self.index_types, strict=True)
        )
        return tuple(reads), ((self.groups + 1) * 4, self.points * 4)

    def operations(self) -> int:
        """A point is counted and placed, a group's start is a sum."""
        return 2 * self.points + self.groups

    def describe(self) -> str:
        """Its loops' extents."""
        return f"{self.kind} {sizes_text(self.dims)}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers.

        Raises:
            IndexOutOfRange: an index leaves its range.
        """
        group, wanted = np.zeros(self.dims, np.int64), np.ones(self.dims, bool)
        for n, (buffer, strides) in enumerate(zip(ins, self.indices, strict=True)):
            index = buffer[grid(self.dims, strides)].astype(np.int64)
            if n == 0 and self.skip is not None:
                wanted = index != self.skip
            if self.wrap:
                index = np.where(index < 0, index + self.extents[n], index)
            if bool(np.any(wanted & ((index < 0) | (index >= self.extents[n])))):
                raise IndexOutOfRange("an index lies outside its tensor")
            group = group * self.extents[n] + index
        (points,) = np.nonzero(wanted.reshape(-1))
        listed = group.reshape(-1)[points]
        outs[0][: self.groups + 1] = np.concatenate([[0], np.cumsum(np.bincount(listed, minlength=self.groups))])
        outs[1][: len(points)] = points[np.argsort(listed, kind="stable")]


@register
@dataclass(frozen=True)
class SegmentSpec(Operator):
    """out = finish(base op value[p] op value[q] op …) over the points p, q, … of every group, in their order.

    Operands: ``starts`` and ``order`` of a ``GroupSpec``, the base (unless filled), those of ``value``, those of ``finish``.

    Attributes:
        op: "add", "mul", "min" or "max".
        dtype: element type of the base; values are folded in its compute type.
        base: strides of the base over the loops of ``finish``, None where every fold starts with ``fill``.
        fill: that number.
        points, groups: how many there are.
        value: a pointwise program over (points, columns), both in any number of loops; its one store is row-major.
        finish: an epilogue over (groups, columns), likewise; its input 0 is the folded value.
    """

    op: str
    dtype: str
    base: tuple[int, ...] | None
    fill: float
    points: int
    groups: int
    value: LoopNest
    finish: LoopNest

    kind = "segment"

    @property
    def columns(self) -> int:
        """Elements of a group's result."""
        return math.prod(self.finish.outer) // self.groups

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of the operands and of the results."""
        base = [] if self.base is None else [self.groups * self.columns * itemsize(self.dtype)]
        reads, writes = self.finish.footprint()
        value, _ = self.value.footprint()
        return ((self.groups + 1) * 4, self.points * 4, *base, *value, *reads[1:]), writes

    def operations(self) -> int:
        """Those of the values, one per value to fold it, and those of the finish."""
        return self.value.operations() + self.points * self.columns + self.finish.operations()

    def describe(self) -> str:
        """Its kind of fold."""
        return f"{self.kind} {self.op}"

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers."""
        starts, order, rest = ins[0], ins[1], list(ins[2:])
        compute, columns = compute_type(self.dtype), self.columns
        folded = np.full((self.groups, columns), self.fill, to_numpy(compute))
        if self.base is not None:
            stored = rest.pop(0)[grid(self.finish.outer, self.base)]
            folded[...] = (bf16_to_f32(stored) if self.dtype == "bf16" else stored).reshape(folded.shape)
        values = np.zeros(self.points * columns, folded.dtype)
        n = len(self.value.inputs)
        run_program(self.value, rest[:n], [values], reference)
        counts = np.diff(starts[: self.groups + 1].astype(np.int64))
        listed = order[: int(starts[self.groups])]
        OPERATIONS[self.op].at(
            folded, np.repeat(np.arange(self.groups), counts), values.reshape(self.points, columns)[listed]
        )
        run_epilogue(self.finish, folded.reshape(self.finish.outer), rest[n:], outs)


def point_loops(spec: SegmentSpec) -> int:
    """How many of the first loops of ``value`` count points; the others are columns."""
    return _leading(spec.value.outer, spec.points)


def group_loops(spec: SegmentSpec) -> int:
    """How many of the first loops of ``finish`` count groups; the others are columns."""
    return _leading(spec.finish.outer, spec.groups)


def _leading(dims: Sequence[int], count: int) -> int:
    found, reach = 0, 1
    while reach < count:
        reach *= dims[found]
        found += 1
    assert reach == count
    return found


def cheap_to_repeat(p: LoopNest) -> bool:
    """Whether a value may be computed once more, where others need it too."""
    return len(p.body) <= _MOST_REPEATED and not any(s.op in COSTLY for s in p.body)
