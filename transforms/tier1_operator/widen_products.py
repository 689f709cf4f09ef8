"""Products and convolutions of half types become f32 products of widened operands, whose results are rounded as they are stored.

    y = x @ w                (bf16)  -->   x' = f32(x); w' = f32(w); y = x' @ w', stored as bf16(value)
    g = conv_backward(x, y)  (bf16)  -->   g' = conv_backward(f32(x), f32(y)); g = bf16(g')

Half types are storage: products of widened numbers are exact, their sums f32's, and a result is rounded once. Written out, the
widening of weights is done when they change and not in every call, that of activations is done where they are made (an epilogue stores
what its reader needs), and a product takes every form that one of f32 has. What is widened is rounded first: nothing if it was read, and
what a store and a load would do if the value comes straight from its maker. Moves more bytes of activations; saves converting all
operands in every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.types import HALVES
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.product import Product, packs_much
from dcir.ops.pages.pointwise import rounded
from dcir.transforms.rule import Rule

_Widened = dict[tuple[Operand, tuple[tuple[int, int], ...]], Operand]


class _Half(NamedTuple):
    """A product of a half type."""

    op: Op
    spec: Product


@dataclass(frozen=True)
class WidenProducts(Rule[_Widened, _Half]):
    """Matrix products and convolutions of bf16 and f16 in f32."""

    tier: ClassVar[int] = 1

    def survey(self, net: Network) -> _Widened:
        """What several products read in the same way is widened once."""
        return {}

    def pattern(self, net: Network, op: Op, known: _Widened) -> _Half | None:
        """A product of a half type."""
        spec = op.spec
        if not isinstance(spec, ContractionSpec | ConvolutionSpec) or spec.dtype not in HALVES:
            return None
        return _Half(op, spec)

    def check(self, net: Network, match: _Half, known: _Widened) -> Refusal | int:
        """It saves conversions, not traffic."""
        spec = match.spec
        if spec.panel or spec.epilogue is not None:
            return Refusal("the product has a form of its own already")
        if not spec.operations() or not all(map(math.prod, spec.shapes)):
            return Refusal("the product is empty")
        return 0

    def rewrite(self, net: Network, match: _Half, known: _Widened) -> Sequence[Op]:
        """Operands in f32; the result rounded by an epilogue, or by a program after it."""
        (op, spec), widened = match, known
        ins, (out,) = net.ins(op), net.outs(op)
        reads, written = _windows(spec)
        new: dict[str, Any] = {"types": alike("f32")}
        for i, field in enumerate(reads):
            ins[i], new[field] = self._wide(net, op, ins[i], *_window(spec, field), widened)
        shape, strides = _window(spec, written)
        net.rewire(op, replace(spec, **new), ins, [out], made_by=self.name)
        if (isinstance(spec, ContractionSpec) or spec.kind == "forward") and not packs_much(
            net, op, target_of(net).machine.isa
        ):
            body = LoopNestBuilder(shape)
            value = body.load(body.input("f32"), contiguous(shape))
            if isinstance(spec, ConvolutionSpec) and spec.bias:
                value = value + body.load(body.input(spec.dtype), [1 if d == 1 else 0 for d in range(len(shape))])
                new["bias"] = False
            body.store(body.output(spec.dtype), strides, value)
            net.rewire(op, replace(spec, **new, epilogue=body.finish()), ins, [out])
            return ()
        new[written] = _dense(shape, strides)
        temporary = Operand(net.add_container([n for n, _ in _walk(shape, strides)], "f32"))
        before = _next(net, op)
        net.rewire(op, replace(spec, **new), ins, [temporary])
        narrowed = _converted("f32", spec.dtype, shape, new[written], strides)
        net.add_op(narrowed, [temporary], [out], came_from=(op,), made_by=self.name, before=before)
        return ()

    def _wide(
        self, net: Network, op: Op, source: Operand, shape: Sequence[int], strides: Sequence[int], widened: _Widened
    ) -> tuple[Operand, tuple[int, ...]]:
        """A window in f32, without gaps and in the order of memory, and its strides."""
        walk = _walk(shape, strides)
        key = source, walk
        if key not in widened:
            widened[key] = Operand(net.add_container([n for n, _ in walk], "f32"))
            extents, steps = [n for n, _ in walk], [s for _, s in walk]
            program = _converted(net.containers[source.data].dtype, "f32", extents, steps, contiguous(extents))
            net.add_op(program, [source], [widened[key]], came_from=(op,), made_by=self.name, before=op)
        return widened[key], _dense(shape, strides)


def _windows(spec: Product) -> tuple[str, str]:
    """The fields of the strides of what is read, and of what is written."""
    if isinstance(spec, ContractionSpec):
        return "ab", "c"
    return {"forward": ("xw", "y"), "backward_data": ("yw", "x"), "backward_weight": ("xy", "w")}[spec.kind]


def _window(spec: Product, field: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand."""
    names = "abc" if isinstance(spec, ContractionSpec) else "xwy"
    return spec.shapes[names.index(field)], getattr(spec, field)


def _walk(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Extents and strides of the dimensions that a window walks, the longest stride first."""
    found = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1 and s != 0]
    return tuple(sorted(found, key=lambda d: (-d[1], -d[0])))


def _dense(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of the same window without gaps; what is broadcast stays broadcast."""
    walk = list(_walk(shape, strides))
    places = dict[tuple[int, int], list[int]]()
    for d, step in zip(walk, contiguous([n for n, _ in walk]), strict=True):
        places.setdefault(d, []).append(step)
    return tuple(
        places[n, s].pop(0) if n != 1 and s != 0 else math.prod(m for m, t in walk if t < s) if s else 0
        for n, s in zip(shape, strides, strict=True)
    )


def _converted(source: str, target: str, shape: Sequence[int], reads: Sequence[int], writes: Sequence[int]) -> LoopNest:
    """The copy of a window from one type to another."""
    body = LoopNestBuilder(shape)
    value = body.load(body.input(source), reads)
    body.store(body.output(target), writes, rounded(value, source))
    return body.finish()


def _next(net: Network, op: Op) -> Op | None:
    """The operator after ``op`` in the order."""
    order = net.ops()
    at = order.index(op) + 1
    return order[at] if at < len(order) else None
