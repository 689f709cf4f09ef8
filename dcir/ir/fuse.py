"""Two loop nests as one: where a consumer's loads lie in its producer's store, and the merged statement list.

Legality is arithmetic on strides. A store walks its container like the digits of a mixed-radix number, one digit per
loop; a load of the same container is legal to replace by the stored value if every address it makes decomposes into
those digits without a carry. So permuted, sliced, broadcast and reshaped reads all come out as one case: for every loop
of the producer, an affine function of the consumer's loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.many_sizes import holds_from
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Gather, Index, Load, Narrow, Read, Reduce, Store, Strides
from dcir.ir.types import compute_type


@dataclass(frozen=True)
class Match:
    """For every loop d of the producer: its index = start[d] + sum over consumer loops k of coefficient[d][k] * i_k.

    Attributes:
        consumer: the consumer, its loops split where a load runs across several of the producer's.
        start, coefficients: the map; loops of the producer that the store does not walk have None.
    """

    consumer: LoopNest
    start: tuple[int, ...]
    coefficients: tuple[tuple[int, ...] | None, ...]

    def partner(self, d: int) -> int | None:
        """The consumer loop that is exactly loop d of the producer, if there is one."""
        row = self.coefficients[d]
        if row is None or self.start[d]:
            return None
        used = [k for k, q in enumerate(row) if q]
        return used[0] if len(used) == 1 and row[used[0]] == 1 else None


def match(
    producer: LoopNest, store: Access, store_offset: int, consumer: LoopNest, loads: Sequence[tuple[int, int]]
) -> Match | Refusal:
    """Map the consumer's loops to the producer's.

    Args:
        producer: writes the container, by statement ``store`` from element ``store_offset`` on.
        store: the store statement.
        store_offset: first element of the store's operand.
        consumer: reads it.
        loads: (statement number, operand offset) of the consumer's loads of the container; all must agree.

    Returns:
        The match, or the reason why there is none.
    """
    digits = sorted(
        ((s, n, d) for d, (s, n) in enumerate(zip(store.strides, producer.dims, strict=True)) if n > 1 and s != 0),
        reverse=True,
    )
    walked = {d for _, _, d in digits}
    if any(s <= 0 for s, _, _ in digits):
        return Refusal("the producer stores backwards")
    for (high, _, _), (low, n, _) in itertools.pairwise(digits):
        if high < low * n:
            return Refusal("the producer's store overlaps itself")
    for _ in range(16):
        walk = _walk(consumer, loads, store_offset, digits)
        if isinstance(walk, Refusal):
            return walk
        start, rows = walk
        cut = _carry(consumer, digits, start, rows)
        if cut is None:
            return Match(
                consumer,
                tuple(start.get(d, 0) for d in range(len(producer.dims))),
                tuple(
                    tuple(rows[d]) if d in walked else ((0,) * len(consumer.dims) if n == 1 else None)
                    for d, n in enumerate(producer.dims)
                ),
            )
        if isinstance(cut, Refusal):
            return cut
        k, factor = cut
        places: list[int] = []
        consumer = _split_tracked(consumer, k, factor, [n for n, _ in loads], places)
        loads = [(new, off) for new, (_, off) in zip(places, loads, strict=True)]
    return Refusal("the consumer's loops do not tile the producer's")


def _walk(
    consumer: LoopNest, loads: Sequence[tuple[int, int]], store_offset: int, digits: Sequence[tuple[int, int, int]]
) -> tuple[dict[int, int], dict[int, list[int]]] | Refusal:
    """Where the consumer starts in the producer's loops, and how each of its loops moves there.

    Args:
        consumer, loads, store_offset: as for ``match``.
        digits: (stride, extent, loop) of the producer's store, outermost first.
    """
    number, offset = loads[0]
    steps = _strides(consumer, number)
    for other, off in loads[1:]:
        if _strides(consumer, other) != steps or off != offset:
            return Refusal("the consumer reads it in two ways")
    start, rest = {}, offset - store_offset
    for stride, _, d in digits:
        start[d], rest = divmod(rest, stride)
    if rest or any(v < 0 for v in start.values()):
        return Refusal("the consumer reads outside what is stored")
    rows = {d: [0] * len(consumer.dims) for _, _, d in digits}
    for k, (stride, n) in enumerate(zip(steps, consumer.dims, strict=True)):
        if n == 1 or stride == 0:
            continue
        if stride < 0:
            return Refusal("the consumer reads backwards")
        rest = stride
        for step, _, d in digits:
            rows[d][k], rest = divmod(rest, step)
        if rest:
            return Refusal("the consumer's strides are no multiples of the producer's")
    return start, rows


def _strides(p: LoopNest, number: int) -> Strides:
    """How the access of this number walks."""
    s = p.body[number]
    assert isinstance(s, Access)
    return s.strides


def _carry(
    consumer: LoopNest,
    digits: Sequence[tuple[int, int, int]],
    start: dict[int, int],
    rows: dict[int, list[int]],
) -> tuple[int, int] | Refusal | None:
    """None if no address carries from one digit to the next; else the consumer loop to split and its factor."""
    margins = []
    for _, extent, d in digits:
        reach = start[d] + sum(q * (consumer.dims[k] - 1) for k, q in enumerate(rows[d]))
        if reach < extent:
            margins.append(extent - 1 - reach)
            continue
        used = [k for k, q in enumerate(rows[d]) if q]
        if not used:  # one place, and beyond the digit: what lies there is no element of this store
            return Refusal("the consumer reads outside what is stored")
        k = max(used, key=lambda k: rows[d][k] * consumer.dims[k])
        q, n = rows[d][k], consumer.dims[k]
        if start[d] == 0 and extent % q == 0 and 1 < extent // q < n and n % (extent // q) == 0:
            return k, extent // q
        return Refusal("the consumer's loops do not tile the producer's")
    holds_from(*margins)
    return None


def _split_tracked(p: LoopNest, dim: int, factor: int, wanted: Sequence[int], places: list[int]) -> LoopNest:
    """``p.split`` and the new numbers of the statements ``wanted`` (a split index becomes several statements)."""
    extra = {i for i, s in enumerate(p.body) if isinstance(s, Index) and s.dim == dim}
    shift, new = 0, {}
    for i in range(len(p.body)):
        if i in extra:
            shift += 4  # high, low, factor, product: the sum takes the place of the index itself
        new[i] = i + shift
    places.extend(new[i] for i in wanted)
    return p.split(dim, factor)


def keeps_places(p: LoopNest, place: Sequence[int]) -> bool:
    """Whether what a program finds by its place, as an argmax, is found in the same order by loops of these numbers."""
    inner = place[len(p.outer) :]
    return list(inner) == sorted(inner) or not any(isinstance(s, Reduce) and s.is_place for s in p.body)


def plain_reads(c: LoopNest, ins: Sequence[Operand], data: str) -> list[tuple[int, int]] | None:
    """Statement number and operand offset of all that reads ``data``; None if some of it goes through indices or a mask."""
    reads = [(i, s) for i, s in enumerate(c.body) if isinstance(s, Read) and ins[s.operand].data == data]
    if any(isinstance(s, Gather) or s.args for _, s in reads):
        return None
    return [(i, ins[s.operand].offset) for i, s in reads]


def moved_loads(c: LoopNest, ins: Sequence[Operand], data: str) -> list[int]:
    """Numbers of the loads of ``data`` in a (possibly split) consumer."""
    return [i for i, s in enumerate(c.body) if isinstance(s, Load) and ins[s.operand].data == data]


def same_way(
    p: LoopNest, outs: Sequence[Operand], m: Match, ins: Sequence[Operand], data: str
) -> dict[int, int] | None:
    """Loads of another result of the producer and their values, if the same map of loops serves them."""
    stores = [s for s in p.body if isinstance(s, Store) and outs[s.operand].data == data]
    c = m.consumer
    loads = plain_reads(c, ins, data)
    if len(stores) != 1 or loads is None:
        return None
    other = match(p, stores[0], outs[stores[0].operand].offset, c, loads)
    if isinstance(other, Refusal) or other.consumer is not c:
        return None
    for d, row in enumerate(other.coefficients):  # a row's result does not walk the reduced loops: they may be anything
        if row is not None and (row, other.start[d]) != (m.coefficients[d], m.start[d]):
            return None
    return dict.fromkeys((i for i, _ in loads), stores[0].args[0])


@dataclass(frozen=True)
class Fused:
    """A merged program and its operands."""

    program: LoopNest
    ins: tuple[Operand, ...]
    outs: tuple[Operand, ...]


class _Merger:
    def __init__(self, outer: Sequence[int], inner: Sequence[int]) -> None:
        self.body = LoopNestBuilder(outer, inner)
        self.ins: dict[Operand, int] = {}
        self.outs: list[Operand] = []

    def take(
        self,
        p: LoopNest,
        ins: Sequence[Operand],
        outs: Sequence[Operand],
        strides: Callable[[Sequence[int]], tuple[tuple[int, ...], int]],
        index: Callable[[int], int],
        values: dict[int, int],
        keep: Callable[[Store], bool],
    ) -> dict[int, int]:
        """Append ``p``'s statements; ``values`` holds those already there. Returns all value numbers."""
        where = dict(values)
        for i, s in enumerate(p.body):
            if i in where:
                continue
            args = tuple(where[a] for a in s.args)
            if isinstance(s, Read):
                st, shift = strides(s.strides)
                o = ins[s.operand]
                operand = Operand(o.data, o.offset + shift)
                if operand not in self.ins:
                    self.ins[operand] = self.body.input(p.inputs[s.operand])
                where[i] = self.body.add(s.with_args(args).at(self.ins[operand], st))
            elif isinstance(s, Store):
                if keep(s):
                    st, shift = strides(s.strides)
                    o = outs[s.operand]
                    self.outs.append(Operand(o.data, o.offset + shift))
                    self.body.add(s.with_args(args).at(self.body.output(s.dtype), st))
                where[i] = -1
            elif isinstance(s, Index):
                where[i] = index(s.dim)
            else:
                where[i] = self.body.add(s.with_args(args))
        return where

    def handed_on(self, c: LoopNest, values: dict[int, int]) -> dict[int, int]:
        """``values``, which take the place of loads of ``c``, as a container of a half type would hand them on.

        A result of the same half type says no more of them than the type does; any other would show that they were never rounded.
        """
        reads = {i: s for i, s in enumerate(c.body) if i in values and isinstance(s, Read)}
        storage = {i: c.inputs[s.operand] for i, s in reads.items()}
        shows = {
            i for i, half in storage.items()
            if {*c.outputs} != {half}
            and not all(isinstance(s, Narrow) and s.storage == half for s in c.body if i in s.args)
        }  # fmt: skip
        return {i: self._rounded(v, storage[i]) if i in shows else v for i, v in values.items()}

    def _rounded(self, value: int, storage: str) -> int:
        made = self.body.body[value]
        is_read = isinstance(made, Load) and not made.args and self.body.inputs[made.operand] == storage
        if compute_type(storage) == storage or is_read or (isinstance(made, Narrow) and made.storage == storage):
            return value
        return self.body.narrow(Expr(self.body, value, compute_type(storage)), storage).n

    def affine(self, start: int, row: Sequence[int]) -> int:
        """The value start + sum(row[k] * i_k)."""
        total = None
        for k, q in enumerate(row):
            if not q:
                continue
            term = self.body.index(k)
            term = term if q == 1 else term * q
            total = term if total is None else total + term
        if total is None:
            return self.body.const(start, "i64").n
        return (total + start).n if start else total.n

    def finish(self) -> Fused:
        return compact(
            simplify(
                LoopNest(
                    self.body.outer,
                    self.body.inner,
                    tuple(self.body.inputs),
                    tuple(self.body.outputs),
                    tuple(self.body.body),
                )
            ),
            list(self.ins),
            self.outs,
        )


def compact(p: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]) -> Fused:
    """Drop operands that no statement uses."""
    read = sorted({s.operand for s in p.body if isinstance(s, Read)})
    written = sorted({s.operand for s in p.body if isinstance(s, Store)})
    body = []
    for s in p.body:
        if isinstance(s, Access):
            s = s.with_operand((written if isinstance(s, Store) else read).index(s.operand))
        body.append(s)
    program = LoopNest(
        p.outer, p.inner, tuple(p.inputs[i] for i in read), tuple(p.outputs[i] for i in written), tuple(body)
    )
    return Fused(program, tuple(ins[i] for i in read), tuple(outs[i] for i in written))


def inline(
    producer: LoopNest, p_ins: Sequence[Operand], p_outs: Sequence[Operand],
    m: Match, c_ins: Sequence[Operand], c_outs: Sequence[Operand], loads: Mapping[int, int], *, keep_stores: bool,
) -> Fused:  # fmt: skip
    """A pointwise producer computed inside the consumer's nest.

    Args:
        producer, p_ins, p_outs: the producer and its operands; it has no inner loops.
        m: the match.
        c_ins, c_outs: the consumer's operands.
        loads: loads to replace (statement numbers in ``m.consumer``) and the producer's value that each one reads.
        keep_stores: whether the producer's stores stay (the containers have other readers).
    """
    c = m.consumer
    out = _Merger(c.outer, c.inner)
    rank = len(c.dims)

    def strides(st: Sequence[int]) -> tuple[tuple[int, ...], int]:
        new, shift = [0] * rank, 0
        for d, s in enumerate(st):
            row = m.coefficients[d]
            if not s or row is None:
                continue
            shift += s * m.start[d]
            for k, q in enumerate(row):
                new[k] += s * q
        return tuple(v if n != 1 else 0 for v, n in zip(new, c.dims, strict=True)), shift

    def index(d: int) -> int:
        return out.affine(m.start[d], m.coefficients[d] or ())

    numbers = out.take(producer, p_ins, p_outs, strides, index, {}, lambda s: keep_stores)
    out.take(
        c, c_ins, c_outs, lambda st: (tuple(st), 0), lambda d: out.body.index(d).n,
        out.handed_on(c, {i: numbers[v] for i, v in loads.items()}), lambda s: True,
    )  # fmt: skip
    return out.finish()


def extend(
    producer: LoopNest, p_ins: Sequence[Operand], p_outs: Sequence[Operand],
    m: Match, c_ins: Sequence[Operand], c_outs: Sequence[Operand], loads: Mapping[int, int], place: Sequence[int],
    *, keep: Callable[[Store], bool],
) -> Fused:  # fmt: skip
    """The consumer appended to a producer with reduces, in the producer's nest.

    Args:
        producer, p_ins, p_outs, m, c_ins, c_outs, loads: as in ``inline``.
        place: for every loop of ``m.consumer``, the producer loop it becomes.
        keep: which of the producer's stores stay.
    """
    c = m.consumer
    out = _Merger(producer.outer, producer.inner)
    rank = len(producer.dims)
    numbers = out.take(producer, p_ins, p_outs, lambda st: (tuple(st), 0), lambda d: out.body.index(d).n, {}, keep)

    def strides(st: Sequence[int]) -> tuple[tuple[int, ...], int]:
        new = [0] * rank
        for k, s in enumerate(st):
            if s:
                new[place[k]] = s
        return tuple(new), 0

    out.take(
        c, c_ins, c_outs, strides, lambda k: out.body.index(place[k]).n,
        out.handed_on(c, {i: numbers[v] for i, v in loads.items()}), lambda s: True,
    )  # fmt: skip
    return out.finish()


def side_by_side(parts: Sequence[tuple[LoopNest, Sequence[Operand], Sequence[Operand]]]) -> Fused:
    """Programs with equal loops, one after the other at every point.

    Args:
        parts: each with its inputs and outputs; none of them reads what another writes.
    """
    first = parts[0][0]
    out = _Merger(first.outer, first.inner)
    for p, ins, outs in parts:
        out.take(p, ins, outs, lambda st: (tuple(st), 0), lambda d: out.body.index(d).n, {}, lambda s: True)
    return out.finish()


def place_of_both(net: Network, producer: Op, consumer: Op, position: dict[Op, float]) -> Op | None:
    """The place of the consumer if nobody needs the producer's results before, else the producer's if possible."""
    readers = {r for o in net.outs(producer) for r in net.readers(o.data)} - {consumer}
    if all(position[r] > position[consumer] for r in readers):
        return consumer
    sources = [w for o in net.ins(consumer) for w in net.writers(o.data) if w is not producer]
    return producer if all(position[w] < position[producer] for w in sources) else None
