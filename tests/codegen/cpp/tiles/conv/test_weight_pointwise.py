"""Pointwise weight gradients on the matrix unit: channels that fill no panel, strides, blocks, shares and parts, and what is not finite."""

import itertools
import re
from unittest import mock

import pytest

from dcir.codegen.choices import Choice, deciding
from dcir.codegen.cpp.tiles.conv import weight_pointwise as conv_weight_pointwise
from dcir.codegen.cpp.tiles.conv import weight_product
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.problem import flat, forward_problem
from dcir.codegen.cpp.tiles.conv.weight_pointwise import WEIGHT_POINTWISE
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

# n, cin, cout, in_size, stride
SHAPES = {
    "square": (5, 64, 64, (19, 17), 1),
    "more-out": (4, 32, 160, (31, 9), 1),
    "more-in": (3, 192, 64, (14, 15), 1),
    "few-out": (2, 96, 16, (40, 21), 1),
    "few-in": (2, 24, 144, (28, 28), 1),
    "odd": (3, 40, 37, (17, 13), 1),
    "seventeen": (2, 49, 81, (20, 20), 1),
    "stride": (6, 64, 96, (14, 15), 2),
    "stride-odd": (2, 33, 65, (40, 31), 3),
    "long": (1, 32, 64, (7001,), 1),
    "short": (3, 64, 64, (9, 9), 1),
}  # fmt: skip
CASES = list(
    zip(
        [n for n in SHAPES for _ in range(4)],
        itertools.cycle((1, 2, 3)),
        itertools.cycle(("contiguous", "last", "turned", "apart")),
        strict=False,
    )
)


def spec_of(case):
    name, _, layout = case
    n, cin, cout, size, stride = SHAPES[name]
    ones, none = (1,) * len(size), (0,) * len(size)
    w = {"contiguous": (cin, 1), "last": (cin + 3, 1), "turned": (1, cout), "apart": (2 * cin, 2)}[layout]
    shape = (n, cin, cout, size, ones, (stride,) * len(size), none, none, ones)
    return gradient_spec("backward_weight", shape, 0 if layout == "contiguous" else 16, (*w, *ones))


def planned(case):
    small = mock.patch.multiple(conv_weight_pointwise, LEAST_WORK=1, GAIN=1e9, LEAST_STEPS=1, BLOCK_BYTES=256 << 10)
    parts = Choice((("division", (1, case[1])),) if case[2] in ("turned", "apart") else ())
    with small, deciding(parts), mock.patch.object(weight_product, "MOST_POSITIONS", 0):
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
@pytest.mark.parametrize("name", ["square", "few-in", "stride-odd", "long"])
def test_positive_numbers(kernels, name):
    """What is left out of every product has one sign here, and would add up."""
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    check(kernels[case], spec, operands(spec, 1.0), rtol=1e-6)


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["more-out", "more-in", "odd", "seventeen", "stride"])
@pytest.mark.parametrize("value", BAD_VALUES)
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    check_spoiled(kernels[case], spec_of(case), operand, value)


@needs_unit
def test_shares_give_equal_bits(kernels):
    case = next(c for c in CASES if c[0] == "long" and c[1] > 1 and c[2] == "last")
    spec = spec_of(case)
    first, *others = (check(kernels[case], spec, operands(spec), rtol=1e-4, atol=1e-3) for _ in range(4))
    assert all((other == first).all() for other in others)


def test_blocks_shares_and_parts_are_tested():
    """Among the cases there are several blocks, shares of them and parts of the columns, both roles and cut strips and panels."""
    texts = [planned(case).globals for case in CASES]
    wanted = (
        "part = j % 1",
        "part = j % 2",
        "part = j % 3",
        "/ 2;\n    const Tiles",
        "*rows = a0",
        "*rows = a1",
        "matrix_tile<1>(r",
        "m.width = ",
    )
    for expected in wanted:
        assert any(expected in t for t in texts), expected
    assert any(int(re.search(r"share \* (\d+) /", t)[1]) > 9 for t in texts)


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, k=1, stride=1, isa="amx", threads=2):
        spec = square_spec("backward_weight", n, cin, cout, size, k, stride)
        return WEIGHT_POINTWISE.suits(flat(forward_problem(spec)), ISAS[isa], threads)

    assert suits(8, 256, 128, 56) and suits(8, 512, 128, 28) and suits(8, 256, 512, 56, stride=2)
    assert not suits(8, 256, 128, 56, isa="avx512") and not suits(8, 256, 128, 56, k=3)
    assert not suits(8, 2048, 512, 7)  # two blocks and the sums do not fit into the second-level cache
    assert not suits(8, 16, 96, 112)  # making both operands takes longer than multiply-adds


@pytest.mark.parametrize("steps", range(1, 60))
@pytest.mark.parametrize("threads", [2, 5, 12])
def test_every_share_has_a_block(steps, threads):
    """A share of none would leave what lay in its place of the sums: 12 threads, 256 to 512 channels, 3 images of 28 x 28."""
    shape = (1, 64, 64, (steps * 32,), (1,), (1,), (0,), (0,), (1,))
    problem = flat(forward_problem(gradient_spec("backward_weight", shape, 0)))
    for found in conv_weight_pointwise._divisions(problem, threads):
        assert -(-steps // found.steps) >= found.shares
