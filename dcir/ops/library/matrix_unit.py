"""What a float32 product costs a core: on a matrix unit for bfloat16, in three parts, and with multiply-adds.

The kernel is ``codegen/cpp/tiles/gemm/matrix.py``; passes ask here whether another form of a product keeps it. Cycles fitted to
measurements of 40 products on a Xeon with AMX.
"""

from __future__ import annotations

import math

from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec

ROWS = COLUMNS = DEPTH = 32  # of a tile: two by two registers, and 32 steps of k at once
STEP_CYCLES, TILE_CYCLES = 390, 1000  # a step of a tile, its beginning and end
ROWS_CYCLES, PANEL_CYCLES = 1000, 300  # splitting a step of a strip, and of a panel
STRIPS = 7  # for which a panel is split once
MULTIPLY_ADDS = 24  # a cycle without the unit
GAIN = 0.86  # of the time of multiply-adds that it must stay below
LEAST_TILES = 20  # fewer were no faster whatever their depth
CLOCK = 3.5e9  # cycles a second


def matrix_wins(batch: int, m: int, n: int, k: int) -> bool:
    """Whether ``batch`` products are better computed on the unit.

    Where tiles are short, or rows are used for few columns, splitting and storing take longer than multiplying.
    """
    if batch * -(-m // ROWS) * -(-n // COLUMNS) < LEAST_TILES:
        return False
    return _matrix(m, n, k) <= GAIN * _vector(m, n, k)


def share(m: int, n: int, k: int) -> float:
    """Of the time of multiply-adds that a product, not an empty one, takes on the unit."""
    return _matrix(m, n, k) / _vector(m, n, k)


def seconds(spec: object, images: int = 1) -> float:
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
    on_unit = possible and spec.dtype == "f32" and matrix_wins(*sizes)
    return batch * (_matrix(m, n, k) if on_unit else _vector(m, n, k)) / CLOCK


def _matrix(m: int, n: int, k: int) -> float:
    strips, panels, steps = -(-m // ROWS), -(-n // COLUMNS), -(-k // DEPTH)
    tiles = strips * panels * (steps * STEP_CYCLES + TILE_CYCLES)
    return tiles + steps * (strips * ROWS_CYCLES + panels * -(-strips // STRIPS) * PANEL_CYCLES)


def _vector(m: int, n: int, k: int) -> float:
    return m * n * k / MULTIPLY_ADDS
