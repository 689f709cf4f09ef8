"""Convolutions with sums: tiles that add up what they store, then the sums of all jobs and what is made of them.

Where no tile can, the convolution's kernel and then the program's, as phases of one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.planners import Machine, plan, planner
from dcir.codegen.tiles.conv import summed_draft
from dcir.codegen.tiles.emit import assemble, round_up
from dcir.codegen.tiles.epilogue_sums import pitch
from dcir.isa import ISAS
from dcir.ops.summed import SummedSpec


@planner(SummedSpec)
def plan_summed(spec: SummedSpec, machine: Machine) -> KernelPlan:
    """The kernel of a convolution with sums."""
    reads, writes = spec.product.footprint()
    isa = ISAS[machine.isa]
    draft = summed_draft(spec, isa, machine.threads)
    if draft is None:
        others = [f"a{len(reads) + i}" for i in range(len(spec.sums.inputs) - 1)]
        made = [f"o{len(writes) + i}" for i in range(len(spec.sums.outputs))]
        return _then(plan(spec.product, machine), plan(spec.sums, machine), [f"o{spec.result}", *others], made)
    assert draft.epilogue is not None
    first = assemble(draft, isa, 2)
    step = pitch(draft.epilogue.program)
    rest, written = spec.rest(draft.steps[-1].jobs, step)
    others = [f"a{len(reads) + i}" for i in range(len(spec.sums.inputs) - 1)]
    count = len(rest.inputs) - len(others)
    sums = [f"(const double *)(scratch + {draft.sums_at + k * step * 8}LL)" for k in range(count)]
    return _then(first, plan(rest, machine), [*others, *sums], [f"o{len(writes) + k}" for k in written])


def _then(first: KernelPlan, second: KernelPlan, ins: list[str], outs: list[str]) -> KernelPlan:
    """Two kernels as one, the second over operands of the first: expressions in place of its a0, a1, … and o0, o1, …."""
    at = round_up(first.scratch, 64)
    names = {f"a{i}": v for i, v in enumerate(ins)} | {f"o{i}": v for i, v in enumerate(outs)}
    phases = []
    for p in second.phases:
        used = sorted(set(re.findall(r"\b[ao][0-9]+\b", p.code)))
        given = "".join(f"const auto given_{n} = {names[n]};\n" for n in used)
        given += f"unsigned char *const given_scratch = scratch + {at}LL;\n" if second.scratch else ""
        inside = "".join(f"const auto {n} = given_{n};\n" for n in used)
        inside += "unsigned char *const scratch = given_scratch;\n" if second.scratch else ""
        phases.append(Phase(p.jobs, f"{given}{{\n{inside}{p.code}\n}}"))
    text = f"{first.globals}\nnamespace dcir_after {{\n{second.globals}\n}}\n" if second.globals else first.globals
    if second.globals:
        phases = [replace(p, code=f"using namespace dcir_after;\n{p.code}") for p in phases]
    return KernelPlan(f"{first.name}_sums", text, (*first.phases, *phases), at + second.scratch)
