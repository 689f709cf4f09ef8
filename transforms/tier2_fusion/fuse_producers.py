"""Compute a value where it is read, instead of writing it and reading it back.

    t = f(x); y = g(t)            -->   y = g(f(x))                 t is never written
    t = f(x); y = g(t); z = h(t)  -->   t, y = f(x), g(f(x)); z = h(t)   t is written once more, read once less
    m = max(x); y = exp(x - m)    -->   one nest: the row's maximum, then the row again from cache

A pointwise producer moves into its reader's loops; a reader of a reduction moves into the reduction's loops, as a later
stage. Saves one write and one read of t (or only the read, where t has other readers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import (
    Fused,
    Match,
    extend,
    inline,
    keeps_places,
    match,
    moved_loads,
    place_of_both,
    plain_reads,
    same_way,
)
from dcir.ir.loop_forms import drop_unit_loops, side_by_side
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.scalars import COSTLY
from dcir.ir.statements import Gather, Index, Reduce, Store
from dcir.transforms.base import Pass, PassResult, Place


@dataclass
class _Pair:
    """A producer, a consumer and the container between them, with unit loops dropped."""

    net: Network
    producer: Op
    consumer: Op
    data: str
    p: LoopNest
    c: LoopNest
    store: Store
    kept: bool  # other operators, or the caller, need the container too
    gone: frozenset[str]  # of what the producer writes that which nobody needs once both are one


@dataclass
class _Asked:
    """What is known of who reads a container that ``producer`` writes.

    Attributes:
        against: a reader that had better be given the value than compute it, if one was found.
        left: readers that were not asked yet.
    """

    producer: Op
    against: Op | None
    left: list[Op]


@dataclass
class _Progress:
    """What one run of the pass keeps.

    Attributes:
        position: of the operators that there still are, in execution order.
        results: containers that the caller needs.
        asked: by container. Operators do not change, they are replaced: nobody has to be asked twice.
    """

    position: dict[Op, float]
    results: set[str]
    asked: dict[str, _Asked] = field(default_factory=dict)


@dataclass(frozen=True)
class FuseProducers(Pass):
    """Vertical fusion of loop nests.

    What a later pass of the pipeline reserves gets no more stages. A second run after that pass takes up what it has left.

    Attributes:
        max_operands: most operands of a fused kernel.
        max_statements: most statements of a fused kernel.
        row_bytes: largest row (all inner points of one outer point, 8 bytes each) that a second stage re-reads from cache;
            None: what the target's holds.
        block_bytes: the same of all rows that one job sums side by side, where memory runs along them; None likewise.
        max_repeated: most statements of a value that every reader computes itself.
        min_rows: least outer points of a reduction that gets later stages; fewer rows would starve the threads.
        spare_reads: whether a reader that reads all a value is made of computes it, though the value is stored for others; else only
            where no other reader needs it stored.
    """

    tier: ClassVar[int] = 2
    max_operands: int = 20
    max_statements: int = 160
    row_bytes: int | None = None
    block_bytes: int | None = None
    max_repeated: int = 24
    min_rows: int = 16
    spare_reads: bool = False

    def apply(self, net: Network) -> PassResult:
        """Fuse until nothing more fits, consumers in execution order."""
        return self.apply_at(net, Place())

    def apply_at(self, net: Network, place: Place) -> PassResult:
        """The same, but for what is reserved; only what was reserved if passes that did so have run since."""
        outcome = PassResult.of(net)
        progress = _Progress({op: float(i) for i, op in enumerate(net.ops())}, net.result_containers())
        static = net.preparable()
        for op in net.ops():
            current: Op | None = op if op in progress.position else None
            while current is not None and isinstance(current.spec, LoopNest):
                new = self._grow(net, current, progress, static, place, outcome)
                if new is not None and current in static:
                    static.add(new)
                current = new
        return outcome

    def _grow(
        self, net: Network, consumer: Op, progress: _Progress, static: set[Op], place: Place, outcome: PassResult
    ) -> Op | None:
        """Fuse one producer into ``consumer``; the fused operator, or None if none fits."""
        for data in dict.fromkeys(o.data for o in net.ins(consumer)):
            writers = net.writers(data)
            if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest) or writers[0] is consumer:
                continue
            if place.since and not place.released(net, writers[0]):
                continue
            # A smaller reader only makes something of the result, which whoever takes the producer can do as well.
            whole = consumer.known(LoopNest).points() >= writers[0].spec.points()
            if whole and (reserved := place.reserved(net, writers[0])) is not None:
                outcome.missed(reserved, (writers[0], consumer))
                continue
            if (
                writers[0] in static
                and consumer not in static
                and _worth_preparing(writers[0].spec, consumer.known(LoopNest))
            ):
                outcome.missed("the value is computed once, before the calls", (writers[0], consumer))
                continue
            new = self._try(net, writers[0], consumer, data, progress)
            if isinstance(new, Refusal):
                outcome.missed(new, (writers[0], consumer))
                continue
            outcome.passed((writers[0], consumer))
            return new
        return None

    def _try(self, net: Network, producer: Op, consumer: Op, data: str, progress: _Progress) -> Op | Refusal:
        p, c = drop_unit_loops(producer.known(LoopNest)), drop_unit_loops(consumer.known(LoopNest))
        if len(p.body) + len(c.body) > self.max_statements:
            return Refusal("the fused kernel would be too long")
        if len(p.inputs) + len(c.inputs) + len(p.outputs) + len(c.outputs) > self.max_operands:
            return Refusal("the fused kernel would have too many operands")
        outs = net.outs(producer)
        stores = [s for s in p.body if isinstance(s, Store) and outs[s.operand].data == data]
        if len(stores) != 1:
            return Refusal("the producer writes it in several parts")
        ins = net.ins(consumer)
        gone = frozenset(
            o.data for o in outs
            if o.data not in progress.results and all(r is consumer for r in net.readers(o.data))
        ).intersection(o.data for o in ins)  # fmt: skip
        kept = data not in gone
        pair = _Pair(net, producer, consumer, data, p, c, stores[0], kept, gone)
        loads = plain_reads(c, ins, data)
        if loads is None:
            return Refusal("the consumer reads it through indices or a mask")
        m = match(p, stores[0], outs[stores[0].operand].offset, c, loads)
        if isinstance(m, Refusal):
            return m
        numbers = dict.fromkeys(moved_loads(m.consumer, ins, data), stores[0].args[0])
        for other in {o.data for o in outs} & {o.data for o in ins} - {data}:
            more = same_way(p, outs, m, ins, other)
            if more is None:
                return Refusal("the consumer reads two results of the producer in different ways")
            numbers.update(more)
        pure = not p.inner and not any(isinstance(s, Reduce) for s in p.body)
        if pure and kept and (self._spared(pair) or self._everywhere(pair, progress)):
            fused = self._inline(pair, m, numbers, keep=False)
            return self._replace(pair, fused, consumer, progress, drop_producer=False)
        at = place_of_both(net, producer, consumer, progress.position)
        if pure and (at is None or not _may_keep(pair, m)):
            # The container stays for its other readers; this one computes the value again if that is cheap.
            if not self._cheap(pair, m):
                return Refusal("other operators need the value first, and computing it twice costs more")
            fused = self._inline(pair, m, numbers, keep=False)
            return self._replace(pair, fused, consumer, progress, drop_producer=not kept and len(p.outputs) == 1)
        if at is None:
            return Refusal("another operator needs the value first")
        if pure:
            costly = any(s.op in COSTLY for s in p.body)
            if costly and pays("broadcast, costly", m.consumer.points() > 4 * p.points()):
                return Refusal("the value would be computed once per broadcast element")
            if kept and m.consumer.inner and self._starved(m.consumer):
                return Refusal("the reduction has too few rows for more work")
            fused = self._inline(pair, m, numbers, keep=kept or len(p.outputs) > 1)
        else:
            later = self._extend(pair, m, numbers)
            if isinstance(later, Refusal):
                return later
            fused = later
        return self._replace(pair, fused, at, progress, drop_producer=True)

    def _starved(self, p: LoopNest) -> bool:
        """Whether a reduction has too few rows to keep the threads busy with anything else."""
        return pays("rows starve threads", math.prod(p.outer) < self.min_rows and p.points() > 16384)

    # ------------------------------------------------------------------ who had better compute the value
    def _repeatable(self, p: LoopNest) -> bool:
        """Whether a value may be computed several times."""
        if len(p.outputs) != 1 or len(p.body) > self.max_repeated:
            return False
        return not any(s.op in COSTLY or isinstance(s, (Gather, Index)) for s in p.body)

    def _spared(self, pair: _Pair) -> bool:
        """Whether the consumer reads less if it computes the value."""
        net, p = pair.net, pair.p
        if not self.spare_reads or not self._repeatable(p):
            return False
        reads, writes = p.footprint()
        both = zip(net.ins(pair.producer), reads, strict=True)
        large = {o.data: n for o, n in both if pays("large operand", 8 * n > writes[0])}
        return _computes(net, pair.consumer, p, large, max(writes[0] - 1, 0))

    def _everywhere(self, pair: _Pair, progress: _Progress) -> bool:
        """Whether every reader had better compute the value itself: it reads most of what the value is made of in any case."""
        net, p = pair.net, pair.p
        if pair.data in progress.results or not self._repeatable(p):
            return False
        asked = progress.asked.get(pair.data)
        if asked is None or asked.producer is not pair.producer:
            asked = progress.asked[pair.data] = _Asked(pair.producer, None, net.readers(pair.data))
        if asked.against in progress.position:
            return False
        asked.against = None
        reads, writes = p.footprint()
        both = zip(net.ins(pair.producer), reads, strict=True)
        large = {o.data: n for o, n in both if pays("large operand", 8 * n > writes[0])}
        while asked.left:
            reader = asked.left.pop()
            if reader in progress.position and not _computes(net, reader, p, large, writes[0]):
                asked.against = reader
                return False
        return True

    def _cheap(self, pair: _Pair, m: Match) -> bool:
        p = pair.p
        if len(p.outputs) != 1 or any(s.op in COSTLY for s in p.body) or len(p.body) > 12:
            return False
        reads, writes = p.footprint()
        return pays("cheap to repeat", sum(reads) <= writes[0] and m.consumer.points() <= 4 * p.points())

    # ------------------------------------------------------------------ the fused program
    def _inline(self, pair: _Pair, m: Match, loads: dict[int, int], *, keep: bool) -> Fused:
        net, p = pair.net, pair.p
        fused = inline(
            p, net.ins(pair.producer), net.outs(pair.producer),
            m, net.ins(pair.consumer), net.outs(pair.consumer), loads, keep_stores=keep,
        )  # fmt: skip
        return _without(fused, pair.gone) if keep and pair.gone else fused

    def _extend(self, pair: _Pair, m: Match, loads: dict[int, int]) -> Fused | Refusal:
        p = pair.p
        lanes = side_by_side(p)
        memory = target_of(pair.net).costs.memory
        most = (self.row_bytes or memory.row_bytes) if lanes == 1 else (self.block_bytes or memory.block_bytes)
        if pays("rows beyond cache", math.prod(p.inner) * 8 * lanes > most):
            return Refusal("the rows of the reduction do not fit into cache")
        if self._starved(p):
            return Refusal("the reduction has too few rows for more work")
        n_outer = len(p.outer)
        full = any(pair.store.strides[n_outer:])
        place: dict[int, int] = {}
        for d in range(len(p.dims) if full else n_outer):
            k = m.partner(d)
            if k is None or k in place or m.consumer.dims[k] != p.dims[d]:
                return Refusal("the consumer does not run over the reduction's rows")
            place[k] = d
        c = m.consumer
        free = [k for k in range(len(c.dims)) if k not in place]
        inner = list(range(len(c.outer), len(c.dims)))
        if full and (free or (inner and sorted(place[k] for k in inner) != list(range(n_outer, len(p.dims))))):
            return Refusal("the consumer's loops differ from the reduction's")
        if not full and inner and free != inner:
            return Refusal("the consumer reduces over other loops")
        if free:
            if [c.dims[k] for k in free] != list(p.inner):
                return Refusal("the consumer's rows differ from the reduction's")
            place.update({k: n_outer + i for i, k in enumerate(free)})
        numbers = [place[k] for k in range(len(c.dims))]
        if not keeps_places(c, numbers):
            return Refusal("the consumer's places are counted in another order")
        net = pair.net
        outs = net.outs(pair.producer)
        return extend(
            p, net.ins(pair.producer), outs,
            m, net.ins(pair.consumer), net.outs(pair.consumer), loads, numbers,
            keep=lambda s: outs[s.operand].data not in pair.gone,
        )  # fmt: skip

    def _replace(self, pair: _Pair, fused: Fused, at: Op, progress: _Progress, *, drop_producer: bool) -> Op | Refusal:
        net, position, both = pair.net, progress.position, (pair.consumer, pair.producer)
        if not net.allows(self, pair.producer, pair.consumer):
            return SWITCHED_OFF
        new = net.add_op(fused.program, fused.ins, fused.outs, came_from=both, made_by=self.name, before=at)
        position[new] = position[at]
        for op in both if drop_producer else (pair.consumer,):
            net.remove_op(op, into=new)
            del position[op]
        for data in {o.data for o in fused.ins} & progress.asked.keys():
            progress.asked[data].left.append(new)
        for data in pair.gone:
            if not net.readers(data) and not net.writers(data):
                net.remove_container(data)
        return new


def _computes(net: Network, reader: Op, p: LoopNest, large: dict[str, int], written: int) -> bool:
    """Whether a reader of a value had better compute it by ``p`` than be given it: ``large`` is what ``p`` reads most, by container."""
    c = reader.spec
    if not isinstance(c, LoopNest) or any(isinstance(s, Reduce) and s.is_place for s in c.body):
        return False
    known = {o.data for o in net.ins(reader)}
    if pays("reads more", sum(n for data, n in large.items() if data not in known) > written):
        return False
    return pays("computes less", drop_unit_loops(c).points() <= p.points())


def _worth_preparing(p: LoopNest, consumer: LoopNest) -> bool:
    """Whether reading a static producer's result costs no more than reading what it is made of."""
    if not p.inputs:
        return False
    reads, writes = p.footprint()
    return pays("worth preparing", sum(reads) >= sum(writes) or p.points() < consumer.points())


def _may_keep(pair: _Pair, m: Match) -> bool:
    """Whether the producer's stores can stay in the consumer's nest: one to one, or once per row of a reduction."""
    if not pair.kept and len(pair.p.outputs) == 1:
        return True
    partners = [m.partner(d) for d in range(len(pair.p.dims))]
    if len(set(partners)) != len(partners):
        return False
    if any(k is None or m.consumer.dims[k] != n for k, n in zip(partners, pair.p.dims, strict=True)):
        return False  # a consumer that reads a slice would leave the rest of the container unwritten
    free = set(range(len(m.consumer.dims))) - set(partners)
    reduces = any(isinstance(s, Reduce) for s in m.consumer.body)
    return not free or (reduces and all(k >= len(m.consumer.outer) for k in free))


def _without(fused: Fused, gone: frozenset[str]) -> Fused:
    """The fused program without its stores to some containers."""
    from dcir.ir.fuse import compact
    from dcir.ir.loop_nest import simplify

    p = fused.program
    keep = simplify(p, lambda s: isinstance(s, Store) and fused.outs[s.operand].data not in gone)
    return compact(keep, fused.ins, fused.outs)
