"""Convolutions and their gradients on register tiles."""

from __future__ import annotations

from dcir.codegen.cpp.emitters import plan, planner
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution, supports_convolution
from dcir.codegen.cpp.tiles.conv.winograd_weights import (
    SizeGenericWinogradWeights,
    plan_size_generic_weights,
    plan_weights,
)
from dcir.codegen.plan import KernelPlan
from dcir.cost.machine import Machine
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.winograd import WinogradWeightsSpec


@planner(ConvolutionSpec)
def plan_convolution_node(spec: ConvolutionSpec, machine: Machine) -> KernelPlan:
    """The kernel of one of a convolution's three products."""
    if not supports_convolution(spec):
        return plan(spec.loop_nest(), machine)
    return plan_convolution(spec, machine.isa, machine.threads)


@planner(WinogradWeightsSpec)
def plan_weights_node(spec: WinogradWeightsSpec, machine: Machine) -> KernelPlan:
    """The kernel that packs and transforms weights."""
    return plan_weights(spec, machine.isa)


@planner(SizeGenericWinogradWeights)
def plan_size_generic_weights_node(spec: SizeGenericWinogradWeights, machine: Machine) -> KernelPlan:
    """The same kernel for all sizes."""
    return plan_size_generic_weights(spec, machine.isa)
