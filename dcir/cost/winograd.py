"""What a 3 x 3 convolution costs in its direct form and in Winograd's, in cycles of one of several cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.isa import Isa
from dcir.ops.library import winograd
from dcir.ops.library.convolution import ConvolutionSpec, channel_pairs_refusal
from dcir.ops.library.packing import panel_width, panels


@dataclass(frozen=True)
class WinogradCosts:
    """Figures of both forms, and their cost functions.

    Products run at the rate of the register tiles, weights arrive at what one core gets from memory (they hardly overlap, since every
    point's weights are another stream), and the transforms take, per vector and point, and per tile, what was measured.

    Attributes:
        isa: what panels of weights are made for.
        cores: that share the tiles.
        lanes: elements of a vector.
        per_cycle: multiply-adds of ``lanes`` elements that a core starts in a cycle.
        weight_bytes: of transformed weights that arrive in a cycle, and of the direct form's, which are read ahead better.
        transform: cycles an element of transformed weights takes.
        sum_bytes: of a gradient's sums that a core writes or reads in a cycle.
        turn, apart: cycles an element of an image in another layout, and of a result stored element by element.
        start: cycles of one more barrier, with what was measured around it.
        tile, panel: cycles around a tile, and around a panel of channels at each of its points.
        unit_step, unit_rate, gathered: of the direct form on a matrix unit, None without one: channels of a step, multiply-adds like
            ``per_cycle``, and what gathering a strip of pixels takes beside a panel of output channels.
        pairs: how much faster the direct form of bf16's numbers multiplies pairs of channels, 1 without the instruction.
    """

    isa: Isa
    cores: int
    lanes: int
    per_cycle: float
    weight_bytes: tuple[float, float]
    transform: float
    sum_bytes: float
    turn: float
    apart: float
    start: float
    tile: int
    panel: int
    unit_step: int | None
    unit_rate: float
    gathered: float
    pairs: float

    def direct(self, spec: ConvolutionSpec) -> float:
        """Cycles of the sum over those taps that lie in the image."""
        products = replace(spec, bias=False, epilogue=None).operations() / 2 / self.lanes
        rate = self.per_cycle
        if spec.kind == "forward" and channel_pairs_refusal(spec) is None:
            rate *= self.pairs
        if self.unit_step and spec.cin % self.unit_step == 0:
            # Pixels are gathered once for all output channels.
            rate = max(rate, self.unit_rate / (1 + self.gathered / panels(spec.cout, panel_width("f32", self.isa))))
        return products / rate / self.cores + 9 * spec.cin * spec.cout * 4 / self.weight_bytes[1]

    def on_unit(self, spec: ConvolutionSpec) -> bool:
        """Whether the direct form of a weight gradient runs on a matrix unit."""
        return bool(self.unit_step) and spec.cin % self.unit_step == spec.cout % self.unit_step == 0  # type: ignore[operator]

    def forward(self, spec: ConvolutionSpec, tile: tuple[int, int], *, static: bool) -> float:
        """Cycles of Winograd's form with tiles of this extent; weights that are not static are transformed in every call."""
        points = winograd.points(tile)
        arriving = points * spec.cin * spec.cout * 4 / self.weight_bytes[0]
        preparation = 0 if static else spec.cin * spec.cout * points * self.transform / self.cores
        return self._tiles(spec, tile) + arriving + preparation

    def gradient(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """The same of a weight gradient: its sums before their transform are written and read, and that is started."""
        sums = 2 * winograd.points(tile) * spec.cin * spec.cout * 4 / (self.sum_bytes * self.cores) + self.start
        return self._tiles(spec, tile) + sums

    def turning(self, elements: int) -> float:
        """Cycles to turn an image around that lies in another layout."""
        return self.turn * elements / self.cores

    def storing_apart(self, elements: int) -> float:
        """Cycles to store a result element by element."""
        return self.apart * elements / self.cores

    def _tiles(self, spec: ConvolutionSpec, tile: tuple[int, int]) -> float:
        """Cycles of the tiles' products and transforms."""
        tiles = spec.n * math.prod(-(-o // t) for o, t in zip(spec.out_size, tile, strict=True))
        points, columns = winograd.points(tile), panels(spec.cout, panel_width(spec.dtype, self.isa))
        products = points * spec.cin * spec.cout / self.lanes / self.per_cycle
        transforms = 2 * points * (spec.cin + spec.cout) / self.lanes
        around = self.tile + self.panel * points * columns
        return tiles * (products + transforms + around) / self.cores
