"""Kernels whose sizes are not in their text, but in a table that they read: pointwise programs, and transforms of weights.

    w' = pack(w)  of 60 layers    -->    60 tables of numbers, two or three kernels

What prepares parameters runs when they change, so its compilation is what it costs: with a text for each, preparing took the compiler
a quarter of its time for a convolutional network. Strides of 0 and 1 of the last loop stay in the text, since they decide whether it
vectorises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.loop_nest_schedule import worth_a_team
from dcir.codegen.cpp.kernels.loop_nest_statements import Statements
from dcir.codegen.cpp.tiles.conv.winograd_weights import size_generic_weights
from dcir.codegen.plan import KernelPlan, Phase, SizeGeneric
from dcir.cost.machine import Machine
from dcir.ir.loop_forms import collapse, drop_roundings, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.statements import Const, Gather, Load, Reduce, Statement, Store, Strides
from dcir.ops.library.winograd import WinogradWeightsSpec

# Numbers of loops that kernels exist for; a program with fewer gets loops that run once.
_RANKS = (1, 2, 4, 6, 8)
# Values of a stride in a pattern: itself, or the entry of the table behind these.
_IN_TEXT = 2


@dataclass(frozen=True)
class SizeGenericNest(SizeGeneric):
    """All pointwise programs that differ only in their sizes.

    Attributes:
        pattern: one of them, with extents of 2; a stride is 0, 1, or ``_IN_TEXT`` and an entry of the table, which an
            integer constant always is.
        parallel: whether there is enough to do for more than one thread.
    """

    pattern: LoopNest
    parallel: bool

    kind = "sizeless"


def size_generic(spec: Operator, machine: Machine) -> tuple[SizeGeneric, tuple[int, ...]] | None:
    """The spec of the kernel for all sizes, whose last input is a table, and that table. None: there is no such kernel."""
    if isinstance(spec, WinogradWeightsSpec):
        return size_generic_weights(spec, machine.isa, machine.threads)
    return _program(spec) if isinstance(spec, LoopNest) else None


def _program(program: LoopNest) -> tuple[SizeGenericNest, tuple[int, ...]] | None:
    """The extents come first in the table. None: the program has reductions or gathers."""
    if program.inner or any(isinstance(s, (Reduce, Gather)) for s in program.body):
        return None
    p = collapse(order_loops(drop_unit_loops(drop_roundings(program))))
    rank = next((r for r in _RANKS if r >= len(p.outer)), None)
    if rank is None or 0 in p.outer:
        return None
    missing = rank - len(p.outer)
    numbers = [1] * missing + list(p.outer)

    def entry(value: int) -> int:
        numbers.append(value)
        return len(numbers) - 1 + _IN_TEXT

    def wider(strides: Strides) -> Strides:
        *walks, along = (0,) * missing + strides
        last = along if along in (0, 1) else entry(along)
        return (*(entry(n) for n in walks), last)

    def in_table(s: Statement) -> Statement:
        if isinstance(s, Const) and s.dtype == "i64":
            return Const(entry(int(s.value)), s.dtype)
        return s.over_loops(wider, lambda d: d + missing)

    pattern = replace(p, outer=(2,) * rank, body=tuple(in_table(s) for s in p.body))
    return SizeGenericNest(pattern, worth_a_team(p)), tuple(numbers)


@planner(SizeGenericNest)
def plan_size_generic(spec: SizeGenericNest, machine: Machine) -> KernelPlan:
    """The kernel; its table is the input after the program's own."""
    return _SizeGenericEmitter(spec, machine).plan()


class _SizeGenericEmitter(Statements):
    def __init__(self, spec: SizeGenericNest, machine: Machine) -> None:
        super().__init__(spec.pattern)
        self._short = {}  # known from extents only
        self.jobs = 8 * machine.threads if spec.parallel and machine.threads > 1 else 1

    def value(self, i: int) -> str:
        s = self.p.body[i]
        return f"n{int(s.value) - _IN_TEXT}" if isinstance(s, Const) and s.dtype == "i64" else super().value(i)

    def address(self, strides: tuple[int, ...]) -> str:
        terms = [f"i{d}" if s == 1 else f"i{d} * n{s - _IN_TEXT}" for d, s in enumerate(strides) if s]
        return " + ".join(terms) or "0"

    def plan(self) -> KernelPlan:
        """Rows, which are runs of the last loop, are dealt to jobs; the other indices count like an odometer."""
        p, rank = self.p, self.n_outer
        entries = [k for s in p.body if isinstance(s, (Load, Store)) for k in s.strides if k >= _IN_TEXT]
        entries += [int(s.value) for s in p.body if isinstance(s, Const) and s.dtype == "i64"]
        for k in [*range(rank), *(e - _IN_TEXT for e in entries)]:
            self.line(f"const long long n{k} = a{len(p.inputs)}[{k}];")
        self.line(f"const long long rows = {' * '.join(f'n{d}' for d in range(rank - 1)) or '1'};")
        self.line(f"const long long end = rows * (j + 1) / {self.jobs};")
        self.line(f"long long row = rows * j / {self.jobs}, rest = row;")
        for d in range(rank - 2, -1, -1):
            self.line(f"long long i{d} = rest % n{d}; rest /= n{d};")
        self.open("for (; row < end; row++)")
        self.simd([])
        self.loop(rank - 1, f"n{rank - 1}")
        self.compute([i for i, s in enumerate(p.body) if isinstance(s, Store)])
        self.close()
        for d in range(rank - 2, -1, -1):
            self.open(f"if (++i{d} == n{d})")
            self.line(f"i{d} = 0;")
        for _ in range(rank - 1):
            self.close()
        self.close()
        return KernelPlan("sizeless", "", (Phase(self.jobs, "\n".join(self.lines)),))
