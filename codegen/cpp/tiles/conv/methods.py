"""The tables of methods for convolutions, for each of their three products; what is tried first stands first.

A method is declared at the end of the file that makes its kernel: what it refuses, its draft. To add one is to write such a file and to
name it here, before the first method that would otherwise take its problems: special forms come before general ones, and what takes any
problem (``DIRECT``, ``WEIGHT``, residues) comes last and refuses nothing.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

from dcir.codegen.asked import asking
from dcir.codegen.cpp.tiles.conv.combine import combine
from dcir.codegen.cpp.tiles.conv.constant import CONSTANT, NO_WEIGHTS, ZERO_WEIGHTS, constant_draft
from dcir.codegen.cpp.tiles.conv.data_strided import DATA_STRIDED
from dcir.codegen.cpp.tiles.conv.depthwise import DEPTHWISE, DEPTHWISE_WEIGHT, planes_refusal
from dcir.codegen.cpp.tiles.conv.depthwise_data import DEPTHWISE_DATA
from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import DEPTHWISE_NHWC
from dcir.codegen.cpp.tiles.conv.depthwise_weight import DEPTHWISE_WEIGHT_NHWC
from dcir.codegen.cpp.tiles.conv.direct import DIRECT, DIRECT_FAMILY
from dcir.codegen.cpp.tiles.conv.grouped import GROUPED_NHWC
from dcir.codegen.cpp.tiles.conv.nhwc import NHWC, NHWC_SHORT_ROWS
from dcir.codegen.cpp.tiles.conv.pointwise import POINTWISE_COLUMNS, POINTWISE_ROWS, merged
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, DataGradient, families, flat, is_pointwise
from dcir.codegen.cpp.tiles.conv.weight import WEIGHT
from dcir.codegen.cpp.tiles.conv.weight_matrix import WEIGHT_MATRIX
from dcir.codegen.cpp.tiles.conv.weight_nhwc import WEIGHT_NHWC, weight_last_draft
from dcir.codegen.cpp.tiles.conv.weight_pointwise import WEIGHT_POINTWISE
from dcir.codegen.cpp.tiles.conv.weight_product import WEIGHT_PANELS, WEIGHT_PRODUCT
from dcir.codegen.cpp.tiles.conv.winograd import WINOGRAD
from dcir.codegen.cpp.tiles.conv.winograd_weight import WINOGRAD_WEIGHT
from dcir.codegen.cpp.tiles.emit import Draft
from dcir.codegen.cpp.tiles.method import Method, Methods, choose, drafted
from dcir.ir.schedule import OPEN
from dcir.isa import Isa

FORWARD: Methods[ConvolutionProblem] = Methods(
    (
        WINOGRAD,
        CONSTANT,
        DIRECT_FAMILY,
        GROUPED_NHWC,
        NHWC_SHORT_ROWS,
        POINTWISE_ROWS,
        POINTWISE_COLUMNS,
        DEPTHWISE_NHWC,
        NHWC,
        DEPTHWISE,
        DIRECT,
    )
)
"""Of y = x * w: forward convolutions, and what data gradients come to."""


def forward_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The kernel of one problem, whose result is not empty."""
    method, p = choose(FORWARD, [("", merged(p))], isa, threads)
    return drafted(method, name, p, isa, threads)


def _residues_draft(name: str, gradient: DataGradient, isa: Isa, threads: int) -> Draft:
    """A forward problem for every residue of a position modulo the strides."""
    problems, f, drafts = list(gradient.residues), gradient.forward, list[Draft]()
    if any(p.taps == 0 for p in problems):
        # Whole rows of zeros first: cheaper than to write every other element.
        whole = replace(f, co=f.ci, out=f.inp, ys=f.xs)
        if whole.n * whole.groups * math.prod(whole.out):
            drafts.append(constant_draft(name, whole, first=True))
        problems = [p for p in problems if p.taps]
    if len(problems) > 4 or any(planes_refusal(p) for p in problems):
        problems = families(problems)
    kept = [p for p in problems if p.n * p.groups * p.co * math.prod(p.out)]
    with asking(OPEN) if len(kept) > 1 else nullcontext():  # a schedule is that of one problem
        drafts += [forward_draft(name, p, isa, threads) for p in kept]
    return combine(name, f.dtype, drafts, isa)


DATA: Methods[DataGradient] = Methods((DEPTHWISE_DATA, DATA_STRIDED, Method("residues", _residues_draft)))
"""Of the gradient of x."""

DENSE_WEIGHTS: Methods[ConvolutionProblem] = Methods(
    (WEIGHT_PRODUCT, WEIGHT_POINTWISE, WEIGHT_MATRIX, WEIGHT_PANELS, WEIGHT_NHWC, WEIGHT)
)
"""Of the gradient of w that mixes channels, by the forward problem; positions of a pointwise one are merged."""


def _dense_weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    method, p = choose(DENSE_WEIGHTS, [("", flat(p) if is_pointwise(p) else p)], isa, threads)
    return drafted(method, name, p, isa, threads)


WEIGHTS: Methods[ConvolutionProblem] = Methods(
    (
        WINOGRAD_WEIGHT,
        NO_WEIGHTS,
        ZERO_WEIGHTS,
        DEPTHWISE_WEIGHT_NHWC,
        DEPTHWISE_WEIGHT,
        Method("dense", _dense_weight_draft),
    )
)
"""Of the gradient of w, by the forward problem."""


def _any_size_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    return weight_last_draft(name, flat(p) if is_pointwise(p) else p, isa, threads)


MOVING_WEIGHTS: Methods[ConvolutionProblem] = Methods(
    (DEPTHWISE_WEIGHT_NHWC, Method("nhwc of any size", _any_size_draft))
)
"""Of the gradient of w over images of any size; few channels, and an x in planes, have nothing better there."""


def data_draft(name: str, gradient: DataGradient, isa: Isa, threads: int) -> Draft:
    """The kernel of a gradient of x."""
    method, gradient = choose(DATA, [("", gradient)], isa, threads)
    return drafted(method, name, gradient, isa, threads)


def weight_gradient_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The kernel of a gradient of w."""
    method, p = choose(MOVING_WEIGHTS if p.moves else WEIGHTS, [("", p)], isa, threads)
    return drafted(method, name, p, isa, threads)
