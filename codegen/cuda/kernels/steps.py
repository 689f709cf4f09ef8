"""CUDA kernels of operators that are several loop nests, one after the other: values between them lie in scratch."""

from __future__ import annotations

from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.loop_nest import Plan, nest_refusal
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.types import itemsize


@planner(Operator)
def plan_steps(spec: Operator, machine: Machine | None = None) -> CudaPlan | Refusal:
    """The kernels of an operator by its steps."""
    found = spec.steps()
    if found is None:
        return Refusal(f"{spec.kind} is equal to no loop nests")
    temporaries, steps = found
    plan = Plan()
    at = {name: str(plan.room(count * itemsize(dtype))) for name, dtype, count in temporaries}
    for nest, ins, outs in steps:
        if not isinstance(nest, LoopNest):
            return Refusal(f"a step of {spec.kind} is no loop nest")
        if (refused := nest_refusal(nest)) is not None:
            return refused
        own = {**{f"a{k}": n for k, n in enumerate(ins)}, **{f"o{k}": n for k, n in enumerate(outs)}}
        scratch = {mine: at[name] for mine, name in own.items() if name in at}
        plan.add(nest, Places(scratch, {mine: name for mine, name in own.items() if name not in at}))
    return plan.made()
