"""A kernel for all sizes: planned by the emitter of its spec, over numbers that are known when it runs."""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.choices import MODELS
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Emitters
from dcir.codegen.symbolic import Names, Undecided, most, sizes_in
from dcir.cost.machine import Machine
from dcir.ir.moving_network import with_numbers
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import Schedule


def moving_kernel(
    emitters: Emitters, spec: Operator, names: Names, machine: Machine, inputs: int, schedule: Schedule | None = None
) -> KernelPlan | Refusal:
    """The kernel of a spec whose numbers move, whose last input is a table of the sizes; or why there is none.

    Args:
        emitters: the target's.
        spec: with a ``Polynomial`` in the place of each number that moves.
        names: the sizes.
        machine: what the kernel is for.
        inputs: how many the spec has.
        schedule: what the node asks for.
    """
    if not emitters.moves(spec):
        return Refusal(f"there is no code of {spec.kind} for all sizes")
    try:
        plan = emitters.plan(with_numbers(spec, names.given), machine, MODELS, schedule)
    except Undecided as e:
        return Refusal(f"the code of {spec.kind} depends on {e}")
    if sizes_in(plan.globals) and not plan.holds_sizes:
        return Refusal(f"the code of {spec.kind} has its sizes as constants")
    values = "".join(f"const long long {name} = a{inputs}[{i}];\n" for i, name in enumerate(names.sizes))
    phases = []
    for phase in plan.phases:
        named = "".join(f"const long long {name} = {what};\n" for name, what in names.definitions(phase.code))
        phases.append(Phase(phase.jobs, values + named + phase.code))
    return replace(plan, phases=tuple(phases), scratch=most(plan.scratch), sizes=names.sizes)
