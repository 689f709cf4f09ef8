"""Products whose operands hold nothing but numbers of bf16 are multiplied in pairs, by the processor's instruction for that.

    x' = f32(bf16(x)); w' = f32(bf16(w)); y = x' @ w'    -->    the same operators, y's with pairs of steps

``WidenProducts`` makes such products of those of bf16. The instruction takes two steps of the reduction at once and sums in f32, as the
widened product does: twice the multiplications per second. What an operand holds is read off the stores of those who write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Narrow, Read, Store
from dcir.ops.library.contraction import ContractionSpec, pairs_pay
from dcir.transforms.base import Pass, PassResult

_HALF = "bf16"


@dataclass(frozen=True)
class UseDots(Pass):
    """Mark the products to be multiplied in pairs.

    Attributes:
        dots: whether the processor has the instruction; without it nothing is done.
    """

    tier: ClassVar[int] = 1
    after: ClassVar[tuple[str, ...]] = ("widen-products",)
    dots: bool = False

    def apply(self, net: Network) -> PassResult:
        """Visit every product of f32."""
        outcome = PassResult()
        if not self.dots:
            return outcome
        ready = net.preparable()
        static = net.static_containers(ready)
        known: dict[str, bool] = {}
        for op in net.ops():
            spec = op.spec
            if not isinstance(spec, ContractionSpec) or spec.dtype != "f32" or spec.panel or spec.dots or op in ready:
                continue
            if not all(_holds_halves(net, o, known) for o in net.ins(op)[:2]):
                continue
            if not any(o.data in static for o in net.ins(op)[:2]) and not pairs_pay(spec):
                outcome.refuse("turning both operands into pairs would take longer than is saved")
                continue
            net.rewire(op, replace(spec, dots=True), net.ins(op), net.outs(op))
            outcome.changed += 1
        return outcome


def _holds_halves(net: Network, operand: Operand, known: dict[str, bool]) -> bool:
    """Whether whoever writes the operand's container stores nothing there but numbers of bf16."""
    data = operand.data
    if data not in known:
        known[data] = False  # of a circle: two programs that copy from each other in place
        container = net.containers[data]
        writers = net.writers(data)
        known[data] = (
            container.role == "transient"
            and bool(writers)
            and all(all(_stores_halves(net, writer, data, known)) for writer in writers)
        )
    return known[data]


def _stores_halves(net: Network, writer: Op, data: str, known: dict[str, bool]) -> Iterator[bool]:
    """For each store of ``writer`` into the container whether its value is a number of bf16."""
    spec, ins, outs = writer.spec, net.ins(writer), net.outs(writer)
    if not isinstance(spec, LoopNest):
        # Of an epilogue's inputs the first is the product's result, which is nothing that anybody reads.
        epilogue = spec.epilogue if isinstance(spec, ContractionSpec) else None
        if epilogue is None:
            yield False
            return
        spec, ins = epilogue, [ins[0], *ins[2:]]
        product = True
    else:
        product = False
    for s in spec.body:
        if not isinstance(s, Store) or outs[s.operand].data != data:
            continue
        value = spec.body[s.args[0]]
        if isinstance(value, Narrow):
            yield value.storage == _HALF
        elif isinstance(value, Read) and not (product and value.operand == 0):
            source = spec.inputs[value.operand]
            same = source == "f32" and _holds_halves(net, ins[value.operand], known)
            yield not value.guard and (source == _HALF or same)
        else:
            yield False
