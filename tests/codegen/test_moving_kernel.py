"""Kernels for all sizes: one text, right at both ends of the bounds, at every remainder of a vector, and with one thread or two."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.sizes import Bounds
from dcir.ir.statements import Access, Load, Store
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from dcir.ops.library.attention import AttentionSpec
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width
from dcir.ops.library.winograd import WinogradWeightsSpec
from tests.codegen.cpp.tiles.gemm.test_epilogues import _epilogue
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of, matrix_everywhere

pytestmark = pytest.mark.in_turn(2)

MACHINE = Machine(isa_of("avx512"), 2)
BOUNDS = {"s0": Bounds(2, 600)}
LENGTHS = (2, 3, 5, 15, 16, 17, 31, 33, 47, 64, 65, 127, 128, 129, 200, 255, 511, 600)


def scaled(n):
    """Rows of 96, each with a factor of its own, and their sums with a vector."""
    b = LoopNestBuilder((n, 96))
    x, s, v = (b.input("f32") for _ in range(3))
    value = b.load(x, (96, 1)) * b.load(s, (1, 0)) + b.load(v, (0, 1))
    b.store(b.output("f32"), (96, 1), value)
    return b.finish()


def flat(n):
    """One loop of 7 n."""
    b = LoopNestBuilder((7, n))
    b.store(b.output("f32"), (n, 1), b.load(b.input("f32"), (n, 1)) * 2.0)
    return b.finish()


def turned(n):
    b = LoopNestBuilder((n, 40))
    b.store(b.output("f32"), (1, n), b.load(b.input("f32"), (40, 1)) + 1.0)
    return b.finish()


def softmax(n):
    """Over rows of length n, of which there are 3 n."""
    b = LoopNestBuilder((3, n), (n,))
    x = b.load(b.input("f32"), (n * n, n, 1))
    e = b.op("exp", x - b.reduce("max", x))
    b.store(b.output("f32"), (n * n, n, 1), e / b.reduce("sum", e))
    return b.finish()


def means(n):
    """Over the middle dimension of (4, n, 48)."""
    b = LoopNestBuilder((4, 48), (n,))
    x = b.load(b.input("f32"), (48 * n, 1, 48))
    b.store(b.output("f32"), (48, 1, 0), b.reduce("sum", x) / float(n))
    return b.finish()


def norm(n):
    """Rows of 96, normalised."""
    b = LoopNestBuilder((n,), (96,))
    x = b.load(b.input("f32"), (96, 1))
    mean = b.reduce("sum", x) * (1 / 96)
    off = x - mean
    b.store(b.output("f32"), (96, 1), off * b.op("rsqrt", b.reduce("sum", off * off) * (1 / 96) + 1e-5))
    return b.finish()


def clamped(n):
    """A row of 48 and its neighbours, or itself at the ends."""
    b = LoopNestBuilder((n, 48))
    x, here = b.input("f32"), b.index(0)
    first, last = b.const(0, "i64"), b.const(n - 1, "i64")
    rows = [b.op("min", b.op("max", row, first), last) for row in (here - 1, here + 1)]
    before, behind = (b.gather(x, (0, 1), [row], [n], [48], checked=False) for row in rows)
    b.store(b.output("f32"), (48, 1), b.load(x, (48, 1)) + before * 2.0 + behind * 3.0)
    return b.finish()


def padded(n):
    """A row of 50 and its neighbours; outside are zeros before and fives behind, as are behind row 7."""
    b = LoopNestBuilder((n, 50))
    x, here = b.input("f32"), b.index(0)
    before = b.gather(x, (0, 1), [here - 1], [n], [50], checked=False)
    five, first = b.const(5, "f32"), b.op("lt", here, b.const(7, "i64"), dtype="bool")
    behind = b.gather(x, (0, 1), [here + 1], [n], [50], checked=False, mask=first, other=five)
    b.store(b.output("f32"), (50, 1), b.load(x, (50, 1)) + before * 2.0 + behind * 3.0)
    return b.finish()


PROGRAMS = [scaled, flat, turned, softmax, means, norm, clamped, padded]


def moving(make):
    """What a function of the length makes, for all lengths."""
    _, samples = chosen_samples(BOUNDS)
    (found,) = unified_rows([(make(s["s0"]),) for s in samples], samples)
    return found


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for make in PROGRAMS:
        like = make(8)
        plan = moving_kernel(EMITTERS, moving(make), Names.of(BOUNDS, {"s0": 128}), MACHINE, len(like.inputs))
        assert not isinstance(plan, Refusal), plan.reason
        entries.append((plan, (*like.inputs, "i64"), like.outputs))
    return dict(zip(PROGRAMS, compile_plans(entries), strict=True))


def reach(program, kind, operand):
    return 1 + max(
        sum(st * (d - 1) for st, d in zip(s.strides, program.dims, strict=True))
        for s in program.body
        if isinstance(s, Access) and isinstance(s, kind) and s.operand == operand
    )


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_equals_program(kernels, make):
    for n in LENGTHS if make is not softmax else LENGTHS[:-3]:
        program = make(n)
        rng = np.random.default_rng(n)
        ins = [rng.uniform(-1, 1, reach(program, Load, i)).astype("f4") for i in range(len(program.inputs))]
        sizes = [reach(program, Store, i) for i in range(len(program.outputs))]
        wanted, got = [np.full(k, 7, "f4") for k in sizes], [np.full(k + 64, 7, "f4") for k in sizes]
        run_program(program, ins, wanted, reference_of)
        kernels[make](*map(torch.from_numpy, ins), torch.tensor([n]), *map(torch.from_numpy, got))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a[: len(b)], b, rtol=2e-5, atol=2e-6, err_msg=str(n))
            assert (a[len(b) :] == 7).all(), n


def code_of(make):
    plan = moving_kernel(EMITTERS, moving(make), Names.of(BOUNDS, {"s0": 128}), MACHINE, 1)
    return plan.phases[0].code


def test_indices_that_end_below_the_extent_are_not_tested():
    assert "const bool g" not in code_of(clamped)


def test_rows_that_may_lie_outside_are_read_in_vectors():
    """No load depends on whether they do."""
    code = code_of(padded)
    assert "if (g" in code and "? a0" not in code and "#pragma omp simd" in code


def test_contiguous_loops_are_one():
    """Loops that memory runs through are joined, whatever the length."""
    plan = moving_kernel(EMITTERS, moving(flat), Names.of(BOUNDS, {"s0": 128}), MACHINE, 1)
    assert "i1" not in plan.phases[0].code and contiguous((7, 8)) == (8, 1)


PRODUCTS = [
    (columns, steps, kind, isa)
    for columns, steps, kind in (
        (96, 64, "none"), (100, 96, "bias"), (70, 1024, "gelu"), (256, 512, "residual"), (40, 30, "place"), (768, 700, "bias"),
        (33, 5000, "bias"),
    )
    for isa in ("amx", "avx512", "avx2")
]  # fmt: skip


def product(m, columns, steps, kind, isa):
    """A of m rows times a packed B."""
    spec = ContractionSpec(
        alike("f32"), (), m, columns, steps, (steps, 1), (0, 0), (columns, 1), panel=panel_width("f32", isa_of(isa))
    )
    if kind == "none":
        return spec
    return replace(spec, epilogue=_epilogue(kind, "f32", (), m, columns, (columns, 1)))


@pytest.fixture(scope="module")
def products():
    entries = []
    for case in PRODUCTS:
        spec = moving(lambda n, case=case: product(n, *case))
        machine = Machine(isa_of(case[-1]), 2)
        nest = product(8, *case).epilogue
        more = () if nest is None else nest.inputs[1:]
        with matrix_everywhere():
            plan = moving_kernel(EMITTERS, spec, Names.of(BOUNDS, {"s0": 128}), machine, 2 + len(more))
        assert not isinstance(plan, Refusal), plan.reason
        assert ("tdpbf16ps" in plan.globals) == machine.isa.matrix_unit
        entries.append((plan, ("f32", "f32", *more, "i64"), ("f32",) if nest is None else nest.outputs))
    return dict(zip(PRODUCTS, compile_plans(entries), strict=True))


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda c: "-".join(map(str, c)))
def test_equals_product(products, case):
    columns, steps, _, isa = case
    width = panel_width("f32", isa_of(isa))
    b = torch.randn(steps, columns)
    panels = torch.zeros(-(-columns // width) * width, steps)
    panels[:columns] = b.T
    packed = panels.unflatten(0, (-1, width)).transpose(1, 2).contiguous()
    for m in LENGTHS:
        a, spec = torch.randn(m, steps), product(m, *case)
        exact = (a.double() @ b.double()).float().flatten().numpy()
        nest = spec.epilogue
        more, wanted = [], [exact]
        if nest is not None:
            rng = np.random.default_rng(m)
            more = [rng.uniform(-1, 1, reach(nest, Load, i)).astype("f4") for i in range(1, len(nest.inputs))]
            kinds = [np.bool_ if t == "bool" else np.float32 for t in nest.outputs]
            wanted = [np.zeros(m * columns, t) for t in kinds]
            run_program(nest, [exact, *more], wanted, reference_of)
        got = [np.zeros(len(w) + 64, w.dtype) for w in wanted]
        products[case](a, packed, *map(torch.from_numpy, more), torch.tensor([m]), *map(torch.from_numpy, got))
        for g, w in zip(got, wanted, strict=True):
            assert not g[len(w) :].any(), m
            if w.dtype == np.bool_:
                assert (g[: len(w)] != w).mean() < 0.001
            else:
                np.testing.assert_allclose(g[: len(w)], w, rtol=1e-4, atol=2e-5 * steps**0.5, err_msg=str(m))


TRAINED = [
    (kind, isa)
    for kind in ("values", "data", "weights", "weights by rows", "weights by columns", "both")
    for isa in ("amx", "avx512", "avx2")
]
TRAINED_BOUNDS = {"s0": Bounds(1, 2000)}


def trained(n, kind, isa):
    """The products of a layer that is trained: its weights lie as the user left them, and their gradient adds up over what moves."""
    m, columns, steps = {"values": (n, 70, 96), "data": (n, 96, 70), "both": (n, 40, n)}.get(kind, (70, 97, n))
    a, b = {
        "values": ((steps, 1), (1, steps)), "data": ((steps, 1), (columns, 1)), "weights": ((1, m), (columns, 1)),
        "weights by rows": ((steps, 1), (columns, 1)), "weights by columns": ((1, m), (1, steps)), "both": ((1, m), (columns, 1)),
    }[kind]  # fmt: skip
    return ContractionSpec(alike("f32"), (), m, columns, steps, a, b, (columns, 1))


@pytest.fixture(scope="module")
def trained_products():
    entries = []
    for case in TRAINED:
        _, samples = chosen_samples(TRAINED_BOUNDS)
        (spec,) = unified_rows([(trained(s["s0"], *case),) for s in samples], samples)
        machine = Machine(isa_of(case[-1]), 2)
        with matrix_everywhere():
            plan = moving_kernel(EMITTERS, spec, Names.of(TRAINED_BOUNDS, {"s0": 128}), machine, 2)
        assert not isinstance(plan, Refusal), plan.reason
        assert ("tdpbf16ps" in plan.globals) == machine.isa.matrix_unit
        entries.append((plan, ("f32", "f32", "i64"), ("f32",)))
    return dict(zip(TRAINED, compile_plans(entries), strict=True))


@pytest.mark.parametrize("case", TRAINED, ids=lambda c: "-".join(c).replace(" ", "_"))
def test_equals_product_of_training(trained_products, case):
    """Sums over more steps than are added up in one go are as exact as others, whatever is left of them at the end."""
    torch.manual_seed(0)
    for n in (1, 2, 15, 16, 31, 32, 33, 100, 511) + ((767, 768, 769, 1537, 2000) if case[0] != "both" else ()):
        spec = trained(n, *case)
        a, b = torch.randn(spec.m, spec.k), torch.randn(spec.k, spec.n)
        lies = lambda t, strides: t if strides[-1] == 1 else t.T.contiguous()  # noqa: E731
        got = torch.zeros(spec.m * spec.n + 64)
        trained_products[case](lies(a, spec.a), lies(b, spec.b), torch.tensor([n]), got)
        assert not got[spec.m * spec.n :].any(), n
        wanted = (a.double() @ b.double()).float().flatten()
        np.testing.assert_allclose(got[: len(wanted)], wanted, rtol=1e-5, atol=4e-6 * spec.k**0.5, err_msg=str(n))


ATTENTIONS = ["plain", "causal", "masked", "selected", "narrow", "grouped", "cached", "step"]


def attention(kind, n):
    """Attention of (batch 2, n, heads 4, elements 64), as projections leave it."""
    d, key_heads = (40 if kind == "narrow" else 64), (2 if kind == "grouped" else 4)
    m = 1 if kind == "step" else n
    rows = lambda count, heads: (count * heads * d, d, heads * d, 1)  # noqa: E731
    q, kv, first, more = rows(m, 4), rows(n, key_heads), 0, ()
    if kind == "cached":  # the last key and value are new
        first, kv, more = n - 1, rows(n - 1, 4), (rows(1, 4), rows(1, 4))
    masks = {"masked": ((n, 0, 0, 1), "f32"), "selected": ((0, 0, n, 1), "bool")}
    mask, mask_dtype = masks.get(kind, ((), "f32"))
    return AttentionSpec(
        "f32", 2, 4, m, n, d, d**-0.5, kind == "causal", q, kv, kv, q, (4 * m, m, 1), mask, mask_dtype, first=first,
        more=more, group=4 // key_heads,
    )  # fmt: skip


@pytest.fixture(scope="module")
def attentions():
    entries = []
    for kind in ATTENTIONS:
        spec = moving(lambda n, kind=kind: attention(kind, n))
        types = ["f32"] * (5 if kind == "cached" else 3)
        if spec.mask:
            types.append(spec.mask_dtype)
        plan = moving_kernel(EMITTERS, spec, Names.of(BOUNDS, {"s0": 128}), MACHINE, len(types))
        assert not isinstance(plan, Refusal), plan.reason
        entries.append((plan, (*types, "i64"), ("f32", "f32")))
    return dict(zip(ATTENTIONS, compile_plans(entries), strict=True))


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_equals_attention(attentions, kind):
    for n in LENGTHS:
        spec = attention(kind, n)
        reads, writes = spec.footprint()
        rng = np.random.default_rng(n)
        ins = [rng.uniform(-1, 1, nbytes // 4).astype("f4") for nbytes in reads]
        if spec.mask:
            ins[-1] = np.where(rng.uniform(size=reads[-1] // 4 if kind == "masked" else n * n) < 0.3, -1e4, 0.0).astype(
                "f4"
            )
            if kind == "selected":
                ins[-1] = ins[-1].reshape(n, n) == 0
                ins[-1][:, 0] = True
                ins[-1] = ins[-1].ravel()
        wanted = [np.zeros(nbytes // 4, "f4") for nbytes in writes]
        got = [np.zeros(nbytes // 4 + 64, "f4") for nbytes in writes]
        spec.reference(ins, wanted)
        attentions[kind](*map(torch.from_numpy, ins), torch.tensor([n]), *map(torch.from_numpy, got))
        for g, w in zip(got, wanted, strict=True):
            assert not g[len(w) :].any(), n
            np.testing.assert_allclose(g[: len(w)], w, rtol=1e-4, atol=1e-5, err_msg=str(n))


def channels(n):
    """Weights of a convolution whose channels move."""
    return WinogradWeightsSpec("f32", (4, 4), n, 16, 16, (9 * n, 9, 3, 1))


def half(n):
    """A product of half types, which are widened before."""
    return ContractionSpec(alike("bf16"), (), n, 40, 64, (64, 1), (40, 1), (40, 1))


def turned_heads(n):
    """Attention across the elements of rows: a head's own elements move."""
    rows = (24 * n, n, 24 * n, 1)
    return AttentionSpec("f32", 2, 1, 24, 24, n, 1.0, False, rows, rows, rows, rows, (24, 24, 1), (), "f32")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (channels, "there is no code of winograd weights"),
        (half, "the code of contraction depends on"),
        (turned_heads, "the code of attention depends on a constant in the place of"),
    ],
)
def test_what_needs_constants_is_refused(make, reason):
    found = moving_kernel(EMITTERS, moving(make), Names.of(BOUNDS, {"s0": 128}), MACHINE, 9)
    assert isinstance(found, Refusal) and reason in found.reason, found
