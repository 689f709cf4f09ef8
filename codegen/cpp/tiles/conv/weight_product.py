"""Weight gradients of 1x1 convolutions in channels-last as one product of matrices, on a matrix unit or from packed panels.

    dw[o, i] = sum_p x[p, i] dy[p, o]

On a matrix unit it is for fewer positions than fill many blocks, and the operand of fewer channels makes the rows, whose parts take a
transposition; more positions go to ``conv/weight_pointwise.py``. With 16 registers it is for many channels, whose tiles are too small to
read both operands where they lie: positions a power of two apart share sets of the first-level cache.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.conv.weight_pointwise import one_walk, pitches
from dcir.codegen.cpp.tiles.emit import Draft, ceil_div
from dcir.codegen.cpp.tiles.gemm.form import ProductForm, normal_form, transposed
from dcir.codegen.cpp.tiles.gemm.matrix import matrix_draft
from dcir.codegen.cpp.tiles.gemm.packed import packed_draft
from dcir.codegen.cpp.tiles.gemm.packing import packing_draft
from dcir.codegen.cpp.tiles.method import ON_UNIT, Asked, Method
from dcir.cost.cpu import MATRIX_UNIT
from dcir.cost.matrix_unit import ROWS
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike

MOST_POSITIONS = 2048
LEAST_STRIPS = 4  # of rows; fewer share a panel's splitting so little that multiply-adds were up to half again as fast
# Channels from which panels pay where registers are few: with 256 -> 1024 at 14 x 14 and 512 -> 2048 at 7 x 7 (8 images) 76 -> 86 and
# 69 -> 90 GFLOP/s a core of Zen 3, 1024 -> 256 57 -> 86; with 64 -> 256 at 56 x 56 76 -> 54.
PACKED_CHANNELS = 256
GAIN = 0.5  # of the time of multiply-adds that the model must stay below: both operands come from far, and rows are transposed


def _product_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if p.dtype != "f32":
        return Refusal(f"numbers of {p.dtype}")
    if not _is_product(p):
        return Refusal("no product of two matrices where they lie")
    m, n, k = min(p.ci, p.co), max(p.ci, p.co), p.n * math.prod(p.out)
    if k > MOST_POSITIONS:
        return Refusal("positions that fill many blocks")
    if ceil_div(m, ROWS) < LEAST_STRIPS:
        return Refusal("few strips of rows")
    return None if MATRIX_UNIT.share(m, n, k) <= GAIN else Refusal("multiply-adds are faster by the model")


def _panels_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if isa.vectors == "avx512":
        return Refusal("registers for tiles that read both operands where they lie")
    if min(p.ci, p.co) < PACKED_CHANNELS:
        return Refusal("few channels, for which panels take longer than the product")
    return None if _is_product(p) else Refusal("no product of two matrices where they lie")


def _is_product(p: ConvolutionProblem) -> bool:
    if (p.groups, p.taps) != (1, 1) or p.y0 or p.w0 or any(p.base):
        return False
    return p.xs[2] == p.ys[2] == 1 and (p.inp[0], p.out[0]) == (1, 1) and one_walk(p)


def weight_product_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    form = _form(p)
    if p.co < p.ci:
        return replace(matrix_draft(name, transposed(form), isa, threads), swapped=True)
    return matrix_draft(name, form, isa, threads)


def weight_panels_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The same from packed panels; rows are those channels along which the result does not lie."""
    form = _form(p)
    if p.ws[1] != 1 and p.ws[2] == 1:
        return replace(packing_draft(name, transposed(form), isa, threads, packed_draft), swapped=True)
    return packing_draft(name, form, isa, threads, packed_draft)


def _form(p: ConvolutionProblem) -> ProductForm:
    (_, _, x), (_, _, y) = pitches(p)
    return normal_form(
        ContractionSpec(
            alike(p.dtype), (), p.ci, p.co, p.n * math.prod(p.out), (1, x), (y, 1), (p.ws[2], p.ws[1]), halves=p.halves
        )
    )


WEIGHT_PRODUCT = Method("product", weight_product_draft, refusal=_product_refusal, asked=ON_UNIT)
WEIGHT_PANELS = Method(
    "panels", weight_panels_draft, refusal=_panels_refusal, asked=Asked("method", "panels", "in place")
)
