"""Weight gradients on the matrix unit: borders, dilations, blocks of images, rows and columns, shares and parts, and what is not finite."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch

from dcir.codegen.tiles import conv_weight_matrix
from dcir.codegen.tiles.conv import plan_convolution
from dcir.codegen.tiles.conv_problem import forward_problem
from dcir.codegen.tiles.conv_weight_matrix import weight_matrix_suits
from dcir.codegen.tiles.isa import ISAS, host_isa
from dcir.ir.network import contiguous
from dcir.ops.convolution import ConvolutionSpec
from tests.codegen.tiles.test_conv_weight_last import last
from tests.codegen.tiles.test_conv_winograd import window
from tests.codegen.tiles.tile_harness import compile_plans

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
needs_unit = pytest.mark.skipif(host_isa().name != "amx", reason="this processor has no matrix unit")


def spec_of(case):
    name, _, gap = case
    n, cin, cout, size, kernel, stride, low, high, dilation = SHAPES[name]
    out = tuple(
        (i + a + b - d * (k - 1) - 1) // s + 1
        for i, a, b, d, k, s in zip(size, low, high, dilation, kernel, stride, strict=True)
    )
    w = contiguous((cout, cin, *kernel))
    if gap:  # channels-last weights
        w = (math.prod(kernel) * cin, 1, *(cin * s for s in contiguous(kernel)))
    return ConvolutionSpec("backward_weight", "f32", n, 1, cin, cout, size, kernel, out, stride, low, dilation,
                           last((n, cin, *size), 1, gap), w, last((n, cout, *out), 1, gap))  # fmt: skip


def planned(case):
    with mock.patch.object(conv_weight_matrix, "LEAST_WORK", 1), mock.patch.object(conv_weight_matrix, "GAIN", 1e9):
        return plan_convolution(spec_of(case), ISAS["amx"], case[1])


@pytest.fixture(scope="module")
def kernels():
    made = {case: planned(case) for case in CASES}
    assert all("tdpbf16ps" in plan.globals for plan in made.values())
    return dict(zip(CASES, compile_plans([(plan, "f32", 2) for plan in made.values()], ["-O1"]), strict=True))


def operands(spec, shift=0.0):
    rng = np.random.default_rng(5)
    found = [window(rng, spec.shapes[0], spec.x, np.float32), window(rng, spec.shapes[2], spec.y, np.float32)]
    return [(np.abs(v) + shift).astype(np.float32) if shift else v for v in found]


def run(call, spec, given):
    size = 1 + sum((n - 1) * s for n, s in zip(spec.shapes[1], spec.w, strict=True))
    wanted, got = (np.full(size, 2.0, np.float32) for _ in range(2))
    with np.errstate(invalid="ignore", over="ignore"):
        spec.reference(given, [wanted])
    call(*map(torch.from_numpy, given), torch.from_numpy(got))
    return got, wanted


@needs_unit
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    spec = spec_of(case)
    got, wanted = run(kernels[case], spec, operands(spec))
    small = 1e-6 * (4 + (spec.n * math.prod(spec.out_size)) ** 0.5)
    np.testing.assert_allclose(got, wanted, rtol=small, atol=small)


@needs_unit
@pytest.mark.parametrize("name", ["seven", "rows", "points"])
def test_positive_numbers(kernels, name):
    """What is left out of every product has one sign here, and would add up."""
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    got, wanted = run(kernels[case], spec, operands(spec, 1.0))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["seven", "rows", "asymmetric", "point-s2", "line"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38, 1e-33])
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    given = operands(spec)
    if value == 1e-33:  # the last parts of such numbers are lost
        given[operand] *= np.float32(value)
    else:
        shape, strides = spec.shapes[2 * operand], (spec.x, spec.y)[operand]
        # In the middle, where no tap meets the border: there the reference multiplies by zeros.
        given[operand][sum(n // 2 * s for n, s in zip(shape[2:], strides[2:], strict=True))] = value
    got, wanted = run(kernels[case], spec, given)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 if value != 1e-33 else 1e-37)


@needs_unit
def test_shares_give_equal_bits(kernels):
    case = next(c for c in CASES if c[0] == "points" and c[1] > 1)
    spec = spec_of(case)
    given = operands(spec)
    assert all((run(kernels[case], spec, given)[0] == run(kernels[case], spec, given)[0]).all() for _ in range(3))


def test_blocks_shares_and_parts_are_tested():
    """Among the cases there are blocks of images, of rows and of columns, shares of the blocks and parts of the channels."""
    texts = [planned(case).globals for case in CASES]
    for expected in ("rb = k / 1 % 2", "cb = k % 3", "share * 3 / 2", "share * 2 / 1", "part = j % 2;", "STEPS = 2,"):
        assert any(expected in t for t in texts), expected


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, k, stride, isa="amx"):
        spec = ConvolutionSpec(
            "backward_weight", "f32", n, 1, cin, cout, (size, size), (k, k), (size // stride,) * 2, (stride, stride), (k // 2,) * 2,
            (1, 1), last((n, cin, size, size), 1, 0), contiguous((cout, cin, k, k)), last((n, cout, size // stride, size // stride), 1, 0),
        )  # fmt: skip
        return weight_matrix_suits(forward_problem(spec), ISAS[isa])

    assert suits(8, 256, 256, 14, 3, 1) and suits(8, 512, 512, 28, 1, 1) and suits(8, 256, 512, 56, 1, 2)
    assert not suits(8, 256, 256, 14, 3, 1, "avx512")
    assert not suits(8, 256, 256, 14, 3, 2)  # positions two apart are no row
    assert not suits(8, 250, 256, 14, 3, 1) and not suits(1, 32, 32, 7, 3, 1)
