"""Data gradients of strided convolutions on the matrix unit: residues, paddings, dilations, layouts, and what is not finite."""

import itertools

import pytest

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.data_strided import DATA_STRIDED
from dcir.codegen.cpp.tiles.conv.problem import data_gradient
from dcir.isa import ISAS
from tests.codegen.cpp.tiles.conv.gradient_harness import (
    BAD_VALUES,
    check_random,
    check_spoiled,
    gradient_spec,
    kernels_of,
    square_spec,
)
from tests.codegen.cpp.tiles.tile_harness import matrix_everywhere, needs_unit
from tests.rotation import taken

# n, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
SHAPES = {
    "three": (2, 64, 32, (14, 14), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "odd": (2, 48, 64, (15, 13), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "point": (3, 64, 96, (12, 14), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "point-odd": (2, 40, 32, (9, 11), (1, 1), (3, 3), (0, 0), (0, 0), (1, 1)),
    "two": (1, 32, 32, (20, 16), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    "seven": (1, 16, 32, (23, 21), (7, 7), (2, 2), (3, 3), (3, 3), (1, 1)),
    "asymmetric": (2, 32, 32, (13, 17), (3, 4), (2, 3), (0, 2), (2, 1), (1, 1)),
    "rows": (2, 33, 64, (16, 10), (3, 3), (2, 1), (1, 1), (1, 1), (1, 1)),
    "dilated": (1, 32, 32, (19, 19), (3, 3), (2, 2), (2, 2), (2, 2), (2, 2)),
    "line": (2, 64, 32, (301,), (5,), (4,), (2,), (2,), (1,)),
    "cut": (1, 32, 32, (10, 10), (3, 3), (4, 4), (0, 0), (-1, -1), (1, 1)),
}  # fmt: skip
CASES = list(
    zip(
        [n for n in SHAPES for _ in range(3)],
        itertools.cycle((1, 2, 3)),
        itertools.cycle(("contiguous", "last")),
        strict=False,
    )
)


def spec_of(case):
    return gradient_spec("backward_data", SHAPES[case[0]], 16 if case[2] == "last" else 0)


def planned(case):
    with matrix_everywhere():
        return plan_convolution(spec_of(case), ISAS["amx"], case[1])


TAKEN = taken(CASES, 24)


@pytest.fixture(scope="module")
def kernels():
    return kernels_of(planned, TAKEN)


@needs_unit
@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    """Every element is written, also those that no tap meets; what lies between pixels stays as it was."""
    assert "result_row" in planned(case).globals
    check_random(kernels[case], spec_of(case))


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["odd", "point", "two", "line"])
@pytest.mark.parametrize("value", BAD_VALUES)
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    check_spoiled(kernels[case], spec_of(case), operand, value)


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, k, stride, isa="amx"):
        spec = square_spec("backward_data", n, cin, cout, size, k, stride)
        return DATA_STRIDED.suits(data_gradient(spec), ISAS[isa])

    assert suits(8, 128, 128, 56, 3, 2) and suits(8, 256, 512, 56, 1, 2)
    assert not suits(8, 128, 128, 56, 3, 2, "avx512")
    assert not suits(8, 128, 128, 56, 3, 1)  # one residue
    assert not suits(8, 3, 64, 224, 7, 2)  # three results a pixel
    assert not suits(8, 128, 40, 56, 3, 2)  # channels that fill no step
