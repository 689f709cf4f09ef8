"""Products and convolutions of one tap as products of two matrices, by arithmetic on strides alone.

    y[n, o, h, w] = sum_i x[n, i, h, w] w[o, i]    -->   C[(n h w), o] = A[(n h w), i] B[i, o]      images with channels last
    x[n, i, h, w] = sum_o y[n, o, h, w] w[o, i]    -->   C[(n h w), i] = A[(n h w), o] B[o, i]
    w[o, i] = sum_nhw y[n, o, h, w] x[n, i, h, w]  -->   C[i, o] = A[i, (n h w)] B[(n h w), o]      A lies in columns

The pixels of all images are the rows, where they lie in one stride.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dcir.ir.refusal import Refusal
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec


class Matrices(NamedTuple):
    """An operator as a product of two matrices.

    Attributes:
        product: whose result lies at (n, 1), wherever the operator's does.
        a, b: which of the operator's inputs they are.
        result: the operator's result's strides over rows and columns.
    """

    product: ContractionSpec
    a: int
    b: int
    result: tuple[int, int]


def as_matrices(spec: object) -> Matrices | Refusal | None:
    """An operator as a product of two matrices; why it is none; None of what is neither a product nor a convolution."""
    if isinstance(spec, ContractionSpec):
        if spec.batch or spec.epilogue is not None:
            return Refusal("it is more than a product of two matrices")
        return Matrices(replace(spec, c=(spec.n, 1)), 0, 1, (spec.c[0], spec.c[1]))
    if not isinstance(spec, ConvolutionSpec):
        return None
    if spec.groups != 1 or any(k != 1 for k in spec.kernel) or any(s != 1 for s in spec.stride) or any(spec.padding):
        return Refusal("it is no convolution of one tap in steps of one")
    if spec.bias or spec.panel or spec.winograd or spec.scales is not None or spec.epilogue is not None:
        return Refusal("it is more than a product of two matrices")
    x, y = (_rows(shape, strides) for shape, strides in ((spec.shapes[0], spec.x), (spec.shapes[2], spec.y)))
    if x is None or y is None:
        return Refusal("an image has not its channels last, or gaps")
    m, out, inside = spec.n * math.prod(spec.out_size), spec.w[0], spec.w[1]
    if spec.kind == "backward_weight":
        product = ContractionSpec(spec.types, (), spec.cin, spec.cout, m, (1, x), (y, 1), (spec.cout, 1))
        return Matrices(product, 0, 1, (inside, out))
    forward = spec.kind == "forward"
    n, k = (spec.cout, spec.cin) if forward else (spec.cin, spec.cout)
    at = (inside, out) if forward else (out, inside)
    read, written = (x, y) if forward else (y, x)
    product = ContractionSpec(spec.types, (), m, n, k, (read, 1), at, (n, 1))
    return Matrices(product, 0, 1, (written, 1))


def _rows(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of an image's pixels (n, channel, *space), whose channels lie side by side, as rows of one matrix."""
    if shape[1] > 1 and strides[1] != 1:
        return None
    pixels = [(n, st) for d, (n, st) in enumerate(zip(shape, strides, strict=True)) if d != 1 and n > 1]
    for (_, high), (n, low) in itertools.pairwise(pixels):
        if high != low * n:
            return None
    return pixels[-1][1] if pixels else shape[1]
