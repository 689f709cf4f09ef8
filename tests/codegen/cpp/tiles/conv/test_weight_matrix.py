"""Weight gradients on the matrix unit: borders, dilations, blocks of images, rows and columns, shares and parts, and what is not finite."""

import itertools
from unittest import mock

import pytest

from dcir.codegen.cpp.tiles.conv import weight_matrix as conv_weight_matrix
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.problem import forward_problem
from dcir.codegen.cpp.tiles.conv.weight_matrix import WEIGHT_MATRIX
from dcir.isa import ISAS
from tests.codegen.cpp.tiles.conv.gradient_harness import (
    BAD_VALUES,
    check,
    check_random,
    check_spoiled,
    gradient_spec,
    kernels_of,
    operands,
    square_spec,
)
from tests.codegen.cpp.tiles.tile_harness import needs_unit
from tests.rotation import taken

# n, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
SHAPES = {
    "seven": (14, 64, 32, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "fourteen": (3, 32, 96, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "rows": (2, 32, 32, (40, 31), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "asymmetric": (2, 32, 64, (9, 10), (3, 4), (1, 1), (0, 2), (2, 1), (1, 1)),
    "uneven": (5, 32, 32, (6, 11), (2, 3), (1, 1), (1, 0), (0, 3), (1, 1)),
    "dilated": (1, 32, 32, (13, 15), (3, 3), (1, 1), (4, 4), (4, 4), (4, 4)),
    "dilated-beyond": (3, 32, 32, (5, 5), (3, 3), (1, 1), (6, 6), (6, 6), (6, 6)),
    "padding-only": (9, 32, 64, (2, 2), (2, 2), (1, 1), (3, 3), (3, 3), (1, 1)),
    "line": (1, 64, 128, (700,), (2,), (1,), (8,), (0,), (8,)),
    "point": (5, 64, 96, (9, 7), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "points": (1, 32, 64, (40, 50), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "point-s2": (3, 64, 64, (14, 15), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "point-s3": (1, 32, 32, (2500,), (1,), (3,), (0,), (0,), (1,)),
    "stride": (3, 32, 64, (14, 14), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "stride-odd": (9, 64, 32, (7, 9), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "stride-rows": (2, 32, 32, (61, 57), (3, 3), (2, 2), (1, 1), (0, 1), (1, 1)),
    "stride-one-way": (2, 32, 32, (11, 12), (3, 5), (1, 2), (1, 2), (1, 2), (1, 1)),
    "stride-two-phases": (2, 32, 32, (12, 13), (2, 3), (2, 2), (0, 3), (1, 0), (2, 1)),
    "stride-leaving-out": (4, 32, 32, (16, 17), (2, 2), (3, 4), (0, 0), (0, 0), (1, 1)),
    "stride-dilated": (2, 32, 32, (15, 16), (3, 3), (2, 2), (3, 2), (3, 3), (3, 2)),
    "one": (40, 64, 64, (1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
}  # fmt: skip
CASES = [
    (name, threads, gap)
    for name, (threads, gap) in zip(
        [n for n in SHAPES for _ in range(3)],
        itertools.cycle(itertools.product((1, 2, 3), (0, 16))),
        strict=False,
    )
]


def spec_of(case):
    return gradient_spec("backward_weight", SHAPES[case[0]], case[2])


def planned(case):
    with mock.patch.object(conv_weight_matrix, "LEAST_WORK", 1), mock.patch.object(conv_weight_matrix, "GAIN", 1e9):
        return plan_convolution(spec_of(case), ISAS["amx"], case[1])


TAKEN = taken(CASES, 24)


@pytest.fixture(scope="module")
def kernels():
    return kernels_of(planned, TAKEN)


@needs_unit
@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    check_random(kernels[case], spec_of(case))


@needs_unit
@pytest.mark.parametrize("name", ["seven", "rows", "points"])
def test_positive_numbers(kernels, name):
    """What is left out of every product has one sign here, and would add up."""
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    check(kernels[case], spec, operands(spec, 1.0), rtol=1e-6)


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["seven", "rows", "asymmetric", "point-s2", "line", "stride-odd"])
@pytest.mark.parametrize("value", BAD_VALUES)
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    check_spoiled(kernels[case], spec_of(case), operand, value)


@needs_unit
def test_shares_give_equal_bits(kernels):
    case = next(c for c in CASES if c[0] == "points" and c[1] > 1)
    spec = spec_of(case)
    first, *others = (check(kernels[case], spec, operands(spec), rtol=1e-4, atol=1e-3) for _ in range(4))
    assert all((other == first).all() for other in others)


def test_blocks_shares_and_parts_are_tested():
    """Among the cases there are blocks of images, of rows and of columns, shares of the blocks and parts of the channels."""
    texts = [planned(case).globals for case in CASES]
    for expected in ("rb = k / 1 % 2", "cb = k % 3", "share * 3 / 2", "share * 2 / 1", "part = j % 2;", "STEPS = 2,"):
        assert any(expected in t for t in texts), expected


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, k, stride, isa="amx"):
        spec = square_spec("backward_weight", n, cin, cout, size, k, stride)
        return WEIGHT_MATRIX.suits(forward_problem(spec), ISAS[isa])

    assert suits(8, 256, 256, 14, 3, 1) and suits(8, 512, 512, 28, 1, 1) and suits(8, 256, 512, 56, 1, 2)
    assert not suits(8, 256, 256, 14, 3, 1, "avx512")
    assert suits(8, 256, 256, 28, 3, 2)
    assert not suits(8, 256, 256, 60, 3, 3)  # nine phases
    assert not suits(8, 250, 256, 14, 3, 1) and not suits(1, 32, 32, 7, 3, 1)
