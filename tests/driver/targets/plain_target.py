"""The smallest target: plain loops in order, one thread, no vectors. Every operator runs as the loop nest that it is equal to.

It is what a package of its own would bring: a class for the driver, a backend, one emitter. Statements and driver are in the words of
C++ that dcir has already; what is new is how loops run, how a kernel is called and how a library is built.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dcir.cache import Cache, key_of
from dcir.codegen.backend import Kernel, Steps
from dcir.codegen.cpp.kernels.loop_nest_statements import Statements, identity
from dcir.codegen.cpp.print_driver import BESIDE, driver_text
from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, link_shared
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Emitters
from dcir.codegen.schedule import ScheduledLoopNest, in_order
from dcir.cost.costs import Costs
from dcir.cost.cpu import cpu_costs
from dcir.cost.machine import Machine
from dcir.driver.targets.base import DriverTarget
from dcir.ir.loop_nest import LoopNest
from dcir.isa import ISAS
from dcir.transforms.base import Pass
from dcir.transforms.tidy.fold_constants import FoldConstants
from dcir.transforms.tidy.merge_common_subexpressions import MergeCommonSubexpressions
from dcir.transforms.tidy.remove_dead_code import RemoveDeadCode
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers
from dcir.transforms.tier4_movement.plan_arena import PlanArena

EMITTERS = Emitters("plain")
FLAGS = ("-std=c++17", "-O1", "-fno-tree-vectorize", "-fPIC", "-fno-math-errno", "-w")
TIERS: dict[int, tuple[Pass, ...]] = {
    1: (FoldConstants(), MergeCommonSubexpressions(), RemoveDeadCode()),
    2: (FuseProducers(),),
    4: (PlanArena(),),
}


@EMITTERS.planner(LoopNest)
def plan_loop_nest(nest: LoopNest, machine: Machine) -> KernelPlan:
    """A loop nest as one job."""
    printer = _Printer(in_order(nest))
    printer.print()
    return KernelPlan("plain", "", (Phase(1, "\n".join(printer.lines)),))


class _Printer(Statements):
    def __init__(self, schedule: ScheduledLoopNest) -> None:
        super().__init__(schedule.nest)
        self.schedule = schedule

    def print(self) -> None:
        """All sweeps of every outer point."""
        if self.checked:
            self.line("int bad = 0;")
        for d, extent in enumerate(self.p.outer):
            self.loop(d, extent)
        for sweep in self.schedule.sweeps:
            for r in sweep.reduces:
                self._start(r)
            self.open("")
            for d in self.inner_dims() if sweep.inner else ():
                self.loop(d, self.p.dims[d])
            self.compute(sweep.stores, sweep.reduces)
            for _ in self.inner_dims() if sweep.inner else ():
                self.close()
            self.close()
        for _ in self.p.outer:
            self.close()
        if self.checked:
            self.line("if (bad) d_report(status);")

    def _start(self, r: int) -> None:
        s, dtype = self.reduction(r), self.p.body[self.p.body[r].args[0]].dtype
        if s.is_place:
            self.line(f"{CPP_TYPE[dtype]} best{r} = {identity(s.kind[3:], dtype)}; long long v{r} = 0;")
        else:
            self.line(f"{CPP_TYPE['bool' if s.kind in ('any', 'all') else dtype]} v{r} = {identity(s.kind, dtype)};")


class PlainBackend:
    """Kernels as functions of plain loops, the driver without a team, GCC without OpenMP's pragmas."""

    emitters = EMITTERS

    def size_generic(self, spec: Any, machine: Machine) -> None:
        """Every kernel knows its sizes."""

    def driver_text(self, steps: Steps, *, profile: bool) -> str:
        """C++ of the driver: no call has work for a second thread, so it opens no team."""
        return driver_text(steps.calls, steps.before, steps.static)

    def kernel_text(self, kernel: Kernel) -> str:
        """One function."""
        ins = [f"const {CPP_TYPE[t]}* a{i}" for i, t in enumerate(kernel.ins)]
        outs = [f"{CPP_TYPE[t]}* o{i}" for i, t in enumerate(kernel.outs)]
        operands = ", ".join(["void*", *ins, *outs, "unsigned char* scratch", "int* status"])
        (phase,) = kernel.plan.phases
        return f'#include "prelude.h"\nextern "C" void __program_{kernel.name}({operands}) {{\n{phase.code}\n}}\n'

    def identity(self, machine: Machine, cache: Cache) -> str:
        """Of GCC and the flags."""
        return key_of(Toolchain.find(cache).identity, *FLAGS)

    def build(
        self,
        draft: Path,
        key: str,
        driver: str,
        kernels: Sequence[Kernel],
        machine: Machine,
        cache: Cache,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """A unit for each kernel."""
        units = [Unit("", text) for text in (driver, BESIDE, *map(self.kernel_text, kernels))]
        toolchain = Toolchain.find(cache)
        shutil.copyfile(link_shared(compile_objects(units, toolchain, FLAGS, cache), key, toolchain, cache), draft)


@dataclass(frozen=True)
class PlainTarget(DriverTarget):
    """Tidying, vertical fusion and an arena; nothing that makes operators without a loop nest."""

    name: ClassVar[str] = "plain"

    @property
    def costs(self) -> Costs:
        """Of a CPU without vectors worth naming."""
        return cpu_costs(ISAS["generic"])

    @property
    def backend(self) -> PlainBackend:
        """Plain loops."""
        return PlainBackend()

    def pipeline(self, level: int) -> tuple[Pass, ...]:
        """All tiers up to a level."""
        return tuple(p for tier, passes in TIERS.items() if tier <= level for p in passes)
