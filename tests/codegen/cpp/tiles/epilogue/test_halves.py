"""Products of every form whose epilogues read and store half types: their texts lie in one namespace, and their numbers fit."""

import math

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program, packed_shape, pair_program, panel_width
from dcir.ops.pages.pointwise import rounded
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans
from tests.rotation import taken

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
M, N, K = 37, 90, 70
FORMS = ("plain", "packed", "stored", "pairs", "packed pairs")


def _epilogue(kind, half):
    """Bias and residual of a half type; the result in that type, and as the next product reads it."""
    body = LoopNestBuilder((M, N))
    x = body.load(body.input("f32"), (N, 1)) + body.load(body.input(half), (0, 1))
    if kind == "gelu":
        x = x * body.const(0.5, "f32") * (body.op("erf", x * body.const(0.7071, "f32")) + body.const(1, "f32"))
    elif kind == "residual":
        x = x + body.load(body.input(half), (N, 1))
    body.store(body.output(half), (N, 1), x)
    body.store(body.output("f32"), (N, 1), rounded(x, half))
    return body.finish()


def _cases():
    for isa in RUNNABLE:
        for form in FORMS:
            for number, half in enumerate(HALF):
                if "pairs" not in form or (isa == "avx512bf16" and half == "bf16"):
                    yield isa, form, half, ("gelu", "residual", "bias")[(FORMS.index(form) + number) % 3]


CASES = taken(list(_cases()), 16)


def _spec(isa, form, half, kind):
    pairs = "pairs" in form
    panel = (
        panel_width("f32", ISAS[isa], half if form in ("stored", "packed pairs") else "")
        if form not in ("plain", "pairs")
        else 0
    )
    return ContractionSpec(
        alike("f32", half if form in ("stored", "packed pairs") else ""), (), M, N, K, (K, 1), (0, 0) if panel else (1, K), (N, 1),
        panel, _epilogue(kind, half), dots=pairs,
    )  # fmt: skip


def _right(spec, w, half):
    """The right operand as the product reads it."""
    raw = w.view(torch.int16).numpy().view(np.uint16).reshape(-1)
    raw = raw if half == "bf16" else raw.view(np.float16)
    if not spec.panel:
        return w.float().numpy().reshape(-1)
    if spec.dots:
        packed = np.zeros(math.prod(packed_shape((), N, K, spec.panel, pairs=True)), np.uint16)
        program = pair_program(half, (), N, (K,), spec.panel, (), K, (1,))
    else:
        raw = raw if spec.stored else w.float().numpy().reshape(-1)
        packed = np.zeros(math.prod(packed_shape((), N, K, spec.panel)), raw.dtype)
        program = pack_program(spec.stored or "f32", (), N, (K,), spec.panel, (), K, (1,))
    run_program(program, [raw], [packed], reference)
    return packed


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for case in CASES:
        spec = _spec(*case)
        ins = ("f32", spec.stored or "f32", *spec.epilogue.inputs[1:])
        entries.append((plan(spec, Machine(ISAS[case[0]], 2)), ins, spec.epilogue.outputs))
    return compile_plans(entries)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(c) for c in CASES])
def test_products(number, kernels):
    """Within the error of a product of f32, rounded once."""
    _, _, half, _ = CASES[number]
    spec, generator = _spec(*CASES[number]), torch.Generator().manual_seed(number)
    a, w = torch.randn(M, K, generator=generator), torch.randn(N, K, generator=generator)
    a, w = a.to(HALF[half]).float(), w.to(HALF[half])
    right = _right(spec, w, half)
    rest = [torch.randn(M * N, generator=generator).to(HALF[half]) for _ in spec.epilogue.inputs[1:]]
    given = torch.from_numpy(right.view(np.int16) if spec.stored else right)
    stored, wide = torch.full((M * N,), 7.0, dtype=HALF[half]), torch.full((M * N,), 7.0)
    kernels[number](a, given, *rest, stored, wide)
    y = (a.double() @ w.double().t()).reshape(-1) + rest[0].double()[:N].repeat(M)
    if len(rest) == 2:
        y = y + rest[1].double()
    elif "erf" in [s.op for s in spec.epilogue.body]:
        y = y * 0.5 * (torch.erf(y * 0.7071) + 1)
    assert torch.equal(stored.float(), wide)
    step = 2.0**-8 if half == "bf16" else 2.0**-11
    assert ((wide.double() - y).abs() <= y.abs() * step + 2e-5).all()
