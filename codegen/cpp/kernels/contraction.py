"""Matrix products on register tiles."""

from __future__ import annotations

from dcir.codegen.plan import KernelPlan
from dcir.codegen.planners import Machine, planner
from dcir.codegen.tiles.gemm import plan_gemm
from dcir.codegen.tiles.isa import ISAS
from dcir.ops.contraction import ContractionSpec


@planner(ContractionSpec)
def plan_contraction(spec: ContractionSpec, machine: Machine) -> KernelPlan:
    """The kernel of a batched matrix product."""
    return plan_gemm(spec, ISAS[machine.isa], machine.threads)
