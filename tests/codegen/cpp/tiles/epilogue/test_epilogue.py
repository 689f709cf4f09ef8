"""Epilogues on tiles: every kind of statement, from registers and from memory, whole vectors and tails, every instruction set."""

import itertools

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.tiles.emit import Draft, TileStep, assemble, render
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue, supports_epilogue
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.types import bf16_to_f32, f32_to_bf16
from dcir.isa import ISAS
from dcir.ops.library.epilogue import run_epilogue
from dcir.ops.pages.pointwise import rounded
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

SHAPE = (3, 5, 43)
TORCH = {"f32": torch.float32, "f64": torch.float64, "bool": torch.bool, "i64": torch.int64, "bf16": torch.bfloat16,
         "f16": torch.float16, "u8": torch.uint8}  # fmt: skip


class Case:
    """An epilogue under construction: ``x`` is the product's value."""

    def __init__(self, dtype):
        self.dtype, self.body = dtype, LoopNestBuilder(SHAPE)
        self.x = self.body.load(self.body.input(dtype), contiguous(SHAPE))

    def load(self, strides, dtype=None, mask=None):
        number = self.body.input(dtype or self.dtype)
        other = None if mask is None else self.body.const(3, self.dtype)
        return self.body.load(number, strides, mask, other)

    def store(self, value, dtype=None, strides=None):
        self.body.store(self.body.output(dtype or self.dtype), strides or contiguous(SHAPE), value)

    def const(self, value):
        return self.body.const(value, self.dtype)


def relu(c):
    total = c.x + c.load((0, 0, 1)) + c.load(contiguous(SHAPE))
    c.store(c.body.op("max", total, c.const(0)))
    c.store(total)


def clamp(c):
    low = c.body.op("max", c.x, c.load((0, 1, 0)))
    c.store(c.body.op("min", c.const(0.5), c.body.op("max", low, c.load((5, 1, 0)))), strides=(300, 60, 1))


def arithmetic(c):
    y = c.load((0, 43, 1)) * c.x - c.load((5, 1, 0)) / c.const(3.5)
    c.store(c.body.op("fma", -y, c.body.op("abs", c.x), c.const(2)), strides=(430, 86, 2))


def masks(c):
    positive = c.x > c.const(0)
    odd = c.body.op("xor", positive, c.load(contiguous(SHAPE), "bool"))
    c.store(c.body.where(odd & c.load((0, 0, 1), "bool"), c.x, c.load((1, 3, 15))))
    c.store(~odd | (c.x.ne(c.x)), "bool")
    c.store(c.body.convert(positive, c.dtype) * c.const(2), strides=(1, 3, 15))
    c.store(positive, "bool", (1, 3, 15))


def sign_of_zero(c):
    c.store(c.body.op("abs", c.x * c.const(-0.0)))
    c.store(c.x * c.load((0, 0, 0)) + c.const(-0.0))


def gelu(c):
    total = c.x + c.load((0, 0, 1))
    c.store(total * c.const(0.5) * (c.body.op("erf", total * c.const(0.7071)) + c.const(1)))
    c.store(c.body.op("tanh", total) + c.body.op("sigmoid", c.load((1, 3, 15))), strides=(1, 3, 15))
    c.store(c.body.convert(total, "f32"), "bf16")


def silu(c):
    total = c.x + c.load((0, 0, 1))
    c.store(total / (c.body.op("exp", -total) + c.const(1)))


def exponentials(c):
    scale = c.body.op("exp", c.load((0, 1, 0))) + c.load((5, 0, 0))
    positive = c.x > c.const(0)
    one = c.body.op("exp", c.x * c.load((0, 0, 1)) - scale)
    two = c.body.op("exp", one + c.x)
    c.store(c.body.where(positive, one, two) * scale)
    c.store(two, strides=(430, 86, 2))
    c.store(positive, "bool")


def error_functions(c):
    total = c.x + c.load((0, 0, 1))
    both = total * c.const(0.5) * (c.body.op("erf", total * c.const(0.7071)) + c.const(1))
    two = c.body.op("erf", c.body.op("exp", c.x))
    c.store(both)
    c.store(two, strides=(430, 86, 2))


def kept_before(c):
    """What the backward wants is stored before a chain and between two."""
    total = c.x + c.load((0, 0, 1))
    c.store(total)
    both = total * (c.body.op("erf", total) + c.const(1))
    c.store(both > c.const(0), "bool")
    c.store(c.body.op("exp", both) * total, strides=(430, 86, 2))


def guarded(c):
    row, column = c.body.index(1), c.body.index(2)
    inside = column < c.body.const(17, "i64")
    value = c.load(contiguous(SHAPE), None, inside & (row > c.body.const(1, "i64")))
    value = value + c.load((0, 1, 0), None, inside)
    c.store(value + c.x + c.body.convert(column * c.body.const(2, "i64") + row, c.dtype))
    c.store(c.body.convert(c.x * c.const(40), "i64"), "i64")


def gathers(c):
    b = c.body
    place = b.op("mod", b.index(2) * b.const(7, "i64"), b.const(43, "i64"))
    table = b.gather(b.input(c.dtype), (215, 43, 0), [place], (43,), (1,), checked=False)
    row = b.gather(b.input(c.dtype), (0, 0, 1), [b.index(1)], (5,), (43,), checked=False)
    c.store(c.x * table + row)
    c.store(b.op("add", b.convert(c.load(contiguous(SHAPE), "u8"), "i64"), b.index(0)), "i64")


def narrowed(c):
    b = c.body
    y = b.narrow(c.x, "bf16")
    c.store(b.op("sqrt", y * y) + b.op("pow", b.op("abs", c.x), c.const(1.5)))


def narrow(c, value, storage):
    return rounded(c.body.convert(value, "f32"), storage)


def half_operands(c):
    """Short statements whose operands and results are of half types: side by side, apart, and one for all of a row."""
    b = c.body
    for stored in ("bf16", "f16"):
        total = b.convert(c.x, "f32") + c.load(contiguous(SHAPE), stored) * c.load((0, 0, 1), stored)
        total = b.op("max", total + c.load((1, 3, 15), stored), c.load((0, 1, 0), stored))
        c.store(total, stored)
        c.store(narrow(c, total, stored), "f32", (430, 86, 2))
        c.store(b.where(total > b.const(0, "f32"), total, c.load((5, 1, 0), stored)), stored, (430, 86, 2))


def half_bias(c):
    """Short enough for registers: what a product of half types does that is read by another one."""
    total = c.body.convert(c.x, "f32") + c.load((0, 0, 1), "bf16")
    c.store(total, "bf16")
    c.store(narrow(c, total, "bf16"), "f32")


def half_gelu(c):
    b = c.body
    total = b.convert(c.x, "f32") + c.load((0, 0, 1), "bf16")
    c.store(total, "f16")
    y = total * b.const(0.5, "f32") * (b.op("erf", total * b.const(0.7071, "f32")) + b.const(1, "f32"))
    c.store(b.op("exp", -narrow(c, y, "f16")), "f32")
    c.store(y, "bf16", (1, 3, 15))


KINDS = (
    half_operands,
    half_bias,
    half_gelu,
    relu,
    clamp,
    arithmetic,
    masks,
    sign_of_zero,
    gelu,
    silu,
    exponentials,
    error_functions,
    kept_before,
    guarded,
    gathers,
    narrowed,
)
_TEXT = """
$noinline void rows(L j, const T *a0, const T *, const T *, T *, unsigned char *, const Operands &operands) {
    const Operands e = operands;
    const L i = j / 5, r = j % 5;
    if (j % 2) return finish(e, i, r, 0, a0 + j * 43, 43);
    // From the end on, as other threads may: what is behind a call's vectors is not its business, however many lanes are results.
    for (L n = 42 / (2 * VL) * (2 * VL); n >= 0; n -= 2 * VL) {
        alignas(64) T t[2 * VL] = {};
        for (L l = 0; l < 2 * VL && n + l < 43; l++) t[l] = a0[j * 43 + n + l];
        const V v[2] = {load(t), load(t + VL)};
        finish_row<2>(e, i, r, n, v, 43 - n);
    }
}
"""
# The same along the first dimension, whose neighbours are far apart.
_ACROSS = """
$noinline void rows(L j, const T *a0, const T *, const T *, T *, unsigned char *, const Operands &operands) {
    const T t[3] = {a0[j], a0[j + 215], a0[j + 430]};
    finish(operands, 0, j / 43, j % 43, t, 3);
}
"""
CASES = taken(list(itertools.product(ISAS, ("f32", "f64"), KINDS, (False, True))), 80)


def build(isa, dtype, kind, across):
    case = Case(dtype)
    kind(case)
    program = case.body.finish()
    assert supports_epilogue(program, dtype)
    text, jobs, vector = (_ACROSS, 5 * 43, 0) if across else (_TEXT, 15, 2)
    draft = Draft("rows", dtype, render(text), (TileStep(jobs, "rows"),), epilogue=Epilogue(program, dtype, 1, vector))
    return assemble(draft, isa_of(isa), 1), program


# Groups of four rows of two vectors, what they leave over row by row.
_GROUPS = """
$noinline void rows(L j, const T *a0, const T *, const T *, T *, unsigned char *, const Operands &operands) {
    const Operands e = operands;
    const T *t = a0 + j * 215;
    V x[8];
    for (int u = 0; u < 8; u++) x[u] = load(t + u / 2 * 43 + u % 2 * VL);
    finish_group<4, 2>(e, j, 0, 0, x);
    for (L r = 0; r < 5; r++) {
        const L s = r < 4 ? 2 * VL : 0;
        finish(e, j, r, s, t + r * 43 + s, 43 - s);
    }
}
"""


@pytest.fixture(scope="module")
def kernels():
    made = {case: build(*case) for case in CASES}
    calls = compile_plans([(plan, program.inputs, program.outputs) for plan, program in made.values()])
    return {case: (call, made[case][1]) for case, call in zip(made, calls, strict=True)}


def values(dtype, seed):
    g = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(645, generator=g) > 0.5
    if dtype == "u8":
        return torch.randint(0, 255, (645,), generator=g, dtype=torch.uint8)
    t = torch.randn(645, generator=g, dtype=torch.float64).to(TORCH[dtype])
    t[::31] = float("nan")
    t[5::37] = -0.0
    t[7::41] = float("inf")
    return t


def numpy_of(t):
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2].__name__}-{c[3]}")
def test_epilogue(kernels, case):
    call, program = kernels[case]
    ins = [values(t, i) for i, t in enumerate(program.inputs)]
    outs = [torch.full((1300,), 5).to(TORCH[t]) for t in program.outputs]
    expected = [o.clone() for o in outs]
    with np.errstate(all="ignore"):
        run_epilogue(program, ins[0].numpy(), [numpy_of(t) for t in ins[1:]], [numpy_of(o) for o in expected])
    call(*ins, *outs)
    for mine, wanted in zip(outs, expected, strict=True):
        if mine.dtype.is_floating_point:
            assert torch.equal(mine.isnan(), wanted.isnan())
            tolerance = 1e-2 if mine.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
            zero = (wanted == 0) & (mine == 0)
            if case[2] is sign_of_zero:
                assert torch.equal(mine.signbit()[zero], wanted.signbit()[zero])
        else:
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "kind", [silu, exponentials, error_functions, kept_before, half_gelu], ids=lambda k: k.__name__
)
def test_groups(isa, kind):
    """Vectors that take their steps together give what single ones give, also where a tile's rows lie along them."""
    case = Case("f32")
    kind(case)
    program = case.body.finish()
    plans = []
    for text, jobs, row in ((_TEXT, 15, -1), (_TEXT, 15, 2), (_GROUPS, 3, 1)):
        epilogue = Epilogue(program, "f32", 1, 2, row)
        assert epilogue.grouped
        plans.append(
            assemble(Draft("rows", "f32", render(text), (TileStep(jobs, "rows"),), epilogue=epilogue), isa_of(isa), 1)
        )
    ins = [values(t, i) for i, t in enumerate(program.inputs)]
    results = []
    for call in compile_plans([(plan, program.inputs, program.outputs) for plan in plans]):
        results.append([torch.full((1300,), 5).to(TORCH[t]) for t in program.outputs])
        call(*ins, *results[-1])
    for alone, along, together in zip(*results, strict=True):
        torch.testing.assert_close(along, alone, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(together, alone, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["exp", "erf"])
def test_chains_of_all_floats(isa, op):
    """Within 2 ulp of the exact value over all of the range, denormal numbers aside; infinities, zeros and NaN as they should be."""
    body = LoopNestBuilder((1, 1 << 20))
    body.store(body.output("f32"), (0, 1), body.op(op, body.load(body.input("f32"), (0, 1))))
    program = body.finish()
    text = """
$noinline void rows(L, const T *a0, const T *, const T *, T *, unsigned char *, const Operands &operands) {
    finish(operands, 0, 0, a0, 1 << 20);
}
"""
    draft = Draft("rows", "f32", render(text), (TileStep(1, "rows"),), epilogue=Epilogue(program, "f32", 1, 1))
    (call,) = compile_plans([(assemble(draft, isa_of(isa), 1), program.inputs, program.outputs)])
    step = (1 << 32) // (1 << 20)
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    least = 2.0**-126
    for x in (bits.view(np.float32), np.linspace(-104.5, 89, 1 << 20, dtype=np.float32),
              np.linspace(-4.2, 4.2, 1 << 20, dtype=np.float32)):  # fmt: skip
        got = np.empty_like(x)
        call(torch.from_numpy(x.copy()), mine := torch.from_numpy(got))
        got = mine.numpy()
        with np.errstate(all="ignore"):
            wide = np.exp(x.astype(np.float64)) if op == "exp" else torch.erf(torch.from_numpy(x).double()).numpy()
            small = (np.abs(wide) < least) | ((np.abs(x) < least) & (op == "erf"))
            assert (np.abs(got[small]) <= 2 * least).all()
            wide[small] = got[small]
            exact = wide.astype(np.float32)
            ulp = np.maximum(np.spacing(np.abs(exact)), np.float32(2.0**-149)).astype(np.float64)
            finite = np.isfinite(exact)
            assert np.array_equal(np.isnan(got), np.isnan(x))
            assert np.array_equal(got[~finite & ~np.isnan(x)], exact[~finite & ~np.isnan(x)])
            assert (np.abs(got.astype(np.float64) - wide) / ulp)[finite].max() <= 2


_ALL = """
$noinline void rows(L, const T *a0, const T *, const T *, T *, unsigned char *, const Operands &operands) {
    finish(operands, 0, 0, a0, $count);
}
"""


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stored", ["bf16", "f16"])
def test_half_types_to_the_bit(isa, stored):
    """Every number of the type is widened, and f32's are rounded, to the bits of scalar code; denormal ones and NaN too."""
    count = (1 << 16) + 5
    body = LoopNestBuilder((1, count))
    x = body.load(body.input("f32"), (count, 1))
    body.store(body.output("f32"), (count, 1), body.load(body.input(stored), (count, 1)))
    body.store(body.output("f32"), (count, 1), rounded(x, stored))
    body.store(body.output(stored), (count, 1), x)
    program = body.finish()
    epilogue = Epilogue(program, "f32", 1, 1)
    assert epilogue.in_registers
    draft = Draft("rows", "f32", render(_ALL, count=count), (TileStep(1, "rows"),), epilogue=epilogue)
    (call,) = compile_plans([(assemble(draft, isa_of(isa), 1), program.inputs, program.outputs)])
    halves = np.resize(np.arange(1 << 16, dtype=np.uint16), count)
    rng = np.random.default_rng(3)
    low = rng.choice([0, 0xFFF, 0x1000, 0x1001], count).astype(np.uint32)
    ties = rng.integers(0, 1 << 32, count, dtype=np.uint32) & 0xFFFFE000 | low
    # Where f16 has no exponent any more.
    near = (2.0**-14 * rng.uniform(-2, 2, count)).astype(np.float32).view(np.uint32)
    anything = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    for bits in (ties, near, np.left_shift(halves, 16, dtype=np.uint32), anything):
        value = bits.view(np.float32)
        wide, half, narrow = torch.empty(count), torch.empty(count), torch.empty(count, dtype=TORCH[stored])
        call(torch.from_numpy(value), torch.from_numpy(halves.view(np.int16)), wide, half, narrow)
        with np.errstate(all="ignore"):
            if stored == "bf16":
                want = f32_to_bf16(value)
                exact, again = bf16_to_f32(halves), bf16_to_f32(want)
            else:
                want = value.astype(np.float16).view(np.uint16)
                want[np.isnan(value)] = want[np.isnan(value)] & 0x8000 | 0x7E00
                exact, again = halves.view(np.float16).astype(np.float32), want.view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(narrow.view(torch.int16).numpy().view(np.uint16), want)
        np.testing.assert_array_equal(half.numpy().view(np.uint32), again.view(np.uint32))
        quiet = np.uint32(0x400000) * np.isnan(exact)  # the instruction makes it so, and so does whatever comes next
        np.testing.assert_array_equal(wide.numpy().view(np.uint32) | quiet, exact.view(np.uint32) | quiet)


def test_refused():
    """What no tile can apply: an index to check, another type, a reduction."""
    case = Case("f32")
    b = case.body
    case.store(case.x + b.gather(b.input("f32"), (0, 0, 0), [b.index(1)], (5,), (1,)))
    assert not supports_epilogue(b.finish(), "f32")
    case = Case("f32")
    relu(case)
    assert not supports_epilogue(case.body.finish(), "f64")
    assert not supports_epilogue(case.body.finish(), "bf16")
