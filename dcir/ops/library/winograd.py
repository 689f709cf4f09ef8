"""Winograd's form of 3-tap convolutions: transforms of tiles of the image, of weights and of results, exact as fractions.

m results of a convolution with 3 taps need m + 2 multiplications instead of 3 m: y = A^T [(G w) * (B^T x)], from polynomials through
m + 1 points and infinity (Cook and Toom; for convolutions Winograd, and Lavin and Gray, arXiv:1509.09308). In two dimensions the
transforms of rows and columns are applied one after the other.

Rounding grows with the size of the points' powers. For m = 4 the points 0, ±2/3, ±3/2 were best of those tried: on random images with 64
to 512 channels the largest error of a 2 x 4 tile is 2 to 3 times that of the direct sum in float32, of a 4 x 4 tile 6 times; with the
textbook's 0, ±1, ±2 the latter is 22 to 27 times. So tiles are 2 x 2, 2 x 4 or 4 x 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import Operator
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.serialize import register
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.packing import panels

TAPS = 3
POINTS = {2: (Fraction(0), Fraction(1), Fraction(-1)),
          4: (Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2))}  # fmt: skip
"""By the number of results, the finite points: 0, then pairs of a number and its negative."""

Array = Any  # of NumPy; a graph being traced would take tensors for its own
Matrix = tuple[tuple[Fraction, ...], ...]


def points(tile: Sequence[int]) -> int:
    """Multiplications of a tile of results."""
    return (tile[0] + TAPS - 1) * (tile[1] + TAPS - 1)


@functools.cache
def matrices(results: int) -> tuple[Matrix, Matrix, Matrix]:
    """(A^T, G, B^T): results x n, n x 3 and n x n for n = results + 2; the last point is infinity."""
    p = POINTS[results]
    n = len(p) + 1
    zero, one = Fraction(0), Fraction(1)
    a = tuple((*(x**k for x in p), one if k == results - 1 else zero) for k in range(results))
    g, b = [], []
    for i, x in enumerate(p):
        others = [y for j, y in enumerate(p) if j != i]
        scale = one
        for y in others:
            scale *= x - y
        g.append(tuple(x**k / scale for k in range(TAPS)))
        b.append((*_expand(others), zero))
    g.append((zero, zero, one))
    b.append(_expand(p))
    assert len(b) == n
    return a, tuple(g), tuple(b)


def _expand(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of x - root, lowest power first."""
    made = [Fraction(1)]
    for r in roots:
        made = [(made[i - 1] if i else Fraction(0)) - (r * made[i] if i < len(made) else Fraction(0))
                for i in range(len(made) + 1)]  # fmt: skip
    return tuple(made)


@register
@dataclass(frozen=True)
class WinogradWeightsSpec(Operator):
    """u = G w G^T: weights of a 3 x 3 convolution packed in panels and transformed for tiles of results.

    Reads w, writes u; sizes and strides in elements.

    Attributes:
        dtype: "f32" or "f64"; computed in float64 and rounded once.
        tile: extents of a tile of results.
        cin, cout: input and output channels.
        panel: output channels of a panel.
        w: strides of w over (cout, cin, row, column).
        flipped: whether rows and columns are read in the other order, as the data gradient does.
    """

    dtype: str
    tile: tuple[int, ...]
    cin: int
    cout: int
    panel: int
    w: tuple[int, ...]
    flipped: bool = False

    kind: ClassVar[str] = "winograd weights"

    @property
    def packed_weights(self) -> tuple[int, ...]:
        """Shape of u, which is contiguous: (group, panel number, *points, cin, column in the panel)."""
        return (1, panels(self.cout, self.panel), *(t + TAPS - 1 for t in self.tile), self.cin, self.panel)

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of w and u."""
        size = itemsize(self.dtype)
        return (size * self.cout * self.cin * TAPS * TAPS,), (size * math.prod(self.packed_weights),)

    def operations(self) -> int:
        """Multiplications and additions of both transforms."""
        return self.cin * self.cout * operations((TAPS, TAPS), [matrices(t)[1] for t in self.tile])

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers."""
        run_program(self.loop_nest(), ins, outs, reference_of)

    def describe(self) -> str:
        """Its channels."""
        return f"{self.kind} {self.cin}->{self.cout}"

    def loop_nest(self) -> LoopNest:
        """The same as a loop nest, whose coefficients are chosen by the loops' variables."""
        gh, gw = (matrices(m)[1] for m in self.tile)
        shape = self.packed_weights[1:]
        body = LoopNestBuilder(shape)
        source, target = body.input(self.dtype), body.output(self.dtype)
        strides = (self.w[0] * self.panel, 0, 0, self.w[1], self.w[0])
        inside, other = None, None
        if self.cout % self.panel:
            inside = body.index(0) * self.panel + body.index(4) < self.cout
            other = body.const(0, compute_type(self.dtype))
        rows = [_entry(body, body.index(1), [r[k] for r in gh]) for k in range(TAPS)]
        columns = [_entry(body, body.index(2), [r[k] for r in gw]) for k in range(TAPS)]
        total: Expr | None = None
        for i in range(TAPS):
            line: Expr | None = None
            for j in range(TAPS):
                tap = [body.const(TAPS - 1 - k if self.flipped else k, "i64") for k in (i, j)]
                w = body.gather(source, strides, tap, (TAPS, TAPS), self.w[2:], checked=False, mask=inside, other=other)
                term = body.convert(w, "f64") * columns[j]
                line = term if line is None else line + term
            assert line is not None
            total = line * rows[i] if total is None else total + line * rows[i]
        assert total is not None
        body.store(target, contiguous(shape), total)
        return body.finish()


def _entry(body: LoopNestBuilder, index: Expr, values: Sequence[Fraction]) -> Expr:
    """values[index] in float64."""
    made = body.const(float(values[-1]), "f64")
    for i in reversed(range(len(values) - 1)):
        made = body.where(index.eq(i), body.const(float(values[i]), "f64"), made)
    return made


def reference(x: Array, u: Array, tile: Sequence[int], out: Sequence[int]) -> Array:
    """The convolution of x [n, g, i, height, width], with its border, and transformed weights u [g, point, point, o, i], in float64."""
    (ah, _, bh), (aw, _, bw) = (tuple(np.array(m, np.float64) for m in matrices(t)) for t in tile)
    counts = [-(-o // t) for o, t in zip(out, tile, strict=True)]
    missing = [c * t + TAPS - 1 - n for c, t, n in zip(counts, tile, x.shape[3:], strict=True)]
    x = np.pad(x, [(0, 0)] * 3 + [(0, max(0, m)) for m in missing])
    extent = [t + TAPS - 1 for t in tile]
    tiles = np.lib.stride_tricks.sliding_window_view(x, extent, axis=(3, 4))[:, :, :, :: tile[0], :: tile[1]]
    v = np.einsum("pa,qb,ngiyxab->pqgnyxi", bh, bw, tiles[:, :, :, : counts[0], : counts[1]], optimize=True)
    shape = v.shape
    m = v.reshape(*shape[:3], -1, shape[-1]) @ u.transpose(1, 2, 0, 4, 3)
    y = np.einsum("rp,sq,pqgnyxo->ngoyrxs", ah, aw, m.reshape(*shape[:-1], -1), optimize=True)
    n, g, o = y.shape[:3]
    return y.reshape(n, g, o, counts[0] * tile[0], counts[1] * tile[1])[..., : out[0], : out[1]]


def operations(results: Sequence[int], axis: Sequence[Matrix]) -> int:
    """Multiplications and additions of a transform of a tile of ``results`` x ... by a matrix for rows and one for columns."""
    by_rows, by_columns = (sum(2 * sum(v != 0 for v in r) - 1 for r in m) for m in axis)
    return by_rows * results[1] + by_columns * len(axis[0])


def inverse(results: int) -> Matrix:
    """The 3 x n matrix that takes transformed weights back: G's left inverse that reads the points 0, ±a and infinity."""
    _, g, _ = matrices(results)
    a = POINTS[results][1]
    zero = Fraction(0)
    first = (1 / g[0][0], *(zero,) * (len(g) - 1))
    # G's rows of a and -a differ in the sign of the middle weight alone.
    half = 1 / (2 * a * g[1][0])
    middle = (zero, half, -half, *(zero,) * (len(g) - 3))
    return first, middle, (*(zero,) * (len(g) - 1), Fraction(1))
