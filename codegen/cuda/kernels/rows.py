"""Reductions along rows: a few threads, a warp or a block take a row, and join their partial results by shuffles.

    row r, thread t of G:   pieces t, t + G, t + 2 G, … of V points;   v = join over the G threads;   further sweeps

A row that fits registers is read once: what later sweeps need of it waits there. A longer one is read again, from the second-level cache.
Of short rows threads take several, whose loads are under way together. Rows that are few are dealt to several blocks in parts; a second
kernel joins the parts' results (``split.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.codegen.cuda.device import MOST_BLOCK, WANTED_THREADS, WARP, ceil_div, power_of_two, register_words
from dcir.codegen.cuda.kernels.flight import at_once
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Lines, Places
from dcir.codegen.cuda.kernels.types import Join
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.kernels.widths import vector_width
from dcir.codegen.cuda.launch import Launch
from dcir.codegen.schedule import needed, outer_stores, roots_of, stages_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.scalars import COSTLY
from dcir.ir.statements import Gather, Read, Reduce

# Threads of a block at least, where rows have fewer.
LEAST_BLOCK = 128
# Threads of a row at most that is swept over once, and of one that several blocks share.
SHARED_ROW = 256
# Pieces of a row that a thread takes, where rows are long.
PIECES = 8
# Points of a thread, where a row is swept over again: they wait in registers, halves as widened numbers.
POINTS = 32
MOST_ROWS = 4


@dataclass(frozen=True)
class RowShape:
    """How rows are dealt.

    Attributes:
        width: lanes.
        group: threads of a row, a power of two.
        pieces: pieces of a row.
        parts: blocks that share a row.
        rows: rows of a group at once.
    """

    width: int
    group: int
    pieces: int
    parts: int = 1
    rows: int = 1

    @property
    def of_part(self) -> int:
        """Pieces of a part."""
        return ceil_div(self.pieces, self.parts)

    @property
    def each(self) -> int:
        """Pieces of a thread, of one row."""
        return ceil_div(self.of_part, self.group)


def row_shape(p: LoopNest) -> RowShape:
    """How the rows of a loop nest are dealt, each as a whole."""
    along = len(p.dims) - 1 if p.inner else None
    width = vector_width(p, along)
    pieces, levels = math.prod(p.inner) // width, p.levels()
    swept_again = any(roots_of(p, levels, stage) for stage in range(1, stages_of(levels) + 1))
    most = min(PIECES, POINTS // width) if swept_again else PIECES
    if pieces <= WARP:
        group = power_of_two(pieces)
    elif pieces <= WARP * most:
        group = WARP
    else:
        group = min(MOST_BLOCK if swept_again else SHARED_ROW, power_of_two(ceil_div(pieces, most)))
    return RowShape(width, group, pieces, 1, _rows_at_once(p, RowShape(width, group, pieces)))


def _rows_at_once(p: LoopNest, shape: RowShape) -> int:
    """Rows of a group at once: as many as it takes to wait for enough bytes, if all multiprocessors still have work."""
    if shape.group > WARP or not shape.pieces:
        return 1
    pieces = at_once(p, shape.width, len(p.dims) - 1 if p.inner else None)
    threads, rows = math.prod(p.outer) * shape.group, 1
    while rows < MOST_ROWS and 2 * rows * shape.each <= min(pieces, PIECES) and threads // (2 * rows) >= WANTED_THREADS:
        rows *= 2
    return rows


def rows(p: LoopNest, places: Places, shape: RowShape) -> Launch:
    """The kernel of a loop nest with reductions whose inner loops lie along memory."""
    return _Rows(p, places, shape).launched()


class _Rows:
    def __init__(self, p: LoopNest, places: Places, shape: RowShape) -> None:
        self.p = p
        self.along = len(p.dims) - 1 if p.inner else None
        self.rows = math.prod(p.outer)
        self.text = KernelText(
            p, places, self.along, shape.width, max(self.rows, math.prod(p.inner)) + MOST_BLOCK * shape.width * PIECES
        )
        self.inner = range(len(p.outer), len(p.dims))
        self.stages = stages_of(self.text.levels)
        self.hold = self._held() if shape.parts == 1 else {}
        self.shape = shape = self._settled(shape)
        self.block = _block(shape)
        self.text.room, self.text.rows = register_words(self.block), shape.rows
        self.times = min(at_once(p, shape.width, self.along), shape.each)
        self.one_visit = shape.parts == 1 and (shape.each <= self.times or bool(self.hold))

    def _settled(self, shape: RowShape) -> RowShape:
        """The shape in which what is held fits registers: fewer rows at once, or more threads a row; else nothing is held."""
        words = sum(self.text.words(i, held=True) for i in self.hold)
        tried = [shape, *(replace(shape, rows=rows) for rows in (2, 1) if rows < shape.rows)]
        group = 2 * shape.group
        while WARP < group <= min(MOST_BLOCK, power_of_two(shape.pieces)):
            tried.append(replace(shape, group=group, rows=1))
            group *= 2
        for other in tried:
            if words * other.each * other.rows <= register_words(_block(other)):
                return other
        self.hold = {}
        return shape

    def launched(self) -> Launch:
        text, shape = self.text, self.shape
        before = []
        if shape.group > WARP:
            for r in (i for i, s in enumerate(self.p.body) if isinstance(s, Reduce)):
                before.append(f"  D_SHARED({Join(self.p, r).type}, s{r}, {shape.group // WARP});")
        text.line(f"const int lane = d_thread(){f' % {shape.group}' if shape.group < self.block else ''};")
        if shape.rows == 1:
            text.lines += [f"  {line}" for line in self._row("")]
        if shape.parts > 1:
            text.line(f"const {text.index} lo = d_part() * {shape.of_part};")
            end = f"lo + {shape.of_part}"
            text.line(f"const {text.index} hi = {end} < {shape.pieces} ? {end} : {shape.pieces};")
        start = len(text.lines)
        for stage in range(self.stages + 1):
            self._stage(stage)
        self._store()
        text.in_both_ways(start)
        blocks = ceil_div(self.rows, shape.rows * (self.block // shape.group))
        return text.launch((blocks, shape.parts, 1), self.block, before)

    def _row(self, mine: str) -> list[str]:
        """Lines that find a row and its loop variables; ``mine`` is C++ of its number among the group's, if it has several."""
        shape, found = self.shape, Lines(self.text.index)
        found.depth, t = 0, self.text.index
        per_block = self.block // shape.group
        block = f"({t})d_block()"
        if mine:
            found.line(f"const int mine = {mine};")
            block = f"({block} * {shape.rows} + mine)"
        own = f" * {per_block} + d_thread() / {shape.group}" if per_block > 1 else ""
        found.line(f"const {t} wanted = {block}{own};")
        full = self.rows % (per_block * shape.rows) == 0
        # Threads without a row take part in shuffles; they repeat the last one and store nothing.
        found.line(f"const bool live = {'true' if full else f'wanted < {self.rows}'};")
        found.line(f"const {t} row = {'wanted' if full else f'live ? wanted : {self.rows - 1}'};")
        found.decompose("row", range(len(self.p.outer)), self.p.dims)
        return found.lines

    def _store(self) -> None:
        """Results of rows: last, when all threads have read what these may lie in place of."""
        text, shape = self.text, self.shape
        stores = [i for stage in range(self.stages + 1) for i in outer_stores(self.p, text.levels, stage)]
        if not stores:
            return
        if shape.group <= WARP:
            text.line("d_barrier();")
        if shape.rows == 1:
            text.open("if (live && lane == 0)")
            for i in stores:
                text.store_outer(i)
            text.close()
            return
        text.unrolled("u", shape.rows)
        for line in self._row("u"):
            text.line(line)
        text.open("if (live && lane == 0)")
        for i in needed(self.p, stores, set()):
            text.statement(i, "")
        for i in stores:
            text.store_outer(i)
        text.close()
        text.close()

    def _stage(self, stage: int) -> None:
        text, p = self.text, self.p
        if self.shape.rows == 1:
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
        each = shape.each
        guards = [] if not stores or self.rows % (shape.rows * (self.block // shape.group)) == 0 else ["live"]
        step = "" if width == 1 else f" * {width}"
        if self.one_visit:
            if each * shape.group != shape.pieces:
                guards.append(f"e < {shape.pieces * width}")
            piece = "u" if shape.rows == 1 else f"u % {each}"
            element = f"(lane + {piece} * {shape.group}){step}" if each > 1 else f"lane{step}"
            hold = [i for i, born in self.hold.items() if born == stage]
            begin = self._row("u" if each == 1 else f"u / {each}") if shape.rows > 1 else ()
            visits = Visits(each * shape.rows, self.inner, element, " && ".join(guards), begin=begin)
            text.visit(visits, stores, reduces, hold)
            return
        times = self.times
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
        text, group, several = self.text, self.shape.group, self.shape.rows > 1
        joins = {r: Join(self.p, r) for r in reduces}
        for r, join in joins.items():
            partial = f"p{r}[u]" if several else f"p{r}"
            lanes = f"d_fold_lanes<{join.function}>({partial})" if self.shape.width > 1 else f"{partial}[0]"
            folded = f"d_fold_warp<{join.function}, {min(group, WARP)}>({lanes})" if group > 1 else lanes
            if several:
                text.line(f"{'long long' if join.is_place else join.type} v{r}[{self.shape.rows}];")
                text.unrolled("u", self.shape.rows)
                text.line(f"const {join.type} f{r} = {folded};")
                text.line(f"v{r}[u] = f{r}{'.at' if join.is_place else ''};")
                text.close()
                continue
            text.line(f"{join.type} f{r} = {folded};")
            if group > WARP:
                text.line(f"if ((d_thread() & {WARP - 1}) == 0) s{r}[d_thread() / {WARP}] = f{r};")
        if several:
            return
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
        # What all rows share stays in a multiprocessor's own cache.
        outer = range(len(p.outer))
        loads = [
            i
            for i in several
            if isinstance(s := p.body[i], Read) and any(s.strides[d] for d in outer) and i not in costly
        ]
        # A load that only a held value needs is not needed again.
        again: set[int] = set()
        for stage in range(1, self.stages + 1):
            again |= set(needed(p, roots_of(p, levels, stage), {i for i in costly if min(used[i]) < stage}))
        return {i: min(used[i]) for i in (*costly, *(i for i in loads if i in again))}


def _block(shape: RowShape) -> int:
    return shape.group if shape.group > WARP else LEAST_BLOCK
