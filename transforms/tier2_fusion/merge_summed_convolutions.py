"""A sum of equal convolutions of different images is one convolution, with the images as taps of one more dimension.

    s = conv(a, v) + p                -->   ab = [a, b], vw = [v, w], pq = p + q, the latter two once per weights
    t = conv(b, w) + q; y = f(s + t)        y = f(conv(ab, vw) + pq)

The images are written side by side in the first place: their writers and readers get windows of one container, and an
image that others read before the last is there is stored twice. Algebra: addition is regrouped, as it is along the inputs
of one convolution. Saves a write and a read of the sum per convolution that joins. The images live until the last of them
is there: ``max_weights`` and ``max_images`` bound how many join.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, stored_by
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Compute, Load, Read, Statement, Store
from dcir.ir.types import FLOATS, itemsize
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import first_store, identity_epilogue
from dcir.transforms.base import Pass, PassResult


@dataclass(frozen=True)
class Term:
    """One convolution of a sum.

    Attributes:
        op: the convolution.
        fixed: operands of its epilogue that it adds: one static number per channel, with the stride of the channels.
        others: statements of the epilogue that load what else it adds.
        plain: whether it does nothing but add.
    """

    op: Op
    fixed: tuple[tuple[Operand, int], ...]
    others: tuple[int, ...]
    plain: bool


@dataclass(frozen=True)
class MergeSummedConvolutions(Pass):
    """Sums of convolutions with static weights into convolutions over side by side images.

    Attributes:
        max_weights: most bytes of the weights of what is joined: they and a strip of every image stay in a core's cache;
            None: what the target's holds.
        max_images: most bytes of the images side by side: they live at one time, and leave the last cache before they are read;
            None likewise.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("fuse-epilogues",)
    before: ClassVar[tuple[str, ...]] = ("use-winograd", "pack-weights")
    max_weights: int | None = None
    max_images: int | None = None

    def apply(self, net: Network) -> PassResult:
        """Visit sums from their last convolution back."""
        outcome = PassResult.of(net)
        ready = net.preparable()
        static = net.static_containers(ready)
        done: set[Op] = set()
        for op in reversed(net.ops()):
            if op in ready or op in done:
                continue
            term = _term(net, op, static)
            if term is None:
                continue
            chain = [term]
            while (found := self._before(net, chain, static)) is not None:
                if isinstance(found, Refusal):
                    outcome.missed(found, [t.op for t in chain])
                    break
                chain.append(found)
            done |= {t.op for t in chain}
            if len(chain) > 1:
                self._join(net, chain[::-1], outcome)
        return outcome

    def _before(self, net: Network, chain: Sequence[Term], static: set[str]) -> Term | Refusal | None:
        """The term whose sum the chain's earliest one adds; None if it adds no convolution, else the reason why not."""
        last = chain[-1]
        refusal = None
        for number in last.others:
            ins = net.ins(last.op)
            at = ins[_loaded(last.op, number).operand + 1]
            writers = net.writers(at.data)
            if len(writers) != 1 or not isinstance(writers[0].spec, ConvolutionSpec):
                continue
            term = _term(net, writers[0], static)
            if term is None:
                refusal = Refusal("a convolution that is added has no static weights in their own order")
                continue
            refusal = _unfit(net, term, last, number, at) or _apart(net, term, chain)
            if refusal is None:
                return term
        return refusal

    def _join(self, net: Network, chain: Sequence[Term], outcome: PassResult) -> None:
        spec = chain[0].op.known(ConvolutionSpec)
        weights, image = (itemsize(spec.dtype) * math.prod(spec.shapes[i]) for i in (1, 0))
        memory = target_of(net).costs.memory
        most_weights, most_images = self.max_weights or memory.weight_bytes, self.max_images or memory.image_bytes
        most = min(most_weights // weights, most_images // image)
        if most < 2:
            outcome.missed("their weights or images would not stay in a cache", [t.op for t in chain])
            return
        parts = -(-len(chain) // most)
        for i in range(parts):
            part = chain[i * len(chain) // parts : (i + 1) * len(chain) // parts]
            ops = [t.op for t in part]
            if len(part) > 1 and outcome.allowed(self, net, *ops):
                before = sum(sum(map(sum, t.op.spec.footprint())) for t in part)
                made = self._convolution(net, part)
                outcome.passed(ops, count=len(part))
                outcome.saved_bytes += before - sum(map(sum, made.spec.footprint()))

    def _convolution(self, net: Network, part: Sequence[Term]) -> Op:
        """One convolution in place of the part's last."""
        last = part[-1].op
        spec = last.known(ConvolutionSpec)
        images = _side_by_side(net, [t.op for t in part])
        weights = self._weights(net, part)
        epilogue, ins = self._epilogue(net, part)
        count, span = len(part), net.containers[images.data].size // len(part)
        split = epilogue.split(2, spec.out_size[0])
        made = replace(
            spec, in_size=(count, *spec.in_size), kernel=(count, *spec.kernel), out_size=(1, *spec.out_size),
            stride=(1, *spec.stride), padding=(0, *spec.padding), dilation=(1, *spec.dilation),
            x=(*spec.x[:2], span, *spec.x[2:]), w=_weight_strides(spec), y=first_store(split).strides, epilogue=split,
        )  # fmt: skip
        net.rewire(last, made, [images, weights, *ins], net.outs(last), made_by=self.name)
        summed = {o.data for term in part[:-1] for o in net.outs(term.op)}
        for term in part[:-1]:
            net.remove_op(term.op, into=last)
        for name in summed:
            net.remove_container(name)
        return last

    def _weights(self, net: Network, part: Sequence[Term]) -> Operand:
        """The weights one after the other, as a static value."""
        spec = part[0].op.known(ConvolutionSpec)
        size = math.prod(spec.shapes[1])
        name = net.add_container((len(part), *spec.shapes[1]), spec.dtype)
        body = LoopNestBuilder(spec.shapes[1])
        body.store(body.output(spec.dtype), contiguous(spec.shapes[1]), body.load(body.input(spec.dtype), spec.w))
        copy = body.finish()
        for i, term in enumerate(part):
            net.add_op(
                copy, [net.ins(term.op)[1]], [Operand(name, i * size)], came_from=(term.op,), made_by=self.name,
                before=part[-1].op,
            )  # fmt: skip
        return Operand(name, 0)

    def _epilogue(self, net: Network, part: Sequence[Term]) -> tuple[LoopNest, list[Operand]]:
        """The last term's epilogue over the whole sum, and its operands: what the first term adds to takes the place of the others."""
        last, first = part[-1], part[0]
        p = _epilogue(last.op)
        ins = [Operand("", 0), *net.ins(last.op)[2:]]
        (old,) = (i for i in last.others if net.writers(ins[_loaded(last.op, i).operand].data) == [part[-2].op])
        inputs, body, where = list(p.inputs), list[Statement](), dict[int, int]()
        fixed = [f for t in part[:-1] for f in t.fixed]

        def load(operand: Operand, strides: tuple[int, ...]) -> int:
            ins.append(operand)
            inputs.append(first.op.known(ConvolutionSpec).dtype)
            body.append(Load(len(inputs) - 1, strides, p.body[old].dtype))
            return len(body) - 1

        for i, s in enumerate(p.body):
            if i == old:
                found: list[int] = []
                if fixed:
                    channel = tuple(int(d == 1) for d in range(len(p.outer)))
                    found.append(load(self._fixed(net, part, fixed), channel))
                for number in first.others:
                    given = _loaded(first.op, number)
                    found.append(load(net.ins(first.op)[given.operand + 1], given.strides))
                while len(found) > 1:
                    body.append(Compute("add", s.dtype, (found.pop(), found.pop())))
                    found.append(len(body) - 1)
                where[i] = found[0] if found else -1
                continue
            if s.op == "add" and any(where[a] < 0 for a in s.args):
                where[i] = max(where[a] for a in s.args)
                continue
            body.append(s.renumbered(where))
            where[i] = len(body) - 1
        new = replace(p, inputs=tuple(inputs), body=tuple(body))
        made = compact(new, ins, net.outs(last.op))
        return made.program, list(made.ins[1:])

    def _fixed(self, net: Network, part: Sequence[Term], fixed: Sequence[tuple[Operand, int]]) -> Operand:
        """The sum of numbers per channel, as a static value."""
        spec = part[-1].op.known(ConvolutionSpec)
        body = LoopNestBuilder((spec.cout,))
        total = None
        for _, step in fixed:
            value = body.load(body.input(spec.dtype), (step,))
            total = value if total is None else total + value
        assert total is not None
        body.store(body.output(spec.dtype), (1,), total)
        made = Operand(net.add_container((spec.cout,), spec.dtype), 0)
        net.add_op(body.finish(), [o for o, _ in fixed], [made], came_from=[t.op for t in reversed(part)], made_by=self.name,
                   before=part[-1].op)  # fmt: skip
        return made


def _loaded(op: Op, number: int) -> Load:
    """A load of a convolution's epilogue; its operand is one further among the convolution's."""
    load = _epilogue(op).body[number]
    assert isinstance(load, Load)
    return load


def _epilogue(op: Op) -> LoopNest:
    """What a convolution does with its value, which may be to store it."""
    spec = op.known(ConvolutionSpec)
    return spec.epilogue or identity_epilogue(spec.shapes[2], spec.dtype, spec.y)


def _term(net: Network, op: Op, static: set[str]) -> Term | None:
    """A convolution with static weights and an epilogue that adds to its value; None for all else."""
    spec = op.spec
    if not isinstance(spec, ConvolutionSpec) or spec.kind != "forward" or spec.dtype not in FLOATS:
        return None
    if spec.groups != 1 or spec.bias or spec.panel or spec.winograd or len(spec.kernel) > 2:
        return None
    if len(spec.kernel) == 2 and spec.kernel != (
        1,
        1,
    ):  # rows of results share rows of the image, which joined ones would not
        return None
    if net.ins(op)[1].data not in static:
        return None
    p, ins = _epilogue(op), net.ins(op)
    leaves, plain = _summands(p)
    fixed: list[tuple[Operand, int]] = []
    others: list[int] = []
    for i in leaves:
        s = p.body[i]
        if not isinstance(s, Load) or s.args or p.inputs[s.operand] != spec.dtype:
            plain = False
            continue
        steps, operand = s.strides, ins[s.operand + 1]
        per_channel = all(d == 1 or n == 1 or not steps[d] for d, n in enumerate(p.outer))
        if per_channel and operand.data in static:
            fixed.append((operand, steps[1]))
        else:
            others.append(i)
    return Term(op, tuple(fixed), tuple(others), plain)


def _summands(p: LoopNest) -> tuple[list[int], bool]:
    """The statements that are added to the product's value before anything else is done with it, and whether nothing else is."""
    users: dict[int, list[int]] = {}
    for i, s in enumerate(p.body):
        for a in s.args:
            users.setdefault(a, []).append(i)
    values = [i for i, s in enumerate(p.body) if isinstance(s, Load) and s.operand == 0]
    if len(values) != 1:
        return [], False
    at, added = values[0], 0
    leaves: list[int] = []

    def below(i: int) -> None:
        nonlocal added
        if p.body[i].op == "add" and len(users[i]) == 1:
            added += 1
            for a in p.body[i].args:
                below(a)
        elif len(users[i]) == 1:
            leaves.append(i)

    while len(users[at]) == 1 and p.body[users[at][0]].op == "add":
        up = users[at][0]
        added += 1
        below(next(a for a in p.body[up].args if a != at))
        at = up
    stores = [p.body[i].op for i in users[at]]
    plain = stores == ["store"] and len(p.body) == len(leaves) + added + 2
    return leaves, plain


def _unfit(net: Network, term: Term, reader: Term, number: int, at: Operand) -> Refusal | None:
    """Why a term's sum cannot be left to the one that reads it, by statement ``number`` from ``at`` on."""
    op = term.op
    if not term.plain or len(term.others) > 1 or len(net.outs(op)) != 1:
        return Refusal("a convolution that is added does more than add to it")
    if set(net.readers(at.data)) != {reader.op} or at.data in net.result_containers():
        return Refusal("the sum so far has other readers")
    if sum(o.data == at.data for o in net.ins(reader.op)) != 1:
        return Refusal("the sum so far has other readers")
    store, load = first_store(_epilogue(op)), _loaded(reader.op, number)
    same = all(
        n == 1 or a == b for n, a, b in zip(_epilogue(op).outer, store.strides, load.strides, strict=True)
    )  # fmt: skip
    loads = [s for s in _epilogue(reader.op).body if isinstance(s, Read) and s.operand == load.operand]
    if not same or len(loads) != 1 or net.outs(op)[0] != at:
        return Refusal("the sum so far is read in another order")
    return None


def _apart(net: Network, term: Term, chain: Sequence[Term]) -> Refusal | None:
    """Why a term's image cannot lie beside those of a chain."""
    one, other = (t.op.known(ConvolutionSpec) for t in (term, chain[-1]))
    if replace(one, epilogue=None, y=(), w=()) != replace(other, epilogue=None, y=(), w=()):
        return Refusal("the convolutions that are added differ")
    image, beside = net.ins(term.op)[0], net.ins(chain[-1].op)[0]
    a, b = net.containers[image.data], net.containers[beside.data]
    if (a.shape, a.strides, a.dtype, image.offset) != (b.shape, b.strides, b.dtype, beside.offset):
        return Refusal("the images of convolutions that are added lie in different ways")
    names = [net.ins(t.op)[0].data for t in chain]
    kept = net.result_containers() | {*net.updates, *net.updates.values()}
    if image.data in names or any(net.containers[n].role != "transient" or n in kept for n in (image.data, *names)):
        return Refusal("the images of convolutions that are added have places of their own")
    return _fixed_image(net, chain[-1].op) or _fixed_image(net, term.op)


def _fixed_image(net: Network, op: Op) -> Refusal | None:
    """Why a convolution's image cannot be written elsewhere."""
    name = net.ins(op)[0].data
    writers = net.writers(name)
    if len(writers) != 1 or sum(o.data == name for o in net.outs(writers[0])) != 1:
        return Refusal("several operators write an image of convolutions that are added")
    number = [o.data for o in net.outs(writers[0])].index(name)
    if net.readers(name) != [op] and _twice(writers[0], number) is None:
        return Refusal("the writer of an image that others read too cannot store it twice")
    return None


def _weight_strides(spec: ConvolutionSpec) -> tuple[int, ...]:
    """Of weights side by side over (output, input, image, *kernel)."""
    one = contiguous(spec.shapes[1])
    return (*one[:2], math.prod(spec.shapes[1]), *one[2:])


def _twice(op: Op, out: int) -> LoopNest | None:
    """The operator's program, or its epilogue, with result number ``out`` stored once more; None where that is not possible."""
    p = stored_by(op.spec)
    if p is None:
        return None
    stores = [s for s in p.body if isinstance(s, Store) and s.operand == out]
    if len(stores) != 1:
        return None
    again = stores[0].with_operand(len(p.outputs))
    return replace(p, outputs=(*p.outputs, p.outputs[out]), body=(*p.body, again))


def _early(net: Network, ops: Sequence[Op]) -> list[str]:
    """Images of these convolutions that are read before all of them are there."""
    position = {op: i for i, op in enumerate(net.ops())}
    names = [net.ins(op)[0].data for op in ops]
    last = max(position[w] for name in names for w in net.writers(name))
    return [name for name in names if any(position[r] <= last for r in net.readers(name) if r not in ops)]


def _side_by_side(net: Network, ops: Sequence[Op]) -> Operand:
    """The images of these convolutions in one container: whoever writes or reads one of them gets a window of it. A container is read
    when it is complete; what others read before is stored twice."""
    images = [net.ins(op)[0] for op in ops]
    size, dtype = net.containers[images[0].data].size, net.containers[images[0].data].dtype
    whole = net.add_container((len(ops), size), dtype)
    place = {o.data: i * size for i, o in enumerate(images)}

    def moved(operands: Sequence[Operand]) -> list[Operand]:
        return [Operand(whole, o.offset + place[o.data]) if o.data in place else o for o in operands]

    early = _early(net, ops)
    for name in early:
        (writer,) = net.writers(name)
        outs = net.outs(writer)
        number = [o.data for o in outs].index(name)
        program = _twice(writer, number)
        assert program is not None
        spec = writer.spec.stored_as(program)
        net.rewire(writer, spec, net.ins(writer), [*outs, Operand(whole, outs[number].offset + place[name])])
        del place[name]
    for op in dict.fromkeys(op for name in place for op in (*net.writers(name), *net.readers(name))):
        net.rewire(op, op.spec, moved(net.ins(op)), moved(net.outs(op)))
    for name in place:
        net.remove_container(name)
    return Operand(whole, images[0].offset)
