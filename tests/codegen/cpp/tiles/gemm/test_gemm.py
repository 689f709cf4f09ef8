"""Matrix products: odd shapes, every layout, batches, all element types and instruction sets, against float64."""

import random

import pytest
import torch

from dcir.codegen.cpp.tiles.gemm.gemm import plan_gemm
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans, isa_of
from tests.rotation import taken

TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
LAYOUTS = ("row", "column", "padded", "aliased", "wide", "broadcast")


def operand(layout, batch, rows, columns, dtype, seed):
    """A tensor of shape (*batch, rows, columns) with the layout's strides."""
    g = torch.Generator().manual_seed(seed)
    shape = [*batch, rows, columns]
    if layout == "column":
        t = torch.randn([*batch, columns, rows], generator=g, dtype=torch.float64).to(dtype).transpose(-1, -2)
    elif layout in ("padded", "aliased"):
        extra = 3 if layout == "padded" else -columns % 1024
        t = torch.randn([*batch, rows, columns + extra], generator=g, dtype=torch.float64).to(dtype)[..., :columns]
    elif layout == "wide":
        t = torch.randn([*batch, rows * 2, columns * 3], generator=g, dtype=torch.float64).to(dtype)[..., ::2, 1::3]
    elif layout == "broadcast":
        t = torch.randn([rows, columns], generator=g, dtype=torch.float64).to(dtype).expand(shape)
    else:
        t = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
    return t


def spec_of(dtype, a, b, c):
    return ContractionSpec(
        alike(dtype), tuple(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1], a.stride(), b.stride(), c.stride()
    )


def cases():
    rng = random.Random(1)
    out = []

    def add(isa, dtype, batch, m, n, k, la, lb, lc, threads=2):
        out.append((isa, dtype, batch, m, n, k, la, lb, lc, threads))

    for isa in RUNNABLE:
        for m, n, k in ((1, 1, 1), (33, 50, 70), (5, 97, 130), (40, 1, 64), (130, 70, 800), (17, 16, 1)):
            for la, lb, lc in rng.sample([(x, y, z) for x in LAYOUTS for y in LAYOUTS for z in LAYOUTS[:5]], 2):
                add(isa, rng.choice(["f32", "f32", "f64"]), (), m, n, k, la, lb, lc)
        add(isa, "f32", (3, 2), 20, 40, 30, "row", "column", "row")
        add(isa, "bf16", (2,), 33, 18, 65, "column", "broadcast", "padded")
        add(isa, "f16", (), 3, 40, 64, "row", "column", "column")
    for la in LAYOUTS:
        for lb in LAYOUTS:
            add("avx512", "f32", (2,), 29, 100, 90, la, lb, rng.choice(LAYOUTS[:5]))
    for isa in RUNNABLE:
        for lb, lc in (
            ("row", "row"),
            ("column", "padded"),
            ("wide", "column"),
        ):  # many rows: all of B is packed before
            add(isa, rng.choice(["f32", "f64"]), (), 1030, 141, 21, "row", lb, lc, 3)
    for m in (200, 300):  # few or many rows next to columns that lie along k
        add("avx512", "f32", (), m, 1510, 40, "row", "column", "row")
    for m in (1, 2, 3, 5, 8, 11):
        add("avx512", "f32", (), m, 130, 300, rng.choice(LAYOUTS), "column", rng.choice(LAYOUTS[:5]), 3)
        add("avx2", "f32", (), 90, m, 300, "row", rng.choice(LAYOUTS), rng.choice(LAYOUTS[:5]), 3)
    for m, n, k in ((0, 4, 4), (4, 0, 4), (4, 5, 0)):
        add("avx512", "f32", (), m, n, k, "row", "row", "row")
        add("avx512", "bf16", (2,), m, n, k, "row", "row", "row")
    add("avx512", "f32", (0,), 3, 4, 5, "row", "row", "row")
    add("avx512", "f32", (4, 3), 128, 64, 128, "row", "row", "row")
    add("avx512", "f32", (4,), 64, 96, 48, "row", "broadcast", "row")
    add("avx512", "f32", (4,), 64, 96, 48, "broadcast", "row", "column")
    add("avx512", "f32", (), 200, 1100, 500, "aliased", "column", "row", 7)
    add("avx512", "f64", (), 300, 200, 900, "column", "column", "column")
    for isa in RUNNABLE:  # all of B packed before, and weights as the rows of tiles
        add(isa, "f32", (), 70, 330, 400, "column", rng.choice(LAYOUTS), "row", 3)
        add(isa, "f32", (), 14, 130, 70, "row", "column", "row")
    add("avx512", "f64", (), 90, 200, 500, "column", "row", "column")
    add("avx512", "f32", (), 37, 220, 4500, "wide", "column", "column")
    # AVX2's blocks: packed rows that a panel passes in one go, in several, and rows in place next to long panels.
    for m, n, k, la in ((70, 330, 801, "column"), (70, 330, 2050, "column"), (61, 1100, 3073, "row")):
        add("avx2", "f32", (), m, n, k, la, "column", "row")
    return out


CASES = taken(cases(), 56)


@pytest.fixture(scope="module")
def kernels():
    made = {}
    for case in CASES:
        isa, dtype, batch, m, n, k, la, lb, lc, threads = case
        t = TORCH[dtype]
        a, b = operand(la, batch, m, k, t, 1), operand(lb, batch, k, n, t, 2)
        c = operand(lc, batch, m, n, t, 3).fill_(float("nan"))
        plan = plan_gemm(spec_of(dtype, a, b, c), isa_of(isa), threads)
        made[case] = plan, a, b, c
    calls = compile_plans([(plan, case[1], 2) for case, (plan, *_) in made.items()])
    return {case: (call, *made[case][1:]) for case, call in zip(made, calls, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace(" ", ""))
def test_product(kernels, case):
    call, a, b, c = kernels[case]
    call(a, b, c)
    exact = a.double() @ b.double()
    eager = (a @ b).double()
    allowed = 3 * (eager - exact).abs().max() if exact.numel() else 0
    small = {"f32": 2e-6, "f64": 1e-14, "bf16": 1e-2, "f16": 1e-3}[case[1]] * (case[5] ** 0.5 + 1)
    assert c.shape == exact.shape
    assert not torch.isnan(c).any()
    error = (c.double() - exact).abs().max() if exact.numel() else 0
    assert error <= allowed + small
    before = c.clone()
    call(a, b, c)
    assert torch.equal(before, c)
