"""An operand that is rounded to a half type for one product alone is rounded where the product packs it.

    w' = f32(bf16(w)); y = x @ w'    -->    y = x @ w, whose panels of w are rounded as they are filled

So it is with the weights of training under autocast: they are f32's, and change in every step. A product of many rows with an epilogue
packs them in every call anyway. Others may read them where they lie, and read the rounded copy. Saves writing it and reading it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Narrow, Store
from dcir.ir.types import HALVES
from dcir.ops.library.contraction import ContractionSpec, rows_suit
from dcir.ops.library.packing import strides_at_source
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class RoundAsPacked(Pass):
    """The rounding of right operands into the packing of products.

    Attributes:
        least_rows: of a product, for which its right operand is packed in every call.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("widen-products", "pack-weights")
    least_rows: int = 128

    def apply(self, net: Network) -> PassResult:
        """Visit every product that packs its right operand in every call."""
        outcome = PassResult()
        ready = net.preparable()
        for op in net.ops():
            spec = op.spec
            if not isinstance(spec, ContractionSpec) or spec.dtype != "f32" or spec.panel or spec.rounds:
                continue
            writers = net.writers(net.ins(op)[1].data)
            if len(writers) != 1 or writers[0] in ready or not isinstance(writers[0].spec, LoopNest):
                continue
            done = self._round(net, op, spec, writers[0])
            if isinstance(done, Refusal):
                outcome.refuse(done)
            elif done:
                outcome.changed += 1
                outcome.saved_bytes += 8 * spec.n * spec.k
        return outcome

    def _round(self, net: Network, op: Op, spec: ContractionSpec, maker: Op) -> bool | Refusal:
        """Let ``op`` read what ``maker`` rounds; whether it does, False if that rounds nothing."""
        p, outs, (a, b, *rest) = maker.known(LoopNest), net.outs(maker), net.ins(op)
        stores = [s for s in p.body if isinstance(s, Store) and outs[s.operand] == b]
        if p.inner or len(stores) != 1 or stores[0].dtype != "f32":
            return False
        value = p.body[stores[0].args[0]]
        if not isinstance(value, Narrow) or value.storage not in HALVES:
            return False
        load = p.body[value.args[0]]
        if not isinstance(load, Load) or load.args or p.inputs[load.operand] != "f32":
            return Refusal("what is rounded is computed first")
        rows = spec.m * math.prod(n for n, s in zip(spec.batch, spec.b, strict=False) if not s)
        if not spec.dots and (spec.epilogue is None or rows < self.least_rows or rows_suit(spec)):
            return Refusal("the product may read its operand where it lies")
        if net.readers(b.data) != [op] or b.data in net.result_containers():
            return Refusal("others read the rounded operand too")
        strides = strides_at_source(spec.shapes[1], spec.b, p.outer, load.strides, stores[0].strides)
        if strides is None:
            return Refusal("the product walks the operand in other dimensions than its rounding")
        source = net.ins(maker)[load.operand]
        net.rewire(
            op, replace(spec, b=strides, rounds=value.storage), [a, source, *rest], outs=net.outs(op), made_by=self.name
        )
        self._leave_out(net, maker, b)
        return True

    def _leave_out(self, net: Network, maker: Op, b: Operand) -> None:
        """What nobody reads is not stored."""
        p, ins, outs = maker.known(LoopNest), net.ins(maker), net.outs(maker)
        if len(outs) == 1:
            net.remove_op(maker)
        else:
            rest = simplify(p, lambda s: isinstance(s, Store) and outs[s.operand] != b)
            lean = compact(rest, ins, outs)
            net.rewire(maker, lean.program, lean.ins, lean.outs)
        net.remove_container(b.data)
