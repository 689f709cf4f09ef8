"""Data gradients of strided convolutions on the matrix unit: residues, paddings, dilations, layouts, and what is not finite."""

import itertools
import math

import numpy as np
import pytest
import torch

from dcir.codegen.tiles.conv import plan_convolution
from dcir.codegen.tiles.conv_data_strided import data_strided_suits
from dcir.codegen.tiles.conv_problem import data_problems
from dcir.codegen.tiles.isa import ISAS, host_isa
from dcir.ir.network import contiguous
from dcir.ops.convolution import ConvolutionSpec
from tests.codegen.tiles.test_conv_weight_last import last
from tests.codegen.tiles.test_conv_winograd import window
from tests.codegen.tiles.tile_harness import compile_plans, matrix_everywhere

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
needs_unit = pytest.mark.skipif(host_isa().name != "amx", reason="this processor has no matrix unit")


def spec_of(case):
    name, _, layout = case
    n, cin, cout, size, kernel, stride, low, high, dilation = SHAPES[name]
    out = tuple(
        (i + a + b - d * (k - 1) - 1) // s + 1
        for i, a, b, d, k, s in zip(size, low, high, dilation, kernel, stride, strict=True)
    )
    w, gap = contiguous((cout, cin, *kernel)), 0
    if layout == "last":
        w, gap = (math.prod(kernel) * cin, 1, *(cin * s for s in contiguous(kernel))), 16
    return ConvolutionSpec("backward_data", "f32", n, 1, cin, cout, size, kernel, out, stride, low, dilation,
                           last((n, cin, *size), 1, gap), w, last((n, cout, *out), 1, gap))  # fmt: skip


def planned(case):
    with matrix_everywhere():
        return plan_convolution(spec_of(case), ISAS["amx"], case[1])


@pytest.fixture(scope="module")
def kernels():
    made = {case: planned(case) for case in CASES}
    assert all("result_row" in plan.globals for plan in made.values())
    return dict(zip(CASES, compile_plans([(plan, "f32", 2) for plan in made.values()], ["-O1"]), strict=True))


def run(call, spec, given):
    size = 1 + sum((n - 1) * s for n, s in zip(spec.shapes[0], spec.x, strict=True))
    wanted, got = (np.full(size, 2.0, np.float32) for _ in range(2))
    with np.errstate(invalid="ignore", over="ignore"):
        spec.reference(given, [wanted])
    call(*map(torch.from_numpy, given), torch.from_numpy(got))
    return got, wanted


def operands(spec):
    rng = np.random.default_rng(6)
    return [window(rng, spec.shapes[2], spec.y, np.float32), window(rng, spec.shapes[1], spec.w, np.float32)]


@needs_unit
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_equals_reference(kernels, case):
    """Every element is written, also those that no tap meets; what lies between pixels stays as it was."""
    spec = spec_of(case)
    got, wanted = run(kernels[case], spec, operands(spec))
    small = 1e-6 * (4 + (spec.cout * math.prod(spec.kernel)) ** 0.5)
    np.testing.assert_allclose(got, wanted, rtol=small, atol=small)


@needs_unit
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", ["odd", "point", "two", "line"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38, 1e-33])
def test_what_is_not_finite_reaches_only_what_it_should(kernels, name, value, operand):
    case = next(c for c in CASES if c[0] == name)
    spec = spec_of(case)
    given = operands(spec)
    if value == 1e-33:  # the last parts of such numbers are lost
        given[operand] *= np.float32(value)
    elif operand == 0:  # in the middle, where no tap meets the border: there the reference multiplies by zeros
        given[0][sum(n // 2 * s for n, s in zip(spec.shapes[2][2:], spec.y[2:], strict=True))] = value
    else:
        given[1][0] = value
    got, wanted = run(kernels[case], spec, given)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 if value != 1e-33 else 1e-37)


def test_which_problems_have_this_form():
    def suits(n, cin, cout, size, k, stride, isa="amx"):
        out = size // stride
        spec = ConvolutionSpec(
            "backward_data", "f32", n, 1, cin, cout, (size, size), (k, k), (out, out), (stride, stride), (k // 2,) * 2, (1, 1),
            last((n, cin, size, size), 1, 0), contiguous((cout, cin, k, k)), last((n, cout, out, out), 1, 0),
        )  # fmt: skip
        return data_strided_suits(list(data_problems(spec)), ISAS[isa])

    assert suits(8, 128, 128, 56, 3, 2) and suits(8, 256, 512, 56, 1, 2)
    assert not suits(8, 128, 128, 56, 3, 2, "avx512")
    assert not suits(8, 128, 128, 56, 3, 1)  # one residue
    assert not suits(8, 3, 64, 224, 7, 2)  # three results a pixel
    assert not suits(8, 128, 40, 56, 3, 2)  # channels that fill no step
