"""What follows a matrix product or a convolution, element by element, happens before the product is stored.

    t = x @ w; y = relu(t + b)                   -->   y = x @ w, stored as relu(value + b)
    t = conv(x, w); u = norm(t); y = relu(u + r) -->   y = conv(x, w), stored as relu(norm(value) + r)

A pointwise program joins the product that it reads last if its loops run over the product's results one to one: in any order, with
dimensions of the product cut in parts as long as every other operand walks the parts as one (``dcir.ir.fuse.match``, as digits of
a mixed-radix number). The pointwise producers of other operands follow where nobody else reads them. A result with other readers is
stored too. Saves one write and one read of all results for every program that joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, Match, extend, inline, match, moved_loads, place_of_both, plain_reads, same_way
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Access, Gather, Index, Load, Reduce, Store
from dcir.ir.types import HALVES
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.product import VALUE, Product, epilogue_of, is_product, packs_much, set_epilogue, value_first
from dcir.transforms.base import Pass, PassResult

LEAST_ROWS = 32
"""Rows of a product that are worth a matrix of their own in a batch."""


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Pointwise programs into the products before them.

    Attributes:
        max_operands: most operands of an epilogue, the product's value not counted.
        max_statements: most statements of an epilogue.
    """

    tier: ClassVar[int] = 2
    max_operands: int = 10
    max_statements: int = 60

    def apply(self, net: Network) -> PassResult:
        """Visit pointwise programs in order of execution, then the other operands of epilogues."""
        outcome = PassResult.of(net)
        position = {op: float(i) for i, op in enumerate(net.ops())}
        for op in net.ops():
            if (
                is_product(op.spec)
                and isinstance(op.spec, ConvolutionSpec)
                and op.spec.bias
                and op.spec.epilogue is None
                and outcome.allowed(self, net, op)
            ):
                spec, epilogue = epilogue_of(net, op)
                set_epilogue(net, op, spec, epilogue, self.name)
                outcome.passed((op,), reason="the bias is a part of the epilogue")
        for op in net.ops():
            if isinstance(op.spec, LoopNest) and _pointwise(op.spec):
                self._absorb(net, op, position, outcome)
        static = net.preparable()  # what is moved from here on makes no operator and changes none of them
        for op in net.ops():
            if is_product(op.spec) and op.spec.epilogue is not None:
                while self._pull(net, op, position, static, outcome):
                    pass
        return outcome

    def _absorb(self, net: Network, consumer: Op, position: dict[Op, float], outcome: PassResult) -> None:
        """Let the latest product that ``consumer`` reads, and that can, take it over."""
        products: dict[Op, str] = {}
        for o in net.ins(consumer):
            writers = net.writers(o.data)
            if len(writers) == 1 and is_product(writers[0].spec):
                products.setdefault(writers[0], o.data)
        for product in sorted(products, key=position.__getitem__, reverse=True):
            reason = self._try(net, product, consumer, products[product], position, outcome)
            if reason is None:
                return
            outcome.missed(reason, (product, consumer))

    def _try(
        self, net: Network, product: Op, consumer: Op, data: str, position: dict[Op, float], outcome: PassResult
    ) -> Refusal | None:
        """Move ``consumer`` into the epilogue of ``product``, which wrote ``data``; the reason why not."""
        if packs_much(net, product, target_of(net).machine.isa):
            return Refusal("with an epilogue the product would have to pack a large operand in every call")
        spec, old = epilogue_of(net, product)
        c, ins = drop_unit_loops(consumer.known(LoopNest)), net.ins(consumer)
        loads = plain_reads(c, ins, data)
        if loads is None:
            return Refusal("the consumer reads it through indices or a mask")
        stores = [s for s in old.program.body if isinstance(s, Store) and old.outs[s.operand].data == data]
        if len(stores) != 1:
            return Refusal("the product writes it in several parts")
        at = old.outs[stores[0].operand].offset
        m = match(old.program, stores[0], at, c, loads)
        if isinstance(m, Refusal):
            return m
        numbers = dict.fromkeys(moved_loads(m.consumer, ins, data), stores[0].args[0])
        for other in {o.data for o in old.outs} & {o.data for o in ins} - {data}:
            more = same_way(old.program, old.outs, m, ins, other)
            if more is None:
                return Refusal("the consumer reads two results of the product in different ways")
            numbers.update(more)
        fitted = _fit(spec, old, m)
        if isinstance(fitted, Refusal):
            return fitted
        spec, old, whole, place = fitted
        results = net.result_containers()
        kept = {o.data for o in old.outs if o.data in results or set(net.readers(o.data)) - {consumer}}
        if data in kept and _widens_for_loops(net, consumer, c):
            return Refusal("what reads the wider copy of a stored half can widen it as well")
        new = value_first(extend(
            old.program, old.ins, old.outs, replace(m, consumer=whole), ins, net.outs(consumer), numbers, place,
            keep=lambda s: old.outs[s.operand].data in kept,
        ))  # fmt: skip
        reason = self._unfit(new)
        if reason is not None:
            return reason
        where = place_of_both(net, product, consumer, position)
        if where is None:
            return Refusal("another operator needs the product first")
        if not net.allows(self, product, consumer):
            return SWITCHED_OFF
        outcome.saved_bytes += net.moved_by(product) + net.moved_by(consumer)
        fused = set_epilogue(net, product, spec, new, self.name, before=where, came_from=(consumer,))
        outcome.saved_bytes -= net.moved_by(fused)
        position[fused] = position[where]
        _remove(net, [consumer, product], position, fused)
        outcome.passed((product, consumer))
        return None

    def _unfit(self, new: Fused) -> Refusal | None:
        p = new.program
        if not new.ins or new.ins[0] != VALUE:
            return Refusal("the consumer does not need the product")
        if len(new.ins) - 1 > self.max_operands:
            return Refusal("the epilogue would have too many operands")
        if len(p.body) > self.max_statements:
            return Refusal("the epilogue would be too long")
        if any(isinstance(s, Gather) and s.checked for s in p.body):
            return Refusal("indices have to be checked before the product")
        return None

    def _pull(self, net: Network, product: Op, position: dict[Op, float], static: set[Op], outcome: PassResult) -> bool:
        """Compute one operand of an epilogue where it is read, if nobody else reads it."""
        spec, old = epilogue_of(net, product)
        for data in dict.fromkeys(o.data for o in old.ins[1:]):
            writers = net.writers(data)
            if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest) or not _pointwise(writers[0].spec):
                continue
            producer = writers[0]
            new = _inlined(net, product, producer, old, data, static)
            if not isinstance(new, Refusal):
                reason = self._unfit(new) or (None if net.allows(self, product, producer) else SWITCHED_OFF)
                if reason is None:
                    outcome.saved_bytes += net.moved_by(product) + net.moved_by(producer)
                    set_epilogue(net, product, spec, new, self.name, came_from=(producer,))
                    outcome.saved_bytes -= net.moved_by(product)
                    _remove(net, [producer], position, product)
                    outcome.passed((product, producer))
                    return True
                new = reason
            outcome.missed(new, (product, producer))
        return False


def _widens_for_loops(net: Network, consumer: Op, p: LoopNest) -> bool:
    """Whether a loop nest is a copy of halves in a wider type, which loop nests alone read."""
    plain = len(p.inputs) == len(p.outputs) == 1 and all(isinstance(s, Load | Store) for s in p.body)
    name = net.outs(consumer)[0].data
    if not plain or p.inputs[0] not in HALVES or p.outputs[0] in HALVES or name in net.result_containers():
        return False
    return all(isinstance(r.spec, LoopNest) for r in net.readers(name))


def _pointwise(p: LoopNest) -> bool:
    return not p.inner and p.points() > 0 and not any(isinstance(s, Reduce) for s in p.body)


def _remove(net: Network, ops: Sequence[Op], position: dict[Op, float], into: Op) -> None:
    """Take operators out that have become a part of another, and the containers that nobody needs any more."""
    results = net.result_containers()
    for op in ops:
        outs = {o.data for o in net.outs(op)}
        net.remove_op(op, into=into)
        position.pop(op, None)
        for name in outs:
            if name not in results and not net.readers(name) and not net.writers(name):
                net.remove_container(name)


def _fit(spec: Product, old: Fused, m: Match) -> tuple[Product, Fused, LoopNest, list[int]] | Refusal:
    """The consumer over the product's loops: the product and its epilogue (dimensions of the batch, or rows, may have been cut in parts),
    the consumer with loops in the product's order, and for each of them the product's dimension it is."""
    c, used, groups = m.consumer, set[int](), []
    if c.points() < old.program.points():
        return Refusal("the consumer reads only a part of the product")
    for d, (row, extent) in enumerate(zip(m.coefficients, old.program.outer, strict=True)):
        if extent == 1:
            continue
        loops = sorted((k for k, q in enumerate(row or ()) if q), key=lambda k: (row or ())[k], reverse=True)
        step = extent
        for k in loops:
            step, rest = divmod(step, c.dims[k])
            if rest or row is None or row[k] != step or k in used:
                return Refusal("the consumer does not run over the product's results one to one")
            used.add(k)
        if step != 1 or m.start[d]:
            return Refusal("the consumer does not run over the product's results one to one")
        groups.append((d, loops))
    if any(k not in used for k, n in enumerate(c.dims) if n > 1) or len(used) != len(c.dims):
        return Refusal("the consumer does not run over the product's results one to one")
    whole = c.reorder([k for _, loops in groups for k in loops], ())
    place: list[int] = []
    added = 0
    for d, loops in groups:
        d += added
        for _ in loops[1:]:
            at = len(place)
            merged = _merged(whole, at)
            if merged is not None:
                whole = merged
                continue
            inner = old.program.outer[d] // whole.outer[at]
            parts = _split(spec, d, inner)
            if isinstance(parts, Refusal):
                return parts
            if any(isinstance(s, Index) and s.dim == d for s in old.program.body):
                return Refusal("the epilogue counts along a dimension that would be cut in parts")
            spec, old = parts, replace(old, program=old.program.split(d, inner))
            place.append(d)
            added, d = added + 1, d + 1
        place.append(d)
    return spec, old, whole, place


def _merged(p: LoopNest, at: int) -> LoopNest | None:
    """The program with loops ``at`` and ``at + 1`` as one, if every address walks them as one."""
    n = p.outer[at + 1]
    if any(s.strides[at] != s.strides[at + 1] * n for s in p.body if isinstance(s, Access)):
        return None
    if any(s.dim in (at, at + 1) for s in p.body if isinstance(s, Index)):
        return None
    body = tuple(s.over_loops(lambda st: (*st[:at], *st[at + 1 :]), lambda d: d - (d > at)) for s in p.body)
    return replace(p, outer=(*p.outer[:at], p.outer[at] * n, *p.outer[at + 2 :]), body=body)


def _split(spec: Product, d: int, inner: int) -> ContractionSpec | Refusal:
    """The product with dimension ``d`` in two, of which the second has ``inner`` elements: one more dimension of the batch."""
    rank = len(spec.batch) if isinstance(spec, ContractionSpec) else -1
    if not isinstance(spec, ContractionSpec) or d > rank or (d == rank and pays("few rows", inner < LEAST_ROWS)):
        return Refusal("an operand walks a dimension of the product in several parts")

    def cut(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:d], strides[d] * inner, *strides[d:])

    if d == rank:  # rows: the other matrix is the same for all parts
        b = (*spec.b[:d], 0, *spec.b[d:])
        batch = (*spec.batch, spec.m // inner)
        return replace(spec, batch=batch, m=inner, a=cut(spec.a), b=b, c=cut(spec.c))
    batch = (*spec.batch[:d], spec.batch[d] // inner, inner, *spec.batch[d + 1 :])
    return replace(spec, batch=batch, a=cut(spec.a), b=cut(spec.b), c=cut(spec.c))


def _inlined(net: Network, product: Op, producer: Op, old: Fused, data: str, static: set[Op]) -> Fused | Refusal:
    """The epilogue with an operand's pointwise producer inside."""
    also = net.result_containers() | {o.data for o in net.ins(product)[:2]}
    if net.readers(data) != [product] or data in also or len(producer.known(LoopNest).outputs) != 1:
        return Refusal("an operand has other readers")
    if producer in static:
        return Refusal("an operand is computed once, before the calls")
    p, outs = drop_unit_loops(producer.known(LoopNest)), net.outs(producer)
    (store,) = (s for s in p.body if isinstance(s, Store))
    e = old.program
    loads = plain_reads(e, old.ins, data)
    if loads is None:
        return Refusal("the epilogue reads an operand through indices or a mask")
    m = match(p, store, outs[0].offset, e, loads)
    if isinstance(m, Refusal):
        return m
    if m.consumer is not e:
        return Refusal("an operand's producer cuts the product's dimensions in parts")
    if e.points() > p.points():
        return Refusal("an operand would be computed once per broadcast element")
    numbers = dict.fromkeys((i for i, _ in loads), store.args[0])
    return value_first(inline(p, net.ins(producer), outs, m, old.ins, old.outs, numbers, keep_stores=False))
