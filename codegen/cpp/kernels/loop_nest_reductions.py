"""Reductions of loop nests as C++: sweeps over the inner loops, by rows or by columns, with partial results.

A program with reduces becomes stages: all values that a reduce waits for are computed in one sweep over the inner
loops; only the reduces' results (and costly values used again, in a row buffer) live on into the next sweep, cheap ones
are computed again from memory that is still in cache. Reductions run along the vector (rows) or side by side in its
lanes (columns), whichever reads memory in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.cpp.kernels.loop_nest_statements import Statements, identity
from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Reduce, Store
from dcir.ir.types import FLOATS, compute_type

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
# Partial results of a reduction along a row, and what a rest is filled up to with lanes switched off.
ROW_LANES = (64, 32, 16)
TAIL_LANES = 16


@dataclass(frozen=True)
class LoopSpace:
    """How the outer loops are dealt to jobs: ``prefix`` loops by job number, the others inside a job."""

    prefix: int
    tile: int  # columns of the last outer loop per block, 0: the loop is not tiled
    jobs: int  # jobs of the prefix loops
    parallel: bool  # whether tiles are jobs too


class Reductions(Statements):
    """Lines of text for the reductions of a program.

    Attributes:
        reduces: the reduces among its statements.
        stages: how many sweeps wait for others.
    """

    def __init__(self, p: LoopNest) -> None:
        super().__init__(p)
        self.reduces = [i for i, s in enumerate(p.body) if isinstance(s, Reduce)]
        self.stages = max((st for st, _ in self.levels), default=0)
        self.columns = bool(self.reduces) and self._by_columns()
        self.buffered = {} if self.columns else self._row_buffers()

    def _by_columns(self) -> bool:
        """Whether lanes hold neighbouring outer points (columns) rather than neighbouring inner ones (rows)."""
        p = self.p
        if not p.outer:
            return False
        if not p.inner:
            return True
        score = 0
        for s, (_, full) in zip(p.body, self.levels, strict=True):
            if isinstance(s, Access) and full:
                touched = math.prod(d for d, st in zip(p.dims, s.strides, strict=True) if st)
                score += touched * ((s.strides[self.n_outer - 1] == 1) - (s.strides[-1] == 1))
        if score == 0:
            return p.inner[-1] < 8 <= p.outer[-1]
        return score > 0 and (p.outer[-1] >= 4 or p.inner[-1] < 4)

    def _row_buffers(self) -> dict[int, int]:
        """Costly full values that several stages need, with their stage of birth."""
        if not self.reduces or math.prod(self.p.inner) * 8 > ROW_BUFFER_BYTES:
            return {}
        used: dict[int, set[int]] = {}
        for stage in range(self.stages + 1):
            for i in self.needs(self._roots(stage), set()):
                used.setdefault(i, set()).add(stage)
        return {
            i: min(stages)
            for i, stages in used.items()
            if len(stages) > 1 and self.p.body[i].op in COSTLY and self.levels[i][1]
        }

    def _roots(self, stage: int) -> list[int]:
        """Statements the inner sweep of ``stage`` is for: its reduces and its full stores."""
        roots = []
        for i, s in enumerate(self.p.body):
            if (isinstance(s, Reduce) and self.levels[i][0] == stage + 1) or (
                isinstance(s, Store) and self.levels[i] == (stage, True)
            ):
                roots.append(i)
        return roots

    def reducing(self, space: LoopSpace) -> None:
        p = self.p
        last = self.n_outer - 1
        opened = 0
        for d in range(space.prefix, last if self.columns else self.n_outer):
            self.loop(d, p.outer[d])
            opened += 1
        if self.columns:
            # The width of a tile is a constant, so that the sums of a tile stay in registers.
            full, rest = divmod(p.outer[last], space.tile)
            self.open("auto columns = [&](auto width, const long long lo) __attribute__((always_inline))")
            self.line("constexpr long long W = decltype(width)::value;")
            self._stages()
            self.depth -= 1
            self.line("};")
            tile, last_tile = (f"columns(dcir_width<{w}>{{}}, lo);" for w in (space.tile, rest))
            at = f"const long long lo = {f'jt * {space.tile}' if space.parallel else '0'};"
            if full and space.parallel:
                self.line(f"{f'if (jt < {full}) ' if rest else ''}{{ {at} {tile} }}{' else' if rest else ''}")
            elif full:
                end = full * space.tile
                self.line(f"for (long long lo = 0; lo < {end}; lo += {space.tile}) {tile}")
            if rest:
                start = at if space.parallel else f"const long long lo = {full * space.tile};"
                self.line(f"{{ {start} {last_tile} }}")
        else:
            self._stages()
        for _ in range(opened):
            self.close()

    def _stages(self) -> None:
        for v in self.buffered:
            self.line(f"{CPP_TYPE[self.p.body[v].dtype]} buf{v}[{math.prod(self.p.inner) + TAIL_LANES}];")
        for stage in range(self.stages + 1):
            self._outer_stores(stage)
            roots = self._roots(stage)
            if roots:
                (self._column_sweep if self.columns else self._row_sweep)(roots)
                self.ready |= {v for v, born in self.buffered.items() if born == stage}

    def _outer_stores(self, stage: int) -> None:
        stores = [i for i, s in enumerate(self.p.body) if isinstance(s, Store) and self.levels[i] == (stage, False)]
        if not stores:
            return
        if self.columns:
            self.lanes(self.n_outer - 1, "W", "lo")
        else:
            self.open("")
        self.compute(stores)
        self.close()

    def _row_sweep(self, roots: list[int]) -> None:
        p = self.p
        reduces = [r for r in roots if isinstance(p.body[r], Reduce)]
        stores = [r for r in roots if isinstance(p.body[r], Store)]
        simple = all(not self.reduction(r).is_place for r in reduces)
        inner = list(self.inner_dims())
        width = next((w for w in ROW_LANES if inner and 2 * w <= p.inner[-1]), 0) if reduces and simple else 0
        for r in reduces:
            self._declare(r)
            if width:
                self.line(f"{self._reduced_type(r)} part{r}[{width}];")
                self.line(f"for (int l = 0; l < {width}; l++) part{r}[l] = {self._start(r)};")
        if looks := self.checked and len(inner) == 1 and not self.buffered:
            # In braces: another sweep over the row looks again.
            self.open("")
            self.take_out(roots, inner[0])
        sums = [] if width or len(inner) < 2 or math.prod(p.inner) <= SUM_BLOCK else self._float_sums(reduces)
        for d in inner[:-2] if sums else inner[:-1]:
            self.loop(d, p.dims[d])
        if sums:  # short rows, many of them: some rows at a time, for the error not to grow with their number
            self._open_blocks(inner[-2], max(1, SUM_BLOCK // p.dims[inner[-1]]), sums)
        if width:
            self._row_blocks(inner[-1], width, stores, reduces)
        else:
            names = {r: f"part{r}" if r in sums else f"v{r}" for r in reduces}
            if inner:
                kinds = {r: self.reduction(r).kind for r in reduces}
                partial = [(_OMP[kind], names[r]) for r, kind in kinds.items() if kind in _OMP]
                if simple:
                    self.simd(partial)
                self.loop(inner[-1], p.dims[inner[-1]])
            else:
                self.open("")
            self.compute(stores, reduces, names.__getitem__)
            self.close()
        if sums:
            self.close()
            self.line(" ".join(f"v{r} += part{r};" for r in sums))
        for _ in inner[:-1]:
            self.close()
        if looks:
            self.close()
            self.before, self.tested, self.tests = set(), set(), self.checked
        for r in reduces if width else []:
            self._fold(r, width)

    def _float_sums(self, reduces: list[int]) -> list[int]:
        found = {r: self.reduction(r) for r in reduces}
        return [r for r, s in found.items() if s.kind == "sum" and compute_type(s.dtype)[0] == "f"]

    def _open_blocks(self, d: int, size: int, sums: list[int], lanes: str = "") -> None:
        """Loop ``d`` in blocks, each with partial sums of its own: the error grows with the block, not with the length."""
        extent = self.p.dims[d]
        self.open(f"for (long long b = 0; b < {extent}; b += {size})")
        for r in sums:
            self.line(f"{CPP_TYPE[self.p.body[r].dtype]} part{r}{lanes} = {{}};")
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

    def _row_blocks(self, d: int, width: int, stores: list[int], reduces: list[int]) -> None:
        """Loop ``d`` in blocks of lanes, each with partial results of its own: they do not wait for each other."""
        extent = self.p.dims[d]
        rest = extent % width
        name = lambda r: f"part{r}[l]"  # noqa: E731
        self.open(f"for (long long b = 0; b < {extent - rest}; b += {width})")
        self.lanes(d, width, "b")
        self.compute(stores, reduces, name)
        self.close()
        self.close()
        if rest:
            padded = -(-rest // TAIL_LANES) * TAIL_LANES
            self.lanes(d, padded, str(extent - rest))
            if padded != rest:
                self.inside = "inside"
                self.line(f"const bool inside = l < {rest};")
            self.compute(stores, reduces, name)
            self.inside = ""
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
            self.line(f"{CPP_TYPE[dtype]} best{r}{size}; long long v{r}{size};")
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

    def _column_sweep(self, roots: list[int]) -> None:
        p = self.p
        last = self.n_outer - 1
        reduces = [r for r in roots if isinstance(p.body[r], Reduce)]
        stores = [r for r in roots if isinstance(p.body[r], Store)]
        sums = self._float_sums(reduces)
        for r in reduces:
            self._declare(r, "[W]")
        if reduces:
            self.open("for (int l = 0; l < W; l++)")
            for r in reduces:
                self._initialise(r, "[l]")
            self.close()
        inner = list(self.inner_dims())
        blocked = bool(sums) and bool(inner) and math.prod(p.inner) > SUM_BLOCK
        for d in inner[:-1]:
            self.loop(d, p.dims[d])
        if blocked:
            self._open_blocks(inner[-1], SUM_BLOCK, sums, "[W]")
        elif inner:
            self.loop(inner[-1], p.dims[inner[-1]])
        else:
            self.open("")
        self.lanes(last, "W", "lo")
        self.compute(stores, reduces, lambda r: f"{'part' if blocked and r in sums else 'v'}{r}[l]")
        self.close()
        self.close()
        if blocked:
            self.open("for (int l = 0; l < W; l++)")
            for r in sums:
                self.line(f"v{r}[l] += part{r}[l];")
            self.close()
            self.close()
        for _ in inner[:-1]:
            self.close()


_OMP = {"sum": "+", "prod": "*", "max": "dcir_max", "min": "dcir_min", "any": "||", "all": "&&"}
