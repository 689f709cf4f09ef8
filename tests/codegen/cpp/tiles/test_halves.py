"""Packed weights of half types: what their panels say, and tiles that widen them, on every instruction set."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.cost.machine import Machine
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program, packed_shape, panel_width
from tests.codegen.cpp.tiles.gemm.test_epilogues import NUMPY, _epilogue
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans
from tests.rotation import taken

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}


def half_cases():
    """Of every instruction set: rows from one to several tiles, columns that fill a panel in part, sums in parts and in blocks of k."""
    found = []
    for isa in RUNNABLE:
        for stored in HALF:
            found += [(isa, stored, *sizes, kind) for sizes, kind in (
                ((1, 70, 33), "none"), ((2, 5, 7), "bias"), ((7, 130, 600), "gelu"), ((40, 45, 90), "residual"), ((61, 160, 1100), "bias"),
                ((9, 40, 4200), "none"),
            )]  # fmt: skip
    return found


HALF_CASES = taken(list(dict.fromkeys(half_cases())), 24)


@pytest.fixture(scope="module")
def half_kernels():
    entries = []
    for isa, stored, m, n, k, kind in HALF_CASES:
        panel = panel_width("f32", ISAS[isa], stored)
        spec = ContractionSpec(alike("f32", stored), (), m, n, k, (k, 1), (0, 0), (n, 1), panel)
        if kind != "none":
            spec = replace(spec, epilogue=_epilogue(kind, "f32", (), m, n, (n, 1)))
        body = spec.epilogue
        ins = ("f32", stored, *(body.inputs[1:] if body else ()))
        outs = body.outputs if body else ("f32",)
        entries.append((spec, ins, outs))
    plans = [
        (plan(s, Machine(ISAS[case[0]], 2)), ins, outs)
        for case, (s, ins, outs) in zip(HALF_CASES, entries, strict=True)
    ]
    return [(s, i, o, run) for (s, i, o), run in zip(entries, compile_plans(plans), strict=True)]


@pytest.mark.parametrize("number", range(len(HALF_CASES)), ids=[str(c) for c in HALF_CASES])
def test_half_panels(number, half_kernels):
    """Packed weights of half types are widened in the tile: within the error of an f32 product of the same numbers."""
    spec, ins, outs, run = half_kernels[number]
    stored, generator = spec.stored, torch.Generator().manual_seed(number)
    a, w = torch.randn(spec.m, spec.k, generator=generator), torch.randn(spec.n, spec.k, generator=generator)
    w = w.to(HALF[stored])
    raw = w.view(torch.int16).numpy().view(np.uint16).reshape(-1)
    source = raw if stored == "bf16" else raw.view(np.float16)
    packed = np.zeros(math.prod(packed_shape((), spec.n, spec.k, spec.panel)), source.dtype)
    program = pack_program(stored, (), spec.n, (spec.k,), spec.panel, (), spec.k, (1,))
    run_program(program, [source], [packed], reference)
    rest = [torch.randn(spec.m * spec.n, generator=generator) for _ in ins[2:]]
    types = {"f32": torch.float32, "bool": torch.bool}
    results = [torch.full((spec.m * spec.n,), 7, dtype=types[t]) for t in outs]
    run(a, torch.from_numpy(packed.view(np.int16)), *rest, *results)
    exact = [np.zeros(spec.m * spec.n, NUMPY[t]) for t in outs]
    given = [a.numpy().reshape(-1), packed, *(r.numpy() for r in rest)]
    spec.reference(given, exact)
    plain = [np.zeros(spec.m * spec.n, NUMPY[t]) for t in outs]
    again = replace(spec, panel=0, types=alike("f32"), b=(1, spec.k))
    again.reference([given[0], w.float().numpy().reshape(-1), *given[2:]], plain)
    looped = [np.zeros(spec.m * spec.n, NUMPY[t]) for t in outs]
    run_program(spec.loop_nest(), given, looped, reference)
    for t, got, want, same, loop in zip(outs, results, exact, plain, looped, strict=True):
        np.testing.assert_array_equal(want, same)  # the packed form says the same as the operand it was made of
        if t == "f32":
            scale = 1 + np.abs(want).max()
            assert np.abs(got.numpy() - want).max() <= 4e-6 * scale and np.abs(loop - want).max() <= 4e-6 * scale


@pytest.mark.parametrize("stored", HALF)
def test_widened_to_the_bit(stored):
    """Every number of the type comes out of a panel as torch widens it, on every instruction set."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    value = bits.view(HALF[stored]).float()
    keep = value.isfinite() & ((value == 0) | (value.abs() >= 2**-126))
    value, bits = value[keep], bits[keep]
    rows = 1
    specs = [
        ContractionSpec(
            alike("f32", stored), (), rows, len(bits), 1, (1, 1), (0, 0), (len(bits), 1), panel_width("f32", ISAS[i], stored)
        )
        for i in RUNNABLE
    ]  # fmt: skip
    runs = compile_plans(
        [(plan(s, Machine(ISAS[i], 2)), ("f32", stored), ("f32",)) for s, i in zip(specs, RUNNABLE, strict=True)]
    )
    for spec, run in zip(specs, runs, strict=True):
        source = bits.numpy().view(np.uint16 if stored == "bf16" else np.float16)
        packed = np.zeros(math.prod(packed_shape((), spec.n, 1, spec.panel)), source.dtype)
        run_program(pack_program(stored, (), spec.n, (1,), spec.panel, (), 1, (1,)), [source], [packed], reference)
        got = torch.zeros(len(bits))
        run(torch.ones(rows), torch.from_numpy(packed.view(np.int16)), got)
        assert torch.equal(got, value)
