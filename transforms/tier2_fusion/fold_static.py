"""What is done to parameters alone leaves the loops over the data, and factors after a product move into its weights.

    y = (x - mean) * (g * rsqrt(var + eps)) + b   -->   f = g * rsqrt(var + eps); h = b - mean * f    once per channel
                                                        y = x * f + h
    y = conv(x, w) * f + h                        -->   w' = w * f                                    once per weight
                                                        y = conv(x, w') + h

A value is static if it depends on nothing but parameters, buffers and constants (``Network.static``). The largest static expressions
of a pointwise program or an epilogue become programs of their own over just the loops they walk; they run when parameters change.
A chain of additions and multiplications by static values is a * x + c. A product with static weights takes over the factor if all
that is made of its value has the same one, and it varies along the weights' own dimensions. Results change by rounding alone. Saves
operations per element, and the traffic of the parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.scalars import evaluate
from dcir.ir.statements import Compute, Const, Index, Load, Read, Reduce, Statement, Store
from dcir.ir.types import FLOATS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.product import VALUE, Product, epilogue_of, is_product, set_epilogue
from dcir.transforms.base import Pass, PassResult

_STORED = frozenset({"f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"})


class _Affine(NamedTuple):
    """The value factor * base + shift; ``ops`` operations of the program make it of its base."""

    base: int
    factor: Expr | None
    shift: Expr | None
    ops: int


class _Factor(NamedTuple):
    """A factor on its way into weights: a number, or an operand with its strides over a product's results."""

    number: float | None
    operand: Operand = VALUE
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class FoldStatic(Pass):
    """Static expressions out of loop nests and epilogues, and static factors into weights."""

    tier: ClassVar[int] = 2

    def apply(self, net: Network) -> PassResult:
        """Visit every pointwise program and product that is not static itself."""
        outcome = PassResult()
        ready = net.preparable()
        static = net.static_containers(ready)
        if not static:
            return outcome
        for op in net.ops():
            if op in ready:
                continue
            if isinstance(op.spec, LoopNest):
                if not op.spec.inner and not any(isinstance(s, Reduce) for s in op.spec.body) and op.spec.points():
                    self._program(net, op, static, outcome)
            elif is_product(op.spec) and op.spec.epilogue is not None:
                self._product(net, op, static, outcome)
        return outcome

    def _program(self, net: Network, op: Op, static: set[str], outcome: PassResult) -> None:
        old = Fused(op.known(LoopNest), tuple(net.ins(op)), tuple(net.outs(op)))
        new = _Rewriting(old, static).plain()
        new = self._hoist(net, op, new, static, outcome)
        if new is not old:
            outcome.changed += 1
            outcome.saved_bytes += op.spec.bytes_moved() - new.program.bytes_moved()
            net.rewire(op, new.program, new.ins, new.outs, made_by=self.name)

    def _product(self, net: Network, op: Op, static: set[str], outcome: PassResult) -> None:
        spec, old = epilogue_of(net, op)
        rewriting = _Rewriting(old, static)
        factor, before = rewriting.common_factor(), sum(map(sum, op.spec.footprint()))
        side = _weights(spec, net.ins(op), static) if factor is not None else None
        if factor is not None and isinstance(side, int) and not rewriting.walks(factor) <= set(_along(spec, side)):
            side = Refusal("the factor varies along other dimensions than the weights")
        if factor is None or not isinstance(side, int):
            if isinstance(side, Refusal):
                outcome.refuse(side)
            new = self._hoist(net, op, rewriting.plain(), static, outcome)
        else:
            taken, new = _take(self._hoist(net, op, rewriting.without(factor), static, outcome))
            spec = self._scale(net, op, spec, side, taken)
        if new is old:
            return
        outcome.changed += 1
        set_epilogue(net, op, spec, new, self.name)
        outcome.saved_bytes += before - sum(map(sum, op.spec.footprint()))

    def _hoist(self, net: Network, op: Op, f: Fused, static: set[str], outcome: PassResult) -> Fused:
        """Put the static expressions of ``f`` into operators of their own before ``op``."""
        p = f.program
        flags, walks = _static(p, f.ins, static), _walks(p)
        groups: dict[tuple[int, ...], list[int]] = {}
        wanted = {s.args[0] for s in p.body if isinstance(s, Store) and f.outs[s.operand] == VALUE}
        for i in _roots(p, flags):
            s, loops = p.body[i], walks[i]
            if s.dtype not in _STORED or (not _loads(p, i) and i not in wanted):
                continue
            if len(loops) == sum(n > 1 for n in p.outer) and i not in wanted:
                reads, writes = _alone(p, [i], loops).footprint()
                if sum(reads) < sum(writes):
                    outcome.refuse("a static value is larger than what it is made of")
                    continue
            groups.setdefault(loops, []).append(i)
        moved: dict[int, tuple[Operand, tuple[int, ...]]] = {}
        for loops, values in groups.items():
            alone = _alone(p, values, loops)
            shape = alone.outer
            outs = [Operand(net.add_container(shape, t)) for t in alone.outputs]
            lean = compact(alone, f.ins, outs)
            net.add_op(lean.program, lean.ins, lean.outs, origin=op.origin, made_by=self.name, before=op)
            static.update(o.data for o in outs)
            steps = dict(zip(loops, contiguous(shape), strict=True))
            for i, o in zip(values, outs, strict=True):
                moved[i] = o, tuple(steps.get(d, 0) for d in range(len(p.outer)))
        if not moved:
            return f
        ins, types, body = list(f.ins), list(p.inputs), list[Statement]()
        for i, s in enumerate(p.body):
            if i in moved:
                operand, strides = moved[i]
                ins.append(operand)
                types.append(s.dtype)
                s = Load(len(ins) - 1, strides, s.dtype)
            body.append(s)
        return _numbered(Fused(simplify(replace(p, inputs=tuple(types), body=tuple(body))), tuple(ins), f.outs))

    def _scale(self, net: Network, op: Op, spec: Product, side: int, factor: _Factor) -> Product:
        """Multiply the weights (operand ``side`` of ``op``) by a factor over the product's results."""
        ins = net.ins(op)
        shape, strides = _window(spec, side)
        to = _along(spec, side)
        kept = [d for d in range(len(shape)) if strides[d] or d in to.values() or d >= len(shape) - 2]
        kept.sort(key=lambda d: strides[d], reverse=True)
        body = LoopNestBuilder([shape[d] for d in kept])
        value = body.load(body.input(spec.dtype), [strides[d] for d in kept])
        operands = [ins[side]]
        if factor.number is not None:
            value = value * factor.number
        else:
            steps = {own: factor.strides[d] for d, own in to.items()}
            value = value * body.load(body.input(spec.dtype), [steps.get(d, 0) for d in kept])
            operands.append(factor.operand)
        name = net.add_container(body.outer, spec.dtype)
        new = contiguous(body.outer)
        body.store(body.output(spec.dtype), new, value)
        net.add_op(body.finish(), operands, [Operand(name)], origin=op.origin, made_by=self.name, before=op)
        net.rewire(op, op.spec, [Operand(name) if i == side else o for i, o in enumerate(ins)], net.outs(op))
        steps = dict(zip(kept, new, strict=True))
        where = tuple(steps.get(d, 0) for d in range(len(shape)))
        if isinstance(spec, ConvolutionSpec):
            return replace(spec, w=where)
        return replace(spec, b=where) if side == 1 else replace(spec, a=where)


class _Rewriting:
    """A pointwise program with its chains of additions and multiplications by static values as one of each."""

    def __init__(self, f: Fused, static: set[str]) -> None:
        self.f, p = f, f.program
        self.flags = _static(p, f.ins, static)
        self.body = LoopNestBuilder(p.outer)
        self.where: list[int] = []  # every statement as it was
        self.chains: dict[int, _Affine] = {}
        self.readers = Counter(a for s in p.body for a in s.args)
        for i, s in enumerate(p.body):
            self.where.append(-1 if isinstance(s, Store) else self.body.add(self._as_was(s)))
            if not isinstance(s, Store) and not self.flags[i]:
                self.chains[i] = self._chain(i, s)

    def _as_was(self, s: Statement) -> Statement:
        return s.renumbered(self.where)

    def _expr(self, i: int) -> Expr:
        return Expr(self.body, self.where[i], self.f.program.body[i].dtype)

    def _chain(self, i: int, s: Statement) -> _Affine:
        start = _Affine(i, None, None, 0)
        if s.dtype not in FLOATS or s.op not in ("add", "sub", "mul", "div", "neg"):
            return start
        if s.op == "neg":
            # Where others read the value too (x / (1 + exp(-x))), a factor of either sign could not go into the weights.
            if self.readers[s.args[0]] > 1:
                return start
            c = self.chains[s.args[0]]
            minus = self.body.const(-1, s.dtype) if c.factor is None else self._two("neg", c.factor)
            return _Affine(c.base, minus, None if c.shift is None else self._two("neg", c.shift), c.ops + 1)
        x, y = s.args
        flipped = self.flags[x]
        if flipped:
            x, y = y, x
        if self.flags[x] or not self.flags[y] or (flipped and s.op == "div"):
            return start
        c, by = self.chains[x], self._expr(y)
        factor, shift = c.factor, c.shift
        if s.op in ("mul", "div"):
            one = self.body.const(1, s.dtype)
            factor = self._two(s.op, one if factor is None else factor, by)
            shift = None if shift is None else self._two(s.op, shift, by)
        elif s.op == "add":
            shift = by if shift is None else self._two("add", shift, by)
        elif not flipped:
            shift = self._two("neg", by) if shift is None else self._two("sub", shift, by)
        else:
            shift = by if shift is None else self._two("sub", by, shift)
            factor = self.body.const(-1, s.dtype) if factor is None else self._two("neg", factor)
        return _Affine(c.base, factor, shift, c.ops + 1)

    def _two(self, op: str, *args: Expr) -> Expr:
        """An operator on static values; numbers are computed here."""
        dtype = args[0].dtype
        known = [s.value if isinstance(s, Const) else None for s in (self.body.body[a.n] for a in args)]
        if None not in known:
            new = Compute(op, dtype, tuple(a.n for a in args))
            value = evaluate(new, [(k, dtype) for k in known])
            if value is not None:
                return self.body.const(value, dtype)
        if op == "mul" and known[0] == 1:
            return args[1]
        return self.body.op(op, *args)

    def _ends(self) -> dict[int, _Affine]:
        """The chains' values that something else reads than the next link."""
        ends: dict[int, _Affine] = {}
        for i, s in enumerate(self.f.program.body):
            next_link = i in self.chains and self.chains[i].base != i
            for a in s.args:
                if a in self.chains and not (next_link and self.chains[a].base == self.chains[i].base):
                    ends[a] = self.chains[a]
        return ends

    def common_factor(self) -> Expr | None:
        """The factor of everything that is made of the product's value (input 0)."""
        value = next(i for i, s in enumerate(self.f.program.body) if isinstance(s, Load) and s.operand == 0)
        factors = {
            e.factor.n if e.factor is not None else -1: e.factor for e in self._ends().values() if e.base == value
        }
        return next(iter(factors.values())) if len(factors) == 1 else None

    def walks(self, value: Expr) -> set[int]:
        """The loops that a value depends on."""
        return set(_walks(replace(self.f.program, body=tuple(self.body.body)))[value.n])

    def plain(self) -> Fused:
        """With every chain that gets shorter as one multiplication and one addition."""
        shorter = {i: c for i, c in self._ends().items() if _links(c) < c.ops}
        return self._finish(shorter, None) if shorter else self.f

    def without(self, factor: Expr) -> Fused:
        """For a product whose value has this factor already; a last store keeps the factor for whoever takes it (``_take``)."""
        value = next(i for i, s in enumerate(self.f.program.body) if isinstance(s, Load) and s.operand == 0)
        ends = {i: c._replace(factor=None) if c.base == value else c for i, c in self._ends().items()}
        return self._finish({i: c for i, c in ends.items() if c.base == value or _links(c) < c.ops}, factor)

    def _finish(self, chains: Mapping[int, _Affine], factor: Expr | None) -> Fused:
        p, body = self.f.program, LoopNestBuilder(self.f.program.outer)
        old = self.body.body
        copied: dict[int, int] = {}

        def take(n: int) -> int:
            """A value as it was."""
            if n not in copied:
                for a in old[n].args:
                    take(a)
                copied[n] = body.add(old[n].renumbered(copied))
            return copied[n]

        for i, s in enumerate(p.body):
            if isinstance(s, Store):
                body.add(s.with_args((take(self.where[s.args[0]]),)))
            if i not in chains:
                continue
            c = chains[i]
            n = take(self.where[c.base])
            if c.factor is not None:
                n = body.add(Compute("mul", s.dtype, (n, take(c.factor.n))))
            if c.shift is not None:
                n = body.add(Compute("add", s.dtype, (n, take(c.shift.n))))
            copied[self.where[i]] = n
        outputs = p.outputs
        if factor is not None:
            body.add(Store(len(outputs), (0,) * len(p.outer), factor.dtype, (take(factor.n),)))
            outputs = (*outputs, factor.dtype)
        outs = self.f.outs if factor is None else (*self.f.outs, VALUE)
        done = simplify(replace(p, outputs=outputs, body=tuple(body.body)))
        return _numbered(Fused(done, self.f.ins, outs))


def _links(c: _Affine) -> int:
    return (c.factor is not None) + (c.shift is not None)


def _take(f: Fused) -> tuple[_Factor, Fused]:
    """The factor that the last store of ``f`` holds, and ``f`` without that store."""
    p, last = f.program, len(f.program.outputs) - 1
    held = next(s for s in p.body if isinstance(s, Store) and s.operand == last)
    s = p.body[held.args[0]]
    if isinstance(s, Const):
        factor = _Factor(s.value)
    else:
        assert isinstance(s, Load)
        factor = _Factor(None, f.ins[s.operand], s.strides)
    rest = simplify(p, lambda s: isinstance(s, Store) and s.operand != last)
    return factor, _numbered(Fused(replace(rest, outputs=p.outputs[:-1]), f.ins, f.outs[:-1]))


def _numbered(f: Fused) -> Fused:
    """Inputs that are read only, in the order of their first use."""
    order = list(dict.fromkeys(s.operand for s in f.program.body if isinstance(s, Read)))
    order.sort(key=lambda i: f.ins[i] != VALUE)
    merged = list(dict.fromkeys(f.ins[i] for i in order))
    place = {i: merged.index(f.ins[i]) for i in order}
    types = {place[i]: f.program.inputs[i] for i in order}
    body = tuple(s.with_operand(place[s.operand]) if isinstance(s, Read) else s for s in f.program.body)
    program = replace(f.program, inputs=tuple(types[k] for k in range(len(merged))), body=body)
    return Fused(simplify(program), tuple(merged), f.outs)


def _static(p: LoopNest, ins: Sequence[Operand], static: set[str]) -> list[bool]:
    """Which values depend on nothing but static operands and the place."""
    flags: list[bool] = []
    for s in p.body:
        fixed = not isinstance(s, Store) and all(flags[a] for a in s.args)
        flags.append(fixed and (not isinstance(s, Read) or ins[s.operand].data in static))
    return flags


def _walks(p: LoopNest) -> list[tuple[int, ...]]:
    """The loops that every value depends on."""
    result: list[tuple[int, ...]] = []
    for s in p.body:
        loops = {d for a in s.args for d in result[a]}
        if isinstance(s, Read):
            loops |= {d for d, (st, n) in enumerate(zip(s.strides, p.dims, strict=True)) if st and n > 1}
        elif isinstance(s, Index):
            loops.add(s.dim)
        result.append(tuple(sorted(loops)))
    return result


def _roots(p: LoopNest, flags: Sequence[bool]) -> list[int]:
    """Static values that are computed, not just read, and that something else than a static value needs."""
    used = dict.fromkeys(a for i, s in enumerate(p.body) if not flags[i] for a in s.args if flags[a])
    return [
        a
        for a in used
        if not isinstance(p.body[a], (Const, Index)) and (not isinstance(p.body[a], Load) or p.body[a].args)
    ]


def _needed(p: LoopNest, values: Iterable[int]) -> set[int]:
    needed, left = set[int](), list(values)
    while left:
        i = left.pop()
        if i not in needed:
            needed.add(i)
            left.extend(p.body[i].args)
    return needed


def _loads(p: LoopNest, value: int) -> bool:
    return any(isinstance(p.body[i], Read) for i in _needed(p, [value]))


def _alone(p: LoopNest, values: Sequence[int], loops: Sequence[int]) -> LoopNest:
    """A program over ``loops`` that stores these values, one after the other."""
    needed, body = _needed(p, values), LoopNestBuilder([p.outer[d] for d in loops])
    body.inputs = list(p.inputs)
    where: dict[int, int] = {}
    for i in sorted(needed):
        s = p.body[i].renumbered(where)
        where[i] = body.add(s.over_loops(lambda st: tuple(st[d] for d in loops), loops.index))
    for i in values:
        dtype = p.body[i].dtype
        body.store(body.output(dtype), contiguous(body.outer), Expr(body, where[i], dtype))
    return body.finish()


def _weights(spec: Product, ins: Sequence[Operand], static: set[str]) -> int | Refusal:
    """Which operand the static weights are: 0 or 1."""
    if spec.panel:
        return Refusal("the weights are packed")
    if ins[1].data in static:
        return 1
    if isinstance(spec, ContractionSpec) and ins[0].data in static:
        return 0
    return Refusal("the weights of the product are not static")


def _window(spec: Product, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(spec, ConvolutionSpec):
        return spec.shapes[1], spec.w
    return spec.shapes[side], (spec.a, spec.b)[side]


def _along(spec: Product, side: int) -> dict[int, int]:
    """The dimensions of the product's results along which its weights vary, and the weights' dimensions they are."""
    if isinstance(spec, ConvolutionSpec):
        return {1: 0}
    rank = len(spec.batch)
    strides = (spec.a, spec.b)[side]
    along = {d: d for d in range(rank) if strides[d]}
    along[rank + side] = rank + side
    return along
