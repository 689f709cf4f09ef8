"""Loop nests over bf16 and f16: what those of f32 give of the same numbers, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.cost.machine import Machine
from dcir.ir.loop_forms import drop_roundings
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import host_isa
from dcir.ops.pages.pointwise import rounded
from tests.codegen.cpp.tiles.tile_harness import compile_plans

pytestmark = pytest.mark.processor

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
SIZES = [(700, 70), (512, 64), (513, 3), (9, 130), (1100, 200)]


def _every(stored: str, n: int) -> torch.Tensor:
    """All finite numbers of a type, in an order that keeps sums small, as often as fills n elements."""
    bits = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    found = bits.view(HALF[stored])
    found = found[found.isfinite() & (found.abs() < 1000)]
    found = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))]
    return found.repeat(n // len(found) + 1)[:n].clone()


def _sums(stored: str, columns: int, rows: int) -> LoopNest:
    """Sums down the columns beside a widened copy, as the gradient of a bias and of a product's operand."""
    body = LoopNestBuilder((columns,), (rows,))
    x = body.load(body.input(stored), (1, columns))
    total = body.reduce("sum", x * x)
    body.store(body.output("f32"), (1, columns), rounded(x, stored))
    body.store(body.output("f32"), (1, 0), total)
    return body.finish()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stored", HALF)
def test_sums_of_columns(stored: str, threads: int) -> None:
    """In other blocks than f32's, in the same order."""
    machine = Machine(host_isa(), threads)
    programs = [_sums(t, *size) for size in SIZES for t in (stored, "f32")]
    runs = compile_plans([(plan(p, machine), p.inputs, p.outputs) for p in programs])
    for (columns, rows), half, single in zip(SIZES, runs[::2], runs[1::2], strict=True):
        x = _every(stored, rows * columns)
        results = [(torch.full((rows * columns,), 7.0), torch.full((columns,), 7.0)) for _ in range(2)]
        half(x, *results[0])
        single(x.float(), *results[1])
        assert torch.equal(results[0][0], x.float()) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("stored", HALF)
def test_pointwise(stored: str) -> None:
    """Every number of the type is read, doubled and rounded as torch does it."""
    x = _every(stored, 1 << 16)
    body = LoopNestBuilder((1 << 16,))
    value = body.load(body.input(stored), (1,))
    body.store(body.output(stored), (1,), value * 3)
    program = body.finish()
    made = plan(program, Machine(host_isa(), 1))
    (run,) = compile_plans([(made, program.inputs, program.outputs)])
    run(x, got := torch.empty_like(x))
    assert torch.equal(got, (x.float() * 3).to(HALF[stored]))
    # Loads of _Float16 itself are vectors of 8 bytes at best.
    assert ("d_f16_bits" in made.phases[0].code) == (stored == "f16")


@pytest.mark.parametrize("stored", HALF)
def test_what_is_read_is_not_rounded(stored: str) -> None:
    """Only where the number comes from memory of that type, whatever the mask says."""
    body = LoopNestBuilder((64,))
    x, other = body.load(body.input(stored), (1,)), body.load(body.input("f32"), (1,))
    masked = body.load(0, (1,), other > 0, other)
    for value in (x, x + other, other, masked):
        body.store(body.output("f32"), (1,), rounded(value, stored))
    program = body.finish()
    lean = drop_roundings(program)
    assert [s.op for s in program.body].count("narrow") == 4 and [s.op for s in lean.body].count("narrow") == 3
    assert drop_roundings(lean) is lean
    half = _every(stored, 64)
    ins = [half.view(torch.int16).numpy().view(np.uint16 if stored == "bf16" else np.float16)]
    ins.append(np.random.default_rng(0).standard_normal(64).astype(np.float32))
    results = []
    for p in (program, lean):
        results.append([np.zeros(64, np.float32) for _ in range(4)])
        run_program(p, ins, results[-1], reference)
    for want, got in zip(*results, strict=True):
        np.testing.assert_array_equal(want, got)
