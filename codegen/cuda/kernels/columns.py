"""Reductions along columns: a block takes a tile of neighbouring columns, its threads share the rows between them.

    thread (x, y) of X by Y:   columns (block * X + x) * V … + V - 1, rows y, y + Y, y + 2 Y, …;   v = join over y, in shared memory

Every row of a tile is read in whole vectors that lie side by side. Columns that are few are dealt to several blocks by parts of their rows;
a second kernel joins the parts' results (``split.py``), in the same order every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.cuda.device import MULTIPROCESSORS, SHARED_BYTES, WARP, ceil_div, power_of_two
from dcir.codegen.cuda.kernels.flight import at_once
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.types import Join
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.kernels.widths import vector_width
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.schedule import outer_stores, roots_of, stages_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Load, Reduce, Store
from dcir.ir.types import itemsize

BLOCK = 256
# Threads along columns at least: with vectors, what memory hands out at once.
LEAST_ACROSS = 8
# Statements from which on rows are visited one by one.
LONG_BODY = 64


@dataclass(frozen=True)
class ColumnShape:
    """How columns are dealt.

    Attributes:
        width: lanes.
        across, down: threads of a block along columns and along rows; powers of two.
        tiles: blocks that the columns need.
        rows: points of the inner loops.
        parts: blocks that share a column.
    """

    width: int
    across: int
    down: int
    tiles: int
    rows: int
    parts: int = 1

    @property
    def of_part(self) -> int:
        """Rows of a part."""
        return ceil_div(self.rows, self.parts)


def by_columns(p: LoopNest) -> bool:
    """Whether neighbouring outer points lie side by side in memory, rather than neighbouring inner ones."""
    if not p.outer or not p.inner:
        return False
    score = 0
    for s, (_, full) in zip(p.body, p.levels(), strict=True):
        if isinstance(s, (Load, Store)) and full:
            touched = math.prod(d for d, st in zip(p.dims, s.strides, strict=True) if st)
            score += touched * ((s.strides[len(p.outer) - 1] == 1) - (s.strides[-1] == 1))
    return p.outer[-1] >= 4 and (score > 0 or (score == 0 and p.inner[-1] < 8 <= p.outer[-1]))


def column_shape(p: LoopNest, *, whole: bool = False) -> ColumnShape:
    """How the columns of a loop nest are dealt; ``whole`` says that no column will be shared by blocks."""
    along = len(p.outer) - 1
    width = vector_width(p, along)
    reduces = sum(1 for s in p.body if isinstance(s, Reduce))
    size = max([itemsize(s.dtype) * (2 if s.is_place else 1) for s in p.body if isinstance(s, Reduce)], default=4)
    while width > 1 and BLOCK * width * reduces * size > SHARED_BYTES:
        width //= 2
    pieces = p.outer[-1] // width
    across = min(WARP, power_of_two(pieces))
    rows, others = math.prod(p.inner), math.prod(p.outer[:-1])
    # Narrower tiles, each with more threads along the rows, where else most multiprocessors would have none.
    while (
        whole
        and across > LEAST_ACROSS
        and ceil_div(pieces, across) * others < MULTIPROCESSORS
        and BLOCK // across < rows
    ):
        across //= 2
    down = min(BLOCK // across, power_of_two(rows))
    return ColumnShape(width, across, down, ceil_div(pieces, across) * others, rows)


def columns(p: LoopNest, places: Places, shape: ColumnShape) -> Launch:
    """The kernel of a loop nest with reductions whose last outer loop lies along memory."""
    return _Columns(p, places, shape).launched()


class _Columns:
    def __init__(self, p: LoopNest, places: Places, shape: ColumnShape) -> None:
        self.p, self.shape = p, shape
        self.along = len(p.outer) - 1
        each = ceil_div(shape.of_part, shape.down)
        self.times = 1 if len(p.body) > LONG_BODY else min(at_once(p, shape.width, self.along), max(each, 1))
        self.text = KernelText(
            p, places, self.along, shape.width, max(math.prod(p.outer), shape.rows) + BLOCK * self.times * shape.width
        )
        self.text.columns = True
        self.sweeps = 0

    def launched(self) -> Launch:
        text, shape, p = self.text, self.shape, self.p
        block = shape.across * shape.down
        joins = {r: Join(p, r) for r, s in enumerate(p.body) if isinstance(s, Reduce)}
        before = []
        if shape.down > 1:
            before = [f"  D_SHARED({j.type}, s{r}, {block * shape.width});" for r, j in joins.items()]
        t = text.index
        pieces = p.outer[-1] // shape.width
        tiles = ceil_div(pieces, shape.across)
        text.line(f"const int x = d_thread() % {shape.across}, y = d_thread() / {shape.across};")
        text.line(f"const {t} tile = d_block() % {tiles}, others = d_block() / {tiles};")
        text.decompose("others", range(self.along), self.p.dims)
        text.line(f"const {t} wanted = tile * {shape.across} + x;")
        # Threads without a column repeat the last one and store nothing.
        full = pieces % shape.across == 0
        text.line(f"const bool live = {'true' if full else f'wanted < {pieces}'};")
        column = "wanted" if full else f"(live ? wanted : {pieces - 1})"
        text.line(f"const {t} i{self.along} = {column}{'' if shape.width == 1 else f' * {shape.width}'};")
        if shape.parts > 1:
            text.line(f"const {t} lo = d_part() * {shape.of_part};")
            end = f"lo + {shape.of_part}"
            text.line(f"const {t} hi = {end} < {shape.rows} ? {end} : {shape.rows};")
        start = len(text.lines)
        stages = stages_of(text.levels)
        for stage in range(stages + 1):
            self._stage(stage, joins)
        stores = [i for stage in range(stages + 1) for i in outer_stores(p, text.levels, stage)]
        if stores:
            # Last, when all threads have read what a result may lie in place of.
            if shape.down > 1 and self.sweeps > 1:
                text.line("d_barrier();")
            text.open("if (live && y == 0)")
            text.visit(Visits(1, (), "0"), stores)
            text.close()
        text.in_both_ways(start)
        return text.launch((shape.tiles, shape.parts, 1), block, before)

    def _stage(self, stage: int, joins: dict[int, Join]) -> None:
        text, p, shape = self.text, self.p, self.shape
        roots = roots_of(p, text.levels, stage)
        if not roots:
            return
        reduces = [r for r in roots if isinstance(p.body[r], Reduce)]
        stores = [r for r in roots if r not in reduces]
        text.start_partials(reduces)
        self.sweeps += 1
        if shape.rows:
            self._sweep(stores, reduces)
        self._join(reduces, joins)

    def _sweep(self, stores: list[int], reduces: list[int]) -> None:
        text, shape, p = self.text, self.shape, self.p
        times = self.times
        start, end = ("lo", "hi") if shape.parts > 1 else ("0", str(shape.rows))
        text.outer_lanes([*stores, *reduces])
        guards = [] if not stores or (p.outer[-1] // shape.width) % shape.across == 0 else ["live"]
        if shape.parts > 1 or shape.rows % (times * shape.down):
            guards.append(f"e < {end}")
        text.open(f"for ({text.index} at = {start}; at < {end}; at += {times * shape.down})")
        inner = range(len(p.outer), len(p.dims))
        text.visit(Visits(times, inner, f"at + y + u * {shape.down}", " && ".join(guards)), stores, reduces)
        text.close()

    def _join(self, reduces: list[int], joins: dict[int, Join]) -> None:
        """The partial results of the threads that share a column, joined by halves; the same in all of them."""
        text, shape = self.text, self.shape
        width, across, down = shape.width, shape.across, shape.down
        for r in reduces if down > 1 else ():
            text.unrolled("l", width)
            text.line(f"s{r}[(y * {width} + l) * {across} + x] = p{r}[l];")
            text.close()
        if down > 1 and reduces:
            text.line("#pragma unroll 1")
            text.open(f"for (int half = {down // 2}; half > 0; half /= 2)")
            text.line("d_barrier();")
            text.open("if (y < half)")
            for r in reduces:
                join, own = joins[r], f"s{r}[(y * {width} + l) * {across} + x]"
                text.unrolled("l", width)
                text.line(f"const {join.type} f = {own}, next = s{r}[((y + half) * {width} + l) * {across} + x];")
                text.line(f"{own} = {join.function}::template join<{_value(join)}>(f, next);")
                text.close()
            text.close()
            text.close()
            text.line("d_barrier();")
        for r in reduces:
            join = joins[r]
            text.line(f"{'long long' if join.is_place else join.type} v{r}[{width}];")
            text.unrolled("l", width)
            text.line(f"const {join.type} f = {f's{r}[l * {across} + x]' if down > 1 else f'p{r}[l]'};")
            text.line(f"v{r}[l] = f{'.at' if join.is_place else ''};")
            text.close()


def _value(join: Join) -> str:
    return join.type[len("d_place<") : -1] if join.is_place else join.type
