"""Convolutions with 1x1 kernels as products of matrices: rows are pixels in channels-last, columns are pixels in planes."""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import channels_refusal
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, flat, is_pointwise
from dcir.codegen.cpp.tiles.emit import Draft, lanes, round_up
from dcir.codegen.cpp.tiles.gemm.gemm import gemm_draft
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Index, Load
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panels

FILLED = 0.85  # of the lanes of a plane's vectors that hold pixels; of fewer, products waste too much


def rows_refusal(p: ConvolutionProblem) -> Refusal | None:
    """Why a problem is no product whose rows are pixels."""
    if p.family or not is_pointwise(p):
        return Refusal("more than one tap, or other positions than the image's")
    if p.xs[2] != 1 or p.ys[2] != 1:
        return Refusal("images that are not in channels-last")
    return Refusal("a bias that is not the epilogue's, or a part of a result") if p.bias or p.y0 or p.w0 else None


def merged(p: ConvolutionProblem) -> ConvolutionProblem:
    """A problem whose columns may be pixels with its spatial dimensions merged; others as they are."""
    columns = is_pointwise(p) and p.ci > 0 and not p.family and not p.panel and p.epilogue is None
    return flat(p) if columns and rows_refusal(p) is not None else p


def _whole_images(p: ConvolutionProblem) -> ConvolutionProblem:
    """A problem whose rows of pixels follow each other as one long row: of rows of any length each would end in small tiles."""
    d, h, w = p.out
    walks = [p.xs[4:], p.ys[4:]]
    if p.epilogue is not None:
        if any(isinstance(s, Index) and s.dim in (4, 5) for s in p.epilogue.body):
            return p
        # The strides of the product's own value mean nothing.
        accesses = [s for s in p.epilogue.body if isinstance(s, Access)]
        walks += [s.strides[4:] for s in accesses if not (isinstance(s, Load) and s.operand == 0)]
    if any(row != pixel * w for row, pixel in walks):
        return p
    epilogue = p.epilogue
    if epilogue is not None:
        body = tuple(s.over_loops(lambda st: (*st[:4], 0, st[5]), lambda i: i) for s in epilogue.body)
        epilogue = replace(epilogue, outer=(*epilogue.outer[:4], 1, h * w), body=body)
    whole = (d, 1, h * w)
    return replace(p, inp=whole, out=whole, xs=(*p.xs[:4], 0, p.xs[5]), ys=(*p.ys[:4], 0, p.ys[5]), epilogue=epilogue)


def _rows_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A pointwise problem in channels-last as Y[n,g,d,h] = X[n,g,d,h] W[g]: rows are pixels, columns are channels."""
    if p.moves:
        p = _whole_images(p)
    *outer, w = p.out
    group = p.ws[0] if not p.panel else panels(p.co, p.panel) * p.ci * p.panel
    b = (0, group if p.groups > 1 else 0, 0, 0, *((0, 0) if p.panel else (p.ws[2], p.ws[1])))
    epilogue = p.epilogue
    if epilogue is not None:
        epilogue = epilogue.reorder((0, 1, 3, 4, 5, 2), ())
    spec = ContractionSpec(
        alike(p.dtype), (p.n, p.groups, *outer), w, p.co, p.ci, (*p.xs[:2], *p.xs[3:], p.xs[2]), b,
        (*p.ys[:2], *p.ys[3:], p.ys[2]), p.panel, epilogue, halves=p.halves,
        dots=p.pairs or (p.halves and isa.dots and not p.panel),
    )  # fmt: skip
    return replace(gemm_draft(spec, isa, threads), name=name)


def _columns_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.family or not is_pointwise(p):
        return Refusal("more than one tap, or other positions than the image's")
    if p.panel or p.epilogue is not None:
        return Refusal("packed weights, or an epilogue")
    if p.inp[0] * p.inp[1] != 1 or p.ys[5] != 1 or p.y0 or p.w0:
        return Refusal("positions that are not one dimension")
    if p.moves:
        return Refusal("columns of a product are a constant number")
    if p.out[2] / round_up(p.out[2], lanes(isa, p.dtype)) < FILLED:
        return Refusal("pixels that do not fill vectors")
    return None


def _columns_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """Y[n,g] = W[g] X[n,g]."""
    pixels = p.out[2]
    spec = ContractionSpec(
        alike(p.dtype), (p.n, p.groups), p.co, pixels, p.ci, (0, *p.ws[:3]), (*p.xs[:3], p.xs[5]), (*p.ys[:3], 1),
        halves=p.halves,
    )  # fmt: skip
    draft = gemm_draft(spec, isa, threads, (0, p.co) if p.bias else None)
    # The product's left operand is the weight, the convolution's is the image.
    return replace(draft, name=name, swapped=not draft.swapped)


def _rows_method_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if not p.panel and channels_refusal(p) is None:
        return Refusal("a product of one column for each of the channels, along which vectors can run")
    return rows_refusal(p)


POINTWISE_ROWS = Method("pointwise rows", _rows_draft, refusal=_rows_method_refusal)
POINTWISE_COLUMNS = Method("pointwise columns", _columns_draft, refusal=_columns_refusal)
