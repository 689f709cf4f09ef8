"""What scales the channels of an image scales the weights of the product that reads it instead, where there are fewer of them.

    t[n,c,p] = x[n,c,p] s[n,c];  y = conv(t, w)    -->    u[n,c,o] = w[c,o] s[n,c];  y = conv(x, u), an image each

A squeeze-excite block's last step: the scaled image is never written. Only for 1 x 1 convolutions with packed weights, and for scales that
are known to be small (a sigmoid's): neither order of the multiplications can then overflow where the other does not. Saves the image's
reading and writing, less the weights'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest, stored_by
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Const, Load, Store
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.epilogue import reorder_epilogue
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panels
from dcir.transforms.rule import Rule

MOST = 8.0
"""The largest scale."""


class Scaling(NamedTuple):
    """A program that scales the channels of a convolution's image.

    Attributes:
        product, spec: the convolution.
        op: the program.
        x, scale: its operands.
        steps: strides of x over the convolution's (n, channel, *positions).
        scale_steps: strides of the scale over (n, channel).
    """

    product: Op
    spec: ConvolutionSpec
    op: Op
    x: Operand
    scale: Operand
    steps: tuple[int, ...]
    scale_steps: tuple[int, int]


@dataclass(frozen=True)
class FoldChannelScales(Rule[None, Scaling]):
    """Move such scales over to the weights.

    Attributes:
        least: positions of an image per output channel.
    """

    tier: ClassVar[int] = 2
    after: ClassVar[tuple[str, ...]] = ("pack-weights",)
    least: float = 1.5

    def survey(self, net: Network) -> None:
        """Convolutions have nothing in common."""

    def pattern(self, net: Network, op: Op, known: None) -> Scaling | None:
        """A 1 x 1 convolution with packed weights, of an image whose channels one program scales."""
        spec = op.spec
        return _scaling(net, op, spec) if isinstance(spec, ConvolutionSpec) and _pointwise(spec) else None

    def place(self, op: Op, match: Scaling) -> tuple[Op, ...]:
        """The convolution and the program that scales its image."""
        return match.product, match.op

    def check(self, net: Network, match: Scaling, known: None) -> Refusal | int:
        """What scaling the image moves, less what scaling the weights does."""
        spec, image = match.spec, net.ins(match.product)[0]
        if net.containers[image.data].role != "transient" or not net.read_once(image.data):
            return Refusal("others read the scaled image")
        if net.outs(match.op)[0] != image:
            return Refusal("the image is a part of what is scaled")
        if not _small(net, match.scale):
            return Refusal("the scale is not known to be small")
        if match.steps[1] != 1 and spec.cin > 1:
            return Refusal("the image's channels do not lie together")
        if math.prod(spec.out_size) < self.least * spec.panel * panels(spec.cout, spec.panel):
            return Refusal("the image has too few positions for its weights")
        unit = target_of(net).costs.matrix_unit
        if unit is not None and spec.n > 1:
            sizes = math.prod(spec.out_size), spec.cout, spec.cin
            if unit.wins(1, spec.n * sizes[0], *sizes[1:]) and not unit.wins(1, *sizes):
                return Refusal("the matrix unit wants all images in one product")
        return match.op.spec.bytes_moved() - _weights(match).bytes_moved()

    def rewrite(self, net: Network, match: Scaling, known: None) -> Sequence[Op]:
        """Weights of their own for every image."""
        op, program = match.product, _weights(match)
        ins, outs = net.ins(op), net.outs(op)
        weights = Operand(net.add_container(_packed(match.spec), match.spec.dtype))
        scaled = net.add_op(
            program, [ins[1], match.scale], [weights], came_from=(match.op, op), made_by=self.name, before=op
        )
        spec = replace(match.spec, x=match.steps)
        made = spec if spec.n == 1 else _product(spec, contiguous(_packed(spec))[0])
        net.rewire(op, made, [match.x, weights, *ins[2:]], outs, made_by=self.name)
        data = net.outs(match.op)[0].data
        net.remove_op(match.op, into=scaled)
        net.remove_container(data)
        return ()


def _packed(spec: ConvolutionSpec) -> tuple[int, ...]:
    """The shape of packed weights for every image."""
    return spec.n, panels(spec.cout, spec.panel), spec.cin, spec.panel


def _weights(match: Scaling) -> LoopNest:
    """The program that scales the weights."""
    spec, shape = match.spec, _packed(match.spec)
    body = LoopNestBuilder(shape)
    w, s, u = body.input(spec.dtype), body.input(spec.dtype), body.output(spec.dtype)
    scale = body.load(s, (match.scale_steps[0], 0, match.scale_steps[1], 0))
    body.store(u, contiguous(shape), body.load(w, (0, *contiguous(shape[1:]))) * scale)
    return order_loops(drop_unit_loops(body.finish()))


def _pointwise(spec: ConvolutionSpec) -> bool:
    return (
        spec.kind == "forward"
        and spec.panel > 0
        and spec.groups == 1
        and not (spec.bias or spec.winograd or spec.pairs)
        and math.prod(spec.kernel) == 1
        and set(spec.stride) == {1}
        and set(spec.padding) == {0}
        and spec.in_size == spec.out_size
    )


def _scaling(net: Network, op: Op, spec: ConvolutionSpec) -> Scaling | None:
    """What scales the convolution's image; None if nothing does."""
    image = net.ins(op)[0]
    writers = net.writers(image.data)
    if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest):
        return None
    p, ins = writers[0].spec, net.ins(writers[0])
    if (
        p.inner
        or sorted(s.op for s in p.body) != ["load", "load", "mul", "store"]
        or any(s.args for s in p.body if isinstance(s, Load))
    ):
        return None
    loads = [s for s in p.body if isinstance(s, Load)]
    (store,) = (s for s in p.body if isinstance(s, Store))
    walked = _dimensions(p, store.strides, spec)
    if walked is None or set(p.inputs) | set(p.outputs) != {spec.dtype}:
        return None
    fixed = [all(not t for d, t in zip(walked, s.strides, strict=True) if d is not None and d > 1) for s in loads]
    if fixed.count(True) != 1:
        return None
    scale, x = loads[fixed.index(True)], loads[fixed.index(False)]
    rank = 2 + len(spec.kernel)
    steps, scale_steps = [0] * rank, [0] * rank
    for d, t, u in zip(walked, x.strides, scale.strides, strict=True):
        if d is not None:
            steps[d], scale_steps[d] = t, u
    return Scaling(
        op, spec, writers[0], ins[x.operand], ins[scale.operand], tuple(steps), (scale_steps[0], scale_steps[1])
    )


def _dimensions(p: LoopNest, stored: tuple[int, ...], spec: ConvolutionSpec) -> list[int | None] | None:
    """The dimension of the convolution's image that each loop walks, None for one that runs once; None if some is another's."""
    left = {d: (n, t) for d, (n, t) in enumerate(zip(spec.shapes[0], spec.x, strict=True)) if n > 1}
    found: list[int | None] = []
    for extent, step in zip(p.outer, stored, strict=True):
        d = next((d for d, pair in left.items() if pair == (extent, step)), None)
        if extent > 1 and d is None:
            return None
        if d is not None:
            del left[d]
        found.append(d)
    return None if left else found


def _small(net: Network, scale: Operand) -> bool:
    """Whether everything written to the scale's container is at most ``MOST``."""
    writers = net.writers(scale.data)
    for op in writers:
        p = stored_by(op.spec)
        if p is None:
            return False
        for s in p.body:
            if isinstance(s, Store) and net.outs(op)[s.operand].data == scale.data and not _most(p, s.args[0]) <= MOST:
                return False
    return bool(writers)


def _most(p: LoopNest, i: int) -> float:
    """The largest magnitude that a value can have, as far as its last steps tell."""
    s = p.body[i]
    if s.op in ("sigmoid", "tanh"):
        return 1.0
    if isinstance(s, Const):
        return abs(float(s.value))
    if s.op == "mul":
        return _most(p, s.args[0]) * _most(p, s.args[1])
    if s.op == "div" and isinstance(by := p.body[s.args[1]], Const) and by.value:
        return _most(p, s.args[0]) / abs(float(by.value))
    if s.op in ("min", "max"):  # between two constants
        for a, other in (s.args, s.args[::-1]):
            t = p.body[a]
            if isinstance(p.body[other], Const) and t.op in ("min", "max") and t.op != s.op:
                inner = [b for b in t.args if isinstance(p.body[b], Const)]
                if inner:
                    return max(_most(p, other), _most(p, inner[0]))
    return math.inf


def _product(spec: ConvolutionSpec, step: int) -> ContractionSpec:
    """The convolution with weights for every image, ``step`` apart."""
    order = (0, *range(2, 2 + len(spec.kernel)), 1)
    *batch, m, _ = (spec.shapes[2][d] for d in order)
    a, c = (tuple(s[d] for d in order) for s in (spec.x, spec.y))
    epilogue = reorder_epilogue(spec.epilogue, order) if spec.epilogue is not None else None
    b = (step, *([0] * (len(batch) + 1)))
    return ContractionSpec(alike(spec.dtype), tuple(batch), m, spec.cout, spec.cin, a, b, c, spec.panel, epilogue)
