"""C++ for loop nests: loops ordered and collapsed, scheduled, and printed as one phase of independent jobs."""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.asked import as_known, asked
from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.loop_nest_parts import in_parts
from dcir.codegen.cpp.kernels.loop_nest_reductions import Reductions
from dcir.codegen.cpp.kernels.loop_nest_request import requested, told
from dcir.codegen.cpp.kernels.loop_nest_schedule import schedule
from dcir.codegen.cpp.kernels.loop_nest_statements import identity
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.schedule import Sweep
from dcir.codegen.symbolic import usual
from dcir.cost.machine import Machine
from dcir.ir.loop_forms import collapse, drop_roundings, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.schedule import AS_WRITTEN, OPEN
from dcir.ir.statements import Cast, Const, Index, Load, Store


@planner(LoopNest, any_size=True)
def plan_program(program: LoopNest, machine: Machine) -> KernelPlan:
    """The kernel of a loop nest."""
    nest = drop_unit_loops(drop_roundings(program))
    if asked().method != AS_WRITTEN:
        nest = collapse(order_loops(nest, usual))
    parts = in_parts(nest) if asked() == OPEN else None
    if parts is not None:
        return parts.joined(*(_Emitter(schedule(step, machine)).plan() for step in (parts.first, parts.last)))
    nest, request = requested(nest)
    made = schedule(nest, machine, request)
    return replace(_Emitter(made).plan(), schedule=as_known(lambda: told(made, request)))


class _Emitter(Reductions):
    def plan(self) -> KernelPlan:
        p, tile = self.p, self.schedule.tile
        if self.checked:
            self.line("int bad = 0;")
        rest = "j"
        if tile is not None and tile.parallel:
            tiles = -(-p.outer[-1] // tile.size)
            self.line(f"const long long jt = {rest} % {tiles}, jr = {rest} / {tiles};")
            rest = "jr"
        for d in range(self.schedule.prefix - 1, -1, -1):
            if d == 0:
                self.line(f"const long long i0 = {rest};")
            else:
                self.line(f"const long long i{d} = {rest} % {p.outer[d]}, q{d} = {rest} / {p.outer[d]};")
                rest = f"q{d}"
        if self.reduces:
            self.reducing()
        else:
            self._pointwise()
        if self.checked:
            self.line("if (bad) d_report(status);")
        names = "_".join(dict.fromkeys(s.op for s in p.body if not isinstance(s, (Load, Store, Const, Cast, Index))))
        return KernelPlan((names or "copy")[:40], self._globals(), (Phase(self.schedule.jobs, "\n".join(self.lines)),))

    def _globals(self) -> str:
        kinds = {(self.reduction(r).kind, self.p.body[self.p.body[r].args[0]].dtype) for r in self.reduces}
        out = []
        for kind, dtype in sorted(kinds) if self.schedule.vector is not None else ():
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

    def _tile_bounds(self, last: int) -> tuple[str, str]:
        tile, extent = self.schedule.tile, self.p.outer[last]
        if tile is None:
            return "0", str(extent)
        self.line(f"const long long lo = jt * {tile.size};")
        self.line(f"const long long hi = lo + {tile.size} < {extent} ? lo + {tile.size} : {extent};")
        return "lo", "hi"

    def _pointwise(self) -> None:
        p, last = self.p, self.n_outer - 1
        bounds = self._tile_bounds(last) if p.outer else ("0", "1")
        opened = 0
        for d in range(self.schedule.prefix, last):
            self.loop(d, p.outer[d])
            opened += 1
        for sweep in self.schedule.sweeps:
            if not p.outer:
                self.compute(sweep.stores)
                continue
            if self.checked:
                self.take_out(list(sweep.stores), last)

            def row(sweep: Sweep = sweep) -> None:
                if sweep.vector:
                    self.simd([])
                self.loop(last, bounds[1], bounds[0])
                self.compute(sweep.stores)
                self.close()

            if sweep.vector:
                self.apart(sweep.stores, last, row)
            else:
                row()
        for _ in range(opened):
            self.close()
