"""Convolutions on the matrix unit: borders, strides, dilations, several images, 1 to 3 dimensions, against the specs' references."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv import matrix as conv_matrix
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.problem import forward_problem
from dcir.isa import ISAS
from dcir.ops.library.epilogue import identity_epilogue
from tests.codegen.cpp.tiles.conv import test_nhwc as test_conv_last
from tests.codegen.cpp.tiles.tile_harness import compile_plans, matrix_everywhere, needs_unit
from tests.rotation import taken

# n, groups, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
SHAPES = {
    "seven": (3, 1, 64, 64, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "fourteen": (1, 1, 32, 96, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "wide": (2, 1, 32, 61, (5, 61), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "asymmetric": (2, 1, 32, 31, (9, 10), (3, 4), (1, 1), (0, 2), (2, 1), (1, 1)),
    "strided": (2, 1, 32, 64, (15, 14), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "asymmetric-s2": (2, 1, 32, 64, (23, 12), (5, 3), (2, 1), (0, 0), (1, 1), (1, 1)),
    "one-by-one-s2": (2, 1, 96, 64, (14, 15), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "negative": (1, 1, 32, 32, (14, 12), (3, 3), (1, 1), (-1, -2), (1, 0), (1, 1)),
    "dilated": (1, 1, 32, 32, (13, 15), (3, 3), (1, 1), (4, 4), (4, 4), (4, 4)),
    "dilated-beyond": (3, 1, 32, 32, (5, 5), (3, 3), (1, 1), (6, 6), (6, 6), (6, 6)),
    "padding-only": (9, 1, 32, 64, (2, 2), (2, 2), (1, 1), (3, 3), (3, 3), (1, 1)),
    "deep": (2, 1, 320, 64, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "patches": (2, 1, 32, 64, (24, 24), (4, 4), (4, 4), (0, 0), (0, 0), (1, 1)),
    "line": (1, 1, 64, 128, (300,), (2,), (1,), (8,), (0,), (8,)),
    "lines": (3, 1, 32, 64, (50,), (3,), (2,), (1,), (1,), (1,)),
    "column": (3, 1, 64, 64, (24, 1), (3, 1), (1, 1), (1, 0), (1, 0), (1, 1)),
    "to-a-column": (5, 1, 32, 64, (18, 9), (3, 9), (1, 1), (0, 0), (0, 0), (1, 1)),
    "stacked": (1, 1, 64, 96, (4, 90), (4, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "space": (2, 1, 32, 32, (5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), (1, 1, 1)),
}  # fmt: skip


def cases():
    found = []
    turns = itertools.cycle(itertools.product(("none", "residual", "bias", "silu"), (1, 2, 3)))
    weights = itertools.cycle(("packed", "last", "packed", "odd"))
    for name in SHAPES:
        for x_layout, y_layout in (("last", "last"), ("gap", "gap"), ("gap", "plain")):
            turn, w_layout = next(turns), next(weights)
            found.append((name, "f32", x_layout, y_layout, *turn, "packed" if y_layout == "plain" else w_layout))
    return found


def spec_of(case):
    name, *rest = case
    return test_conv_last.spec_of(SHAPES[name], *rest[:4], rest[5])


CASES = taken(cases(), 18) + [case for case in cases() if case[0] == "column" and case[2] == "last"]
CASES = list(dict.fromkeys(CASES))


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for case in CASES:
        spec = spec_of(case)
        with matrix_everywhere():
            made = plan_convolution(spec, ISAS["amx"], case[5])
        assert "tdpbf16ps" in made.globals, case
        entries.append((made, ("f32",) * (2 if spec.epilogue is None else 1 + len(spec.epilogue.inputs)), ("f32",)))
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


@needs_unit
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = spec_of(case)
    given, result = test_conv_last.operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(result))
    small = 1e-6 * (4 + (spec.cin * np.prod(spec.kernel)) ** 0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)  # gaps between pixels keep their 3.0


@needs_unit
@pytest.mark.parametrize("name", ["seven", "strided", "asymmetric-s2", "dilated"])
def test_rows_that_are_no_one_walk(name):
    """Results with gaps between rows: every row is a product, and reads as many rows of the image as one inside it."""
    plain = test_conv_last.spec_of(SHAPES[name], "f32", "last", "last", "none")
    channels, height, width = plain.cout, plain.out_size[0], plain.out_size[1] + 3
    spec = replace(plain, y=(height * width * channels, 1, width * channels, channels))
    with matrix_everywhere():
        made = plan_convolution(spec, ISAS["amx"], 2)
    assert "keep(" in made.globals
    (call,) = compile_plans([(made, "f32", 2)], ["-O1"])
    given, result = test_conv_last.operands(spec)
    wanted = result.copy()
    spec.reference(given, [wanted])
    call(*map(torch.from_numpy, given), torch.from_numpy(result))
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_memory_for_the_image_holds_every_row():
    """A result's row in the middle reads three rows, one at the border two."""
    plain = forward_problem(test_conv_last.spec_of(SHAPES["wide"], "f32", "last", "last", "none"))
    height, width = 5, 61
    apart = replace(plain, ys=(height * 70 * 61, 0, 1, 0, 70 * 61, 61))
    epilogue = identity_epilogue((2, 1, 61, 1, height, width), "f32", apart.ys)
    form = conv_matrix._form(apart, epilogue)
    assert form.spec.m == width
    assert conv_matrix._bytes(apart, form)(2) == 3 * width * 3 * conv_matrix.PIXEL_BYTES


@needs_unit
@pytest.mark.parametrize("name", ["seven", "strided", "line", "patches"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38])
def test_what_is_not_finite_reaches_only_its_neighbours(name, value):
    spec = test_conv_last.spec_of(SHAPES[name], "f32", "last", "last", "none")
    with matrix_everywhere():
        (call,) = compile_plans([(plan_convolution(spec, ISAS["amx"], 2), "f32", 2)], ["-O1"])
    given, result = test_conv_last.operands(spec)
    given[0][given[0].size // 2] = value
    wanted = result.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        spec.reference(given, [wanted])
    call(*map(torch.from_numpy, given), torch.from_numpy(result))
    assert not np.isfinite(wanted).all() or value == 3.4e38
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_images_are_split_once_where_taps_overlap():
    for name, kept in (
        ("seven", True),
        ("line", True),
        ("one-by-one-s2", False),
        ("patches", False),
        ("stacked", False),
    ):
        problem = forward_problem(test_conv_last.spec_of(SHAPES[name], "f32", "last", "last", "none"))
        assert conv_matrix._kept(problem) == kept, name


def test_where_it_is_used():
    shape = (8, 1, 128, 128, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    problem = replace(forward_problem(test_conv_last.spec_of(shape, "f32", "last", "last", "none")), panel=32)
    epilogue = identity_epilogue((8, 1, 128, 1, 14, 14), "f32", problem.ys)

    def refusal(p, isa):
        return conv_matrix.matrix_last_refusal(p, epilogue, ISAS[isa])

    assert refusal(problem, "amx") is None
    assert "no matrix unit" in str(refusal(problem, "avx512"))
    assert "panels of 16 columns" in str(refusal(replace(problem, panel=16), "amx"))  # of another processor
    assert "channels" in str(refusal(replace(problem, ci=40), "amx"))
