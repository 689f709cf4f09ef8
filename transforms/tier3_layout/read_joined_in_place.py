"""A product reads an operand that is joined of a cache and what is new in its two pieces: the cache is not copied.

    k = concatenate(cache, new); s = q @ k^T     -->   s[:, :n] = q @ cache^T; s[:, n:] = q @ new^T
    v = concatenate(cache, new); o = p @ v       -->   t = p[:, :n] @ cache; o = t + p[:, n:] @ new

For targets whose attention is products and a softmax. The first piece is what a copy brought from elsewhere; it is read there, by the
arithmetic of ``relayout.py``. Whoever wrote the rest writes it into a container of its own. Joined along a dimension of the result, the
product writes that in two windows, each number as before. Joined along the sum, partial sums are of the accumulator's type and are added
before the result is rounded, once. Saves reading and writing the cache, and memory for it; costs the operand beside it or the partial
sums once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.types import itemsize
from dcir.ops.library.contraction import ContractionSpec, contraction_program
from dcir.ops.library.epilogue import attach_epilogue
from dcir.ops.library.library_call import refused_by_library
from dcir.ops.library.torch_call import TorchCall
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier3_layout.layout.relayout import BoundOperator, LayoutCopy, copy_between, copy_of, moved


class _Side(NamedTuple):
    """An operand of a product.

    Attributes:
        at: 0 for A, 1 for B.
        shape, strides: of its window.
    """

    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def summed(self) -> int:
        """The dimension of the sum."""
        return len(self.shape) - 1 - self.at

    @property
    def free(self) -> int:
        """The dimension that the result has, too, beside the batch's."""
        return len(self.shape) - 2 + self.at


class _Cut(NamedTuple):
    """A product in two pieces.

    Attributes:
        copied: the copy that goes.
        along: the dimension of the operand along which it is joined.
        first: positions in the first piece.
        part: the product over these, which reads the cache.
        rest, rest_strides: container of the second piece, and the operand's strides there.
        changed: what writers of the second piece will be.
    """

    copied: Op
    along: int
    first: int
    part: BoundOperator
    rest: str
    rest_strides: tuple[int, ...]
    changed: dict[Op, BoundOperator]


@dataclass(frozen=True)
class ReadJoinedInPlace(Pass):
    """Let products read joined operands before they are joined.

    Attributes:
        most_by_hand: up to so many positions in the second piece, its sum is a loop nest that adds the other's in passing; from there
            on a library's product and a sum.
    """

    tier: ClassVar[int] = 3
    after: ClassVar[tuple[str, ...]] = ("fuse-producers",)
    before: ClassVar[tuple[str, ...]] = ("fuse-library-bias", "call-libraries")
    in_bodies: ClassVar[bool] = False  # no call of a library is inside of a loop or branch
    most_by_hand: int = 16

    def apply(self, net: Network) -> PassResult:
        """Look at every product that reads what a copy and others write."""
        outcome = PassResult.of(net)
        for op in net.ops():
            if not isinstance(op.spec, ContractionSpec):
                continue
            for at, o in enumerate(net.ins(op)[:2]):
                if len(net.writers(o.data)) < 2:
                    continue
                reason = self._try(net, op, at, outcome)
                if reason is None:
                    break
                outcome.missed(reason, (op,))
        return outcome

    def _try(self, net: Network, op: Op, at: int, outcome: PassResult) -> Refusal | None:
        """Cut the product along the join of an operand; the reason why not."""
        spec = op.known(ContractionSpec)
        if (refused := refused_by_library(spec)) is not None:
            return refused
        joined = net.ins(op)[at].data
        if spec.epilogue is not None or spec.panel:
            return Refusal("the product has a form of its own already")
        if joined in net.result_containers() or net.readers(joined) != [op] or net.ins(op)[1 - at].data == joined:
            return Refusal("the joined operand is read by others")
        made: list[str] = []
        cut = _cut(net, op, _Side(at, spec.shapes[at], (spec.a, spec.b)[at]), made)
        refusal = cut if isinstance(cut, Refusal) else None
        if isinstance(cut, _Cut) and not pays("pieces of a join", _saved(spec, at, cut) > 0):
            refusal = Refusal("the pieces cost more than the copy")
        elif isinstance(cut, _Cut) and not net.allows(self, op):
            refusal = SWITCHED_OFF
        if refusal is not None or isinstance(cut, Refusal):
            for name in made:
                net.remove_container(name)
            return refusal
        for writer, new in cut.changed.items():
            net.rewire(writer, *new, made_by=self.name)
        before = net.moved_by(op) + net.moved_by(cut.copied)
        pieces = self._along_sum(net, op, at, cut) if cut.along == _summed(spec, at) else self._apart(net, op, at, cut)
        net.remove_op(cut.copied, into=pieces)
        net.remove_container(joined)
        outcome.saved_bytes += before - sum(map(net.moved_by, pieces))
        outcome.passed((op,))
        return None

    def _apart(self, net: Network, op: Op, at: int, cut: _Cut) -> list[Op]:
        """Each piece makes a window of the result."""
        spec, (out,) = op.known(ContractionSpec), net.outs(op)
        rest, ins = _rest(spec, at, cut, net.ins(op))
        there = Operand(out.data, out.offset + cut.first * spec.c[len(spec.batch) + at])
        added = net.add_op(rest, ins, [there], came_from=(op,), made_by=self.name, before=op)
        net.rewire(op, cut.part.spec, cut.part.ins, cut.part.outs, made_by=self.name)
        return [op, added]

    def _along_sum(self, net: Network, op: Op, at: int, cut: _Cut) -> list[Op]:
        """The first piece makes a partial sum, to which the second adds its own."""
        spec, outs, one = op.known(ContractionSpec), net.outs(op), op.known(ContractionSpec).types.accumulator
        shape = spec.shapes[2]
        rest, ins = _rest(spec, at, cut, net.ins(op))
        partial = Operand(net.add_container(shape, one))
        first = cut.part.spec
        assert isinstance(first, ContractionSpec)
        first = replace(first, types=replace(first.types, c=one))
        dense = replace(rest, types=replace(rest.types, c=one), c=contiguous(shape))
        body = LoopNestBuilder(shape)
        value = body.load(body.input(one), contiguous(shape))
        value = body.load(body.input(one), contiguous(shape)) + value
        body.store(body.output(spec.types.c), spec.c, body.convert(value, one))
        add = body.finish()
        behind = _next(net, op)
        net.rewire(op, first, cut.part.ins, [partial], made_by=self.name)
        if rest.k <= self.most_by_hand:
            nest = attach_epilogue(contraction_program(dense), add)
            made = net.add_op(nest, [*ins, partial], outs, came_from=(op,), made_by=self.name, before=behind)
            return [op, made]
        other = Operand(net.add_container(shape, one))
        made = net.add_op(dense, ins, [other], came_from=(op,), made_by=self.name, before=behind)
        summed = net.add_op(add, [other, partial], outs, came_from=(op,), made_by=self.name, before=behind)
        return [op, made, summed]


def _summed(spec: ContractionSpec, at: int) -> int:
    return _Side(at, spec.shapes[at], ()).summed


def _next(net: Network, op: Op) -> Op | None:
    """The operator after ``op`` in the order."""
    order = net.ops()
    at = order.index(op) + 1
    return order[at] if at < len(order) else None


def _saved(spec: ContractionSpec, at: int, cut: _Cut) -> int:
    """Bytes that a cut saves."""
    side = _Side(at, spec.shapes[at], (spec.a, spec.b)[at])
    piece = (
        math.prod(n for n, s in zip(side.shape, side.strides, strict=True) if s) // side.shape[cut.along] * cut.first
    )
    copied = 2 * piece * itemsize(spec.types.a)
    if cut.along != side.summed:
        return copied - spec.footprint()[0][1 - at]
    return copied - 4 * math.prod(spec.shapes[2]) * itemsize(spec.types.accumulator)


def _cut(net: Network, op: Op, side: _Side, made: list[str]) -> _Cut | Refusal:
    """Where an operand is joined, and both pieces; ``made`` are the containers that were added."""
    spec, ins, outs = op.known(ContractionSpec), net.ins(op), net.outs(op)
    joined = ins[side.at]
    writers = net.writers(joined.data)
    for copied in writers:
        copy = copy_of(net, copied)
        if copy is None or copy.target.at.data != joined.data:
            continue
        for along in (side.free, side.summed):
            first = _positions(side, along, copy)
            if first is None:
                continue
            part = _with_extent(spec, side.at, first, summed=along == side.summed)
            new = moved(BoundOperator(part, ins, outs), copy, copy.target, "in")
            if isinstance(new, Refusal):
                continue
            shape = tuple(n - first if d == along else n for d, n in enumerate(side.shape))
            strides = _dense(shape, side.strides)
            name = net.add_container([n for n, _ in _walk(shape, side.strides)], spec.types.a)
            made.append(name)
            begin = Operand(joined.data, joined.offset + first * side.strides[along])
            aside = copy_between(_window(spec.types.a, shape, side.strides, strides), begin, Operand(name))
            changed: dict[Op, BoundOperator] = {}
            for writer in writers:
                if writer is copied:
                    continue
                if isinstance(writer.spec, TorchCall):
                    return Refusal("calls into torch keep the layout of their results")
                was = BoundOperator(writer.spec, net.ins(writer), net.outs(writer))
                there = moved(was, aside, aside.source, "out")
                if isinstance(there, Refusal):
                    return there
                changed[writer] = there
            return _Cut(copied, along, first, new, name, strides, changed)
    return Refusal("no copy brings the first of what is joined")


def _positions(side: _Side, along: int, copy: LayoutCopy) -> int | None:
    """How many positions along a dimension a copy brings, if all of the other dimensions."""
    one = math.prod(n for d, (n, s) in enumerate(zip(side.shape, side.strides, strict=True)) if s and d != along)
    first, over = divmod(math.prod(copy.dims), one)
    return first if not over and 0 < first < side.shape[along] and side.strides[along] else None


def _with_extent(spec: ContractionSpec, at: int, extent: int, *, summed: bool) -> ContractionSpec:
    """A product with another extent of the sum, or of the dimension that is free in an operand."""
    if summed:
        return replace(spec, k=extent)
    return replace(spec, n=extent) if at else replace(spec, m=extent)


def _rest(spec: ContractionSpec, at: int, cut: _Cut, ins: Sequence[Operand]) -> tuple[ContractionSpec, list[Operand]]:
    """The product over the second piece, and its operands."""
    rank, summed = len(spec.batch), cut.along == _summed(spec, at)
    extent = spec.shapes[at][cut.along] - cut.first
    made, operands = _with_extent(spec, at, extent, summed=summed), list(ins)
    made = replace(made, b=cut.rest_strides) if at else replace(made, a=cut.rest_strides)
    operands[at] = Operand(cut.rest)
    if summed:
        beside = (spec.a[rank + 1], spec.b[rank])[1 - at]
        operands[1 - at] = Operand(ins[1 - at].data, ins[1 - at].offset + cut.first * beside)
    return made, operands


def _walk(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and dimensions that a window walks, the longest stride first."""
    dims = [d for d, (n, s) in enumerate(zip(shape, strides, strict=True)) if s and n > 1]
    return [(shape[d], d) for d in sorted(dims, key=lambda d: (-strides[d], d))]


def _dense(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of the same window without gaps, with the dimensions in the same order; what is broadcast stays so."""
    walk = _walk(shape, strides)
    found = [0] * len(shape)
    for (_, d), step in zip(walk, contiguous([n for n, _ in walk]), strict=True):
        found[d] = step
    # Along an extent of 1 any stride is right; a row's length is what libraries expect of a matrix.
    size = math.prod(n for n, _ in walk)
    return tuple(f or ((1 if d == len(shape) - 1 else size) if strides[d] else 0) for d, f in enumerate(found))


def _window(dtype: str, shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> LoopNest:
    """The copy from one window to another; dimensions along which nothing moves are left out."""
    dims = [d for d, (n, s) in enumerate(zip(shape, source, strict=True)) if s and n > 1]
    body = LoopNestBuilder([shape[d] for d in dims])
    x = body.load(body.input(dtype), [source[d] for d in dims])
    body.store(body.output(dtype), [target[d] for d in dims], x)
    return body.finish()
