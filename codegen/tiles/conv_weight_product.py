"""Weight gradients of 1x1 convolutions in channels-last as one product on a matrix unit, for fewer positions than fill many blocks.

    dw[o, i] = sum_p x[p, i] dy[p, o]

The operand of fewer channels makes the rows, whose parts take a transposition. More positions go to ``conv_weight_pointwise.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.tiles.conv_problem import Problem
from dcir.codegen.tiles.conv_weight_pointwise import one_walk, pitches
from dcir.codegen.tiles.emit import Draft, ceil_div
from dcir.codegen.tiles.gemm_form import normal_form, transposed
from dcir.codegen.tiles.gemm_matrix import matrix_draft
from dcir.codegen.tiles.isa import Isa
from dcir.ops import matrix_unit
from dcir.ops.contraction import ContractionSpec

MOST_POSITIONS = 2048
LEAST_STRIPS = 4  # of rows; fewer share a panel's splitting so little that multiply-adds were up to half again as fast
GAIN = 0.5  # of the time of multiply-adds that the model must stay below: both operands come from far, and rows are transposed


def weight_product_suits(p: Problem, isa: Isa) -> bool:
    """Whether a weight gradient is better computed as a product on the matrix unit."""
    if not isa.matrix_unit or p.dtype != "f32" or (p.groups, p.taps) != (1, 1) or p.y0 or p.w0 or any(p.base):
        return False
    if p.xs[2] != 1 or p.ys[2] != 1 or (p.inp[0], p.out[0]) != (1, 1) or not one_walk(p):
        return False
    m, n, k = min(p.ci, p.co), max(p.ci, p.co), p.n * math.prod(p.out)
    if k > MOST_POSITIONS or ceil_div(m, matrix_unit.ROWS) < LEAST_STRIPS:
        return False
    return matrix_unit.share(m, n, k) <= GAIN


def weight_product_draft(name: str, p: Problem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    (_, _, x), (_, _, y) = pitches(p)
    spec = ContractionSpec(p.dtype, (), p.ci, p.co, p.n * math.prod(p.out), (1, x), (y, 1), (p.ws[2], p.ws[1]))
    form = normal_form(spec)
    if p.co < p.ci:
        return replace(matrix_draft(name, transposed(form), isa, threads), swapped=True)
    return matrix_draft(name, form, isa, threads)
