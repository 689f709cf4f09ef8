"""What is done to parameters alone leaves the loops over the data, and factors after a product move into its weights.

    y = (x - mean) * (g * rsqrt(var + eps)) + b   -->   f = g * rsqrt(var + eps); h = b - mean * f    once per channel
                                                        y = x * f + h
    y = conv(x, w) * f + h                        -->   w' = w * f                                    once per weight
                                                        y = conv(x, w') + h

A value is static if it depends on nothing but parameters, buffers and constants (``Network.static``). The largest static expressions
of a pointwise program or an epilogue become programs of their own over just the loops they walk; they run when parameters change.
A chain of additions and multiplications by static values is a * x + c. A product with static weights takes over the factor if all
that is made of its value has the same one, and it varies along the weights' own dimensions; not where a matrix unit multiplies numbers
of bf16, which scaled ones are not. Results change by rounding alone. Saves operations per element, and the traffic of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import Fused, compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Const, Load, Reduce, Statement, Store
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.product import VALUE, Product, epilogue_of, is_product, set_epilogue
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.held_halves import multiplies_halves
from dcir.transforms.tier2_fusion.static.affine_chains import Chains
from dcir.transforms.tier2_fusion.static.static_values import (
    alone,
    loads,
    numbered,
    roots,
    static_values,
    walks_of,
)

_STORED = frozenset({"f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"})


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
        outcome = PassResult.of(net)
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
        plain = Chains(old, static).plain()
        if plain is not old and not outcome.allowed(self, net, op):
            return
        new = self._hoist(net, op, plain, static, outcome)
        if new is not old:
            saved = op.spec.bytes_moved() - new.program.bytes_moved()
            outcome.saved_bytes += saved
            net.rewire(op, new.program, new.ins, new.outs, made_by=self.name)
            outcome.passed((op,), bytes_saved=saved)

    def _product(self, net: Network, op: Op, static: set[str], outcome: PassResult) -> None:
        spec, old = epilogue_of(net, op)
        rewriting = Chains(old, static)
        factor, before = rewriting.common_factor(), sum(map(sum, op.spec.footprint()))
        side = _weights(spec, net.ins(op), static) if factor is not None else None
        if factor is not None and isinstance(side, int) and not rewriting.walks(factor) <= set(_along(spec, side)):
            side = Refusal("the factor varies along other dimensions than the weights")
        if isinstance(side, int) and multiplies_halves(net, op):
            side = Refusal("the matrix unit multiplies weights of bf16 as they are")
        if factor is None or not isinstance(side, int):
            if isinstance(side, Refusal):
                outcome.missed(side, (op,))
            plain = rewriting.plain()
            if plain is not old and not outcome.allowed(self, net, op):
                return
            new = self._hoist(net, op, plain, static, outcome)
        elif not outcome.allowed(self, net, op):
            return
        else:
            taken, new = _take(self._hoist(net, op, rewriting.without(factor), static, outcome))
            spec = self._scale(net, op, spec, side, taken)
        if new is old:
            return
        set_epilogue(net, op, spec, new, self.name)
        saved = before - sum(map(sum, op.spec.footprint()))
        outcome.saved_bytes += saved
        outcome.passed((op,), bytes_saved=saved)

    def _hoist(self, net: Network, op: Op, f: Fused, static: set[str], outcome: PassResult) -> Fused:
        """Put the static expressions of ``f`` into operators of their own before ``op``."""
        p = f.program
        flags, walks = static_values(p, f.ins, static), walks_of(p)
        groups: dict[tuple[int, ...], list[int]] = {}
        wanted = {s.args[0] for s in p.body if isinstance(s, Store) and f.outs[s.operand] == VALUE}
        for i in roots(p, flags):
            s, loops = p.body[i], walks[i]
            if s.dtype not in _STORED or (not loads(p, i) and i not in wanted):
                continue
            if len(loops) == sum(n > 1 for n in p.outer) and i not in wanted:
                reads, writes = alone(p, [i], loops).footprint()
                if pays("larger than made of", sum(reads) < sum(writes)):
                    outcome.missed("a static value is larger than what it is made of", (op,))
                    continue
            groups.setdefault(loops, []).append(i)
        if groups and not outcome.allowed(self, net, op):
            return f
        moved: dict[int, tuple[Operand, tuple[int, ...]]] = {}
        for loops, values in groups.items():
            hoisted = alone(p, values, loops)
            shape = hoisted.outer
            outs = [Operand(net.add_container(shape, t)) for t in hoisted.outputs]
            lean = compact(hoisted, f.ins, outs)
            net.add_op(lean.program, lean.ins, lean.outs, came_from=(op,), made_by=self.name, before=op)
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
        return numbered(Fused(simplify(replace(p, inputs=tuple(types), body=tuple(body))), tuple(ins), f.outs))

    def _scale(self, net: Network, op: Op, spec: Product, side: int, factor: _Factor) -> Product:
        """Multiply the weights (operand ``side`` of ``op``) by a factor over the product's results."""
        ins = net.ins(op)
        shape, strides = _window(spec, side)
        to = _along(spec, side)
        kept = [d for d in range(len(shape)) if strides[d] or d in to.values() or d >= len(shape) - 2]
        kept.sort(key=lambda d: strides[d], reverse=True)
        body = LoopNestBuilder([shape[d] for d in kept])
        value = body.load(body.input(net.containers[ins[side].data].dtype), [strides[d] for d in kept])
        operands = [ins[side]]
        if factor.number is not None:
            value = value * factor.number
        else:
            steps = {own: factor.strides[d] for d, own in to.items()}
            # Of a model in bfloat16 the product is one of widened operands, and the factor is as the user has it.
            stored = net.containers[factor.operand.data].dtype
            value = value * body.load(body.input(stored), [steps.get(d, 0) for d in kept])
            operands.append(factor.operand)
        name = net.add_container(body.outer, spec.dtype)
        new = contiguous(body.outer)
        body.store(body.output(spec.dtype), new, value)
        net.add_op(body.finish(), operands, [Operand(name)], came_from=(op,), made_by=self.name, before=op)
        net.rewire(op, op.spec, [Operand(name) if i == side else o for i, o in enumerate(ins)], net.outs(op))
        steps = dict(zip(kept, new, strict=True))
        where = tuple(steps.get(d, 0) for d in range(len(shape)))
        if isinstance(spec, ConvolutionSpec):
            return replace(spec, w=where)
        return replace(spec, b=where) if side == 1 else replace(spec, a=where)


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
    return factor, numbered(Fused(replace(rest, outputs=p.outputs[:-1]), f.ins, f.outs[:-1]))


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
