"""The CPU's schedule of a loop nest: loops dealt to threads, tiles, vectors along rows or columns, row buffers, partial results."""

from __future__ import annotations

import math

from dcir.codegen.cpp.kernels.loop_nest_request import Request
from dcir.codegen.cpp.scalar_ops import SCALAR_OPS
from dcir.codegen.schedule import (
    Block,
    ScheduledLoopNest,
    Sweep,
    Tile,
    needed,
    outer_stores,
    roots_of,
    stages_of,
)
from dcir.codegen.symbolic import most, moves, turns, usual
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.schedule import OPEN
from dcir.ir.statements import Access, Reduce, Store
from dcir.ir.types import HALVES, compute_type

# Below this many points, and this much arithmetic, a second thread costs more than it brings (a parallel region is about 1 us).
SERIAL_POINTS = 16384
SERIAL_FLOPS = 1 << 18
# Columns of a job at most, where reductions run side by side.
COLUMN_BLOCK = 64
# The same where operands are of half types: 64 of them are two cache lines of a row, too few for memory to be read at its speed
# (sums over 512 rows of 8000, cold: 1.4 ms, in blocks of 128 0.94, of 512 0.74). Partial results stay in the first-level cache.
HALF_COLUMN_BLOCK = 512
# Of a job that has its rows to itself: in order, memory is read three times as fast; partial results stay in the first-level cache.
WIDE_BLOCK = 2048
# Values worth a row buffer instead of a second computation.
COSTLY = {
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "pow",
    "sin",
    "cos",
}
ROW_BUFFER_BYTES = 32768
SUM_BLOCK = 64
# Partial results of a reduction along a row.
ROW_LANES = (64, 32, 16)
# Rows whose elements are a lane each, from row to row.
SHORT_ROWS = (4, 8, 16)


def worth_a_team(p: LoopNest) -> bool:
    """Whether one thread takes longer for a nest than dividing it costs."""
    points, rows = usual(p.points()), usual(math.prod(p.outer))
    work = 0
    for s, (_, full) in zip(p.body, p.levels(), strict=True):
        if s.op in SCALAR_OPS:
            work += SCALAR_OPS[s.op].flops * (points if full else rows)
    return points >= SERIAL_POINTS or work >= SERIAL_FLOPS


def schedule(p: LoopNest, machine: Machine, request: Request | None = None) -> ScheduledLoopNest:
    """How a loop nest, its loops in order and collapsed, runs on a team of threads with vectors; what is requested goes before.

    Raises:
        InvalidSchedule: the loop nest cannot run as requested.
    """
    names = tuple(f"i{d}" for d in range(len(p.dims)))
    return _Scheduler(p, machine, request or Request(OPEN, names, len(p.outer))).scheduled()


class _Scheduler:
    def __init__(self, p: LoopNest, machine: Machine, request: Request) -> None:
        self.p, self.threads, self.request = p, max(machine.threads, 1), request
        self.levels = p.levels()
        self.reduces = any(isinstance(s, Reduce) for s in p.body)
        wanted = request.vector()
        self.scalar = wanted == -1
        self.columns = self.reduces and (self._by_columns() if wanted is None else 0 <= wanted < len(p.outer))
        self.near = {} if self.columns else self._row_buffers()

    def scheduled(self) -> ScheduledLoopNest:
        p = self.p
        prefix, size, jobs, parallel = self._jobs()
        tile = Tile(size, parallel) if size else None
        if tile is not None and parallel:
            jobs *= -(-p.outer[-1] // size)
        last = len(p.outer) - 1
        vector = last if self.columns or not self.reduces else len(p.dims) - 1 if p.inner else None
        vector = None if self.scalar else vector
        sweeps = self._reducing() if self.reduces else self._pointwise(prefix)
        near = tuple(self.near.items())
        return ScheduledLoopNest(p, prefix, jobs, tile, None if vector == -1 else vector, near, tuple(sweeps))

    def _jobs(self) -> tuple[int, int, int, bool]:
        """Outer loops dealt to jobs, columns of a tile or 0, jobs of those loops, whether tiles are jobs too."""
        p, threads = self.p, self.threads
        lanes = self.columns or not self.reduces
        last = usual(p.outer[-1]) if p.outer else 1
        rows = p.outer[:-1] if lanes else p.outer
        halves = any(t in HALVES for t in (*p.inputs, *p.outputs))
        block = (HALF_COLUMN_BLOCK if halves else COLUMN_BLOCK) if self.columns else 0
        if (asked := self.request.jobs(p, lanes, block)) is not None:
            return asked
        if threads == 1 or not worth_a_team(p):
            return 0, block, 1, False
        prefix, jobs = 0, 1
        while prefix < len(rows) and usual(jobs) < 8 * threads:
            jobs *= rows[prefix]
            prefix += 1
        tile = block
        if self.columns and usual(jobs) >= 2 * threads and block < last <= WIDE_BLOCK and not moves(p.outer[-1]):
            tile = last
        while self.columns and tile > 16 and usual(jobs) * -(-last // tile) < 2 * threads:
            tile //= 2
        if lanes and usual(jobs) < 4 * threads and not self.columns and prefix == len(rows):
            want = -(-4 * threads // usual(jobs))
            tile = max(1024, -(-last // want))
            tile = 0 if tile >= last else -(-tile // 64) * 64
        return prefix, tile, jobs, True

    def _by_columns(self) -> bool:
        """Whether lanes hold neighbouring outer points (columns) rather than neighbouring inner ones (rows)."""
        p = self.p
        if not p.outer:
            return False
        if not p.inner:
            return True
        if any(turns(n, f"i{len(p.outer) - 1}") for n in p.inner):
            return False  # lanes go side by side, as far as each other
        score, windows = 0, False
        for s, (_, full) in zip(p.body, self.levels, strict=True):
            if isinstance(s, Access) and full:
                touched = usual(math.prod(d for d, st in zip(p.dims, s.strides, strict=True) if st))
                score += touched * ((s.strides[len(p.outer) - 1] == 1) - (s.strides[-1] == 1))
                windows |= s.strides[len(p.outer) - 1] == s.strides[-1] == 1
        if score == 0:
            # Of windows neighbours are read in order either way, and lanes of neighbouring ones need not be joined: a maximum over
            # 13 x 13 in rows of 40 took 86 ms along the window, 4.5 side by side.
            return usual(p.inner[-1]) < (usual(p.outer[-1]) if windows else 8) and usual(p.outer[-1]) >= 8
        return score > 0 and (usual(p.outer[-1]) >= 4 or usual(p.inner[-1]) < 4)

    def _row_buffers(self) -> dict[int, int]:
        """Costly full values that several stages need, with their stage of birth."""
        p = self.p
        if not self.reduces or most(math.prod(p.inner)) * 8 > ROW_BUFFER_BYTES:
            return {}
        used: dict[int, set[int]] = {}
        for stage in range(stages_of(self.levels) + 1):
            for i in needed(p, roots_of(p, self.levels, stage), set()):
                used.setdefault(i, set()).add(stage)
        able = [i for i, stages in used.items() if len(stages) > 1 and self.levels[i][1]]
        best = [i for i in able if p.body[i].op in COSTLY]
        return {i: min(used[i]) for i in self.request.near(able, best)}

    def _reducing(self) -> list[Sweep]:
        p, sweeps = self.p, []
        for stage in range(stages_of(self.levels) + 1):
            if stores := outer_stores(p, self.levels, stage):
                sweeps.append(Sweep(stage, False, tuple(stores), vector=self.columns))
            if roots := roots_of(p, self.levels, stage):
                reduces = tuple(r for r in roots if isinstance(p.body[r], Reduce))
                stores = [r for r in roots if isinstance(p.body[r], Store)]
                sweeps.append((self._columns if self.columns else self._rows)(stage, tuple(stores), reduces))
        return sweeps

    def _rows(self, stage: int, stores: tuple[int, ...], reduces: tuple[int, ...]) -> Sweep:
        p = self.p
        inner = range(len(p.outer), len(p.dims))
        simple = all(not self._reduction(r).is_place for r in reduces)
        vector = simple and bool(inner) and not self.scalar
        lanes, asked = 0, None
        if reduces and vector:
            asked = self.request.lanes()
            lanes = next((w for w in ROW_LANES if 2 * w <= usual(p.inner[-1])), 0) if asked is None else asked
        if reduces and vector and self._short_rows() and asked in (None, p.inner[-1]):
            # Of rows of a few elements the sums of each would be joined: a group norm of 8 channels in channels-last took three times as
            # long. Lanes go on from row to row, in blocks of sums.
            return Sweep(stage, True, stores, reduces, p.inner[-1], self._sum_block(reduces), vector=True)
        return Sweep(stage, True, stores, reduces, lanes, None if lanes else self._sum_block(reduces), vector=vector)

    def _short_rows(self) -> bool:
        inner = self.p.inner
        return len(inner) > 1 and inner[-1] in SHORT_ROWS and not moves(inner[-1])

    def _sum_block(self, reduces: tuple[int, ...]) -> Block | None:
        """Some points of an inner loop at a time, for the error not to grow with their number: rows where they are short."""
        p, inner = self.p, range(len(self.p.outer), len(self.p.dims))
        sums = self._float_sums(reduces)
        # In lanes the last loop has partial sums already.
        able = [*inner[-2:-1], *(inner[-1:] if self.scalar else ())] if sums else []
        if able and (asked := self.request.block(able)) is not None:
            return Block(*asked, sums) if asked[1] else None
        if not able or most(math.prod(p.inner)) <= SUM_BLOCK:
            return None
        length = usual(p.dims[inner[-1]])
        if self.scalar and (length > SUM_BLOCK or len(inner) < 2):
            # Alone, the sums of blocks are added up in order, too: errors are least where there are as many as a block has points.
            return Block(inner[-1], max(SUM_BLOCK, math.isqrt(length)), sums)
        return Block(inner[-2], max(1, SUM_BLOCK // length), sums)

    def _columns(self, stage: int, stores: tuple[int, ...], reduces: tuple[int, ...]) -> Sweep:
        p, sums = self.p, self._float_sums(reduces)
        able = [len(p.dims) - 1] if sums and p.inner else []
        asked = self.request.block(able) if able else None
        if asked is not None:
            return Sweep(stage, True, stores, reduces, 0, Block(*asked, sums) if asked[1] else None)
        blocked = bool(able) and most(math.prod(p.inner)) > SUM_BLOCK
        return Sweep(stage, True, stores, reduces, 0, Block(len(p.dims) - 1, SUM_BLOCK, sums) if blocked else None)

    def _float_sums(self, reduces: tuple[int, ...]) -> tuple[int, ...]:
        found = {r: self._reduction(r) for r in reduces}
        return tuple(r for r, s in found.items() if s.kind == "sum" and compute_type(s.dtype)[0] == "f")

    def _reduction(self, r: int) -> Reduce:
        s = self.p.body[r]
        assert isinstance(s, Reduce)
        return s

    def _pointwise(self, prefix: int) -> list[Sweep]:
        """Stores in groups that need nothing of each other: a loop each, whose conditions the compiler can take out of it.

        What two of a group need is read before either is stored, which updates rely on (``ir/updates.py``).
        """
        p = self.p
        if not p.outer or len(p.outer) <= prefix:
            stores = tuple(i for i, s in enumerate(p.body) if isinstance(s, Store))
            return [Sweep(0, False, stores, vector=False)]
        return [Sweep(0, False, tuple(members), vector=not self.scalar) for members in p.stores_apart()]
