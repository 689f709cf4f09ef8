"""An operand that is rounded to a half type for one product alone is rounded where the product packs it.

    w' = f32(bf16(w)); y = x @ w'    -->    y = x @ w, whose panels of w are rounded as they are filled

So it is with the weights of training under autocast: they are f32's, and change in every step. A product of many rows with an epilogue
packs them in every call anyway. Others may read them where they lie, and read the rounded copy. Saves writing it and reading it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load, Narrow, Store
from dcir.ir.types import HALVES
from dcir.ops.library.contraction import ContractionSpec, rows_suit
from dcir.ops.library.packing import strides_at_source
from dcir.transforms.rule import Rule


class _Rounding(NamedTuple):
    """A product, and the program that rounds its right operand ``b``: ``load`` (None: what is computed), ``narrow``, ``store``."""

    op: Op
    spec: ContractionSpec
    maker: Op
    b: Operand
    load: Load | None
    narrow: Narrow
    store: Store


@dataclass(frozen=True)
class RoundAsPacked(Rule[set[Op], _Rounding]):
    """The rounding of right operands into the packing of products.

    Attributes:
        least_rows: of a product, for which its right operand is packed in every call.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("widen-products", "pack-weights")
    least_rows: int = 128

    def survey(self, net: Network) -> set[Op]:
        """What is computed before the calls."""
        return net.preparable()

    def pattern(self, net: Network, op: Op, known: set[Op]) -> _Rounding | None:
        """A product of f32 whose right operand one program makes in every call, and rounds as it stores it."""
        spec = op.spec
        if not isinstance(spec, ContractionSpec) or spec.dtype != "f32" or spec.panel or spec.rounds:
            return None
        b = net.ins(op)[1]
        writers = net.writers(b.data)
        if len(writers) != 1 or writers[0] in known or not isinstance(writers[0].spec, LoopNest):
            return None
        p, outs = writers[0].spec, net.outs(writers[0])
        stores = [s for s in p.body if isinstance(s, Store) and outs[s.operand] == b]
        if p.inner or len(stores) != 1 or stores[0].dtype != "f32":
            return None
        narrow = p.body[stores[0].args[0]]
        if not isinstance(narrow, Narrow) or narrow.storage not in HALVES:
            return None
        source = p.body[narrow.args[0]]
        load = source if isinstance(source, Load) and not source.args and p.inputs[source.operand] == "f32" else None
        return _Rounding(op, spec, writers[0], b, load, narrow, stores[0])

    def place(self, op: Op, match: _Rounding) -> tuple[Op, ...]:
        """The product and the program that rounds."""
        return match.op, match.maker

    def check(self, net: Network, match: _Rounding, known: set[Op]) -> Refusal | int:
        """The rounded copy is written and read no more."""
        spec = match.spec
        if match.load is None:
            return Refusal("what is rounded is computed first")
        rows = spec.m * math.prod(n for n, s in zip(spec.batch, spec.b, strict=False) if not s)
        isa = target_of(net).machine.isa
        few = rows < self.least_rows or rows_suit(spec, isa)
        if not spec.dots and (spec.epilogue is None or pays("read where it lies", few)):
            return Refusal("the product may read its operand where it lies")
        if not net.read_once(match.b.data):
            return Refusal("others read the rounded operand too")
        if _strides(match, match.load) is None:
            return Refusal("the product walks the operand in other dimensions than its rounding")
        return 8 * spec.n * spec.k

    def rewrite(self, net: Network, match: _Rounding, known: set[Op]) -> Sequence[Op]:
        """Let the product read what is rounded."""
        op, maker, load = match.op, match.maker, match.load
        strides = _strides(match, load) if load is not None else None
        assert load is not None and strides is not None, "checked"
        ins = net.ins(op)
        ins[1] = net.ins(maker)[load.operand]
        made = replace(match.spec, b=strides, rounds=match.narrow.storage)
        net.rewire(op, made, ins, net.outs(op), made_by=self.name, came_from=(maker,))
        self._leave_out(net, maker, match.b)
        return ()

    def _leave_out(self, net: Network, maker: Op, b: Operand) -> None:
        """What nobody reads is not stored."""
        p, ins, outs = maker.known(LoopNest), net.ins(maker), net.outs(maker)
        if len(outs) == 1:
            net.remove_op(maker, into=())
        else:
            rest = simplify(p, lambda s: isinstance(s, Store) and outs[s.operand] != b)
            lean = compact(rest, ins, outs)
            net.rewire(maker, lean.program, lean.ins, lean.outs)
        net.remove_container(b.data)


def _strides(match: _Rounding, load: Load) -> tuple[int, ...] | None:
    """Of the product's operand where it lies unrounded; None if it is not walked as it was rounded."""
    p, spec = match.maker.known(LoopNest), match.spec
    return strides_at_source(spec.shapes[1], spec.b, p.outer, load.strides, match.store.strides)
