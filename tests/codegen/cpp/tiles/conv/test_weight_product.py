"""Pointwise weight gradients as products on the matrix unit: both roles, channels that fill no panel, layouts, and what is not finite."""

import itertools
from unittest import mock

import pytest

from dcir.codegen.cpp.tiles.conv import weight_product as conv_weight_product
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.problem import flat, forward_problem
from dcir.codegen.cpp.tiles.conv.weight_product import WEIGHT_PANELS, WEIGHT_PRODUCT
from dcir.isa import ISAS
from tests.codegen.cpp.tiles.conv.gradient_harness import (
    BAD_VALUES,
    check_random,
    check_spoiled,
    kernels_of,
    square_spec,
)
from tests.codegen.cpp.tiles.conv.test_weight_pointwise import spec_of
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of, needs_unit
from tests.rotation import taken

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


TAKEN = taken(CASES, 16)


@pytest.fixture(scope="module")
def kernels():
    return kernels_of(planned, TAKEN)


@needs_unit
@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    assert "Making" not in planned(case).globals
    check_random(kernels[case], spec_of(case))


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["more-out", "more-in", "odd"])
@pytest.mark.parametrize("value", BAD_VALUES)
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    check_spoiled(kernels[case], spec_of(case), operand, value)


@pytest.fixture(scope="module")
def panel_kernels():
    isa = isa_of("avx2")
    if isa.vectors == "avx512":  # only where nothing else is compiled for
        pytest.skip("weight gradients from packed panels are for vectors narrower than AVX-512's")
    plans = {}
    for name, threads, layout in TAKEN:
        with mock.patch.object(conv_weight_product, "PACKED_CHANNELS", 2):
            plan = plan_convolution(spec_of((name, threads, layout)), isa, threads)
        assert "panel_of_b" in plan.globals
        plans[name, threads, layout] = plan
    return dict(zip(plans, compile_plans([(plan, "f32", 2) for plan in plans.values()], ["-O1"]), strict=True))


@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_panels_equal_reference(panel_kernels, case):
    check_random(panel_kernels[case], spec_of(case))


def test_which_problems_have_panels():
    def suits(n, cin, cout, size, k=1, stride=1, isa="avx2"):
        return WEIGHT_PANELS.suits(
            flat(forward_problem(square_spec("backward_weight", n, cin, cout, size, k, stride))), ISAS[isa]
        )

    assert suits(8, 256, 1024, 14) and suits(8, 512, 2048, 7)
    assert not suits(8, 64, 256, 56)  # panels take longer than the product
    assert not suits(8, 256, 256, 14, k=3) and not suits(8, 256, 512, 14, stride=2)
    assert not suits(8, 256, 1024, 14, isa="avx512")


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, stride=1, isa="amx"):
        spec = square_spec("backward_weight", n, cin, cout, size, 1, stride)
        return WEIGHT_PRODUCT.suits(flat(forward_problem(spec)), ISAS[isa])

    assert suits(8, 512, 2048, 7) and suits(8, 1024, 256, 14)
    assert not suits(8, 512, 2048, 7, isa="avx512")
    assert not suits(8, 256, 128, 56)  # many positions
    assert not suits(8, 256, 512, 14, stride=2)  # positions are not one walk
    assert not suits(8, 80, 480, 14)  # few strips of rows
