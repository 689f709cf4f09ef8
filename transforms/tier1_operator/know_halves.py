"""Products whose operands hold nothing but numbers of bf16 say so, where the processor multiplies those.

That is on a matrix unit; convolutions also where it multiplies pairs of them.

    x' = f32(bf16(x)); w' = f32(bf16(w)); y = x' @ w'    -->    the same operators, y's known to be of bf16

A float32 takes the unit six products of parts, a number of bf16 one. Nothing else changes, neither types nor layouts; so what is known
early, when forms are chosen, is looked at again behind all that gives products other operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.network import Network
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.held_halves import multiplies_halves


@dataclass(frozen=True)
class KnowHalves(Pass):
    """Mark the products of bf16's numbers."""

    tier: ClassVar[int] = 1
    after: ClassVar[tuple[str, ...]] = ("widen-products",)

    def apply(self, net: Network) -> PassResult:
        """Look at every product of f32."""
        outcome = PassResult.of(net)
        isa = target_of(net).machine.isa
        if not (isa.matrix_unit or isa.dots):
            return outcome
        known: dict[str, bool] = {}
        for op in net.ops():
            spec = op.spec
            if not isinstance(spec, ContractionSpec | ConvolutionSpec) or spec.dtype != "f32":
                continue
            halves = multiplies_halves(net, op, known)
            if halves == spec.halves or (halves and not outcome.allowed(self, net, op)):
                continue
            net.rewire(op, replace(spec, halves=halves), net.ins(op), net.outs(op))
            outcome.passed((op,))
        return outcome
