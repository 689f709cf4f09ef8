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

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_forms import drop_unit_loops, order_loops
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ops.library import winograd
from dcir.ops.library.convolution import NO_VECTORS, ConvolutionSpec, refused_by_winograd
from dcir.ops.library.packing import panel_width, panels
from dcir.transforms.base import Pass, PassResult

_Made = dict[tuple[Operand, object], Operand]
_LANES = 16
_TURN, _APART = 2.0, 1.0  # cycles an element
_START = 40e3  # cycles of one more barrier, with what was measured around it
# Of the direct form on a matrix unit: channels of a step, multiply-adds like ``per_cycle``, and what gathering a strip of pixels takes
# beside a panel of output channels. Measured on a Xeon with AMX: 500 GFLOP/s of 512 channels, 430 of 128, 350 of 64.
_MATRIX_STEP, _MATRIX_RATE, _GATHERED = 32, 2.7, 0.8
_TOO_LITTLE = Refusal("the transforms would cost more than they save")


@dataclass(frozen=True)
class UseWinograd(Pass):
    """Choose Winograd's form for convolutions.

    The cost is in cycles of one of several cores, fitted to measurements of 16 shapes within 15 %: products at the rate of the register
    tiles, weights at what one core gets from memory (they hardly overlap, since every point's weights are another stream), and for the
    transforms, per vector and point, and per tile, what was measured.

    Attributes:
        tiles: the extents of tiles to choose from; empty turns the pass off.
        gain: the share of the direct form's cycles that it must stay below.
        unit_gain: the same for weight gradients where the direct form runs on a matrix unit: of 26 layers of four networks the share was
            0.67 and more where the direct form was faster by 10 to 17 %, and below that the other was by up to 19 %.
        cores: that share the tiles.
        per_cycle: multiply-adds of 16 elements that a core starts in a cycle.
        weight_bytes: of transformed weights that arrive in a cycle, and of the direct form's, which are read ahead better.
        transform: cycles an element of transformed weights takes.
        sum_bytes: of a gradient's sums that a core writes or reads in a cycle.
        matrix: whether the direct form runs on a matrix unit (``codegen/cpp/tiles/conv/matrix.py``).
    """

    tier: ClassVar[int] = 1
    tiles: tuple[tuple[int, int], ...] = ((2, 4), (4, 2), (2, 2))
    gain: float = 0.9
    unit_gain: float = 0.65
    cores: int = 2
    per_cycle: float = 1.8
    weight_bytes: tuple[float, float] = (6.0, 8.0)
    transform: float = 0.3
    sum_bytes: float = 6.8
    matrix: bool = False

    def apply(self, net: Network) -> PassResult:
        """Visit every convolution that is not static itself; equal weights are transformed once."""
        outcome = PassResult()
        ready = net.preparable()
        static = net.static_containers(ready)
        made: _Made = {}
        for op in net.ops():
            spec, ins = op.spec, net.ins(op)
            if op in ready or not isinstance(spec, ConvolutionSpec) or spec.panel or spec.winograd:
                continue
            if spec.kind == "backward_weight":
                refusal = self._gradient(net, op, spec, made)
                if refusal is None:
                    outcome.changed += 1
                else:
                    outcome.refuse(refusal)
                continue
            flipped = spec.kind == "backward_data"
            if flipped:
                spec = _as_forward(spec)
            refusal = refused_by_winograd(spec)
            tile = None if refusal else self._choose(spec, static=ins[1].data in static)
            if tile is None:
                if math.prod(spec.kernel) > 1:
                    outcome.refuse(refusal or _TOO_LITTLE)
                continue
            self._rewrite(net, op, spec, tile, made, flipped=flipped)
            outcome.changed += 1
        return outcome

    def _choose(self, spec: ConvolutionSpec, *, static: bool) -> tuple[int, int] | None:
        """The cheapest tile, if it is cheap enough."""
        direct = self._direct(spec)
        costs = [
            (
                self._tiles(spec, tile) + self._weights(spec, tile) + (0 if static else self._preparation(spec, tile)),
                tile,
            )
            for tile in self.tiles
        ]
        cost, tile = min(costs, default=(direct, None))
        # An image in another layout is turned around, a result stored element by element.
        if spec.x[1] != 1:
            cost += _TURN * math.prod(spec.shapes[0]) / self.cores
        if spec.y[1] != 1:
            cost += _APART * math.prod(spec.shapes[2]) / self.cores
        return tile if cost <= self.gain * direct else None

    def _direct(self, spec: ConvolutionSpec) -> float:
        """Cycles of the sum over those taps that lie in the image."""
        products = replace(spec, bias=False, epilogue=None).operations() / 2 / _LANES
        rate = self.per_cycle
        if self.matrix and spec.cin % _MATRIX_STEP == 0:
            # Pixels are gathered once for all output channels.
            rate = max(rate, _MATRIX_RATE / (1 + _GATHERED / panels(spec.cout, panel_width("f32"))))
        return products / rate / self.cores + 9 * spec.cin * spec.cout * 4 / self.weight_bytes[1]

    def _tiles(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """Cycles of the tiles' products and transforms."""
        tiles = spec.n * math.prod(-(-o // t) for o, t in zip(spec.out_size, tile, strict=True))
        points, columns = winograd.points(tile), panels(spec.cout, panel_width(spec.dtype))
        products = points * spec.cin * spec.cout / _LANES / self.per_cycle
        transforms = 2 * points * (spec.cin + spec.cout) / _LANES
        around = 350 + 4 * points * columns
        return tiles * (products + transforms + around) / self.cores

    def _weights(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """Cycles in which transformed weights arrive."""
        return winograd.points(tile) * spec.cin * spec.cout * 4 / self.weight_bytes[0]

    def _sums(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """Cycles of a gradient's sums before their transform, written and read, and of starting that."""
        return 2 * winograd.points(tile) * spec.cin * spec.cout * 4 / (self.sum_bytes * self.cores) + _START

    def _preparation(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """Cycles of weights that are packed and transformed in every call."""
        return spec.cin * spec.cout * winograd.points(tile) * self.transform / self.cores

    def _gradient(self, net: Network, op: Op, spec: ConvolutionSpec, made: _Made) -> Refusal | None:
        """A weight gradient in this form; or why not."""
        refusal = refused_by_winograd(spec) or (None if spec.cout % _LANES == 0 else NO_VECTORS)
        if refusal is not None:
            return refusal
        costs = [(self._tiles(spec, tile) + self._sums(spec, tile), tile) for tile in self.tiles]
        cost, tile = min(costs, default=(math.inf, (0, 0)))
        images = zip(spec.shapes[::2], net.ins(op), (spec.x, spec.y), strict=True)
        cost += sum(_TURN * math.prod(shape) / self.cores for shape, _, strides in images if strides[1] != 1)
        on_unit = self.matrix and spec.cin % _MATRIX_STEP == spec.cout % _MATRIX_STEP == 0
        if cost > (self.unit_gain if on_unit else self.gain) * self._direct(spec):
            return _TOO_LITTLE
        ins = net.ins(op)
        image, x = self._turned(net, op, spec.dtype, spec.shapes[0], ins[0], spec.x, made)
        error, y = self._turned(net, op, spec.dtype, spec.shapes[2], ins[1], spec.y, made)
        net.rewire(op, replace(spec, x=x, y=y, winograd=tile), [image, error], net.outs(op), made_by=self.name)
        return None

    def _rewrite(
        self, net: Network, op: Op, spec: ConvolutionSpec, tile: tuple[int, int], made: _Made, *, flipped: bool
    ) -> None:
        ins = net.ins(op)
        panel = panel_width(spec.dtype)
        transform = winograd.WinogradWeightsSpec(spec.dtype, tile, spec.cin, spec.cout, panel, spec.w, flipped)
        key = ins[1], transform
        if key not in made:
            made[key] = Operand(net.add_container(transform.packed_weights, spec.dtype))
            net.add_op(transform, [ins[1]], [made[key]], origin=op.origin, made_by=self.name, before=op)
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
            net.add_op(program, [image], [made[key]], origin=op.origin, made_by=self.name, before=op)
        return made[key], last


def _as_forward(spec: ConvolutionSpec) -> ConvolutionSpec:
    """A data gradient as a convolution of the error signal, but for its taps, which come in the other order.

    Of one with a stride or several groups that makes no sense, and ``refused_by_winograd`` says so.
    """
    padding = tuple(d * (k - 1) - p for d, k, p in zip(spec.dilation, spec.kernel, spec.padding, strict=True))
    return replace(
        spec, kind="forward", cin=spec.cout, cout=spec.cin, in_size=spec.out_size, out_size=spec.in_size, padding=padding,
        x=spec.y, y=spec.x, w=(spec.w[1], spec.w[0], *spec.w[2:]),
    )  # fmt: skip
