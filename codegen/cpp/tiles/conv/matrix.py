"""Dense convolutions in channels-last with packed weights on a matrix unit: products whose rows are gathered from the image.

    y[pixel, o] = sum_(tap, 32 channels) x[pixel * stride + tap, 32 channels] w[tap, 32 channels, o]

A row's step is 32 neighbouring channels of one tap, so a strip of 32 pixels is put together from whole lines, whatever the stride,
the dilation or the border. Where taps overlap, the rows of the image that a block of pixels reads are split once, into memory beside
the block, and copied from there for every tap; where they do not, pixels are split as they are gathered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import Draft
from dcir.codegen.cpp.tiles.gemm.form import ProductForm, normal_form
from dcir.codegen.cpp.tiles.gemm.matrix import matrix_refusal, product_draft
from dcir.codegen.cpp.tiles.gemm.unit import parts_of_number
from dcir.codegen.cpp.tiles.gemm.unit_blocking import ROWS_COST, Rows
from dcir.cost.matrix_unit import DEPTH, ROWS
from dcir.ir.loop_nest import LoopNest
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike

text_of = templates("conv/matrix")

PIXEL_BYTES = 64  # of a part of 32 channels
COPY_COST = 1.0  # of a strip whose rows are in parts already
BLOCK_BYTES = 1 << 20  # of strips beside the image they are copied from, which is read again for every block only
OVERLAP = 1.5  # taps that read a pixel, from which on splitting it once pays


def matrix_last_refusal(p: ConvolutionProblem, epilogue: LoopNest, isa: Isa) -> Refusal | None:
    """Why a problem for ``conv/nhwc.py``, its weights packed, is not better computed on the matrix unit."""
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if p.groups != 1 or p.xs[2] != 1 or p.ci % DEPTH:
        return Refusal(f"channels that do not lie side by side in steps of {DEPTH}")
    if max(p.inp) >= 1 << 30:
        return Refusal("positions are numbered in 32 bits")
    return matrix_refusal(_form(p, epilogue).spec, isa)


def matrix_last_draft(
    name: str, p: ConvolutionProblem, epilogue: LoopNest, threads: int, *, weights: str, scratch: int
) -> Draft:
    """The convolution with an epilogue of every result; ``weights`` is where the panels lie, ``scratch`` how much is taken."""
    form = _form(p, epilogue)
    return product_draft(name, form, pixel_rows(p, form), threads, source=weights, scratch=scratch)


def pixel_rows(p: ConvolutionProblem, form: ProductForm) -> Rows:
    """What the rows of such a product are gathered from: a0, whose pixels A's strides number."""
    values = _values(p) | {"am": form.spec.a[-2]}
    row = f"pa + m * {form.spec.a[-2]}"
    if _kept(p):
        columns = p.out[1] == 1
        text = (text_of.range_of_columns if columns else text_of.range_of_rows)(values)
        text += text_of.keep(values)
        before, step = text_of.kept_before(values), text_of.kept_step(values)
        given = {**values, "from": "const B *kept, L low"}
        text += text_of.places(given, before=before, step=step, copy=text_of.kept_copy())
        return Rows(
            text, "a0", row, f"gather(kept, low, {row}, height, k0, depth, d);", text_of.keep_call(values),
            _bytes(p, form), even=True, unit=ROWS, cost=COPY_COST, block=BLOCK_BYTES,
        )  # fmt: skip
    given = {**values, "from": "const T *a"}
    text = text_of.places(given, before="", step=text_of.split_step(values), copy=text_of.split_copy())
    return Rows(text, "a0", row, f"gather(a, {row}, height, k0, depth, d);", even=True, unit=8, cost=ROWS_COST)


def _form(p: ConvolutionProblem, epilogue: LoopNest) -> ProductForm:
    """The product over all pixels of the result; A's strides number them."""
    d, h, w = p.out
    steps = p.taps * p.ci
    a = (d * h * w, 0, h * w, w, 1, 0)
    c = (*p.ys[:2], *p.ys[3:], p.ys[2])
    epilogue = epilogue.reorder((0, 1, 3, 4, 5, 2), ())
    return normal_form(
        ContractionSpec(
            alike(p.dtype), (p.n, p.groups, d, h), w, p.co, steps, a, (0,) * 6, c, p.panel, epilogue, halves=p.halves
        )
    )


def _kept(p: ConvolutionProblem) -> bool:
    """Whether the image is split before it is gathered."""
    if p.inp[0] != 1 or p.ker[0] != 1 or p.base[0] != 0 or (p.out[1] == 1) != (p.inp[1] == 1):
        return False
    return p.taps * math.prod(p.out) >= OVERLAP * math.prod(p.inp)


def _values(p: ConvolutionProblem) -> dict[str, object]:
    names: dict[str, object] = {}
    for what, sizes in (("i", p.inp), ("o", p.out), ("k", p.ker), ("s", p.stride), ("b", p.base), ("d", p.dil)):
        names |= {what + axis: size for axis, size in zip("dhw", sizes, strict=True)}
    names |= {"xn": p.xs[0], "xd": p.xs[3], "xh": p.xs[4], "xw": p.xs[5], "ci": p.ci}
    names |= {"oplane": p.out[1] * p.out[2], "oimage": math.prod(p.out), "kplane": p.ker[1] * p.ker[2]}
    return {
        **names,
        "plane": p.inp[1] * p.inp[2],
        "pixel_bytes": p.ci // DEPTH * PIXEL_BYTES * parts_of_number(p.halves),
    }


def _bytes(p: ConvolutionProblem, form: ProductForm) -> Callable[[int], int]:
    """How much memory the input pixels of so many strips of results take at most."""

    def clamp(v: int, most: int) -> int:
        return min(max(v, 0), most)

    _, ih, iw = p.inp
    _, oh, ow = p.out

    def reach(pixel: int, *, last: bool) -> int:
        n, h, c = pixel // (oh * ow), pixel // ow % oh, pixel % ow
        if oh == 1:
            return n * iw + clamp(c * p.stride[2] + p.base[2] + last * (p.ker[2] - 1) * p.dil[2], iw - 1)
        row = n * ih + clamp(h * p.stride[1] + p.base[1] + last * (p.ker[1] - 1) * p.dil[1], ih - 1)
        return row * iw + last * (iw - 1)

    spec = form.spec
    rows, step = spec.m, spec.a[-2]
    # Where images or their rows are not one walk, each is a product of its own, and begins at another pixel.
    bases = [sum(i * s for i, s in zip(at, spec.a, strict=False)) for at in itertools.product(*map(range, spec.batch))]

    def most(strips: int) -> int:
        pixels = 0
        for base in bases:
            for first in range(0, rows, ROWS):
                last = min(rows, first + strips * ROWS) - 1
                found = reach(base + last * step, last=True) - reach(base + first * step, last=False) + 1
                pixels = max(pixels, found)
        return pixels * (p.ci // DEPTH) * PIXEL_BYTES * parts_of_number(p.halves)

    return most
