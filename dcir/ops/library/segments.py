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
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import IndexCheck, Operator, Steps
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import COSTLY, reference
from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, compute_type, itemsize, to_numpy
from dcir.ops.library.epilogue import attach_epilogue, run_epilogue
from dcir.ops.library.scan import grid
from dcir.ops.library.scatter import OPERATIONS, index_checks

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

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """Of all indices; points that are passed over are not looked at."""
        return index_checks(self, 0)

    def steps(self) -> Steps:
        """The same as loop nests, for stock DaCe and no kernel: what comes before each group and each point is counted.

        A point whose index leaves its range, which cannot be told from there, is in no group.
        """
        n = self.points
        find = LoopNestBuilder(self.dims)
        group, wanted = find.const(0, "i64"), find.const(True, "bool")
        for k, (strides, dtype, extent) in enumerate(zip(self.indices, self.index_types, self.extents, strict=True)):
            index = find.convert(find.load(find.input(dtype), strides), "i64")
            if k == 0 and self.skip is not None:
                wanted = wanted & index.ne(self.skip)
            if self.wrap:
                index = find.where(index < 0, index + extent, index)
            wanted = wanted & (index >= 0) & (index < extent)
            group = group * extent + index
        find.store(find.output("i64"), contiguous(self.dims), find.where(wanted, group, find.const(-1, "i64")))

        begin = LoopNestBuilder((self.groups + 1,), (n,))
        other = begin.load(begin.input("i64"), (0, 1))
        lower = (other >= 0) & (other < begin.index(0))
        begin.store(begin.output("i32"), (1, 0), begin.reduce("sum", begin.convert(lower, "i64")))

        count = LoopNestBuilder((n,), (n,))
        groups = count.input("i64")
        mine, other = count.load(groups, (1, 0)), count.load(groups, (0, 1))
        earlier = (other < mine) | (other.eq(mine) & (count.index(1) < count.index(0)))
        number = count.reduce("sum", count.convert((other >= 0) & earlier, "i64"))
        count.store(count.output("i64"), (1, 0), count.where(mine < 0, count.const(-1, "i64"), number))

        place = LoopNestBuilder((n,), (n,))
        here = place.load(place.input("i64"), (0, 1)).eq(place.index(0))
        found = place.where(here, place.index(1), place.const(-1, "i64"))
        place.store(place.output("i32"), (1, 0), place.reduce("max", found))
        return [("group", "i64", n), ("number", "i64", n)], [
            (find.finish(), [f"a{k}" for k in range(len(self.indices))], ["group"]),
            (begin.finish(), ["group"], ["o0"]),
            (count.finish(), ["group"], ["number"]),
            (place.finish(), ["number"], ["o1"]),
        ]


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

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """Those of its values and of its finish."""
        return (IndexCheck(),) if self.value.index_checks() or self.finish.index_checks() else ()

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

    def steps(self) -> Steps:
        """The same as loop nests, for stock DaCe and no kernel: all values, then for every row the sweep over its part of the list."""
        dims, compute = self.finish.outer, compute_type(self.dtype)
        cut, rank = group_loops(self), len(dims)
        of_group, of_column = contiguous(dims[:cut]), contiguous(dims[cut:])
        still, columns = (0,) * cut, (0,) * (rank - cut)
        body = LoopNestBuilder(dims, (self.points,))
        starts, order, values = body.input("i32"), body.input("i32"), body.input(compute)
        behind = _position(body, of_group) + 1
        first = body.load(starts, (*of_group, *columns, 0))
        last = body.gather(starts, (0,) * (rank + 1), [behind], [self.groups + 1], [1], checked=False)
        here = body.convert(body.index(rank), "i32")
        listed = (here >= first) & (here < last)
        point = body.load(order, (*still, *columns, 1), listed, body.const(0, "i32"))
        if self.base is None:
            start = body.const(self.fill, compute)
        else:
            start = body.load(body.input(self.dtype), (*self.base, 0))
        neutral = {"add": 0.0, "mul": 1.0}.get(self.op)
        value = body.gather(
            values, (*still, *of_column, 0), [point], [self.points], [self.columns], checked=False, mask=listed,
            other=start if neutral is None else body.const(neutral, compute),
        )  # fmt: skip
        total = body.reduce({"add": "sum", "mul": "prod"}.get(self.op, self.op), value)
        body.store(body.output(compute), (*contiguous(dims), 0), body.op(self.op, start, total))
        rest = [
            f"a{i}"
            for i in range(2, 2 + (self.base is not None) + len(self.value.inputs) + len(self.finish.inputs) - 1)
        ]
        base = [rest.pop(0)] if self.base is not None else []
        n = len(self.value.inputs)
        return [("values", compute, self.points * self.columns)], [
            (self.value, rest[:n], ["values"]),
            (
                attach_epilogue(body.finish(), self.finish),
                ["a0", "a1", "values", *base, *rest[n:]],
                [f"o{i}" for i in range(len(self.finish.outputs))],
            ),
        ]


def _position(body: LoopNestBuilder, strides: Sequence[int]) -> Expr:
    """The number that the first loops count together."""
    at = body.const(0, "i64")
    for d, step in enumerate(strides):
        at = at + body.index(d) * step
    return at


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
