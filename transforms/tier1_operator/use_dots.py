"""Products whose operands hold nothing but numbers of bf16 are multiplied in pairs, by the processor's instruction for that.

    x' = f32(bf16(x)); w' = f32(bf16(w)); y = x' @ w'    -->    the same operators, y's with pairs of steps

``WidenProducts`` makes such products of those of bf16. The instruction takes two steps of the reduction at once and sums in f32, as the
widened product does: twice the multiplications per second. What an operand holds is read off the stores of those who write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ops.library.contraction import ContractionSpec, pairs_pay
from dcir.transforms.held_halves import holds_halves
from dcir.transforms.rule import Rule


@dataclass
class _Operands:
    """What is known of containers: which operators run before the calls, what is static, what holds nothing but bf16's numbers."""

    ready: set[Op]
    static: set[str]
    halves: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class UseDots(Rule[_Operands | None, Op]):
    """Mark the products to be multiplied in pairs, where the processor has the instruction."""

    tier: ClassVar[int] = 1
    after: ClassVar[tuple[str, ...]] = ("widen-products",)

    def survey(self, net: Network) -> _Operands | None:
        """What is static; None without the instruction, for which nothing is done."""
        if not target_of(net).machine.isa.dots:
            return None
        ready = net.preparable()
        return _Operands(ready, net.static_containers(ready))

    def pattern(self, net: Network, op: Op, known: _Operands | None) -> Op | None:
        """A product of f32, in no form of its own, of two operands of bf16's numbers."""
        spec = op.spec
        if known is None or not isinstance(spec, ContractionSpec) or op in known.ready:
            return None
        plain = spec.dtype == "f32" and not spec.panel and not spec.dots
        return op if plain and all(holds_halves(net, o, known.halves) for o in net.ins(op)[:2]) else None

    def check(self, net: Network, match: Op, known: _Operands | None) -> Refusal | int:
        """It saves time, and moves what it moved."""
        assert known is not None
        static = any(o.data in known.static for o in net.ins(match)[:2])
        if not static and not pays("pairs", pairs_pay(match.known(ContractionSpec))):
            return Refusal("turning both operands into pairs would take longer than is saved")
        return 0

    def rewrite(self, net: Network, match: Op, known: _Operands | None) -> Sequence[Op]:
        """Mark the product."""
        net.rewire(match, replace(match.known(ContractionSpec), dots=True), net.ins(match), net.outs(match))
        return ()
