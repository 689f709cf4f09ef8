"""Products with packed B and with epilogues: odd shapes, layouts, batches, instruction sets, against the spec's reference."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import plan
from dcir.codegen.cpp.tiles.gemm.gemm import supports_product
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.isa import ISAS, host_isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pack_program, packed_shape, panel_width
from tests.codegen.cpp.tiles.gemm.test_gemm import LAYOUTS, TORCH, operand
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans, isa_of
from tests.rotation import taken

NUMPY = {"f32": np.float32, "f64": np.float64, "bool": np.bool_}


def _epilogue(kind, dtype, batch, m, n, c):
    """One of the kinds over (*batch, m, n), its first result with strides ``c``."""
    shape = (*batch, m, n)
    body = LoopNestBuilder(shape)
    zeros = (0,) * len(batch)
    x = body.load(body.input(dtype), contiguous(shape))
    out = body.output(dtype)
    if kind == "bias":
        x = x + body.load(body.input(dtype), (*zeros, 0, 1))
    elif kind == "residual":  # a value per row, the old C, two results and a mask
        total = x + body.load(body.input(dtype), (*zeros, 1, 0)) + body.load(body.input(dtype), c)
        body.store(body.output(dtype), contiguous(shape), total)
        body.store(body.output("bool"), contiguous(shape), total > body.const(0, dtype))
        x = body.op("max", total, body.const(0, dtype))
    elif kind == "gelu":
        x = x + body.load(body.input(dtype), (*zeros, 0, 1))
        x = x * body.const(0.5, dtype) * (body.op("erf", x * body.const(0.7071, dtype)) + body.const(1, dtype))
    elif kind == "place":  # what depends on where it is
        row, column = body.index(len(batch)), body.index(len(batch) + 1)
        x = body.where(column <= row, x, body.const(-2, dtype))
        x = x + body.convert(body.index(0), dtype)
    body.store(out, c, x)
    return body.finish()


def cases():
    rng = random.Random(2)
    out = []

    def add(isa, dtype, batch, m, n, k, la="row", lb="row", lc="row", kind="bias", packed=True, threads=2):
        out.append((isa, dtype, batch, m, n, k, la, lb, lc, kind, packed, threads))

    kinds = ("none", "bias", "residual", "gelu", "place")
    for isa in RUNNABLE:
        for m, n, k in (
            (1, 1, 1),
            (33, 50, 70),
            (5, 97, 130),
            (40, 1, 64),
            (61, 40, 90),
            (17, 16, 1),
            (3, 130, 40),
            (2, 33, 7),
        ):
            for packed in (True, False):
                kind = rng.choice(kinds) if packed else rng.choice(kinds[1:])
                add(isa, rng.choice(["f32", "f64"]), (), m, n, k, rng.choice(LAYOUTS), rng.choice(LAYOUTS),
                    rng.choice(LAYOUTS[:5]), kind, packed)  # fmt: skip
    for kind in kinds:
        for lc in LAYOUTS[:5]:
            add("avx512", "f32", (2,), 29, 100, 90, "row", "row", lc, kind)
            add("avx512", "f32", (2, 3), 9, 40, 50, "column", "broadcast", lc, kind, packed=kind == "none")
    for m in (1, 2, 3, 4, 6, 8, 13, 16):
        add("avx512", "f32", (), m, 300, 200, "row", "column", "row", rng.choice(kinds), threads=3)
        add("avx512", "f32", (), m, 130, 300, "row", "column", "row", rng.choice(kinds[1:]), packed=False)
        add("avx512", "f32", (), 90, m, 300, "row", "column", "row", rng.choice(kinds[1:]), packed=False)
        add(
            "avx512",
            "f32",
            (),
            m,
            130,
            70,
            "row",
            "column",
            rng.choice(LAYOUTS[:5]),
            rng.choice(kinds[1:]),
            packed=False,
        )
    for n in (7, 16, 24, 32, 40, 49, 112):
        add("avx512", "f32", (), 70, n, 48, kind=rng.choice(kinds))
    for isa in RUNNABLE:  # hardly any columns: dot products of few steps
        for m, n, k in ((6, 3, 32), (6, 2, 33), (4, 1, 40), (2, 6, 32)):
            add(isa, "f32", (), m, n, k, "row", "column", rng.choice(LAYOUTS[:5]), rng.choice(kinds[1:]), packed=False)
    add("avx512", "f32", (), 100, 200, 5000, kind="residual")  # sums wait in memory between two blocks of k
    add("avx512", "f32", (), 40, 90, 4200, "column", kind="none")
    add("avx2", "f32", (), 70, 110, 3700, kind="residual")
    for m in (2, 9, 16):  # dot products: columns that wait for the epilogue, in several rounds and jobs
        add("avx2", "f32", (3,), m, 150, 140, "row", "column", rng.choice(LAYOUTS[:5]), "residual", False, 2)
    add("avx512", "f32", (), 100, 500, 1024, kind="bias")  # rows of A share cache sets
    add("avx2", "f32", (), 100, 500, 1024, kind="gelu")
    add("avx512", "f32", (), 50, 60, 1024, kind="residual")  # too few panels to copy them for
    add("avx512", "f64", (), 50, 12, 1024, kind="bias")
    add("avx512", "f32", (2, 4), 12, 40, 30, "row", "broadcast", "row", "bias")  # batches become rows
    add("avx512", "f32", (2, 4), 12, 40, 30, "row", "broadcast", "row", "place")
    add("avx512", "f32", (6,), 1, 40, 30, "row", "broadcast", "padded", "residual")
    add("avx512", "f32", (), 5, 40, 0, kind="bias")
    add("avx512", "f32", (), 5, 40, 0, kind="bias", packed=False)
    add("avx512", "f32", (), 0, 40, 3, kind="bias")
    return out


CASES = taken(list(dict.fromkeys(cases())), 60)


def flat(t):
    """The elements of a tensor's storage from its first on, as NumPy."""
    return torch.as_strided(t, (t.untyped_storage().nbytes() // t.itemsize - t.storage_offset(),), (1,)).numpy()


def make(case):
    isa, dtype, batch, m, n, k, la, lb, lc, kind, packed, threads = case
    t = TORCH[dtype]
    a, b = operand(la, batch, m, k, t, 1), operand(lb, batch, k, n, t, 2)
    c = operand(lc, batch, m, n, t, 3)
    spec = ContractionSpec(alike(dtype), batch, m, n, k, a.stride(), b.stride(), c.stride())
    if kind != "none":
        spec = replace(spec, epilogue=_epilogue(kind, dtype, batch, m, n, c.stride()))
    right = flat(b)
    if packed:
        panel = panel_width(dtype, host_isa())
        groups = tuple(1 if s == 0 else d for d, s in zip(batch, b.stride(), strict=False))
        shape = packed_shape(groups, n, k, panel)
        program = pack_program(
            dtype, groups, n, (k,), panel, b.stride()[: len(batch)], b.stride()[-1], (b.stride()[-2],)
        )
        source, right = right, np.full(math.prod(shape), np.nan, NUMPY[dtype])
        run_program(program, [source], [right], reference)
        steps = [0 if d == 1 else s for d, s in zip(groups, contiguous(shape), strict=False)]
        spec = replace(spec, b=(*steps, 0, 0), panel=panel)
    ins, outs = [flat(a), right], [flat(c)]
    in_types, out_types = (dtype, dtype), (dtype,)
    if spec.epilogue is not None:
        generator = np.random.default_rng(5)
        in_types += spec.epilogue.inputs[1:]
        out_types = spec.epilogue.outputs
        ins += [generator.uniform(-1, 1, outs[0].size + 200).astype(NUMPY[x]) for x in in_types[2:]]
        outs += [np.zeros(math.prod(batch) * m * n, NUMPY[x]) for x in out_types[1:]]
    return spec, plan(spec, Machine(isa_of(isa), threads)), ins, outs, in_types, out_types


@pytest.fixture(scope="module")
def kernels():
    made = {case: make(case) for case in CASES}
    calls = compile_plans([(entry[1], entry[4], entry[5]) for entry in made.values()])
    return {case: (call, *made[case]) for case, call in zip(made, calls, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace(" ", ""))
def test_product(kernels, case):
    call, spec, _, ins, outs, *_ = kernels[case]
    assert supports_product(spec)
    expected = [o.copy() for o in outs]
    spec.reference(ins, expected)
    mine = [o.copy() for o in outs]
    call(*(torch.from_numpy(x) for x in ins), *(torch.from_numpy(x) for x in mine))
    scale = spec.k**0.5 + 1
    for got, wanted in zip(mine, expected, strict=True):
        if got.dtype == np.bool_:
            assert (got != wanted).mean() < 0.01  # a sum next to zero
        else:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=(2e-6 if case[1] == "f32" else 1e-13) * scale)


@pytest.mark.parametrize(
    "m, n, k, dots", [(16, 27, 27, False), (16, 64, 128, True), (4, 100, 32, True), (4, 100, 24, False)]
)
def test_dot_products_need_many_steps_for_every_row(m, n, k, dots):
    """A dot product ends with a sum over lanes: of few steps, packing is faster."""
    spec = ContractionSpec(alike("f32"), (), m, n, k, (k, 1), (1, k), (n, 1))
    epilogue = _epilogue("bias", "f32", (), m, n, (n, 1))
    made = plan(replace(spec, epilogue=epilogue), Machine(ISAS["avx2"], 2))
    assert ("skinny" in made.globals) == dots


@pytest.mark.parametrize("isa", ISAS)
def test_hardly_any_columns_are_not_packed_in_every_call(isa):
    """Of panels most would be padding: 5 columns of 32, which took more memory than the whole network beside it."""
    epilogue = _epilogue("bias", "f32", (), 6, 3, (3, 1))
    spec = ContractionSpec(alike("f32"), (), 6, 3, 32, (32, 1), (1, 32), (3, 1), epilogue=epilogue)
    made = plan(spec, Machine(ISAS[isa], 1))
    assert "skinny" in made.globals and made.scratch == 0 and len(made.phases) == 1


@pytest.mark.parametrize(
    "m, k, isa, parts",
    [(120, 4096, "avx2", 4), (120, 3072, "avx2", 1), (12, 4096, "avx2", 1), (120, 4096, "avx512", 1)],
)
def test_long_products_on_avx2_go_in_parts(m, k, isa, parts):
    """Where two tiles of rows have no place beside a panel, sums wait in memory between parts of k."""
    spec = ContractionSpec(alike("f32"), (), m, 640, k, (k, 1), (0, 0), (640, 1), panel=panel_width("f32", ISAS[isa]))
    made = plan(spec, Machine(ISAS[isa], 1))
    assert (f"kb < {parts};" in made.globals) == (parts > 1) and (
        "partials" in made.globals and "scratch +" in made.globals
    ) == (parts > 1)


@pytest.mark.parametrize(
    "n, k, kind, isa, blocks",
    [
        (256, 64, "residual", "avx2", 1),
        (256, 64, "bias", "avx2", 0),
        (256, 64, "residual", "avx512", 0),
        (1024, 256, "residual", "avx2", 0),
    ],
)
def test_blocks_of_rows_leave_room_for_operands(n, k, kind, isa, blocks):
    """On AVX2 what an epilogue reads stays in the second-level cache from one panel to the next."""
    m = 1000
    spec = ContractionSpec(alike("f32"), (), m, n, k, (k, 1), (0, 0), (n, 1), panel=panel_width("f32", ISAS[isa]))
    plain = plan(spec, Machine(ISAS[isa], 1)).globals
    made = plan(replace(spec, epilogue=_epilogue(kind, "f32", (), m, n, (n, 1))), Machine(ISAS[isa], 1)).globals
    rows = re.compile(r"blocks = \(t1 - t0 \+ (\d+) - 1")
    assert (rows.findall(plain) != rows.findall(made)) == bool(blocks) and len(rows.findall(made)) == 1


def test_fall_back():
    """Half types, and epilogues that check an index, remain loop nests."""
    body = LoopNestBuilder((4, 5))
    x = body.load(body.input("f32"), (5, 1))
    body.store(body.output("f32"), (5, 1), x + body.gather(body.input("f32"), (0, 0), [body.index(1)], (5,), (1,)))
    spec = ContractionSpec(alike("f32"), (), 4, 5, 6, (6, 1), (5, 1), (5, 1), 0, body.finish())
    assert not supports_product(spec)
    made = plan(spec, Machine(ISAS["avx512"], 2))
    assert made.globals == plan(spec.loop_nest(), Machine(ISAS["avx512"], 2)).globals
    assert not supports_product(replace(spec, types=alike("bf16"), epilogue=None, panel=64))
