"""Convolutions with sums: tiles that add up what they store, then the sums of all jobs and what is made of them.

Where no tile can, the convolution's kernel and then the program's, as phases of one.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.asked import asking
from dcir.codegen.cpp.emitters import plan, planner
from dcir.codegen.cpp.tiles.conv.conv import summed_draft
from dcir.codegen.cpp.tiles.emit import assemble, round_up
from dcir.codegen.cpp.tiles.epilogue.sums import pitch
from dcir.codegen.plan import KernelPlan, Phase
from dcir.cost.machine import Machine
from dcir.ir.schedule import OPEN
from dcir.ops.library.convolution_statistics import ConvolutionStatisticsSpec


@planner(ConvolutionStatisticsSpec)
def plan_summed(spec: ConvolutionStatisticsSpec, machine: Machine) -> KernelPlan:
    """The kernel of a convolution with sums."""
    isa = machine.isa
    draft = summed_draft(spec, isa, machine.threads)
    _, _, (_, *others), made = spec.names("")
    if draft is None:
        first = plan(spec.product, machine)
        at = round_up(first.scratch, 64)
        _, results, taken, _ = spec.names(f"(float *)(scratch + {at}LL)")
        if not spec.kept:
            first = replace(first, phases=_renamed(first, results), scratch=at + 4 * spec.result_size())
        with asking(OPEN):
            second = plan(spec.sums, machine)
        return _then(first, second, taken, made)
    assert draft.epilogue is not None
    first = assemble(draft, isa, 2)
    step = pitch(draft.epilogue.program)
    rest, written = spec.rest(draft.steps[-1].jobs, step)
    count = len(rest.inputs) - len(others)
    sums = [f"(const double *)(scratch + {draft.sums_at + k * step * 8}LL)" for k in range(count)]
    with asking(OPEN):  # a schedule is the convolution's
        second = plan(rest, machine)
    return _then(first, second, [*others, *sums], [made[k] for k in written])


def _renamed(kernel: KernelPlan, outs: list[str], ins: list[str] | None = None, at: int = 0) -> tuple[Phase, ...]:
    """A kernel's phases over other operands: expressions in place of o0, o1, … and a0, a1, …, scratch from ``at`` on."""
    names = {f"a{i}": v for i, v in enumerate(ins or ())} | {f"o{i}": v for i, v in enumerate(outs)}
    names |= {"scratch": f"scratch + {at}LL"} if at else {}
    # In two steps: an expression may hold the name that another one gets.
    given = "".join(f"const auto given_{n} = {value};\n" for n, value in names.items())
    inside = "".join(f"[[maybe_unused]] const auto {n} = given_{n};\n" for n in names)
    return tuple(Phase(p.jobs, f"{given}{{\n{inside}{p.code}\n}}") for p in kernel.phases)


def _then(first: KernelPlan, second: KernelPlan, ins: list[str], outs: list[str]) -> KernelPlan:
    """Two kernels as one, the second over operands of the first: expressions in place of its a0, a1, … and o0, o1, …."""
    at = round_up(first.scratch, 64)
    phases = _renamed(second, outs, ins, at if second.scratch else 0)
    text = f"{first.globals}\nnamespace dcir_after {{\n{second.globals}\n}}\n" if second.globals else first.globals
    if second.globals:
        phases = tuple(replace(p, code=f"using namespace dcir_after;\n{p.code}") for p in phases)
    return KernelPlan(
        f"{first.name}_sums", text, (*first.phases, *phases), at + second.scratch, schedule=first.schedule
    )
