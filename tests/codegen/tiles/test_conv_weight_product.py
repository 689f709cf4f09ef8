"""Pointwise weight gradients as products on the matrix unit: both roles, channels that fill no panel, layouts, and what is not finite."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest

from dcir.codegen.tiles import conv_weight_product
from dcir.codegen.tiles.conv import plan_convolution
from dcir.codegen.tiles.conv_problem import flat, forward_problem
from dcir.codegen.tiles.conv_weight_product import weight_product_suits
from dcir.codegen.tiles.isa import ISAS
from dcir.ir.network import contiguous
from dcir.ops.convolution import ConvolutionSpec
from tests.codegen.tiles.test_conv_weight_last import last
from tests.codegen.tiles.test_conv_weight_pointwise import needs_unit, operands, run, spec_of
from tests.codegen.tiles.tile_harness import compile_plans

SHAPES = ("square", "more-out", "more-in", "few-out", "few-in", "odd", "seventeen", "long", "short")
CASES = list(
    zip(
        [n for n in SHAPES for _ in range(3)],
        itertools.cycle((1, 2, 3)),
        itertools.cycle(("contiguous", "last", "turned", "apart")),
        strict=False,
    )
)


def planned(case):
    with mock.patch.multiple(conv_weight_product, MOST_POSITIONS=10000, LEAST_STRIPS=1, GAIN=1e9):
        return plan_convolution(spec_of(case), ISAS["amx"], case[1])


@pytest.fixture(scope="module")
def kernels():
    made = {case: planned(case) for case in CASES}
    assert all("tdpbf16ps" in plan.globals and "Making" not in plan.globals for plan in made.values())
    return dict(zip(CASES, compile_plans([(plan, "f32", 2) for plan in made.values()], ["-O1"]), strict=True))


@needs_unit
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = spec_of(case)
    got, wanted = run(kernels[case], spec, operands(spec))
    small = 1e-6 * (4 + (spec.n * math.prod(spec.out_size)) ** 0.5)
    np.testing.assert_allclose(got, wanted, rtol=small, atol=small)


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["more-out", "more-in", "odd"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e-33])
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    given = operands(spec)
    if value == 1e-33:  # the last parts of such numbers are lost
        given[operand] *= np.float32(value)
    else:
        given[operand][0] = value
    got, wanted = run(kernels[case], spec, given)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 if value != 1e-33 else 1e-37)


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, stride=1, isa="amx"):
        out = size // stride
        spec = ConvolutionSpec(
            "backward_weight", "f32", n, 1, cin, cout, (size, size), (1, 1), (out, out), (stride, stride), (0, 0), (1, 1),
            last((n, cin, size, size), 1, 0), contiguous((cout, cin, 1, 1)), last((n, cout, out, out), 1, 0),
        )  # fmt: skip
        return weight_product_suits(flat(forward_problem(spec)), ISAS[isa])

    assert suits(8, 512, 2048, 7) and suits(8, 1024, 256, 14)
    assert not suits(8, 512, 2048, 7, isa="avx512")
    assert not suits(8, 256, 128, 56)  # many positions
    assert not suits(8, 256, 512, 14, stride=2)  # positions are not one walk
    assert not suits(8, 80, 480, 14)  # few strips of rows
