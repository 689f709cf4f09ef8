"""Convolutions of one tap as products of matrices: which are, with the strides that they walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcir.ir.refusal import Refusal
from dcir.ops.library.as_matrices import Matrices, as_matrices
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cuda.products import matrices


def convolution(kind: str = "forward", **changed: Any) -> ConvolutionSpec:
    """3 images of 5 by 7, 8 channels to 6, channels last."""
    spec = ConvolutionSpec(
        kind, alike("bf16"), 3, 1, 8, 6, (5, 7), (1, 1), (5, 7), (1, 1), (0, 0), (1, 1),
        (280, 1, 56, 8), (8, 1, 1, 1), (210, 1, 42, 6),
    )  # fmt: skip
    return replace(spec, **changed)


def test_pixels_are_rows() -> None:
    found = as_matrices(convolution())
    assert isinstance(found, Matrices)
    p = found.product
    assert (p.m, p.n, p.k, p.a, p.b, found.result) == (105, 6, 8, (8, 1), (1, 8), (6, 1))


def test_a_gradient_goes_back_along_the_weights() -> None:
    found = as_matrices(convolution("backward_data"))
    assert isinstance(found, Matrices)
    p = found.product
    assert (p.m, p.n, p.k, p.a, p.b, found.result) == (105, 8, 6, (6, 1), (8, 1), (8, 1))


def test_a_weights_gradient_sums_over_pixels() -> None:
    found = as_matrices(convolution("backward_weight"))
    assert isinstance(found, Matrices)
    p = found.product
    assert (p.m, p.n, p.k, p.a, p.b, found.result) == (8, 6, 105, (1, 8), (6, 1), (1, 8))


def test_channels_of_a_larger_image_are_rows_with_gaps() -> None:
    found = as_matrices(convolution(x=(560, 1, 112, 16)))
    assert isinstance(found, Matrices) and found.product.a == (16, 1)


def test_a_product_stays_one() -> None:
    s = matrices(3, 4, 5)
    found = as_matrices(replace(s, c=(8, 1)))
    assert found == Matrices(s, 0, 1, (8, 1))


@pytest.mark.parametrize(("spec", "why"), [
    (convolution(kernel=(3, 3), padding=(1, 1)), "one tap"),
    (convolution(stride=(2, 2), out_size=(3, 4)), "one tap"),
    (convolution(x=(280, 35, 7, 1)), "channels last"),
    (convolution(x=(300, 1, 56, 8)), "gaps"),
    (convolution(bias=True), "more than a product"),
])  # fmt: skip
def test_refused(spec: ConvolutionSpec, why: str) -> None:
    found = as_matrices(spec)
    assert isinstance(found, Refusal) and why in found.reason
    assert as_matrices(matrices) is None
