"""CUDA kernels of loop nests: which form a nest takes, along what its threads lie, and in how many kernels it runs."""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cuda.device import MULTIPROCESSORS, ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.columns import ColumnShape, by_columns, column_shape, columns
from dcir.codegen.cuda.kernels.flight import parts_of_a_wave
from dcir.codegen.cuda.kernels.pointwise import pointwise
from dcir.codegen.cuda.kernels.rows import SHARED_ROW, RowShape, row_shape, rows
from dcir.codegen.cuda.kernels.split import row_major, stage_nests
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.tiled import tiled, turning_loop
from dcir.codegen.cuda.launch import CudaPlan, Launch
from dcir.cost.machine import Machine
from dcir.ir.loop_forms import collapse, drop_roundings, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.partial_results import first_step, last_step, partial_types, unsplittable
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Const, Index, Reduce, Statement, Store
from dcir.ir.types import itemsize

# Below this many points a second kernel costs more than idle multiprocessors.
LEAST_POINTS = 1 << 15
# Pieces of a row, or rows of a column, that a thread should have left where several blocks share it.
LEAST_EACH = 4
MOST_PARTS = 1024
ALIGNMENT = 256


@planner(LoopNest)
def plan_loop_nest(program: LoopNest, machine: Machine | None) -> CudaPlan | Refusal:
    """The kernels of a loop nest."""
    if (refused := nest_refusal(program)) is not None:
        return refused
    plan = Plan()
    plan.add(program, Places())
    return plan.made()


def nest_refusal(p: LoopNest) -> Refusal | None:
    """Why a loop nest has no CUDA kernel."""
    if any(isinstance(s, Store) and s.added for s in p.body):
        return Refusal("results that many points add to have no CUDA kernel")
    if _repeats(p):
        return Refusal("several points store to one place, and no reduction says which counts")
    return None


class Plan:
    """Launches in order, and memory of their own."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.end = 0

    def made(self) -> CudaPlan:
        """What was planned."""
        return CudaPlan(tuple(self.launches), self.end)

    def room(self, nbytes: int) -> int:
        """Where so many bytes are."""
        start = self.end
        self.end += ceil_div(nbytes, ALIGNMENT) * ALIGNMENT
        return start

    def add(self, p: LoopNest, places: Places, *, last: bool = False) -> None:
        """Kernels for a nest, some of whose operands lie in scratch; the last step of others is not split again."""
        if not math.prod(p.outer):
            return
        p = collapse(order_loops(drop_unit_loops(drop_roundings(p))))
        if not any(isinstance(s, Reduce) for s in p.body):
            self._pointwise(p, places)
            return
        by_column = by_columns(p)
        shape = column_shape(p) if by_column else row_shape(p)
        parts = 1 if last else _parts(p, shape)
        if parts == 1 and by_column:
            shape = column_shape(p, whole=True)
        if parts > 1 and unsplittable(p) is None:
            self._in_parts(p, places, replace(shape, parts=parts))
        elif parts > 1 and _several_stages(p):
            self._in_stages(p, places)
        else:
            self.launches.append(_reduction(p, places, shape))

    def _pointwise(self, p: LoopNest, places: Places) -> None:
        """Stores that walk all loops, and others in kernels of their own, over the loops that they walk."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, s in enumerate(p.body):
            if isinstance(s, Store):
                walked = tuple(d for d, st in enumerate(s.strides) if st)
                groups.setdefault(walked, []).append(i)
        # Those of fewer loops last: they may lie in place of what the others read.
        for walked, stores in sorted(groups.items(), key=lambda g: -len(g[0])):
            body: list[Statement] = [s for i, s in enumerate(p.body) if not isinstance(s, Store) or i in stores]
            kept = [i for i, s in enumerate(p.body) if not isinstance(s, Store) or i in stores]
            place = {old: new for new, old in enumerate(kept)}
            nest = simplify(replace(p, body=tuple(s.renumbered(place) for s in body)))
            self.launches.append(_pointwise(_without_repeats(nest, walked), places))

    def _in_parts(self, p: LoopNest, places: Places, shape: ColumnShape | RowShape) -> None:
        results = math.prod(p.outer)
        strides = row_major(p.outer)
        if isinstance(shape, RowShape):
            shape = replace(shape, group=SHARED_ROW, rows=1)
        first = first_step(p, strides)
        last = last_step(p, (shape.parts,), (*strides, results))
        before, after = {}, {}
        for k, t in enumerate(partial_types(p)):
            size = results * itemsize(t)
            start = self.room(shape.parts * size)
            before[f"o{len(p.outputs) + k}"] = f"{start} + {size}ll * d_part()"
            after[f"a{len(p.inputs) + k}"] = str(start)
        self.launches.append(_reduction(first, places.having(before), shape))
        self.add(last, places.having(after), last=True)

    def _in_stages(self, p: LoopNest, places: Places) -> None:
        results = {}
        for k, r in enumerate(s for s in p.body if isinstance(s, Reduce)):
            start = str(self.room(math.prod(p.outer) * itemsize(r.dtype)))
            results[f"o{len(p.outputs) + k}"] = results[f"a{len(p.inputs) + k}"] = start
        for nest in stage_nests(p):
            self.add(nest, places.having(results))


def _repeats(p: LoopNest) -> bool:
    """Whether a store does not walk a loop that what it stores depends on."""
    walks: list[set[int]] = []
    for s in p.body:
        found = set[int]().union(*(walks[a] for a in s.args))
        if isinstance(s, Store):
            if any(p.dims[d] > 1 and not s.strides[d] for d in found):
                return True
        elif isinstance(s, Access):
            found |= {d for d, st in enumerate(s.strides) if st}
        elif isinstance(s, Index):
            found.add(s.dim)
        elif isinstance(s, Reduce):
            found = {d for d in found if d < len(p.outer)}
        walks.append(found)
    return False


def _pointwise(p: LoopNest, places: Places) -> Launch:
    p = LoopNest(p.dims, (), p.inputs, p.outputs, p.body)
    turned = turning_loop(p)
    launch = tiled(p, places, turned) if turned is not None else None
    return pointwise(p, places) if launch is None else launch


def _reduction(p: LoopNest, places: Places, shape: ColumnShape | RowShape) -> Launch:
    return columns(p, places, shape) if isinstance(shape, ColumnShape) else rows(p, places, shape)


def _several_stages(p: LoopNest) -> bool:
    return any(
        stage and (full or (isinstance(s, Reduce) and stage > 1))
        for s, (stage, full) in zip(p.body, p.levels(), strict=True)
    )


def _parts(p: LoopNest, shape: ColumnShape | RowShape) -> int:
    """How many blocks should share a row or a column for all multiprocessors to have work, and all blocks at once; 1: none."""
    if p.points() < LEAST_POINTS:
        return 1
    if isinstance(shape, ColumnShape):
        wanted = parts_of_a_wave(shape.tiles, shape.across * shape.down)
        most = shape.rows // (shape.down * LEAST_EACH)
    else:
        results = math.prod(p.outer)
        if results >= 2 * MULTIPROCESSORS and unsplittable(p) is not None:
            return 1  # sweeps of their own would read again what one block may hold
        wanted, most = parts_of_a_wave(results, SHARED_ROW), shape.pieces // (SHARED_ROW * LEAST_EACH)
    return max(1, min(wanted, most, MOST_PARTS))


def _without_repeats(p: LoopNest, walked: tuple[int, ...]) -> LoopNest:
    """A nest over the loops that its stores walk alone; others would store the same again, so their last point counts."""
    if len(walked) == len(p.dims):
        return p
    place = {d: k for k, d in enumerate(walked)}
    body = [
        Const(max(p.dims[s.dim] - 1, 0), "i64")
        if isinstance(s, Index) and s.dim not in place
        else s.over_loops(lambda st: tuple(st[d] for d in walked), lambda d: place.get(d, 0))
        for s in p.body
    ]
    return collapse(replace(p, outer=tuple(p.dims[d] for d in walked), inner=(), body=tuple(body)))
