"""3 x 3 convolutions multiply less: tiles of results in Winograd's form, where that is faster.

    y = conv(x, w)         -->   w' = G w G^T, packed       once, if the weights are static
                                 y = A^T [w' * (B^T x B)] A
    dx = conv^T(dy, w)     -->   the same with dy, and with w flipped and transposed
    dw = sum of x * dy     -->   dw = G^T [sum of (B^T x B) * (A dy A^T)] G

A tile of 2 x 4 results takes 24 products per pair of channels instead of 72, of 2 x 2 16 instead of 36; in exchange the image and the
result are transformed and the weights are larger (``dcir.ops.library.winograd``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.matrix_unit import DEPTH
from dcir.cost.target import target_of
from dcir.cost.winograd import WinogradCosts
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops, order_loops
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ops.library import winograd
from dcir.ops.library.convolution import NO_VECTORS, ConvolutionSpec, refused_by_winograd
from dcir.ops.library.packing import panel_width
from dcir.transforms.base import Pass, PassResult

_Made = dict[tuple[Operand, object], Operand]
_TOO_LITTLE = Refusal("the transforms would cost more than they save")
_HALVES = Refusal("a unit multiplies numbers of bf16 as they are, which those of the transforms are not")


@dataclass(frozen=True)
class UseWinograd(Pass):
    """Choose Winograd's form for convolutions, by what the target says that either form costs (``dcir.cost.winograd``).

    Attributes:
        tiles: the extents of tiles to choose from; empty turns the pass off.
        gain: the share of the direct form's cycles that it must stay below.
        unit_gain: the same for weight gradients where the direct form runs on a matrix unit: of 26 layers of four networks the share was
            0.67 and more where the direct form was faster by 10 to 17 %, and below that the other was by up to 19 %.
    """

    tier: ClassVar[int] = 1
    tiles: tuple[tuple[int, int], ...] = ((2, 4), (4, 2), (2, 2))
    gain: float = 0.9
    unit_gain: float = 0.65

    def apply(self, net: Network) -> PassResult:
        """Visit every convolution that is not static itself; equal weights are transformed once."""
        outcome = PassResult.of(net)
        ready = net.preparable()
        static = net.static_containers(ready)
        costs = target_of(net).costs.winograd
        made: _Made = {}
        for op in net.ops():
            spec, ins = op.spec, net.ins(op)
            if op in ready or not isinstance(spec, ConvolutionSpec) or spec.panel or spec.winograd:
                continue
            if spec.kind == "backward_weight":
                refusal = self._gradient(net, op, spec, made)
                if refusal is None:
                    outcome.passed((op,))
                else:
                    outcome.missed(refusal, (op,))
                continue
            flipped = spec.kind == "backward_data"
            if flipped:
                spec = _as_forward(spec)
            if costs.unit_step and _multiplied_as_they_are(spec):
                outcome.missed(_HALVES, (op,))
                continue
            refusal = refused_by_winograd(spec)
            tile = None if refusal else self._choose(costs, op, spec, outcome, static=ins[1].data in static)
            if tile is None:
                if math.prod(spec.kernel) > 1:
                    outcome.missed(refusal or _TOO_LITTLE, (op,))
                continue
            if not outcome.allowed(self, net, op):
                continue
            self._rewrite(net, op, spec, tile, made, flipped=flipped)
            outcome.passed((op,))
        return outcome

    def _choose(
        self, costs: WinogradCosts, op: Op, spec: ConvolutionSpec, outcome: PassResult, *, static: bool
    ) -> tuple[int, int] | None:
        """The cheapest tile, if it is cheap enough."""
        direct = costs.direct(spec)
        forms = [(costs.forward(spec, tile, static=static), tile) for tile in self.tiles]
        cost, tile = min(forms, default=(direct, None))
        # An image in another layout is turned around, a result stored element by element.
        if spec.x[1] != 1:
            cost += costs.turning(math.prod(spec.shapes[0]))
        if spec.y[1] != 1:
            cost += costs.storing_apart(math.prod(spec.shapes[2]))
        outcome.analysis("cycles of the direct form and of Winograd's", (op,), direct=direct, winograd=cost)
        return tile if cost <= self.gain * direct else None

    def _gradient(self, net: Network, op: Op, spec: ConvolutionSpec, made: _Made) -> Refusal | None:
        """A weight gradient in this form; or why not."""
        costs = target_of(net).costs.winograd
        if costs.unit_step and _multiplied_as_they_are(spec) and spec.y[1] == 1 and spec.cout % DEPTH == 0:
            return _HALVES
        refusal = refused_by_winograd(spec) or (None if spec.cout % costs.lanes == 0 else NO_VECTORS)
        if refusal is not None:
            return refusal
        forms = [(costs.gradient(spec, tile), tile) for tile in self.tiles]
        cost, tile = min(forms, default=(math.inf, (0, 0)))
        images = zip(spec.shapes[::2], net.ins(op), (spec.x, spec.y), strict=True)
        cost += sum(costs.turning(math.prod(shape)) for shape, _, strides in images if strides[1] != 1)
        if cost > (self.unit_gain if costs.on_unit(spec) else self.gain) * costs.direct(spec):
            return _TOO_LITTLE
        if not net.allows(self, op):
            return SWITCHED_OFF
        ins = net.ins(op)
        image, x = self._turned(net, op, spec.dtype, spec.shapes[0], ins[0], spec.x, made)
        error, y = self._turned(net, op, spec.dtype, spec.shapes[2], ins[1], spec.y, made)
        net.rewire(op, replace(spec, x=x, y=y, winograd=tile), [image, error], net.outs(op), made_by=self.name)
        return None

    def _rewrite(
        self, net: Network, op: Op, spec: ConvolutionSpec, tile: tuple[int, int], made: _Made, *, flipped: bool
    ) -> None:
        ins = net.ins(op)
        panel = panel_width(spec.dtype, target_of(net).machine.isa)
        transform = winograd.WinogradWeightsSpec(spec.dtype, tile, spec.cin, spec.cout, panel, spec.w, flipped)
        key = ins[1], transform
        if key not in made:
            made[key] = Operand(net.add_container(transform.packed_weights, spec.dtype))
            net.add_op(transform, [ins[1]], [made[key]], came_from=(op,), made_by=self.name, before=op)
        weights = made[key]
        image, x = self._turned(net, op, spec.dtype, spec.shapes[0], ins[0], spec.x, made)
        done = replace(spec, x=x, panel=panel, winograd=tile)
        net.rewire(op, done, [image, weights, *ins[2:]], net.outs(op), made_by=self.name)

    def _turned(
        self,
        net: Network,
        op: Op,
        dtype: str,
        shape: tuple[int, ...],
        image: Operand,
        strides: tuple[int, ...],
        made: _Made,
    ) -> tuple[Operand, tuple[int, ...]]:
        """The image channels-last, and its strides."""
        _, c, h, w = shape
        if strides[1] == 1:
            return image, strides
        last = (c * h * w, 1, w * c, c)
        body = LoopNestBuilder(shape)
        body.store(body.output(dtype), last, body.load(body.input(dtype), strides))
        program = order_loops(drop_unit_loops(body.finish()))
        key = image, program
        if key not in made:
            made[key] = Operand(net.add_container(shape, dtype, "transient", last))
            net.add_op(program, [image], [made[key]], came_from=(op,), made_by=self.name, before=op)
        return made[key], last


def _multiplied_as_they_are(spec: ConvolutionSpec) -> bool:
    """Whether a matrix unit takes the direct form of a convolution of bf16's numbers: of images that it can gather rows of."""
    return spec.halves and spec.groups == 1 and spec.x[1] == 1 and spec.cin % DEPTH == 0


def _as_forward(spec: ConvolutionSpec) -> ConvolutionSpec:
    """A data gradient as a convolution of the error signal, but for its taps, which come in the other order.

    Of one with a stride or several groups that makes no sense, and ``refused_by_winograd`` says so.
    """
    padding = tuple(d * (k - 1) - p for d, k, p in zip(spec.dilation, spec.kernel, spec.padding, strict=True))
    return replace(
        spec, kind="forward", cin=spec.cout, cout=spec.cin, in_size=spec.out_size, out_size=spec.in_size, padding=padding,
        x=spec.y, y=spec.x, w=(spec.w[1], spec.w[0], *spec.w[2:]),
    )  # fmt: skip
