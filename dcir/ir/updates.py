"""Updates: results that are written in place of inputs, after everything that reads what was there.

    y = p - lr * g, written where p lies

In the graph y is a container of its own, so every pass sees single assignment; ``Network.updates`` says that y and p share
memory. What that asks for is an order: all readers of p come before the writers of y, but for a writer that reads p element
by element at the place it writes (which other writers, of other parts of y, do not touch), for nothing that it stores later
elsewhere. What may fail comes before all writers, too (``checks.py``). ``settle`` restores the order after a pass; where there is none, y
is made elsewhere and copied last. Before its first write y holds what p does.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

from dcir.ir.checks import half_done
from dcir.ir.checks import waits as waits_for_checks
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest, stored_by
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand
from dcir.ir.statements import Gather, Read, Reduce, Store


def settle(net: Network) -> None:
    """Order the operators of ``net`` so that no update overwrites what is still read; a valid order stays as it is."""
    for data, source in list(net.updates.items()):
        if any(not _in_place(net, w, data, source) for w in net.writers(data) if w in net.readers(source)):
            _copy_last(net, data)
    if any(w.spec.index_checks() for data in net.updates for w in net.writers(data)):
        for data in half_done(net, _followers(net)):
            _copy_last(net, data)
    while True:
        order, stuck = _sorted(net)
        if not stuck:
            if order != net.ops():
                net.set_order(order)
            return
        # Some writer waits for a reader that waits for it: their updates are copied at the end.
        for data in list(net.updates):
            if any(w in stuck for w in net.writers(data)) and not _is_last_copy(net, data):
                _copy_last(net, data)


def violations(net: Network) -> Iterable[tuple[Op, str]]:
    """Readers of overwritten inputs that come too late, with the input's name."""
    position = {op: i for i, op in enumerate(net.ops())}
    for data, source in net.updates.items():
        writers = net.writers(data)
        for r in net.readers(source):
            if not _in_place(net, r, data, source) if r in writers else any(position[w] < position[r] for w in writers):
                yield r, source


def _sorted(net: Network) -> tuple[list[Op], set[Op]]:
    """The stable topological order with the updates' constraints, and the operators it cannot place."""
    ops = net.ops()
    position = {op: i for i, op in enumerate(ops)}
    followers = _followers(net)
    for op, writers in waits_for_checks(net, followers):
        followers[op] += writers
    waits = dict.fromkeys(ops, 0)
    for then in itertools.chain.from_iterable(followers.values()):
        waits[then] += 1
    heap = [position[op] for op in ops if not waits[op]]
    heapq.heapify(heap)
    order: list[Op] = []
    while heap:
        op = ops[heapq.heappop(heap)]
        order.append(op)
        for then in followers[op]:
            waits[then] -= 1
            if not waits[then]:
                heapq.heappush(heap, position[then])
    return order, set(ops) - set(order)


def checks_first(net: Network) -> list[tuple[Op, list[Op]]]:
    """Operators that check indices, each with the writers of updates that wait for it."""
    return waits_for_checks(net, _followers(net)) if net.updates else []


def _followers(net: Network) -> dict[Op, list[Op]]:
    """Who waits for whom: readers for writers, writers of updates for readers of what they replace, calls to the outside for each other."""
    followers: dict[Op, list[Op]] = {op: [] for op in net.ops()}

    def before(first: Op, then: Op) -> None:
        if first is not then:
            followers[first].append(then)

    for name in net.containers:
        readers = net.readers(name)
        for w in net.writers(name):
            for r in readers:
                before(w, r)
    for data, source in net.updates.items():
        writers = net.writers(data)
        for r in net.readers(source):
            for w in writers if r not in writers else ():
                before(r, w)
    for first, then in itertools.pairwise(op for op in net.ops() if op.spec.calls_out):
        before(first, then)
    return followers


def _in_place(net: Network, op: Op, data: str, source: str) -> bool:
    """Whether an operator that reads ``source`` and writes ``data`` needs each element only where it writes it."""
    spec, first = op.spec, 0
    if spec.updates_first_input:
        return keeps_most(net, op, data, source)
    ins, outs, p = net.ins(op), net.outs(op), stored_by(spec)
    if p is None:
        return False
    if p is not spec:
        first = len(ins) - (len(p.inputs) - 1)
        if any(o.data == source for o in ins[:first]):
            return False
        first -= 1
    if any(isinstance(s, Reduce) for s in p.body):
        return False
    ways, stores, reads = set(), [], []
    for i, s in enumerate(p.body):
        if isinstance(s, Store) and outs[s.operand].data == data:
            if any(d > 1 and not st for d, st in zip(p.dims, s.strides, strict=True)):
                return False
            ways.add((outs[s.operand].offset, s.strides))
            stores.append(i)
        elif isinstance(s, Read) and (first == 0 or s.operand > 0) and ins[s.operand + first].data == source:
            if isinstance(s, Gather):
                return False
            ways.add((ins[s.operand + first].offset, s.strides))
            reads.append(i)
    return len(ways) == 1 and _old_first(p, stores, reads, in_order=p is not spec)


def _old_first(p: LoopNest, stores: Sequence[int], reads: Sequence[int], *, in_order: bool) -> bool:
    """Whether no other store needs an old value later than ``stores`` overwrite it, at the same point.

    A loop nest may run as several, one after the other: stores that need nothing in common have no order. At a point of one of them
    everything is read before anything is stored; an epilogue runs in order, and may look at what it adds up once more at the end.
    """
    others = [i for i, s in enumerate(p.body) if isinstance(s, Store) and i not in stores]
    late = [i for i in others if not set(reads).isdisjoint(p.needed_by([i], ()))]
    if not late:
        return True
    if in_order:
        return max(reads) < min(stores) and not any(
            s.added for s in map(p.body.__getitem__, late) if isinstance(s, Store)
        )
    together = next(group for group in p.stores_apart() if stores[0] in group)
    return set(together).issuperset((*stores, *late))


def keeps_most(net: Network, op: Op, data: str, source: str, distance: int = 0) -> bool:
    """Whether an operator writes some elements of ``source`` and leaves the others as they are, if ``data`` lies where that lies.

    Args:
        net, op: the operator.
        data: what it writes.
        source: what it is made of.
        distance: from where ``source`` begins to where ``data`` does, in elements.
    """
    spec, ins, outs = op.spec, net.ins(op), net.outs(op)
    read = [o for o in ins if o.data == source]
    if len(read) != 1 or len(outs) != 1 or outs[0].data != data or read[0].offset != outs[0].offset + distance:
        return False
    if spec.updates_first_input:
        return ins[0] is read[0]
    if not isinstance(spec, LoopNest):
        return False
    pair = spec.as_copy()
    return pair is not None and _same(spec.dims, pair[0].strides, pair[1].strides)


def _same(shape: Iterable[int], a: Iterable[int], b: Iterable[int]) -> bool:
    return all(x == y for n, x, y in zip(shape, a, b, strict=True) if n > 1)


def _is_last_copy(net: Network, data: str) -> bool:
    writers = net.writers(data)
    return len(writers) == 1 and writers[0].made_by == "settle"


def _copy_last(net: Network, data: str) -> None:
    """Let the writers of an update write a transient, which others read and which is copied when all is done."""
    c = net.containers[data]
    made = net.add_container(c.shape, c.dtype, "transient", c.strides)
    for op in net.writers(data):
        outs = [Operand(made, o.offset) if o.data == data else o for o in net.outs(op)]
        net.rewire(op, op.spec.with_result_apart(), net.ins(op), outs)
    for op in net.readers(data):
        ins = [Operand(made, o.offset) if o.data == data else o for o in net.ins(op)]
        net.rewire(op, op.spec, ins, net.outs(op))
    body = LoopNestBuilder(c.shape)
    body.store(body.output(c.dtype), c.strides, body.load(body.input(c.dtype), c.strides))
    net.add_op(body.finish(), [Operand(made)], [Operand(data)], came_from=net.writers(made), made_by="settle")
