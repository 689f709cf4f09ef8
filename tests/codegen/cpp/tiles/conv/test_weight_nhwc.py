"""Weight gradients in channels-last: borders, strides, tails, blocks, shares and parts, against the specs' references."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.conv.problem import forward_problem
from dcir.codegen.cpp.tiles.conv.weight_nhwc import WEIGHT_NHWC
from dcir.ir.network import contiguous
from dcir.isa import ISAS
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.conv.test_winograd import window
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

# n, groups, cin, cout, in_size, kernel, stride, low padding, high padding, dilation
SHAPES = {
    "1x1": (3, 1, 40, 48, (8, 6), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "1x1-tail": (2, 1, 29, 35, (9, 7), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "1x1-s2": (2, 1, 17, 35, (9, 7), (1, 1), (2, 2), (0, 0), (0, 0), (1, 1)),
    "1x1-padded": (1, 1, 8, 9, (5, 4), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)),
    "3x3": (5, 1, 20, 24, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "3x3-uneven": (1, 1, 16, 33, (6, 11), (3, 3), (1, 1), (2, 0), (0, 3), (1, 1)),
    "3x3-s2": (2, 1, 18, 32, (13, 16), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "rows": (2, 1, 16, 32, (40, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "cropped": (1, 1, 16, 16, (9, 9), (3, 3), (1, 1), (-1, -2), (1, 0), (1, 1)),
    "outside": (1, 1, 9, 16, (2, 3), (5, 5), (1, 1), (4, 4), (4, 4), (1, 1)),
    "dilated": (1, 1, 16, 10, (15, 14), (4, 3), (3, 2), (2, 2), (2, 3), (2, 3)),
    "grouped": (2, 3, 12, 16, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "grouped-tail": (2, 2, 20, 18, (4, 8), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "1d-long": (1, 1, 64, 128, (1001,), (2,), (1,), (0,), (0,), (7,)),
    "1d-border": (2, 1, 10, 17, (603,), (3,), (1,), (200,), (5,), (100,)),
    "3d": (2, 1, 8, 20, (6, 7, 8), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "3d-s2": (1, 2, 8, 16, (6, 7, 8), (2, 3, 2), (2, 2, 2), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    "in-blocks": (1, 1, 800, 32, (20, 30), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    "images": (7, 1, 24, 40, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "lonely": (1, 1, 8, 2, (1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
}
MACHINES = (("avx512", 1), ("avx512", 3), ("avx2", 2), ("generic", 2))


def last(shape, groups, gap):
    """Strides of channels-last, with a gap between pixels."""
    pitch = shape[1] + gap
    return (pitch * math.prod(shape[2:]), 1, *contiguous((*shape[2:], pitch))[:-1])


def spec_of(case):
    name, _, _, gap, dtype = case
    n, groups, cin, cout, size, kernel, stride, low, high, dilation = SHAPES[name]
    out = tuple(
        (i + a + b - d * (k - 1) - 1) // s + 1
        for i, a, b, d, k, s in zip(size, low, high, dilation, kernel, stride, strict=True)
    )
    w = contiguous((groups * cout, cin, *kernel))
    if gap:  # weights anywhere
        w = (1, math.prod(kernel) * groups * cout, *(groups * cout * s for s in contiguous(kernel)))
    return ConvolutionSpec("backward_weight", alike(dtype), n, groups, cin, cout, size, kernel, out, stride, low, dilation,
                           last((n, groups * cin, *size), groups, gap), w, last((n, groups * cout, *out), groups, gap))  # fmt: skip


CASES = [
    (name, isa, threads, gap, dtype)
    for (name, (isa, threads)), gap, dtype in zip(
        itertools.product(SHAPES, MACHINES),
        itertools.cycle((0, 5, 0)),
        itertools.cycle(("f32",) * 4 + ("f64",)),
        strict=False,
    )
]


TAKEN = taken(CASES, 28)


@pytest.fixture(scope="module")
def kernels():
    entries = [(plan_convolution(spec_of(case), isa_of(case[1]), case[2]), case[4], 2) for case in TAKEN]
    return dict(zip(TAKEN, compile_plans(entries, ["-O1"]), strict=True))


def operands(spec):
    kind, rng = np.dtype("f4" if spec.dtype == "f32" else "f8"), np.random.default_rng(5)
    return [window(rng, spec.shapes[0], spec.x, kind), window(rng, spec.shapes[2], spec.y, kind)]


@pytest.mark.parametrize("case", TAKEN, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = spec_of(case)
    given = operands(spec)
    size = 1 + sum((n - 1) * s for n, s in zip(spec.shapes[1], spec.w, strict=True))
    wanted, got = (np.full(size, fill, given[0].dtype) for fill in (2.0, 2.0))
    spec.reference(given, [wanted])
    kernels[case](*map(torch.from_numpy, given), torch.from_numpy(got))
    small = (1e-6 if spec.dtype == "f32" else 1e-14) * (4 + (spec.n * math.prod(spec.out_size)) ** 0.5)
    np.testing.assert_allclose(got, wanted, rtol=small, atol=small)


def test_which_problems_have_this_form():
    wide, generic = ISAS["avx512"], ISAS["generic"]
    whole = forward_problem(spec_of(("1x1", "avx512", 1, 0, "f32")))
    tail = forward_problem(spec_of(("1x1-tail", "avx512", 1, 0, "f32")))
    assert WEIGHT_NHWC.suits(whole, wide) and WEIGHT_NHWC.suits(whole, generic)
    assert WEIGHT_NHWC.suits(tail, wide) and not WEIGHT_NHWC.suits(tail, generic)
    plain = ConvolutionSpec("backward_weight", alike("f32"), 1, 1, 16, 16, (4, 4), (1, 1), (4, 4), (1, 1), (0, 0), (1, 1),
                            (256, 16, 4, 1), (16, 1, 1, 1), (256, 16, 4, 1))  # fmt: skip
    assert not WEIGHT_NHWC.suits(forward_problem(plain), wide)


def test_blocks_shares_and_parts_are_tested():
    """Among the cases there are blocks of columns, of rows, of images and of inputs, shares of positions and parts of outputs."""
    texts = {case: plan_convolution(spec_of(case), ISAS[case[1]], case[2]).globals for case in CASES}
    for expected in (
        "cb = k % 4",
        "rb = k / 1 % 3",
        "* 2 / 2;",
        "ib < 4",
        "share = j / 1,",
        "share = j / 3,",
        "share * 5 / 3",
    ):
        assert any(expected in t for t in texts.values()), expected
