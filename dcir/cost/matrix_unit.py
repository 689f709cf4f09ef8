"""What a float32 product costs a core: on a matrix unit for bfloat16, in three parts, and with multiply-adds.

The kernel is ``codegen/cpp/tiles/gemm/matrix.py``; passes ask here whether another form of a product keeps it. The figures are
in ``cpu.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec

ROWS = COLUMNS = DEPTH = 32  # of a tile: two by two registers, and 32 steps of k at once


@dataclass(frozen=True)
class MatrixUnit:
    """Figures of a matrix unit, and how long products take with it and without.

    Attributes:
        step_cycles, tile_cycles: of a step of a tile; of its beginning and end.
        rows_cycles, panel_cycles: of splitting a step of a strip, and of a panel.
        strips: for which a panel is split once.
        multiply_adds: a cycle without the unit.
        gain: of the time of multiply-adds that a product must stay below.
        least_tiles: of a product; fewer were no faster whatever their depth.
        clock: cycles a second.
    """

    step_cycles: int
    tile_cycles: int
    rows_cycles: int
    panel_cycles: int
    strips: int
    multiply_adds: int
    gain: float
    least_tiles: int
    clock: float

    def wins(self, batch: int, m: int, n: int, k: int) -> bool:
        """Whether ``batch`` products are better computed on the unit.

        Where tiles are short, or rows are used for few columns, splitting and storing take longer than multiplying.
        """
        if batch * -(-m // ROWS) * -(-n // COLUMNS) < self.least_tiles:
            return False
        return self._matrix(m, n, k) <= self.gain * self._vector(m, n, k)

    def share(self, m: int, n: int, k: int) -> float:
        """Of the time of multiply-adds that a product, not an empty one, takes on the unit."""
        return self._matrix(m, n, k) / self._vector(m, n, k)

    def seconds(self, spec: object, images: int = 1) -> float:
        """Of a core, for ``images`` times a product or convolution as one with so many more rows; 0 for another operator."""
        if isinstance(spec, ContractionSpec):
            sizes = (math.prod(spec.batch), spec.m * images, spec.n, spec.k)
            possible = bool(spec.panel) or 1 in spec.b[-2:]
        elif isinstance(spec, ConvolutionSpec) and spec.kind == "forward" and not spec.winograd:
            pixels, taps = spec.n * math.prod(spec.out_size) * images, math.prod(spec.kernel)
            sizes = (spec.groups, pixels, spec.cout, spec.cin * taps)
            plain = taps == 1 and all(s == 1 for s in spec.stride)
            last = spec.x[1] == spec.y[1] == 1 and spec.groups == 1 and bool(spec.panel)
            possible = last and (plain or spec.cin % DEPTH == 0)
        else:
            return 0.0
        batch, m, n, k = sizes
        on_unit = possible and spec.dtype == "f32" and self.wins(*sizes)
        return batch * (self._matrix(m, n, k) if on_unit else self._vector(m, n, k)) / self.clock

    def _matrix(self, m: int, n: int, k: int) -> float:
        strips, panels, steps = -(-m // ROWS), -(-n // COLUMNS), -(-k // DEPTH)
        tiles = strips * panels * (steps * self.step_cycles + self.tile_cycles)
        return tiles + steps * (strips * self.rows_cycles + panels * -(-strips // self.strips) * self.panel_cycles)

    def _vector(self, m: int, n: int, k: int) -> float:
        return m * n * k / self.multiply_adds
