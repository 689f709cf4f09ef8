"""What is folded is computed where it is folded, and what becomes of a fold before it is stored.

    m = x[src]; t = segment(m); y = t / n   -->   y = segment(x[src]) / n        neither m nor t is written

A pointwise producer of a fold's values moves into the fold: a row per point, gathered through indices, is read in place. It
stays where others read it, and is computed twice if that is cheap. A pointwise reader of the folded rows, element by
element, follows them. Saves a write and a read of a row per point, and of a row per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, extend, inline, match, moved_loads, place_of_both, plain_reads
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.scalars import COSTLY
from dcir.ir.statements import Gather, Read, Reduce, Store
from dcir.ops.library.product import VALUE
from dcir.ops.library.segments import GroupSpec, SegmentSpec, cheap_to_repeat
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class FuseSegments(Pass):
    """Pointwise programs into the folds after and before them.

    Attributes:
        max_operands: most operands of values and finish.
        max_statements: most statements of each.
    """

    tier: ClassVar[int] = 2
    max_operands: int = 12
    max_statements: int = 60

    def apply(self, net: Network) -> PassResult:
        """Visit the folds in order of execution."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if not isinstance(op.spec, SegmentSpec):
                continue
            while self._pull(net, op, outcome):
                pass
            fold: Op | None = op
            while fold is not None:
                fold = self._absorb(net, fold, outcome)
        return outcome

    def _pull(self, net: Network, op: Op, outcome: PassResult) -> bool:
        """Move a producer of the values into the fold, if one fits."""
        first = _first_value(op.known(SegmentSpec))
        static = net.preparable()
        for data in dict.fromkeys(o.data for o in net.ins(op)[first : first + len(op.known(SegmentSpec).value.inputs)]):
            writers = net.writers(data)
            if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest):
                continue
            refusal = Refusal("the value is computed once, before the calls")
            # A constant needs no operand, and no place to be kept in.
            if writers[0] not in static or op in static or not writers[0].spec.inputs:
                found = self._valued(net, op, writers[0], data)
                if not isinstance(found, Refusal):
                    outcome.passed((op, writers[0]))
                    outcome.saved_bytes += found
                    return True
                refusal = found
            outcome.missed(refusal, (op, writers[0]))
        return False

    def _valued(self, net: Network, op: Op, producer: Op, data: str) -> int | Refusal:
        """Inline ``producer``; the bytes that this saves, or why it is not done."""
        spec = op.known(SegmentSpec)
        p, ins, outs = drop_unit_loops(producer.known(LoopNest)), net.ins(op), net.outs(producer)
        first = _first_value(spec)
        own = tuple(ins[first : first + len(spec.value.inputs)])
        if p.inner or any(isinstance(s, Reduce) for s in p.body):
            return Refusal("the value is a reduction")
        if len(p.outputs) != 1:
            return Refusal("the producer has several results")
        kept = (
            data in net.result_containers() or net.readers(data) != [op] or data in {o.data for o in _others(spec, ins)}
        )
        if kept and not cheap_to_repeat(p):
            return Refusal("other operators need the value too, and computing it twice costs more")
        if any(isinstance(s, Gather) and s.checked for s in p.body) and not _sees_all(net, op):
            return Refusal("indices of points that are passed over have to be checked")
        (store,) = (s for s in p.body if isinstance(s, Store))
        v = spec.value
        loads = plain_reads(v, own, data)
        if loads is None:
            return Refusal("the values are read through indices or a mask")
        m = match(p, store, outs[0].offset, v, loads)
        if isinstance(m, Refusal):
            return m
        if p.points() * 4 < v.points() and any(s.op in COSTLY for s in p.body):
            return Refusal("the value would be computed once per broadcast element")
        numbers = dict.fromkeys(moved_loads(m.consumer, own, data), store.args[0])
        new = inline(p, net.ins(producer), outs, m, own, (VALUE,), numbers, keep_stores=False)
        if len(new.program.body) > self.max_statements or len(new.ins) > self.max_operands:
            return Refusal("the fold would be too long")
        if not net.allows(self, op, producer):
            return SWITCHED_OFF
        before = sum(map(sum, spec.footprint()))
        made = replace(spec, value=new.program)
        operands = [*ins[:first], *new.ins, *ins[first + len(own) :]]
        net.rewire(op, made, operands, net.outs(op), made_by=self.name, came_from=(producer,))
        if not kept:
            net.remove_op(producer, into=op)
            net.remove_container(data)
        return before - sum(map(sum, made.footprint())) + (0 if kept else producer.spec.bytes_moved())

    def _absorb(self, net: Network, op: Op, outcome: PassResult) -> Op | None:
        """Move a reader of the folded rows into the fold; the new operator, if one fits."""
        for data in dict.fromkeys(o.data for o in net.outs(op)):
            for consumer in net.readers(data):
                if not isinstance(consumer.spec, LoopNest):
                    continue
                found = self._finished(net, op, consumer, data)
                if isinstance(found, Op):
                    outcome.passed((op, consumer))
                    return found
                outcome.missed(found, (op, consumer))
        return None

    def _finished(self, net: Network, op: Op, consumer: Op, data: str) -> Op | Refusal:
        spec = op.known(SegmentSpec)
        c, ins, outs = drop_unit_loops(consumer.known(LoopNest)), net.ins(consumer), tuple(net.outs(op))
        first = _first_value(spec) + len(spec.value.inputs)
        old = Fused(spec.finish, (VALUE, *net.ins(op)[first:]), outs)
        if c.inner or any(isinstance(s, Reduce) for s in c.body):
            return Refusal("the consumer reduces")
        if any(o.data in {out.data for out in outs} - {data} for o in ins):
            return Refusal("the consumer reads two results of the fold")
        loads = plain_reads(c, ins, data)
        if loads is None:
            return Refusal("the consumer reads it through indices or a mask")
        stores = [s for s in old.program.body if isinstance(s, Store) and outs[s.operand].data == data]
        if len(stores) != 1:
            return Refusal("the fold writes it in several parts")
        at = outs[stores[0].operand].offset
        m = match(old.program, stores[0], at, c, loads)
        if isinstance(m, Refusal):
            return m
        partners = {d: m.partner(d) for d in range(len(old.program.outer))}
        place = {k: d for d, k in partners.items() if k is not None and m.consumer.dims[k] == old.program.outer[d]}
        if len(place) != len(old.program.outer) or len(place) != len(m.consumer.dims):
            return Refusal("the consumer does not run over the folded rows one to one")
        numbers = dict.fromkeys(moved_loads(m.consumer, ins, data), stores[0].args[0])
        results = net.result_containers()
        kept = {o.data for o in outs if o.data in results or set(net.readers(o.data)) - {consumer}}
        new = _value_first(extend(
            old.program, old.ins, old.outs, m, ins, net.outs(consumer), numbers,
            [place[k] for k in range(len(place))], keep=lambda s: outs[s.operand].data in kept,
        ))  # fmt: skip
        if not new.ins or new.ins[0] != VALUE:
            return Refusal("the consumer does not need the folded value")
        if len(new.program.body) > self.max_statements or len(new.ins) > self.max_operands:
            return Refusal("the finish would be too long")
        if any(isinstance(s, Gather) and s.checked for s in new.program.body):
            return Refusal("indices have to be checked before the fold")
        position = {o: float(i) for i, o in enumerate(net.ops())}
        where = place_of_both(net, op, consumer, position)
        if where is None:
            return Refusal("another operator needs the folded rows first")
        if not net.allows(self, op, consumer):
            return SWITCHED_OFF
        made = replace(spec, finish=new.program)
        fused = net.add_op(
            made, [*net.ins(op)[:first], *new.ins[1:]], new.outs, came_from=(consumer, op),
            made_by=self.name, before=where,
        )  # fmt: skip
        net.remove_op(consumer, into=fused)
        net.remove_op(op, into=fused)
        if data not in kept:
            net.remove_container(data)
        return fused


def _first_value(spec: SegmentSpec) -> int:
    """Number of the first operand of the values: after the list and the base."""
    return 2 if spec.base is None else 3


def _others(spec: SegmentSpec, ins: Sequence[Operand]) -> list[Operand]:
    """Operands that are none of the values'."""
    first = _first_value(spec)
    return [*ins[:first], *ins[first + len(spec.value.inputs) :]]


def _sees_all(net: Network, op: Op) -> bool:
    """Whether every point is in some group."""
    return all(w.known(GroupSpec).skip is None for w in net.writers(net.ins(op)[1].data))


def _value_first(f: Fused) -> Fused:
    """Inputs numbered with the folded value before all others."""
    order = sorted(range(len(f.ins)), key=lambda i: f.ins[i] != VALUE)
    place = {old: new for new, old in enumerate(order)}
    body = tuple(s.with_operand(place[s.operand]) if isinstance(s, Read) else s for s in f.program.body)
    inputs = tuple(f.program.inputs[i] for i in order)
    return Fused(replace(f.program, inputs=inputs, body=body), tuple(f.ins[i] for i in order), f.outs)
