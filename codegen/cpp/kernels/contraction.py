"""Matrix products on register tiles."""

from __future__ import annotations

from dcir.codegen.cpp.emitters import plan, planner
from dcir.codegen.cpp.tiles.gemm.gemm import plan_gemm, supports_product
from dcir.codegen.plan import KernelPlan
from dcir.cost.machine import Machine
from dcir.ops.library.contraction import ContractionSpec


@planner(ContractionSpec, any_size=True)
def plan_contraction(spec: ContractionSpec, machine: Machine) -> KernelPlan:
    """The kernel of a batched matrix product."""
    if not supports_product(spec):
        return plan(spec.loop_nest(), machine)
    return plan_gemm(spec, machine.isa, machine.threads)
