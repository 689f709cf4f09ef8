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
from dcir.codegen.symbolic import Undecided, moves
from dcir.cost.machine import Machine
from dcir.ir.types import HALVES
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.winograd import WinogradWeightsSpec


@planner(ConvolutionSpec, any_size=True)
def plan_convolution_node(spec: ConvolutionSpec, machine: Machine) -> KernelPlan:
    """The kernel of one of a convolution's three products."""
    if not supports_convolution(spec):
        return plan(spec.loop_nest(), machine)
    if moves(spec.n, *spec.in_size, *spec.x, *spec.y):
        _refuse_any_size(spec)
    return plan_convolution(spec, machine.isa, machine.threads)


def _refuse_any_size(spec: ConvolutionSpec) -> None:
    """Raise for what there is no code of for images of any size."""
    if spec.winograd:
        raise Undecided("a constant number of Winograd's tiles")
    if spec.dtype in HALVES:
        raise Undecided("a constant number of elements to convert")


@planner(WinogradWeightsSpec)
def plan_weights_node(spec: WinogradWeightsSpec, machine: Machine) -> KernelPlan:
    """The kernel that packs and transforms weights."""
    return plan_weights(spec, machine.isa)


@planner(SizeGenericWinogradWeights)
def plan_size_generic_weights_node(spec: SizeGenericWinogradWeights, machine: Machine) -> KernelPlan:
    """The same kernel for all sizes."""
    return plan_size_generic_weights(spec, machine.isa)
