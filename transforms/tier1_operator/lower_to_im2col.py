"""Convolutions with few results per weight are matrix products over unfolded images.

    y = conv(x, w)          -->   u = unfold(x);  t = u w^T;  y = epilogue(t)
    dw = sum of x * dy      -->   u = unfold(x);  dw = dy^T u          (u once for both)
    dx = conv^T(dy, w)      -->   dx = fold(dy w)

A convolution's kernel packs or reorders its weights in every call of a training step, and goes over them once per few
positions. Where a layer has many more output channels than positions (a classifier as a convolution, the last layers at a
small resolution), the weights are nearly all there is to move: the product reads them once, in place, and the unfolded image is small
next to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Compute, Load, Read, Statement
from dcir.ir.types import FLOATS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.unfolding import depth, fold, positions, unfold
from dcir.transforms.rule import Rule

_Unfolded = dict[tuple[Operand, LoopNest], Operand]


class _Known(NamedTuple):
    """What runs before the calls, what is static, and the images that were unfolded already."""

    ready: set[Op]
    static: set[str]
    unfolded: _Unfolded


@dataclass(frozen=True)
class LowerToIm2col(Rule[_Known, Op]):
    """Rewrite such convolutions, forward and backward.

    Attributes:
        channels: least output channels per position.
        least: fewest elements of the weights; below it nothing is to be gained.
    """

    tier: ClassVar[int] = 1
    channels: int = 8
    least: int = 1 << 16

    def survey(self, net: Network) -> _Known:
        """What is static."""
        ready = net.preparable()
        return _Known(ready, net.static_containers(ready), {})

    def pattern(self, net: Network, op: Op, known: _Known) -> Op | None:
        """A convolution of several taps, in no form of its own."""
        spec = op.spec
        if op in known.ready or not isinstance(spec, ConvolutionSpec) or spec.panel or spec.winograd:
            return None
        return op if math.prod(spec.kernel) != 1 else None

    def check(self, net: Network, match: Op, known: _Known) -> Refusal | int:
        """It saves what a kernel would reorder in every call, which no operator's traffic tells."""
        spec = match.known(ConvolutionSpec)
        if spec.kind != "backward_weight" and net.ins(match)[1].data in known.static:
            return Refusal("its weights are packed once")
        if spec.groups != 1 or spec.dtype not in FLOATS:
            return Refusal("it has groups, or a half type")
        if spec.cout < self.channels * positions(spec) or spec.cout * depth(spec) < self.least:
            return Refusal("it has too many results for its weights")
        if _order(spec) is None:
            return Refusal("the weights of one output channel do not lie together")
        return 0

    def rewrite(self, net: Network, match: Op, known: _Known) -> Sequence[Op]:
        """A product, and the programs around it."""
        kinds = {"forward": _forward, "backward_data": _data, "backward_weight": _weight}
        kinds[match.known(ConvolutionSpec).kind](net, match, known.unfolded, self.name)
        return ()


def _order(spec: ConvolutionSpec) -> tuple[int, ...] | None:
    """Strides of one output channel's weights over (channel, *taps), if they are dense."""
    at = 1
    pairs = [(s, n) for s, n in zip(spec.w[1:], (spec.cin, *spec.kernel), strict=True) if n > 1]
    for stride, extent in sorted(pairs):
        if stride != at:
            return None
        at *= extent
    return spec.w[1:] if spec.w[0] >= at else None


def _tidy(program: LoopNest) -> LoopNest:
    return order_loops(drop_unit_loops(program))


def _image(net: Network, op: Op, x: Operand, unfolded: _Unfolded, name: str) -> Operand:
    """The unfolded image of a forward convolution or a weight gradient."""
    spec = op.known(ConvolutionSpec)
    program = _tidy(unfold(spec, spec.w[1:]))
    key = x, program
    if key not in unfolded:
        unfolded[key] = Operand(net.add_container((positions(spec), depth(spec)), spec.dtype))
        net.add_op(program, [x], [unfolded[key]], came_from=(op,), made_by=name, before=op)
    return unfolded[key]


def _rows(net: Network, op: Op, y: Operand, name: str) -> Operand:
    """The error signal as a matrix of positions by channels."""
    spec = op.known(ConvolutionSpec)
    shape = spec.shapes[2]
    body = LoopNestBuilder(shape)
    body.store(body.output(spec.dtype), _matrix(spec), body.load(body.input(spec.dtype), spec.y))
    rows = Operand(net.add_container((positions(spec), spec.cout), spec.dtype))
    net.add_op(_tidy(body.finish()), [y], [rows], came_from=(op,), made_by=name, before=op)
    return rows


def _matrix(spec: ConvolutionSpec) -> tuple[int, ...]:
    """Strides of a matrix of positions by channels over (n, channel, *positions)."""
    sample, *steps = (spec.cout * s for s in contiguous((spec.n, *spec.out_size)))
    return sample, 1, *steps


def _forward(net: Network, op: Op, unfolded: _Unfolded, name: str) -> None:
    spec, ins, outs = op.known(ConvolutionSpec), net.ins(op), net.outs(op)
    rows, columns, taps = positions(spec), spec.cout, depth(spec)
    u = _image(net, op, ins[0], unfolded, name)
    t = Operand(net.add_container((rows, columns), spec.dtype))
    product = ContractionSpec(
        alike(spec.dtype), (), rows, columns, taps, (taps, 1), (1, spec.w[0]), (columns, 1)
    )  # fmt: skip
    net.add_op(product, [u, ins[1]], [t], came_from=(op,), made_by=name, before=op)
    net.rewire(op, _tidy(_after(spec)), [t, *ins[2:]], outs, made_by=name)


def _after(spec: ConvolutionSpec) -> LoopNest:
    """What follows the product, over its matrix: the bias, if it is the convolution's own, and the epilogue."""
    p = spec.epilogue or identity_epilogue(spec.shapes[2], spec.dtype, spec.y)
    more = int(spec.bias)
    body: list[Statement] = []
    where: dict[int, int] = {}
    for i, s in enumerate(p.body):
        new = s.renumbered(where)
        if isinstance(new, Read):
            new = new.with_operand(new.operand + more) if new.operand else new.with_strides(_matrix(spec))
        body.append(new)
        where[i] = len(body) - 1
        if isinstance(s, Load) and s.operand == 0 and more:
            each = tuple(int(d == 1) for d in range(len(p.outer)))
            body.append(Load(1, each, s.dtype))
            body.append(Compute("add", s.dtype, (where[i], len(body) - 1)))
            where[i] = len(body) - 1
    bias = (spec.dtype,) if more else ()
    return replace(p, inputs=(p.inputs[0], *bias, *p.inputs[1:]), body=tuple(body))


def _data(net: Network, op: Op, unfolded: _Unfolded, name: str) -> None:
    spec, ins, outs = op.known(ConvolutionSpec), net.ins(op), net.outs(op)
    rows, columns, taps = positions(spec), spec.cout, depth(spec)
    u = Operand(net.add_container((rows, taps), spec.dtype))
    product = ContractionSpec(
        alike(spec.dtype), (), rows, taps, columns, (columns, 1), (spec.w[0], 1), (taps, 1)
    )  # fmt: skip
    error = _rows(net, op, ins[0], name)
    net.add_op(product, [error, ins[1]], [u], came_from=(op,), made_by=name, before=op)
    net.rewire(op, _tidy(fold(spec, spec.w[1:])), [u], outs, made_by=name)


def _weight(net: Network, op: Op, unfolded: _Unfolded, name: str) -> None:
    spec, ins, outs = op.known(ConvolutionSpec), net.ins(op), net.outs(op)
    rows, columns, taps = positions(spec), spec.cout, depth(spec)
    u = _image(net, op, ins[0], unfolded, name)
    error = _rows(net, op, ins[1], name)
    product = ContractionSpec(
        alike(spec.dtype), (), columns, taps, rows, (1, columns), (taps, 1), (spec.w[0], 1)
    )  # fmt: skip
    net.rewire(op, product, [error, u], outs, made_by=name)
