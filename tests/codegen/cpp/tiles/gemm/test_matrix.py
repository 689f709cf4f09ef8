"""Products on the matrix unit: every layout and epilogue, numbers at the ends of their range, and errors beside multiply-adds'."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.choices import Choice
from dcir.codegen.cpp.emitters import EMITTERS, plan
from dcir.codegen.cpp.tiles.gemm.matrix import matrix_refusal
from dcir.cost.machine import Machine
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.gemm import test_epilogues as test_gemm_epilogue
from tests.codegen.cpp.tiles.gemm.test_gemm import LAYOUTS
from tests.codegen.cpp.tiles.tile_harness import compile_plans, matrix_everywhere, needs_unit
from tests.rotation import taken

KINDS = ("none", "bias", "residual", "gelu", "place")
SIZES = (
    (32, 32, 128),
    (64, 64, 64),
    (33, 64, 96),
    (47, 97, 190),
    (80, 60, 100),
    (100, 200, 31),
    (160, 31, 777),
    (57, 130, 1700),
)


def cases():
    rng = random.Random(4)
    out = []
    for (m, n, k), kind in itertools.product(SIZES, KINDS):
        la, lc = rng.choice(LAYOUTS[:5]), rng.choice(LAYOUTS[:5])
        out.append(("amx", "f32", (), m, n, k, la, "row", lc, kind, True, rng.choice((1, 2, 3))))
    for kind in KINDS:
        out.append(("amx", "f32", (2, 3), 40, 90, 61, "row", "column", rng.choice(LAYOUTS[:5]), kind, True, 4))
        out.append(("amx", "f32", (3,), 40, 90, 61, "wide", "broadcast", "row", kind, True, 2))
    for kind, (m, n, k), la in itertools.product(KINDS, ((300, 70, 90), (261, 20, 300), (777, 100, 33)), LAYOUTS[:5]):
        # Strip after strip, each split while the one before is multiplied.
        out.append(("amx", "f32", (), m, n, k, la, "row", "row", kind, True, rng.choice((1, 2))))
    for kind in KINDS:
        out.append(("amx", "f32", (2,), 290, 90, 61, "row", "row", "column", kind, True, 2))
    for kind, (m, n, k), la in itertools.product(KINDS, ((64, 64, 64), (300, 70, 90), (47, 97, 1700)), LAYOUTS[:5]):
        # B where it lies.
        out.append(("amx", "f32", (), m, n, k, la, "row", "row", kind, False, rng.choice((1, 2))))
        out.append(("amx", "f32", (3,), m, n, k, la, "row", "row", kind, False, 2))
        out.append(("amx", "f32", (2,), m, n, k, la, "column", "row", kind, False, 2))
    for lb in LAYOUTS[:5]:  # all of B put into panels before
        out.append(("amx", "f32", (), 150, 200, 230, "row", lb, "row", "bias", False, 2))
    return out


CASES = taken(list(dict.fromkeys(cases())), 24)


@pytest.fixture(scope="module")
def kernels():
    with matrix_everywhere():
        made = {case: test_gemm_epilogue.make(case) for case in CASES}
    calls = compile_plans([(entry[1], entry[4], entry[5]) for entry in made.values()])
    return {case: (call, *made[case]) for case, call in zip(made, calls, strict=True)}


@needs_unit
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace(" ", ""))
def test_product(kernels, case):
    assert "tdpbf16ps" in kernels[case][2].globals
    test_gemm_epilogue.test_product(kernels, case)


def packed(m, n, k, threads=1):
    spec = ContractionSpec(alike("f32"), (), m, n, k, (k, 1), (0, 0), (n, 1), 32)
    with matrix_everywhere():
        return spec, plan(spec, Machine(ISAS["amx"], threads))


def panels(b):
    """B in panels of 32 columns, as NumPy."""
    k, n = b.shape
    wide = np.zeros((k, -(-n // 32) * 32), np.float32)
    wide[:, :n] = b
    return np.ascontiguousarray(wide.reshape(k, -1, 32).transpose(1, 0, 2)).reshape(-1)


def product(call, a, b):
    c = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    call(*(torch.from_numpy(x.reshape(-1)) for x in (np.ascontiguousarray(a), panels(b), c)))
    return c


@pytest.fixture(scope="module", params=["panels", "rows", "columns"])
def square(request):
    """A product of 96 rows, 70 columns and 160 steps, B in panels or where it lies."""
    where = request.param
    if where == "panels":
        (call,) = compile_plans([(packed(96, 70, 160, 2)[1], "f32", 2)])
        return lambda a, b: product(call, a, b)
    b_strides = (70, 1) if where == "rows" else (1, 160)
    with matrix_everywhere():
        made = plan(
            ContractionSpec(alike("f32"), (), 96, 70, 160, (160, 1), b_strides, (70, 1)), Machine(ISAS["amx"], 2)
        )
    assert "tdpbf16ps" in made.globals and not made.phases[1:]
    (call,) = compile_plans([(made, "f32", 2)])

    def multiply(a, b):
        c = np.full((96, 70), np.nan, np.float32)
        call(
            *(torch.from_numpy(np.ascontiguousarray(x).reshape(-1)) for x in (a, b if where == "rows" else b.T)),
            torch.from_numpy(c),
        )
        return c

    return multiply


def random_operands(scale=1.0):
    generator = np.random.default_rng(7)
    a, b = generator.standard_normal((96, 160), np.float32), generator.standard_normal((160, 70), np.float32)
    return (a * np.float32(scale)), b


@needs_unit
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, -3.4028235e38, 3.39e38])
@pytest.mark.parametrize("side", [0, 1])
def test_ends_of_the_range(square, value, side):
    """One such number, next to ones and zeros among others: what torch says of it, and nothing else is touched."""
    operands = random_operands()
    operands[1][:, 5] = 1
    operands[1][:, 6] = 0
    operands[side][17, 33] = value
    a, b = operands
    got = square(a, b)
    wanted = torch.from_numpy(a) @ torch.from_numpy(b)
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-4 if not np.isfinite(value) else 1e33)
    untouched = np.ones(got.shape, bool)
    untouched[17 if side == 0 else slice(None), slice(None) if side == 0 else 33] = False
    np.testing.assert_allclose(got[untouched], wanted.numpy()[untouched], rtol=1e-5, atol=1e-4)


@needs_unit
def test_a_nan_with_any_payload(square):
    """The leading bits of such a NaN are those of an infinity, or round to zero."""
    for bits in (0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF80FFFF):
        a, b = random_operands()
        a[3, 4] = np.array([bits], np.uint32).view(np.float32)[0]
        got = square(a, b)
        assert np.isnan(got[3]).all() and np.isfinite(np.delete(got, 3, 0)).all()


@needs_unit
@pytest.mark.parametrize("scale", [1e-33, 1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_relative_errors_do_not_depend_on_the_scale(square, scale):
    a, b = random_operands(scale)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(square(a, b) - wanted).max() < 1e-6 * np.abs(wanted).max()


@needs_unit
def test_overflow_is_infinity(square):
    a, b = np.full((96, 160), 3e38, np.float32), np.full((160, 70), 2, np.float32)
    assert (square(a, b) == np.inf).all()
    assert (square(-a, b) == -np.inf).all()


@needs_unit
@pytest.mark.parametrize("k", [64, 768, 3072])
def test_errors_beside_multiply_adds(k):
    """Of positive numbers too, where what a rounding leaves out would add up."""
    spec, matrix = packed(64, 64, k)
    calls = compile_plans([(matrix, "f32", 2), (plan(spec, Machine(ISAS["avx512"], 1)), "f32", 2)])
    generator = np.random.default_rng(k)
    for positive in (False, True):
        a, b = generator.standard_normal((64, k), np.float32), generator.standard_normal((k, 64), np.float32)
        if positive:
            a, b = abs(a), abs(b)
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        mine, others = (np.abs(product(call, a, b) - wanted) for call in calls)
        assert np.sqrt((mine**2).mean()) < 1.1 * np.sqrt((others**2).mean())
        assert mine.max() < 2 * others.max()


def test_where_it_is_used():
    spec, _ = packed(256, 256, 256)
    assert matrix_refusal(spec, ISAS["amx"]) is None
    assert matrix_refusal(spec, ISAS["avx512"]) is not None
    for other in ({"m": 16}, {"types": alike("f64")}, {"k": 9}, {"n": 34}, {"m": 64, "n": 64}):
        assert matrix_refusal(replace(spec, **other), ISAS["amx"]) is not None
    assert EMITTERS.decisions(spec, Machine(ISAS["amx"], 1)).offered["unit"] == ("matrix", "vector")
    assert "tdpbf16ps" not in plan(spec, Machine(ISAS["amx"], 1), Choice((("unit", "vector"),))).globals


@pytest.mark.parametrize("packed", [0, 32])
def test_empty_sums_are_not_for_the_unit(packed):
    """As many tiles as it takes, and nothing to multiply."""
    b = (0, 0) if packed else (640, 1)
    assert (
        "tdpbf16ps"
        not in plan(
            ContractionSpec(alike("f32"), (), 640, 640, 0, (1, 1), b, (640, 1), packed), Machine(ISAS["amx"], 2)
        ).globals
    )
