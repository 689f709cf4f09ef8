"""A product of halves that is bound by memory runs in a kernel of the target's own, with its neighbours inside.

    y = x @ w; z = relu(y + r)                          -->   z = x @ w, stored as relu(value + r)
    y = conv1x1(x, w); s, q = sum(y), sum(y * y)        -->   y, s, q = x @ w with sums of its columns
    a = relu(x * scale + shift); y = conv1x1(a, w)      -->   y = relu(x * scale + shift) @ w, and a beside it where others read it

Convolutions of one tap with channels last are products of matrices. Neighbours run over the product's results, or over its first operand,
one to one, by the same arithmetic on strides as epilogues. Libraries multiply faster and fuse nothing: what is done here has to
be paid for by bytes that nobody moves any more (``cost/own_products.py``). Saves the writing and the reading of what lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.cuda import CudaMachine
from dcir.cost.own_products import Work, has_matrix_units, own_pays, parts_of
from dcir.cost.target import target_of
from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, extend, inline, match, moved_loads, plain_reads, same_way
from dcir.ir.loop_forms import collapse, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Load, Reduce, Store
from dcir.ir.types import compute_type
from dcir.ops.library.as_matrices import Matrices, as_matrices
from dcir.ops.library.fused_product import (
    FusedProduct,
    along,
    refused_as_product,
    refused_as_prologue,
    refused_as_tail,
)
from dcir.ops.library.product import VALUE, value_first
from dcir.transforms.base import Pass, PassResult

ONE_TO_ONE = Refusal("the neighbour does not run over the product's results one to one")


@dataclass
class _Growing:
    """A product with the neighbours that it has so far.

    Attributes:
        product: the operator as it is.
        matrices: it as matrices.
        tail: over columns and rows, with its operands; the product's value is ``VALUE``.
        head: the prologue and its operands.
        inside: the neighbours.
        static: what is computed once, before the calls.
    """

    product: Op
    matrices: Matrices
    tail: Fused
    head: Fused | None
    inside: list[Op]
    static: set[Op]


@dataclass(frozen=True)
class FuseAroundProducts(Pass):
    """Loop nests into products of halves.

    Attributes:
        max_operands: most operands of a kernel.
        max_sums: most reductions of a tail: each keeps sums of all columns in shared memory.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("assign-layouts",)
    before: ClassVar[tuple[str, ...]] = ("call-libraries",)
    in_bodies: ClassVar[bool] = False  # what pays is reckoned for kernels that fill the device
    max_operands: int = 16
    max_sums: int = 3

    def apply(self, net: Network) -> PassResult:
        """Visit products in order of execution."""
        outcome = PassResult.of(net)
        machine = target_of(net).machine
        if not isinstance(machine, CudaMachine):
            return outcome
        position = {op: float(i) for i, op in enumerate(net.ops())}
        static = net.preparable()
        for op in net.ops():
            found = as_matrices(op.spec)
            if found is None or op in static:
                continue
            if not isinstance(found, Refusal):
                state = _Growing(op, found, _stored(net, op, found), None, [], static)
                found = self._visit(net, state, machine, position, outcome) or found
            if isinstance(found, Refusal):
                outcome.missed(found, (op,))
        return outcome

    def _visit(
        self, net: Network, state: _Growing, machine: CudaMachine, position: dict[Op, float], outcome: PassResult
    ) -> Refusal | None:
        if not all(has_matrix_units(arch) for arch in machine.architectures):
            return Refusal("the device has no matrix units for halves")
        op, product = state.product, state.matrices.product
        refused = refused_as_product(product)
        if refused is not None:
            return refused
        while self._append(net, state, position, outcome):
            pass
        self._prepend(net, state, position, outcome)
        if not state.inside:
            return Refusal("no neighbour can run inside of it")
        work = _work(net, state, machine)
        if not pays("own product", own_pays(work, machine)):
            return Refusal("a library and kernels of the neighbours' own take less time")
        if not net.allows(self, op, *state.inside):
            return SWITCHED_OFF
        place = _place(net, [op, *state.inside], position)
        assert place is not None
        where, when = place
        made = _build(net, state, where, self.name)
        position[made] = when
        for other in (op, *state.inside):
            del position[other]
        outcome.passed((op, *state.inside))
        outcome.saved_bytes += work.product + work.neighbours - work.together
        return None

    def _append(self, net: Network, state: _Growing, position: dict[Op, float], outcome: PassResult) -> bool:
        """Take in one loop nest that reads a result."""
        for data in dict.fromkeys(o.data for o in state.tail.outs):
            for reader in sorted(net.readers(data), key=position.__getitem__):
                if not isinstance(reader.spec, LoopNest) or reader in state.inside:
                    continue
                grown = self._with(net, state, reader, data, position)
                if isinstance(grown, Refusal):
                    outcome.missed(grown, (state.product, reader))
                    continue
                state.tail = grown
                state.inside.append(reader)
                return True
        return False

    def _with(
        self, net: Network, state: _Growing, consumer: Op, data: str, position: dict[Op, float]
    ) -> Fused | Refusal:
        """The tail with a reader behind it; or why not."""
        old, ins = state.tail, net.ins(consumer)
        if consumer in state.static:
            return Refusal("it is computed once, before the calls")
        c = collapse(order_loops(drop_unit_loops(consumer.known(LoopNest))))
        loads = plain_reads(c, ins, data)
        stores = [s for s in old.program.body if isinstance(s, Store) and old.outs[s.operand].data == data]
        if loads is None or len(stores) != 1:
            return Refusal("the neighbour reads it through indices or a mask")
        m = match(old.program, stores[0], old.outs[stores[0].operand].offset, c, loads)
        if isinstance(m, Refusal):
            return m
        place = _places(old.program, m.consumer, [m.partner(d) for d in range(2)])
        if place is None:
            return ONE_TO_ONE
        numbers = dict.fromkeys(moved_loads(m.consumer, ins, data), stores[0].args[0])
        for other in {o.data for o in old.outs} & {o.data for o in ins} - {data}:
            more = same_way(old.program, old.outs, m, ins, other)
            if more is None:
                return Refusal("the neighbour reads two results in different ways")
            numbers.update(more)
        if _place(net, [state.product, *state.inside, consumer], position) is None:
            return Refusal("another operator needs the product first")
        inside, results = {consumer, *state.inside}, net.result_containers()
        kept = {o.data for o in old.outs if o.data in results or set(net.readers(o.data)) - inside}
        made = value_first(extend(
            old.program, old.ins, old.outs, m, ins, net.outs(consumer), numbers, place,
            keep=lambda s: old.outs[s.operand].data in kept,
        ))  # fmt: skip
        return self._unfit(made) or made

    def _unfit(self, made: Fused) -> Refusal | None:
        if not made.ins or made.ins[0] != VALUE:
            return Refusal("the neighbour does not need the product")
        if len(made.ins) + len(made.outs) > self.max_operands:
            return Refusal("the kernel would have too many operands")
        sums = [s for s in made.program.body if isinstance(s, Reduce)]
        if len(sums) > self.max_sums or any(s.dtype not in ("f32", "f64") for s in sums):
            return Refusal("it sums more than a block can keep")
        return refused_as_tail(made.program)

    def _prepend(self, net: Network, state: _Growing, position: dict[Op, float], outcome: PassResult) -> None:
        """Take in the loop nest that makes the first operand."""
        s, a = state.matrices.product, net.ins(state.product)[state.matrices.a]
        writers = net.writers(a.data)
        if (
            len(writers) != 1
            or not isinstance(writers[0].spec, LoopNest)
            or s.a != (s.k, 1)
            or writers[0] in state.inside
        ):
            return
        made = _prologue(net, state, writers[0], a)
        if (
            not isinstance(made, Refusal)
            and len(made.ins) + len(state.tail.ins) + len(state.tail.outs) > self.max_operands
        ):
            made = Refusal("the kernel would have too many operands")
        if not isinstance(made, Refusal) and _place(net, [state.product, *state.inside, writers[0]], position) is None:
            made = Refusal("another operator needs the operand first")
        if isinstance(made, Refusal):
            outcome.missed(made, (writers[0], state.product))
            return
        state.head = made
        state.inside.append(writers[0])


def _stored(net: Network, op: Op, found: Matrices) -> Fused:
    """The tail that does nothing but store."""
    s = found.product
    load, (row, column) = Load(0, (1, s.n), compute_type(s.types.c)), found.result
    body = (load, Store(0, (column, row), s.types.c, (0,)))
    return Fused(LoopNest((s.n,), (s.m,), (s.types.c,), (s.types.c,), body), (VALUE,), tuple(net.outs(op)))


def _places(p: LoopNest, c: LoopNest, partners: Sequence[int | None]) -> list[int] | None:
    """For every loop of a neighbour the tail's loop that it is: columns outside and rows inside, of one with reductions."""
    columns, rows = partners
    if columns is None or rows is None or len(c.dims) != 2 or {columns, rows} != {0, 1}:
        return None
    if (c.dims[columns], c.dims[rows]) != p.dims or (c.inner and (columns != 0 or len(c.outer) != 1)):
        return None
    return [0 if k == columns else 1 for k in range(2)]


def _place(net: Network, every: Sequence[Op], position: dict[Op, float]) -> tuple[Op, float] | None:
    """The operator before which all of them can run as one, and the position in between: late, but before anybody needs a result."""
    last = max(every, key=position.__getitem__)
    waiting = {r for op in every for o in net.outs(op) for r in net.readers(o.data)} - set(every)
    where = min((last, *waiting), key=position.__getitem__)
    if where is last:
        return last, position[last]
    sources = {w for op in every for o in net.ins(op) for w in net.writers(o.data)} - set(every)
    latest = max((position[w] for w in sources), default=-1.0)
    return (where, (latest + position[where]) / 2) if latest < position[where] else None


def _prologue(net: Network, state: _Growing, producer: Op, a: Operand) -> Fused | Refusal:
    """The first operand as the producer makes it, over rows and steps, and what others read of the producer's; or why not."""
    s = state.matrices.product
    if producer in state.static:
        return Refusal("it is computed once, before the calls")
    if sum(o.data == a.data for o in net.ins(state.product)) != 1:
        return Refusal("the product reads it twice")
    p, outs = collapse(order_loops(drop_unit_loops(producer.known(LoopNest)))), net.outs(producer)
    stores = [x for x in p.body if isinstance(x, Store) and outs[x.operand].data == a.data]
    if p.inner or len(stores) != 1 or p.points() != s.m * s.k:
        return Refusal("it makes more than the operand")
    c = LoopNest(
        (s.m, s.k), (), (s.types.a,), (s.types.a,),
        (Load(0, s.a, compute_type(s.types.a)), Store(0, s.a, s.types.a, (0,))),
    )  # fmt: skip
    m = match(p, stores[0], outs[stores[0].operand].offset, c, [(0, a.offset)])
    if isinstance(m, Refusal):
        return m
    if m.consumer.dims != c.dims:
        return Refusal("an operand walks the rows of the product in several parts")
    made = inline(p, net.ins(producer), outs, m, (a,), (VALUE,), {0: stores[0].args[0]}, keep_stores=True)
    others = set(net.readers(a.data)) - {state.product}
    made = _operand_first(made, "" if others or a.data in net.result_containers() else a.data)
    return refused_as_prologue(made.program, along(s)) or made


def _operand_first(f: Fused, dropped: str) -> Fused:
    """Outputs with the operand before all others, and without what nobody reads."""
    order = sorted(range(len(f.outs)), key=lambda i: f.outs[i] != VALUE)
    order = [i for i in order if f.outs[i].data != dropped or f.outs[i] == VALUE]
    body = tuple(
        x.with_operand(order.index(x.operand)) if isinstance(x, Store) else x
        for x in f.program.body
        if not isinstance(x, Store) or x.operand in order
    )
    place = {
        old: new
        for new, old in enumerate(
            i for i, x in enumerate(f.program.body) if not isinstance(x, Store) or x.operand in order
        )
    }
    body = tuple(x.renumbered(place) for x in body)
    outputs = tuple(f.program.outputs[i] for i in order)
    return Fused(replace(f.program, outputs=outputs, body=body), f.ins, tuple(f.outs[i] for i in order))


def _work(net: Network, state: _Growing, machine: CudaMachine) -> Work:
    s = state.matrices.product
    apart = sum(net.moved_by(op) for op in state.inside)
    spec = _spec(state)
    reads, writes = spec.footprint()
    parts = parts_of(s.m, s.n, s.k, machine.multiprocessors) if spec.in_parts else 1
    together = sum(reads) + sum(writes)
    return Work(s.m, s.n, s.k, net.moved_by(state.product), apart, together, len(state.inside), parts)


def _spec(state: _Growing) -> FusedProduct:
    s, head = state.matrices.product, state.head
    return FusedProduct(s, state.tail.program, None if head is None else head.program)


def _build(net: Network, state: _Growing, where: Op, by: str) -> Op:
    """The fused operator in the place of all that it is made of."""
    given = net.ins(state.product)
    head = [given[state.matrices.a]] if state.head is None else list(state.head.ins)
    ins = [*head, given[state.matrices.b], *state.tail.ins[1:]]
    gone = (state.product, *state.inside)
    beside = () if state.head is None else state.head.outs[1:]
    made = net.add_op(_spec(state), ins, [*beside, *state.tail.outs], came_from=gone, made_by=by, before=where)
    results = net.result_containers()
    old = {o.data for op in gone for o in net.outs(op)}
    for op in gone:
        net.remove_op(op, into=made)
    for name in old:
        if name not in results and not net.readers(name) and not net.writers(name):
            net.remove_container(name)
    return made
