"""Products of bf16 in pairs: what panels of pairs say, tiles over them, and operands that become pairs in the call."""

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.codegen.cpp.tiles.gemm import packed as gemm_packed
from dcir.cost.machine import Machine
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS
from dcir.ops.library import contraction
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program, packed_shape, pair_program, panel_width
from tests.codegen.cpp.tiles.gemm.test_epilogues import _epilogue
from tests.codegen.cpp.tiles.tile_harness import COMPILED_ONLY, RUNNABLE, compile_plans
from tests.rotation import taken

pytestmark = pytest.mark.processor
ISA = ISAS["avx512bf16"]
PANEL = panel_width("f32", ISA, "bf16")
SIZES = (
    (1, 70, 33), (2, 5, 7), (7, 130, 600), (40, 45, 91), (61, 160, 1100), (9, 40, 8201), (300, 512, 1024), (130, 33, 65), (64, 64, 1),
)  # fmt: skip
# A along k or along m; B packed, along n or along k; both with gaps.
A = ("row", "column", "apart")
B = ("packed", "row", "column", "apart")


def _spec(m: int, n: int, k: int, a: str, b: str, kind: str, batch: tuple[int, ...] = ()) -> ContractionSpec:
    """The product, operands one after the other over a batch."""
    rows = {"row": (k, 1), "column": (1, m), "apart": (2 * k, 2)}[a]
    columns = {"packed": (0, 0), "row": (n, 1), "column": (1, k), "apart": (2 * n, 2)}[b]
    size = math.prod(packed_shape((), n, k, PANEL, pairs=True)) if b == "packed" else 2 * n * k
    spec = ContractionSpec(
        alike("f32", "bf16" if b == "packed" else ""), batch, m, n, k,
        (*(2 * m * k for _ in batch), *rows), (*(size for _ in batch), *columns), (*(m * n for _ in batch), n, 1),
        PANEL if b == "packed" else 0, dots=True,
    )  # fmt: skip
    return spec if kind == "none" else replace(spec, epilogue=_epilogue(kind, "f32", batch, m, n, spec.c))


CASES = taken([
    *((*size, a, b, kind, ()) for size in SIZES for a, b, kind in zip(A * 4, B * 3, ("none", "bias", "gelu", "none") * 3, strict=True)),
    *((33, 40, 70, "row", b, "none", (3,)) for b in B),
], 36)  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    if ISA.name not in RUNNABLE:
        pytest.skip("this processor does not multiply bf16 in pairs")
    entries = []
    for case in CASES:
        spec = _spec(*case)
        body = spec.epilogue
        ins = ("f32", spec.stored or "f32", *(body.inputs[1:] if body else ()))
        # Small ones, too, which are not worth it.
        with mock.patch.object(contraction, "LEAST_PAIRED", 1):
            made = plan(spec, Machine(ISA, 2))
        assert "dpbf16ps" in made.globals
        entries.append((made, ins, body.outputs if body else ("f32",)))
    return compile_plans(entries)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(c) for c in CASES])
def test_pairs(number, kernels):
    """Within the error of an f32 product of the same numbers; panels, the loop nest and the plain operand say the same."""
    m, n, k, _, b_form, kind, batch = CASES[number]
    spec, generator, count = _spec(*CASES[number]), torch.Generator().manual_seed(number), math.prod(batch)
    a = torch.randn(2 * count * m * k, generator=generator).bfloat16().float()
    w = torch.randn(count, n, k, generator=generator).bfloat16()
    if b_form == "packed":
        raw = w.view(torch.int16).numpy().view(np.uint16).reshape(-1)
        packed = np.zeros(math.prod(packed_shape(batch, n, k, PANEL, pairs=True)), np.uint16)
        groups = tuple(n * k for _ in batch)
        run_program(pair_program("bf16", batch, n, (k,), PANEL, groups, k, (1,)), [raw], [packed], reference)
        given, b = torch.from_numpy(packed.view(np.int16)), packed
    else:
        wide = torch.zeros(count, 2 * n * k)
        wide.as_strided((count, n, k), (2 * n * k, spec.b[-1], spec.b[-2])).copy_(w.float())
        given, b = wide.reshape(-1), wide.numpy().reshape(-1)
    rest = [
        torch.randn(count * m * n, generator=generator) for _ in (spec.epilogue.inputs[1:] if spec.epilogue else ())
    ]
    got = torch.full((count * m * n,), 7.0)
    kernels[number](a, given, *rest, got)
    want = np.zeros(count * m * n, np.float32)
    spec.reference([a.numpy(), b, *(r.numpy() for r in rest)], [want])
    if kind == "none":
        rows = a.as_strided((count, m, k), (2 * m * k if batch else 0, *spec.a[-2:])).double()
        np.testing.assert_allclose(want, (rows @ w.double().transpose(1, 2)).reshape(-1), rtol=1e-5, atol=1e-4)
    scale = 1 + np.abs(want).max()
    assert np.abs(got.numpy() - want).max() <= 4e-6 * scale
    if m * n * k < 50000:
        looped = np.zeros(count * m * n, np.float32)
        run_program(spec.loop_nest(), [a.numpy(), b, *(r.numpy() for r in rest)], [looped], reference)
        assert np.abs(looped - want).max() <= 4e-6 * scale


def test_numbers_that_f32_has_and_bf16_has_not_are_rounded_where_asked():
    """B of f32 that the product rounds: to the nearest, ties to even, infinities and NaN kept."""
    if ISA.name not in RUNNABLE or COMPILED_ONLY:
        pytest.skip("this processor does not multiply bf16 in pairs")
    b = torch.randn(64, 64) * torch.logspace(-30, 30, 64)
    b[0, :4] = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.00390625])
    spec = replace(_spec(64, 64, 64, "row", "row", "none"), rounds="bf16")
    (run,) = compile_plans([(plan(spec, Machine(ISA, 1)), "f32", 2)])
    got = torch.zeros(64 * 64)
    run(torch.eye(64).reshape(-1), b.reshape(-1), got)
    # Every row of the result is one of B and zeros times the others, of which infinities and NaN make NaN.
    want = torch.eye(64) @ b.bfloat16().float()
    assert torch.equal(torch.nan_to_num(got.view(64, 64), nan=7.0), torch.nan_to_num(want, nan=7.0))


def test_other_processors_multiply_what_is_not_packed_as_f32():
    """The mark is a permission: code for a processor without the instruction is that of the plain product."""
    spec = _spec(100, 64, 70, "row", "row", "bias")
    for isa in ("avx512", "avx2"):
        machine = Machine(ISAS[isa], 2)
        assert plan(spec, machine).globals == plan(replace(spec, dots=False), machine).globals
    assert "dpbf16ps" in plan(spec, Machine(ISA, 2)).globals
    with pytest.raises(AssertionError, match="panels of pairs"):
        plan(_spec(100, 64, 70, "row", "packed", "bias"), Machine(ISAS["avx2"], 2))


def test_small_products_that_nobody_packed_stay_as_they_are():
    """The head of a classifier has too few columns for a panel; to pack it in every call would take longer than the product."""
    for m, n, k in ((1, 4, 2048), (300, 4, 512), (64, 64, 0)):
        spec = _spec(m, n, k, "row", "column", "bias")
        assert plan(spec, Machine(ISA, 2)).globals == plan(replace(spec, dots=False), Machine(ISA, 2)).globals


def test_pairs_take_half_the_steps():
    """As many loads and multiplications as an f32 product of half the depth."""
    whole = plan(_spec(100, 64, 512, "row", "packed", "none"), Machine(ISA, 1)).globals
    assert f"k < {512 // 2}" in whole and gemm_packed.SUMMED < 512
    half = replace(_spec(100, 64, 512, "row", "packed", "none"), dots=False)
    program = pack_program("bf16", (), 64, (512,), PANEL, (), 512, (1,))
    assert math.prod(program.outer) == math.prod(packed_shape((), 64, 512, PANEL, pairs=True))
    assert half.footprint() == _spec(100, 64, 512, "row", "packed", "none").footprint()
