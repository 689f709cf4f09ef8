"""Reductions of loop nests as C++: sweeps over the inner loops, by rows or by columns, with partial results.

A program with reduces becomes stages: all values that a reduce waits for are computed in one sweep over the inner
loops; only the reduces' results (and costly values used again, in a row buffer) live on into the next sweep, cheap ones
are computed again from memory that is still in cache. Reductions run along the vector (rows) or side by side in its
lanes (columns), whichever reads memory in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcir.codegen.cpp.kernels.loop_nest_statements import Statements, identity
from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.schedule import Block, ScheduledLoopNest, Sweep
from dcir.codegen.symbolic import Symbolic, most, moves
from dcir.ir.statements import Reduce
from dcir.ir.types import FLOATS

# What a rest of a row is filled up to with lanes switched off.
TAIL_LANES = 16
# Partial results that are joined at the end, at least; where there are fewer lanes the others stay what they begin with.
LEAST_FOLDED = 16


class Reductions(Statements):
    """Lines of text for the sweeps of a scheduled loop nest with reductions.

    Attributes:
        schedule: how it runs.
        reduces: the reduces among its statements.
        some: whether a block of columns may have lanes that are switched off.
    """

    some = False

    def __init__(self, schedule: ScheduledLoopNest) -> None:
        super().__init__(schedule.nest)
        self.schedule = schedule
        self.reduces = [i for i, s in enumerate(self.p.body) if isinstance(s, Reduce)]
        self.columns = schedule.columns
        self.buffered = dict(schedule.near)

    def reducing(self) -> None:
        p, tile = self.p, self.schedule.tile
        last = self.n_outer - 1
        opened = 0
        for d in range(self.schedule.prefix, last if self.columns else self.n_outer):
            self.loop(d, p.outer[d])
            opened += 1
        if self.columns:
            assert tile is not None
            # The width of a tile is a constant, so that the sums of a tile stay in registers.
            full, rest = divmod(p.outer[last], tile.size)
            self.open("auto columns = [&](auto width, const long long lo) __attribute__((always_inline))")
            self.line("constexpr long long W = decltype(width)::value;")
            self._stages()
            self.depth -= 1
            self.line("};")
            if moves(rest):
                self._rest_of_columns()
            whole, part = (f"columns(dcir_width<{w}>{{}}, lo);" for w in (tile.size, rest))
            if moves(rest):
                part = f"for (long long at = lo; at < {p.outer[last]}; at += {TAIL_LANES}) rest(at);"
            at = f"const long long lo = {f'jt * {tile.size}' if tile.parallel else '0'};"
            if most(full) and tile.parallel:
                some = most(rest) > 0
                self.line(f"{f'if (jt < {full}) ' if some else ''}{{ {at} {whole} }}{' else' if some else ''}")
            elif most(full):
                end = full * tile.size
                self.line(f"for (long long lo = 0; lo < {end}; lo += {tile.size}) {whole}")
            if most(rest):
                start = at if tile.parallel else f"const long long lo = {full * tile.size};"
                self.line(f"{{ {start} {part} }}")
        else:
            self._stages()
        for _ in range(opened):
            self.close()

    def _rest_of_columns(self) -> None:
        """The columns after the last whole tile, which are as many as the sizes have it: some lanes are switched off."""
        self.open("auto rest = [&](const long long lo) __attribute__((always_inline))")
        self.line(f"constexpr long long W = {TAIL_LANES};")
        self.some = True
        self._stages()
        self.some = False
        self.depth -= 1
        self.line("};")

    def _lanes_of_columns(self) -> None:
        """Open the loop over the lanes of a block of columns."""
        last = self.n_outer - 1
        self.lanes(last, "W", "lo")
        if self.some:
            self.line(f"const bool inside = i{last} < {self.p.outer[last]};")
            self.inside = "inside"

    def _stages(self) -> None:
        for v in self.buffered:
            self.line(f"{CPP_TYPE[self.p.body[v].dtype]} buf{v}[{most(math.prod(self.p.inner)) + TAIL_LANES}];")
        for sweep in self.schedule.sweeps:
            if not sweep.inner:
                self._outer_stores(sweep.stores)
                continue
            (self._column_sweep if self.columns else self._row_sweep)(sweep)
            self.ready |= {v for v, born in self.buffered.items() if born == sweep.stage}

    def _outer_stores(self, stores: Sequence[int]) -> None:
        if self.columns:
            self._lanes_of_columns()
        else:
            self.open("")
        self.compute(stores)
        self.inside = ""
        self.close()

    def _row_sweep(self, sweep: Sweep) -> None:
        p, stores, reduces, width, block = self.p, sweep.stores, sweep.reduces, sweep.lanes, sweep.block
        inner = list(self.inner_dims())
        for r in reduces:
            self._declare(r)
            if width:
                self.line(f"{self._reduced_type(r)} part{r}[{max(width, LEAST_FOLDED)}];")
                self.line(f"for (int l = 0; l < {max(width, LEAST_FOLDED)}; l++) part{r}[l] = {self._start(r)};")
        if looks := self.checked and len(inner) == 1 and not self.buffered:
            # In braces: another sweep over the row looks again.
            self.open("")
            self.take_out([*stores, *reduces], inner[0])
        sums = block.sums if block is not None else ()
        along = block is not None and block.loop == inner[-1]
        for d in inner[:-1] if block is None or along else inner[:-2]:
            self.loop(d, p.dims[d])
        if block is not None:
            self._open_blocks(block, f"[{width}]" if width else "", "near" if width else "part")
        names = {r: f"part{r}" if r in sums else f"v{r}" for r in reduces}

        def row() -> None:
            if width:
                self._row_blocks(inner[-1], width, stores, reduces, sums)
                return
            if inner and not along:
                kinds = {r: self.reduction(r).kind for r in reduces}
                partial = [(_OMP[kind], names[r]) for r, kind in kinds.items() if kind in _OMP]
                if sweep.vector:
                    self.simd(partial)
                self.loop(inner[-1], p.dims[inner[-1]])
            else:
                self.open("")
            self.compute(stores, reduces, names.__getitem__)
            self.close()

        if sweep.vector and inner and not along:
            self.apart([*stores, *reduces], inner[-1], row)
        else:
            row()
        if block is not None:
            self.close()
            if width:
                added = " ".join(f"part{r}[l] += near{r}[l];" for r in sums)
                self.line(f"for (int l = 0; l < {width}; l++) {{ {added} }}")
            else:
                self.line(" ".join(f"v{r} += part{r};" for r in sums))
        for _ in inner if along else inner[:-1]:
            self.close()
        if looks:
            self.close()
            self.before, self.tested, self.tests = set(), set(), self.checked
        for r in reduces if width else []:
            self._fold(r, max(width, LEAST_FOLDED))

    def _open_blocks(self, block: Block, lanes: str = "", name: str = "part") -> None:
        """Open a loop in blocks, with partial sums for each."""
        d, size, sums = block.loop, block.size, block.sums
        extent = self.p.dims[d]
        self.open(f"for (long long b = 0; b < {extent}; b += {size})")
        for r in sums:
            self.line(f"{CPP_TYPE[self.p.body[r].dtype]} {name}{r}{lanes} = {{}};")
        self.line(f"const long long be = b + {size} < {extent} ? b + {size} : {extent};")
        self.loop(d, "be", "b")

    def _fold(self, r: int, width: int) -> None:
        """The partial results of a row joined: element i with element i + half, until one is left."""
        s = self.reduction(r)
        kind, dtype = s.kind, self.p.body[s.args[0]].dtype
        if dtype in FLOATS and kind not in ("any", "all"):
            self.line(f"v{r} = d_fold<d_{kind}_of>(part{r});")
            return
        while width > 1:
            width //= 2
            self.open(f"for (int l = 0; l < {width}; l++)")
            self.combine(r, f"part{r}[l]", f"part{r}[l + {width}]", "bool" if kind in ("any", "all") else dtype)
            self.close()
        self.line(f"v{r} = part{r}[0];")

    def _row_blocks(
        self, d: int, width: int, stores: Sequence[int], reduces: Sequence[int], near: Sequence[int] = ()
    ) -> None:
        """Loop ``d`` in blocks of lanes, each with partial results of its own: they do not wait for each other; ``near``: of a block."""
        extent = self.p.dims[d]
        rest = extent % width
        name = lambda r: f"{'near' if r in near else 'part'}{r}[l]"  # noqa: E731
        self.open(f"for (long long b = 0; b < {extent - rest}; b += {width})")
        self.lanes(d, width, "b")
        self.compute(stores, reduces, name)
        self.close()
        self.close()
        if isinstance(rest, Symbolic):
            self._tail_blocks(d, extent, rest, stores, reduces)
        elif rest:
            padded = -(-rest // TAIL_LANES) * TAIL_LANES
            self.lanes(d, padded, str(extent - rest))
            if padded != rest:
                self.inside = "inside"
                self.line(f"const bool inside = l < {rest};")
            self.compute(stores, reduces, name)
            self.inside = ""
            self.close()

    def _tail_blocks(self, d: int, extent: int, rest: int, stores: Sequence[int], reduces: Sequence[int]) -> None:
        """The rest of a row, which is as long as the sizes have it."""
        self.open(f"for (long long b = {extent - rest}; b < {extent}; b += {TAIL_LANES})")
        self.line(f"const long long left = {extent} - b;")
        self.lanes(d, TAIL_LANES, "b")
        self.inside = "inside"
        self.line("const bool inside = l < left;")
        self.compute(stores, reduces, lambda r: f"part{r}[l]")
        self.inside = ""
        self.close()
        self.close()

    def _reduced_type(self, r: int) -> str:
        s = self.reduction(r)
        return CPP_TYPE["bool" if s.kind in ("any", "all") else self.p.body[s.args[0]].dtype]

    def _start(self, r: int) -> str:
        s = self.reduction(r)
        return identity(s.kind, self.p.body[s.args[0]].dtype)

    def _declare(self, r: int, size: str = "") -> None:
        s = self.reduction(r)
        kind, dtype = s.kind, self.p.body[s.args[0]].dtype
        if s.is_place:
            self.line(f"{CPP_TYPE[dtype]} best{r}{size}; {self.place_type()} v{r}{size};")
        else:
            self.line(f"{CPP_TYPE[dtype if kind not in ('any', 'all') else 'bool']} v{r}{size};")
        if not size:
            self._initialise(r, "")

    def _initialise(self, r: int, at: str) -> None:
        s = self.reduction(r)
        kind, dtype = s.kind, self.p.body[s.args[0]].dtype
        if s.is_place:
            self.line(f"best{r}{at} = {identity(kind[3:], dtype)}; v{r}{at} = 0;")
        else:
            self.line(f"v{r}{at} = {identity(kind, dtype)};")

    def _column_sweep(self, sweep: Sweep) -> None:
        p, stores, reduces, block = self.p, sweep.stores, sweep.reduces, sweep.block
        sums = block.sums if block is not None else ()
        for r in reduces:
            self._declare(r, "[W]")
        if reduces:
            self.open("for (int l = 0; l < W; l++)")
            for r in reduces:
                self._initialise(r, "[l]")
            self.close()
        inner = list(self.inner_dims())
        for d in inner[:-1]:
            self.loop(d, p.dims[d])
        if block is not None:
            self._open_blocks(block, "[W]")
        elif inner:
            self.loop(inner[-1], p.dims[inner[-1]])
        else:
            self.open("")

        def lanes() -> None:
            self._lanes_of_columns()
            self.compute(stores, reduces, lambda r: f"{'part' if r in sums else 'v'}{r}[l]")
            self.inside = ""
            self.close()

        self.apart([*stores, *reduces], self.n_outer - 1, lanes)
        self.close()
        if block is not None:
            self.open("for (int l = 0; l < W; l++)")
            for r in sums:
                self.line(f"v{r}[l] += part{r}[l];")
            self.close()
            self.close()
        for _ in inner[:-1]:
            self.close()


_OMP = {"sum": "+", "prod": "*", "max": "dcir_max", "min": "dcir_min", "any": "||", "all": "&&"}
