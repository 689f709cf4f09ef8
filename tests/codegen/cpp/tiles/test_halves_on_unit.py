"""Numbers of bf16 on the matrix unit: they have one part, and products of every layout are those of their f32 forms."""

import itertools
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS, plan
from dcir.codegen.cpp.tiles.conv import weight_matrix, weight_pointwise, weight_product
from dcir.codegen.cpp.tiles.conv.conv import plan_convolution
from dcir.codegen.cpp.tiles.gemm.matrix import matrix_refusal
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.refusal import Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.sizes import Bounds
from dcir.ir.types import bf16_to_f32, f32_to_bf16
from dcir.isa import ISAS
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program
from tests.codegen.cpp.tiles.conv import (
    test_data_strided,
    test_matrix,
    test_nhwc,
    test_weight_matrix,
    test_weight_pointwise,
)
from tests.codegen.cpp.tiles.conv.gradient_harness import check, gradient_spec, operands
from tests.codegen.cpp.tiles.tile_harness import compile_plans, matrix_everywhere, needs_unit

pytestmark = [needs_unit, pytest.mark.in_turn(2)]

AMX = ISAS["amx"]
SIZES = ((32, 32, 128), (33, 64, 96), (47, 97, 190), (100, 200, 31), (160, 31, 777), (300, 70, 90), (57, 130, 4100))
WHERE = ("panels", "half panels", "rows", "columns", "packed in a call")


def rounded(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bf16."""
    return bf16_to_f32(f32_to_bf16(values.astype(np.float32)))


def one_part(text: str) -> bool:
    return "tdpbf16ps" in text and "PARTS = 1" in text


def product(m, n, k, where, bias):
    """A product and the types of its operands."""
    b = {"rows": (n, 1), "columns": (1, k), "packed in a call": (2 * n, 2)}.get(where, (0, 0))
    types = alike("f32", "bf16" if where == "half panels" else "")
    spec = ContractionSpec(types, (), m, n, k, (k, 1), b, (n, 1), 0 if any(b) else 32, halves=True)
    if not bias:
        return spec
    body = LoopNestBuilder((m, n))
    value = body.load(body.input("f32"), (n, 1)) + body.load(body.input("f32"), (0, 1))
    body.store(body.output("f32"), (n, 1), body.op("max", value, body.const(0, "f32")))
    return replace(spec, epilogue=body.finish())


CASES = [
    (*size, where, bias, threads)
    for (size, where), (bias, threads) in zip(
        itertools.product(SIZES, WHERE), itertools.cycle(((True, 2), (False, 1), (True, 1))), strict=False
    )
]


@pytest.fixture(scope="module")
def products():
    entries = []
    for *what, bias, threads in CASES:
        spec = product(*what, bias)
        with matrix_everywhere():
            made = plan(spec, Machine(AMX, threads))
        entries.append((made, ("f32", spec.types.b, *("f32",) * bias), ("f32",)))
    return dict(zip(CASES, compile_plans(entries, ["-O1"]), strict=True))


def check_product(call, m, n, k, where, bias):
    """A product is that of float64, up to f32's sums."""
    rng = np.random.default_rng(m * n)
    a, b = rounded(rng.standard_normal((m, k))), rounded(rng.standard_normal((k, n)))
    add = rng.standard_normal(n).astype("f4")
    if where in ("panels", "half panels"):
        stored = "bf16" if where == "half panels" else "f32"
        pack = pack_program(stored, (), n, (k,), 32, (), 1, (n,))
        given = f32_to_bf16(b.ravel()) if stored == "bf16" else b.ravel()
        right = np.zeros(math.prod(pack.outer), given.dtype)
        run_program(pack, [given], [right], test_nhwc.reference)
    else:
        right = {"rows": b, "columns": b.T, "packed in a call": np.repeat(b, 2, 1)}[where]
        right = np.ascontiguousarray(right).ravel()
    c = np.full((m, n), np.nan, "f4")
    call(*map(torch.from_numpy, (a.ravel(), right, *([add] if bias else []), c.ravel())))
    exact = a.astype("f8") @ b.astype("f8")
    wanted = np.maximum(exact + add, 0) if bias else exact
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=2e-6 * k**0.5)


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace(" ", "_"))
def test_products(products, case):
    m, n, k, where, bias, _ = case
    check_product(products[case], m, n, k, where, bias)


MOVING = [
    (n, k, where, bias) for n, k in ((97, 190), (64, 96), (130, 4100)) for where in WHERE for bias in (False, True)
]
BOUNDS = {"s0": Bounds(2, 400)}


@pytest.fixture(scope="module")
def moving_products():
    entries = []
    for n, k, where, bias in MOVING:
        _, samples = chosen_samples(BOUNDS)
        (spec,) = unified_rows([(product(s["s0"], n, k, where, bias),) for s in samples], samples)
        with matrix_everywhere():
            made = moving_kernel(EMITTERS, spec, Names.of(BOUNDS, {"s0": 128}), Machine(AMX, 2), 2 + bias)
        assert not isinstance(made, Refusal), made.reason
        # What is not packed is put into panels first, or goes to multiply-adds.
        assert one_part(made.globals) or where in ("rows", "columns", "packed in a call")
        entries.append((made, ("f32", spec.types.b, *("f32",) * bias, "i64"), ("f32",)))
    return dict(zip(MOVING, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", MOVING, ids=lambda c: "-".join(map(str, c)).replace(" ", "_"))
def test_one_kernel_takes_any_number_of_rows(moving_products, case):
    n, k, where, bias = case
    for m in (2, 4, 5, 31, 32, 33, 63, 64, 65, 127, 200, 257, 400):
        check_product(lambda *t, m=m: moving_products[case](*t[:-1], torch.tensor([m]), t[-1]), m, n, k, where, bias)


def test_infinities_and_nan_stay_what_they_are(products):
    case = next(c for c in CASES if c[:4] == (47, 97, 190, "rows"))
    m, n, k, _, bias, _ = case
    rng = np.random.default_rng(1)
    a, b = rounded(rng.standard_normal((m, k))), rounded(rng.standard_normal((k, n)))
    a[3, 4], a[7, 100], b[20, 5] = np.inf, np.nan, -np.inf
    c = np.full((m, n), np.nan, "f4")
    products[case](*map(torch.from_numpy, (a.ravel(), b.ravel(), *([np.zeros(n, "f4")] if bias else []), c.ravel())))
    with np.errstate(invalid="ignore"):
        exact = a.astype("f8") @ b.astype("f8")
        exact = np.maximum(exact, 0) if bias else exact
    odd = ~np.isfinite(exact)
    np.testing.assert_array_equal(c[odd], exact[odd].astype("f4"))
    np.testing.assert_allclose(c[~odd], exact[~odd], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def convolutions():
    entries = []
    for case in test_matrix.CASES:
        spec = replace(test_matrix.spec_of(case), halves=True)
        with matrix_everywhere():
            made = plan_convolution(spec, AMX, case[5])
        assert one_part(made.globals), case
        entries.append((made, ("f32",) * (2 if spec.epilogue is None else 1 + len(spec.epilogue.inputs)), ("f32",)))
    return dict(zip(test_matrix.CASES, compile_plans(entries, ["-O1"]), strict=True))


@pytest.mark.parametrize("case", test_matrix.CASES, ids=lambda c: "-".join(map(str, c)))
def test_convolutions(convolutions, case):
    spec = test_matrix.spec_of(case)
    given, result = test_nhwc.operands(spec)
    given[:2] = map(rounded, given[:2])
    wanted = result.copy()
    spec.reference(given, [wanted])
    convolutions[case](*map(torch.from_numpy, given), torch.from_numpy(result))
    small = 1e-6 * (4 + (spec.cin * np.prod(spec.kernel)) ** 0.5)
    np.testing.assert_allclose(result, wanted, rtol=small, atol=small)


def weights_by_taps(case):
    with mock.patch.multiple(weight_matrix, LEAST_WORK=1, GAIN=1e9):
        return plan_convolution(replace(test_weight_matrix.spec_of(case), halves=True), AMX, case[1])


def weights_by_points(case):
    small = mock.patch.multiple(weight_pointwise, LEAST_WORK=1, GAIN=1e9, LEAST_STEPS=1, BLOCK_BYTES=256 << 10)
    with small, mock.patch.object(weight_product, "MOST_POSITIONS", 0):
        return plan_convolution(replace(test_weight_pointwise.spec_of(case), halves=True), AMX, case[1])


def strided_data(case):
    with matrix_everywhere():
        return plan_convolution(replace(test_data_strided.spec_of(case), halves=True), AMX, case[1])


def data(case):
    with matrix_everywhere():
        return plan_convolution(replace(data_spec(case), halves=True), AMX, case[1])


def data_spec(case):
    n, cin, _, size, *rest = test_weight_matrix.SHAPES[case[0]]
    return gradient_spec("backward_data", (n, cin, 32, size, *rest), case[2])


PLAIN = [c for c in test_weight_matrix.CASES if not c[0].startswith(("stride", "point"))][::3]
GRADIENTS = [
    *((weights_by_taps, test_weight_matrix.spec_of, c) for c in test_weight_matrix.CASES[::3]),
    *((weights_by_points, test_weight_pointwise.spec_of, c) for c in test_weight_pointwise.CASES[::4]),
    *((strided_data, test_data_strided.spec_of, c) for c in test_data_strided.CASES[::3]),
    *((data, data_spec, c) for c in PLAIN),
]


@pytest.fixture(scope="module")
def gradients():
    plans = [planned(case) for planned, _, case in GRADIENTS]
    for (planned, _, case), made in zip(GRADIENTS, plans, strict=True):
        assert one_part(made.globals), (planned, case)
    return dict(zip(GRADIENTS, compile_plans([(p, "f32", 2) for p in plans], ["-O1"]), strict=True))


@pytest.mark.parametrize("gradient", GRADIENTS, ids=lambda g: "-".join(map(str, (g[0].__name__, *g[2]))))
def test_gradients(gradients, gradient):
    _, spec_of, case = gradient
    spec = spec_of(case)
    summed = spec.n * math.prod(spec.out_size) if spec.kind == "backward_weight" else spec.cout * math.prod(spec.kernel)
    small = 2e-6 * (4 + summed**0.5)
    check(gradients[gradient], spec, list(map(rounded, operands(spec))), rtol=small, atol=small)


def test_where_it_is_used():
    spec = ContractionSpec(alike("f32", "bf16"), (), 256, 256, 256, (256, 1), (0, 0), (256, 1), 32, halves=True)
    assert matrix_refusal(spec, AMX) is None
    assert matrix_refusal(replace(spec, halves=False), AMX) is not None
    assert matrix_refusal(spec, ISAS["avx512bf16"]) is not None
    # Few rows pay where float32's do not.
    few = replace(spec, m=32, types=alike("f32"))
    assert matrix_refusal(few, AMX) is None and matrix_refusal(replace(few, halves=False), AMX) is not None
