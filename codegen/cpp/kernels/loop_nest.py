"""C++ for loop nests: loops ordered and collapsed, the last one vectorised, one phase of independent jobs."""

from __future__ import annotations

from dcir.codegen.cpp.kernels.loop_nest_reductions import LoopSpace, Reductions
from dcir.codegen.cpp.kernels.loop_nest_statements import identity
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Machine, planner
from dcir.ir.loop_forms import collapse, drop_roundings, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Cast, Const, Index, Load, Store
from dcir.ir.types import HALVES

# Below this many points a second thread costs more than it brings (a parallel region is about 1 us).
SERIAL_POINTS = 16384
# Columns of a job at most, where reductions run side by side.
COLUMN_BLOCK = 64
# The same where operands are of half types: 64 of them are two cache lines of a row, too few for memory to be read at its speed
# (sums over 512 rows of 8000, cold: 1.4 ms, in blocks of 128 0.94, of 512 0.74). Partial results stay in the first-level cache.
HALF_COLUMN_BLOCK = 512
# Of a job that has its rows to itself: in order, memory is read three times as fast; partial results stay in the first-level cache.
WIDE_BLOCK = 2048


@planner(LoopNest)
def plan_program(program: LoopNest, machine: Machine) -> KernelPlan:
    """The kernel of a loop nest."""
    return _Emitter(collapse(order_loops(drop_unit_loops(drop_roundings(program)))), machine).plan()


class _Emitter(Reductions):
    def __init__(self, p: LoopNest, machine: Machine) -> None:
        super().__init__(p)
        self.machine = machine

    def _space(self) -> LoopSpace:
        p, threads = self.p, max(self.machine.threads, 1)
        lanes = self.columns or not self.reduces
        last = p.outer[-1] if p.outer else 1
        rows = p.outer[:-1] if lanes else p.outer
        halves = any(t in HALVES for t in (*p.inputs, *p.outputs))
        block = (HALF_COLUMN_BLOCK if halves else COLUMN_BLOCK) if self.columns else 0
        if p.points() < SERIAL_POINTS or threads == 1:
            return LoopSpace(0, block, 1, False)
        prefix, jobs = 0, 1
        while prefix < len(rows) and jobs < 8 * threads:
            jobs *= rows[prefix]
            prefix += 1
        tile = block
        if self.columns and jobs >= 2 * threads and block < last <= WIDE_BLOCK:
            tile = last
        while self.columns and tile > 16 and jobs * -(-last // tile) < 2 * threads:
            tile //= 2
        if lanes and jobs < 4 * threads and not self.columns and prefix == len(rows):
            want = -(-4 * threads // jobs)
            tile = max(1024, -(-last // want))
            tile = 0 if tile >= last else -(-tile // 64) * 64
        return LoopSpace(prefix, tile, jobs, True)

    def plan(self) -> KernelPlan:
        space = self._space()
        jobs: int = space.jobs
        p = self.p
        if self.checked:
            self.line("int bad = 0;")
        rest = "j"
        if space.tile and space.parallel:
            tiles = -(-p.outer[-1] // space.tile)
            jobs *= tiles
            self.line(f"const long long jt = {rest} % {tiles}, jr = {rest} / {tiles};")
            rest = "jr"
        for d in range(space.prefix - 1, -1, -1):
            if d == 0:
                self.line(f"const long long i0 = {rest};")
            else:
                self.line(f"const long long i{d} = {rest} % {p.outer[d]}, q{d} = {rest} / {p.outer[d]};")
                rest = f"q{d}"
        if self.reduces:
            self.reducing(space)
        else:
            self._pointwise(space)
        if self.checked:
            self.line("if (bad) d_report(status);")
        names = "_".join(dict.fromkeys(s.op for s in p.body if not isinstance(s, (Load, Store, Const, Cast, Index))))
        return KernelPlan((names or "copy")[:40], self._globals(), (Phase(jobs, "\n".join(self.lines)),))

    def _globals(self) -> str:
        kinds = {(self.reduction(r).kind, self.p.body[self.p.body[r].args[0]].dtype) for r in self.reduces}
        out = []
        for kind, dtype in sorted(kinds):
            if kind in ("max", "min"):
                t = CPP_TYPE[dtype]
                combine = SCALAR_OPS[kind].cpp(["omp_out", "omp_in"], dtype)
                out.append(
                    f"#pragma omp declare reduction(dcir_{kind} : {t} : omp_out = {combine}) "
                    f"initializer(omp_priv = {identity(kind, dtype)})"
                )
        if self.columns:
            out.append("template <int N> struct dcir_width { static constexpr int value = N; };")
        return "\n".join(out)

    def _tile_bounds(self, space: LoopSpace, last: int, tiled: bool) -> tuple[str, str]:
        if not tiled:
            return "0", str(self.p.outer[last])
        self.line(f"const long long lo = jt * {space.tile};")
        self.line(
            f"const long long hi = lo + {space.tile} < {self.p.outer[last]} ? lo + {space.tile} : {self.p.outer[last]};"
        )
        return "lo", "hi"

    def _pointwise(self, space: LoopSpace) -> None:
        p = self.p
        last = self.n_outer - 1
        bounds = self._tile_bounds(space, last, space.tile > 0) if p.outer else ("0", "1")
        opened = 0
        for d in range(space.prefix, last):
            self.loop(d, p.outer[d])
            opened += 1
        roots = [i for i, s in enumerate(p.body) if isinstance(s, Store)]
        if p.outer and last >= space.prefix:
            for part in self._apart(roots):
                if self.checked:
                    self.take_out(part, last)
                self.simd([])
                self.loop(last, bounds[1], bounds[0])
                self.compute(part)
                self.close()
        else:
            self.compute(roots)
        for _ in range(opened):
            self.close()

    def _apart(self, stores: list[int]) -> list[list[int]]:
        """Stores in groups that need nothing of each other: a loop each, whose conditions the compiler can take out of it."""
        groups: list[tuple[set[int], list[int]]] = []
        for store in stores:
            needed = {i for i in self.needs([store], set()) if not isinstance(self.p.body[i], (Const, Index))}
            joined = [g for g in groups if not g[0].isdisjoint(needed)]
            groups = [g for g in groups if g[0].isdisjoint(needed)]
            groups.append((needed.union(*(n for n, _ in joined)), sorted([*(s for _, m in joined for s in m), store])))
        return [members for _, members in groups]
