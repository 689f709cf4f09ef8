"""Reductions along rows: a few threads, a warp or a block take a row, and join their partial results by shuffles.

    row r, thread t of G:   pieces t, t + G, t + 2 G, … of V points;   v = join over the G threads;   further sweeps

A row that fits registers is read once: what later sweeps need of it waits there. A longer one is read again, from the second-level cache.
Rows that are few are dealt to several blocks in parts; a second kernel joins the parts' results (``split.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.cuda.device import MOST_BLOCK, WARP, ceil_div, power_of_two, register_words
from dcir.codegen.cuda.kernels.statements import KernelText, Visits
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.types import Join
from dcir.codegen.cuda.kernels.widths import vector_width
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.schedule import needed, outer_stores, roots_of, stages_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.scalars import COSTLY
from dcir.ir.statements import Gather, Read, Reduce

# Threads of a block at least, where rows have fewer.
LEAST_BLOCK = 128
# Pieces of a row that a thread takes, where rows are long.
PIECES = 8
# Pieces that are loaded at once, where a row is not held.
AT_ONCE = 4


@dataclass(frozen=True)
class RowShape:
    """How rows are dealt.

    Attributes:
        width: lanes.
        group: threads of a row, a power of two.
        pieces: pieces of a row.
        parts: blocks that share a row.
    """

    width: int
    group: int
    pieces: int
    parts: int = 1

    @property
    def of_part(self) -> int:
        """Pieces of a part."""
        return ceil_div(self.pieces, self.parts)


def row_shape(p: LoopNest) -> RowShape:
    """How the rows of a loop nest are dealt, each as a whole."""
    along = len(p.dims) - 1 if p.inner else None
    width = vector_width(p, along)
    pieces = math.prod(p.inner) // width
    if pieces <= WARP:
        group = power_of_two(pieces)
    elif pieces <= WARP * PIECES:
        group = WARP
    else:
        group = min(MOST_BLOCK, power_of_two(ceil_div(pieces, PIECES)))
    return RowShape(width, group, pieces)


def rows(p: LoopNest, places: Places, shape: RowShape) -> Launch:
    """The kernel of a loop nest with reductions whose inner loops lie along memory."""
    return _Rows(p, places, shape).launched()


class _Rows:
    def __init__(self, p: LoopNest, places: Places, shape: RowShape) -> None:
        self.p, self.shape = p, shape
        along = len(p.dims) - 1 if p.inner else None
        self.rows = math.prod(p.outer)
        self.text = KernelText(
            p, places, along, shape.width, max(self.rows, math.prod(p.inner)) + MOST_BLOCK * shape.width * PIECES
        )
        self.block = shape.group if shape.group > WARP else LEAST_BLOCK
        self.inner = range(len(p.outer), len(p.dims))
        self.stages = stages_of(self.text.levels)
        each = ceil_div(shape.of_part, shape.group)
        self.hold = self._held() if shape.parts == 1 else {}
        self.one_visit = each <= 1 or bool(self.hold)
        self.text.room = register_words(self.block)
        if self.hold and each * sum(self.text.words(i) for i in self.hold) > self.text.room:
            self.hold, self.one_visit = {}, each <= AT_ONCE
        self.each = each

    def launched(self) -> Launch:
        text, shape = self.text, self.shape
        per_block = self.block // shape.group
        before = []
        if shape.group > WARP:
            for r in (i for i, s in enumerate(self.p.body) if isinstance(s, Reduce)):
                before.append(f"  D_SHARED({Join(self.p, r).type}, s{r}, {shape.group // WARP});")
        if shape.group < self.block:
            text.line(f"const int lane = d_thread() % {shape.group};")
            text.line(
                f"const {text.index} wanted = ({text.index})d_block() * {per_block} + d_thread() / {shape.group};"
            )
        else:
            text.line("const int lane = d_thread();")
            text.line(f"const {text.index} wanted = d_block();")
        full = self.rows % per_block == 0
        # Threads without a row take part in shuffles; they repeat the last one and store nothing.
        text.line(f"const bool live = {'true' if full else f'wanted < {self.rows}'};")
        text.line(f"const {text.index} row = {'wanted' if full else f'live ? wanted : {self.rows - 1}'};")
        text.decompose("row", range(len(self.p.outer)), self.p.dims)
        if shape.parts > 1:
            text.line(f"const {text.index} lo = d_part() * {shape.of_part};")
            end = f"lo + {shape.of_part}"
            text.line(f"const {text.index} hi = {end} < {shape.pieces} ? {end} : {shape.pieces};")
        start = len(text.lines)
        for stage in range(self.stages + 1):
            self._stage(stage)
        # Last, when all threads have read what a result may lie in place of.
        stores = [i for stage in range(self.stages + 1) for i in outer_stores(self.p, text.levels, stage)]
        if stores:
            if shape.group <= WARP:
                text.line("d_barrier();")
            text.open("if (live && lane == 0)")
            for i in stores:
                text.store_outer(i)
            text.close()
        text.in_both_ways(start)
        return text.launch((ceil_div(self.rows, per_block), shape.parts, 1), self.block, before)

    def _stage(self, stage: int) -> None:
        text, p = self.text, self.p
        text.outer_values(stage)
        roots = roots_of(p, text.levels, stage)
        if not roots:
            return
        reduces = [r for r in roots if isinstance(p.body[r], Reduce)]
        stores = [r for r in roots if r not in reduces]
        text.start_partials(reduces)
        if self.shape.pieces:
            self._sweep(stage, stores, reduces)
        self._join(reduces)

    def _sweep(self, stage: int, stores: list[int], reduces: list[int]) -> None:
        text, shape, width = self.text, self.shape, self.shape.width
        guards = [] if not stores or self.rows % (self.block // shape.group) == 0 else ["live"]
        step = "" if width == 1 else f" * {width}"
        if self.one_visit and shape.parts == 1:
            if self.each * shape.group != shape.pieces:
                guards.append(f"e < {shape.pieces * width}")
            element = f"(lane + u * {shape.group}){step}" if self.each > 1 else f"lane{step}"
            hold = [i for i, born in self.hold.items() if born == stage]
            text.visit(Visits(self.each, self.inner, element, " && ".join(guards)), stores, reduces, hold)
            return
        times = min(AT_ONCE, self.each)
        start, end = ("lo", "hi") if shape.parts > 1 else ("0", str(shape.pieces))
        whole = shape.parts == 1 and shape.pieces % (times * shape.group) == 0
        if not whole:
            guards.append(f"e < {end}{step}")
        t = text.index
        text.open(f"for ({t} at = {start}; at < {end}; at += {times * shape.group})")
        text.visit(
            Visits(times, self.inner, f"(at + lane + u * {shape.group}){step}", " && ".join(guards)), stores, reduces
        )
        text.close()

    def _join(self, reduces: list[int]) -> None:
        text, group = self.text, self.shape.group
        joins = {r: Join(self.p, r) for r in reduces}
        for r, join in joins.items():
            lanes = f"d_fold_lanes<{join.function}>(p{r})" if self.shape.width > 1 else f"p{r}[0]"
            folded = f"d_fold_warp<{join.function}, {min(group, WARP)}>({lanes})" if group > 1 else lanes
            text.line(f"{join.type} f{r} = {folded};")
            if group > WARP:
                text.line(f"if ((d_thread() & {WARP - 1}) == 0) s{r}[d_thread() / {WARP}] = f{r};")
        if group > WARP and joins:
            text.line("d_barrier();")
            for r, join in joins.items():
                text.line(f"f{r} = s{r}[d_thread() & {group // WARP - 1}];")
                text.line(f"f{r} = d_fold_warp<{join.function}, {group // WARP}>(f{r});")
        for r, join in joins.items():
            text.line(f"const auto v{r} = f{r}{'.at' if join.is_place else ''};")

    def _held(self) -> dict[int, int]:
        """Values at inner points that several sweeps need and that cost memory or time, with their stage of birth."""
        p, levels = self.p, self.text.levels
        used: dict[int, set[int]] = {}
        for stage in range(self.stages + 1):
            for i in needed(p, roots_of(p, levels, stage), set()):
                used.setdefault(i, set()).add(stage)
        several = [i for i, stages in used.items() if len(stages) > 1 and levels[i][1]]
        costly = [i for i in several if p.body[i].op in COSTLY or isinstance(p.body[i], Gather)]
        loads = [i for i in several if isinstance(p.body[i], Read) and i not in costly]
        # A load that only a held value needs is not needed again.
        again: set[int] = set()
        for stage in range(1, self.stages + 1):
            again |= set(needed(p, roots_of(p, levels, stage), {i for i in costly if min(used[i]) < stage}))
        return {i: min(used[i]) for i in (*costly, *(i for i in loads if i in again))}
