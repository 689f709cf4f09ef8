"""A sum of convolutions of one image is one convolution, whose weights are theirs added up; the image itself is one, too.

    s = conv(x, v) f + p                                -->   u = v f + [w] g, and h at the middle tap     once per weights
    t = conv(x, w) g + q; y = act(s + t + x h)                y = act(conv(x, u) + (p + q))

with ``[w]`` the weights w among the taps of v, and f, g, h, p, q static numbers per channel: the batch normalisation of each branch.
Networks that are to be re-parametrised by hand after training (RepVGG, MobileOne, FastViT, RepViT) are made of such blocks. Algebra:
convolution is linear, so results change by rounding alone. Saves the other convolutions whole: their operations, and a write and a read of
each of their results; and those of the scaled image, which its writer would store beside the image itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Compute, Load, Statement, Store
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.product import epilogue_of, set_epilogue
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier2_fusion.static.scaled_images import same_walk, scaled_images, stored_with
from dcir.transforms.tier2_fusion.static.static_values import numbered
from dcir.transforms.tier2_fusion.static.weighted_sums import CHANNEL, ChannelNumbers, WeightedSum, weighted_sums


class Branch(NamedTuple):
    """One convolution of a sum: its operator without epilogue, and what its value is multiplied by before it is added."""

    op: Op
    spec: ConvolutionSpec
    factor: Expr | None


class Block(NamedTuple):
    """A sum in the epilogue of its last convolution.

    Attributes:
        branches: the convolutions, the last one first.
        base: the one among whose taps those of all others lie.
        image: the factor of the image itself; None where it is not added.
        shift: what else is added per channel.
        end: the sum's statement in the last epilogue.
        scaled: containers with the image scaled and shifted, which the sum does not read any more.
    """

    branches: tuple[Branch, ...]
    base: ConvolutionSpec
    image: Expr | None
    shift: Expr | None
    end: int
    scaled: tuple[str, ...]


@dataclass(frozen=True)
class MergeParallelConvolutions(Pass):
    """Convolutions with static weights that read one image and are added up."""

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("fuse-epilogues",)
    before: ClassVar[tuple[str, ...]] = ("use-winograd", "pack-weights")

    def apply(self, net: Network) -> PassResult:
        """Visit convolutions in order of execution, so that a branch is one convolution before it is added."""
        outcome = PassResult.of(net)
        ready = net.preparable()
        static = net.static_containers(ready)
        for op in net.ops():
            if op not in ready and _static_product(net, op, static):
                self._visit(net, op, static, outcome)
        return outcome

    def _visit(self, net: Network, op: Op, static: set[str], outcome: PassResult) -> None:
        spec, f = epilogue_of(net, op)
        assert isinstance(spec, ConvolutionSpec)
        others = _beside(net, op, f, static)
        numbers = ChannelNumbers(spec.shapes[2][CHANNEL], spec.dtype)
        images = scaled_images(net, op, spec, f, static, numbers)
        if not others and not images:
            return
        block = _block(net, op, spec, f, others, images, static, numbers)
        if isinstance(block, Refusal):
            if others:
                outcome.missed(block, (op, *others.values()))
            return
        ops = [b.op for b in block.branches]
        if outcome.allowed(self, net, *ops):
            before = sum(map(net.moved_by, ops))
            self._join(net, f, block, static, numbers)
            saved = before - net.moved_by(op) + self._drop(net, block.scaled, op)
            outcome.saved_bytes += saved
            outcome.passed(ops, bytes_saved=saved)

    def _join(self, net: Network, f: Fused, block: Block, static: set[str], numbers: ChannelNumbers) -> None:
        op, base = block.branches[0].op, block.base
        made = self._numbers(net, block, numbers)
        weights = self._weights(net, block, made, numbers)
        static |= {o.data for o in (*made.values(), weights)}
        p, body = f.program, LoopNestBuilder(f.program.outer)
        body.inputs, body.outputs, ins, where = list(p.inputs), list(p.outputs), list(f.ins), list[int]()
        for i, s in enumerate(p.body):
            if i != block.end:
                where.append(body.add(s.renumbered(where)))
                continue
            at = body.add(next(v for v in p.body if isinstance(v, Load) and v.operand == 0))
            if block.shift is not None:
                number = numbers.constant(block.shift)
                if number is None:
                    ins.append(made[block.shift.n])
                    shift = body.load(body.input(base.dtype), [int(d == CHANNEL) for d in range(len(p.outer))])
                else:
                    shift = body.const(number, base.dtype)
                at = body.add(Compute("add", s.dtype, (at, shift.n)))
            where.append(at)
        new = numbered(Fused(body.finish(), tuple(ins), f.outs))
        spec, shape = block.branches[0].spec, base.shapes[1]
        spec = replace(spec, kernel=base.kernel, padding=base.padding, dilation=base.dilation, w=contiguous(shape))
        bare = replace(spec, epilogue=None)
        net.rewire(op, bare, [net.ins(op)[0], weights], f.outs[:1])
        set_epilogue(net, op, spec, new, self.name)
        for branch in block.branches[1:]:
            outs = {o.data for o in net.outs(branch.op)}
            net.remove_op(branch.op, into=op)
            for name in outs:
                net.remove_container(name)

    def _drop(self, net: Network, names: Sequence[str], into: Op) -> int:
        """Let nobody write what nobody reads any more; the bytes that saves."""
        saved = 0
        for name in names:
            (writer,) = net.writers(name)
            made = stored_with(net, writer)
            if net.readers(name) or made is None:
                continue
            saved += net.moved_by(writer)
            spec, f = made
            left = {i for i, o in enumerate(f.outs) if o.data != name}
            if not left:
                net.remove_op(writer, into=into)
            else:
                program = simplify(f.program, lambda s, left=left: isinstance(s, Store) and s.operand in left)  # type: ignore[misc]
                lean = compact(program, f.ins, f.outs)
                if isinstance(spec, LoopNest):
                    net.rewire(writer, lean.program, lean.ins, lean.outs, made_by=self.name)
                else:
                    set_epilogue(net, writer, spec, lean, self.name)
                saved -= net.moved_by(writer)
            net.remove_container(name)
        return saved

    def _numbers(self, net: Network, block: Block, numbers: ChannelNumbers) -> dict[int, Operand]:
        """The containers of all factors and of the shift, by the values that they are."""
        asked = [e for e in (*(b.factor for b in block.branches), block.image, block.shift) if e is not None]
        wanted = {e.n: e for e in asked if numbers.constant(e) is None}
        if not wanted:
            return {}
        program = numbers.program(list(wanted.values()))
        made = {n: Operand(net.add_container(program.outer, t)) for n, t in zip(wanted, program.outputs, strict=True)}
        self._add(net, block, program, numbers.ins, list(made.values()))
        return made

    def _weights(self, net: Network, block: Block, made: Mapping[int, Operand], numbers: ChannelNumbers) -> Operand:
        """All weights times their factors, added up among the taps of the widest."""
        base, ins = block.base, list[Operand]()
        body = LoopNestBuilder((base.groups, base.cout, base.cin, *base.kernel))
        own = body.rank - len(base.kernel)

        def read(o: Operand) -> int:
            ins.append(o)
            return body.input(base.dtype)

        def number(factor: Expr) -> Expr:
            known = numbers.constant(factor)
            if known is not None:
                return body.const(known, base.dtype)
            return body.load(read(made[factor.n]), [base.cout, 1, *(0 for _ in range(body.rank - 2))])

        total: Expr | None = None
        for op, spec, factor in block.branches:
            first, step, *taps = spec.w
            lead, operand = (first * base.cout, first, step), read(net.ins(op)[1])
            if spec.kernel == base.kernel:
                value = body.load(operand, (*lead, *taps))
            else:
                at = [body.index(own + d) - n for d, n in enumerate(_among(spec, base) or ())]
                none = [0] * len(taps)
                value = body.gather(operand, (*lead, *none), at, spec.kernel, taps, checked=False)
            value = value if factor is None else value * number(factor)
            total = value if total is None else total + value
        assert total is not None
        if block.image is not None:
            here = body.index(1).eq(body.index(2))
            for d, n in enumerate(_middle(base) or ()):
                here = here & body.index(own + d).eq(n)
            total = total + body.where(here, number(block.image), body.const(0.0, base.dtype))
        body.store(body.output(base.dtype), contiguous(body.outer), total)
        weights = Operand(net.add_container(base.shapes[1], base.dtype))
        self._add(net, block, body.finish(), ins, [weights])
        return weights

    def _add(
        self, net: Network, block: Block, program: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]
    ) -> None:
        ops = [b.op for b in block.branches]
        used = compact(program, ins, outs)
        net.add_op(used.program, used.ins, used.outs, came_from=ops, made_by=self.name, before=ops[0])


def _static_product(net: Network, op: Op, static: set[str]) -> bool:
    spec = op.spec
    if not isinstance(spec, ConvolutionSpec) or not spec.takes_epilogue or spec.panel or spec.winograd or spec.scales:
        return False
    return spec.dtype in ("f32", "f64") and net.ins(op)[1].data in static


def _beside(net: Network, op: Op, f: Fused, static: set[str]) -> dict[Load, Op]:
    """Convolutions of the same image whose results an epilogue reads, by the loads."""
    found = {}
    for s in f.program.body:
        if isinstance(s, Load) and s.operand and not s.args:
            writers = [w for w in net.writers(f.ins[s.operand].data) if w is not op]
            if (
                len(writers) == 1
                and _static_product(net, writers[0], static)
                and net.ins(writers[0])[0] == net.ins(op)[0]
            ):
                found[s] = writers[0]
    return found


def _block(
    net: Network, op: Op, spec: ConvolutionSpec, f: Fused, others: Mapping[Load, Op], images: Mapping[Load, WeightedSum],
    static: set[str], numbers: ChannelNumbers,
) -> Block | Refusal:  # fmt: skip
    """The sum that an epilogue begins with, or why it is none that one convolution computes."""
    value = next(s for s in f.program.body if isinstance(s, Load) and s.operand == 0)
    found = weighted_sums(f, static, numbers, {value, *others, *images})
    end = _end(f.program, found, value)
    if end is None:
        return Refusal("the convolution's value is no part of one sum")
    whole = _sum(found, end)
    joined = [s for s in others if s in whole.terms]
    if not joined and not any(s in whole.terms for s in images):
        return Refusal("what is added is no sum of convolutions of one image")
    behind = _behind(f.program, end)
    if any(s in behind for s in joined):
        return Refusal("a convolution's result is read for more than the sum")
    branches, shift = [Branch(op, spec, whole.terms[value])], whole.shift
    for s in joined:
        branch = _branch(net, op, spec, others[s], s, f, static, numbers)
        if isinstance(branch, Refusal):
            return branch
        own, added = branch
        factor = whole.terms[s]
        branches.append(own._replace(factor=numbers.times(own.factor, factor)))
        shift = numbers.plus(shift, numbers.times(added, factor) if added is not None else None)
    base = max((b.spec for b in branches), key=lambda b: math.prod(b.kernel))
    if any(_among(b.spec, base) is None for b in branches):
        return Refusal("the taps of one convolution do not lie among those of another")
    image, scaled = None, []
    for s, made in images.items():
        if s in whole.terms:
            (own_factor,), factor = made.terms.values(), whole.terms[s]
            image = numbers.plus(image, numbers.times(own_factor, factor) or numbers.body.const(1.0, spec.dtype))
            shift = numbers.plus(shift, numbers.times(made.shift, factor) if made.shift is not None else None)
            scaled += [f.ins[s.operand].data] * (f.ins[s.operand] != net.ins(op)[0])
    if image is not None and _middle(base) is None:
        return Refusal("no tap is at the middle")
    return Block(tuple(branches), base, image, shift, end, tuple(dict.fromkeys(scaled)))


def _sum(found: Sequence[WeightedSum | None], i: int) -> WeightedSum:
    made = found[i]
    assert made is not None
    return made


def _end(p: LoopNest, found: Sequence[WeightedSum | None], value: Load) -> int | None:
    """The largest sum that has the value in it, and with which all else is done that is done with the value; of equal ones the last."""
    sums = [(len(made.terms), i) for i, made in enumerate(found) if made is not None and value in made.terms]
    return next((i for _, i in sorted(sums, reverse=True) if value not in _behind(p, i)), None)


def _behind(p: LoopNest, end: int) -> set[Statement]:
    """What is done besides one value, and with it."""
    seen, left = {end}, [i for i, s in enumerate(p.body) if isinstance(s, Store)]
    while left:
        i = left.pop()
        if i not in seen:
            seen.add(i)
            left += p.body[i].args
    return {p.body[i] for i in seen - {end}}


def _branch(
    net: Network, op: Op, spec: ConvolutionSpec, other: Op, load: Load, f: Fused, static: set[str], numbers: ChannelNumbers
) -> tuple[Branch, Expr | None] | Refusal:  # fmt: skip
    """A convolution whose result is added, and what it adds to its value; or why it has to stay."""
    theirs, g = epilogue_of(net, other)
    assert isinstance(theirs, ConvolutionSpec)
    if _but_taps(theirs) != _but_taps(spec):
        return Refusal("the convolutions that are added differ in more than their taps")
    stores = [s for s in g.program.body if isinstance(s, Store)]
    at, name = f.ins[load.operand], f.ins[load.operand].data
    if len(stores) != 1 or net.readers(name) != [op] or name in net.result_containers():
        return Refusal("a convolution's result is read for more than the sum")
    if net.containers[name].role != "transient" or sum(o.data == name for o in f.ins) != 1:
        return Refusal("a convolution's result is read for more than the sum")
    if net.outs(other) != [at] or not same_walk(stores[0].strides, load.strides, spec.shapes[2]):
        return Refusal("a convolution's result is read in another order")
    if g.program.outputs != (spec.dtype,):
        return Refusal("a convolution's result is rounded before it is added")
    value = next(s for s in g.program.body if isinstance(s, Load) and s.operand == 0)
    made = weighted_sums(g, static, numbers, {value})[stores[0].args[0]]
    if made is None or list(made.terms) != [value]:
        return Refusal("a convolution that is added does more than scale and shift its value")
    return Branch(other, theirs, made.terms[value]), made.shift


def _but_taps(spec: ConvolutionSpec) -> ConvolutionSpec:
    return replace(spec, kernel=(), padding=(), dilation=(), w=(), y=(), epilogue=None, bias=False)


def _among(spec: ConvolutionSpec, base: ConvolutionSpec) -> list[int] | None:
    """Per dimension the tap of ``base`` at which the first one of ``spec`` lies; None if some tap lies at none."""
    found = []
    for taps, pad, apart, most, low, step in zip(
        spec.kernel, spec.padding, spec.dilation, base.kernel, base.padding, base.dilation, strict=True
    ):
        first, rest = divmod(low - pad, step)
        if rest or (taps > 1 and apart != step) or first < 0 or first + taps > most:
            return None
        found.append(first)
    return found


def _middle(base: ConvolutionSpec) -> list[int] | None:
    """The tap that meets a result's own place; None if there is none."""
    found = [divmod(low, step) for low, step in zip(base.padding, base.dilation, strict=True)]
    inside = all(rest == 0 and n < taps for (n, rest), taps in zip(found, base.kernel, strict=True))
    return [n for n, _ in found] if inside else None
