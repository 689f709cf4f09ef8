"""Reductions for all sizes: of any number of columns, and in parts where their length moves."""

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.cpp.kernels.loop_nest_parts import loop_in_parts
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.refusal import Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.sizes import Bounds
from dcir.ir.statements import Load, Store
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.codegen.test_moving_kernel import reach

pytestmark = pytest.mark.in_turn(3)

MACHINE = Machine(isa_of("avx512"), 2)
BOUNDS = {"s0": Bounds(2, 600)}
LENGTHS = (2, 3, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 95, 96, 97, 127, 129, 200, 255, 511, 600)
GUARD = 64
NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "bool": np.bool_}


def biases(n):
    """Gradients of 96 biases and of as many factors: two sums over 8 n rows."""
    b = LoopNestBuilder((96,), (8 * n,))
    x, y = (b.load(b.input("f32"), (1, 96)) for _ in range(2))
    b.store(b.output("f32"), (1, 0), b.reduce("sum", x))
    b.store(b.output("f32"), (1, 0), b.reduce("sum", x * y))
    return b.finish()


def apart(n):
    """Over two loops that are no one loop: rows of 100 in blocks of n, a gap behind each."""
    b = LoopNestBuilder((100,), (9, n))
    x = b.load(b.input("f32"), (1, 100 * n + 7, 100))
    b.store(b.output("f32"), (1, 0, 0), b.reduce("sum", x) * 0.5)
    return b.finish()


def many(n):
    """Over n blocks of 30 rows."""
    b = LoopNestBuilder((40,), (n, 30))
    x = b.load(b.input("f32"), (1, 40 * 30 + 1, 40))
    b.store(b.output("f32"), (1, 0, 0), b.reduce("sum", x))
    return b.finish()


def everything(n):
    """A mean of 1000 n numbers, less a number."""
    b = LoopNestBuilder((), (1000 * n,))
    mean = b.reduce("sum", b.load(b.input("f32"), (1,))) / float(1000 * n)
    b.store(b.output("f32"), (0,), mean - b.load(b.input("f32"), (0,)))
    return b.finish()


def squares(n):
    """Squares, each kept, their sum in f64 and the largest."""
    b = LoopNestBuilder((4,), (n, 70))
    x = b.load(b.input("f32"), (70 * n, 70, 1))
    b.store(b.output("f32"), (70 * n, 70, 1), x * x)
    b.store(b.output("f64"), (1, 0, 0), b.reduce("sum", b.convert(x * x, "f64")))
    b.store(b.output("f32"), (1, 0, 0), b.reduce("max", x * x))
    return b.finish()


def places(n):
    """A sum weighted by the position."""
    b = LoopNestBuilder((64,), (11 * n,))
    x = b.load(b.input("f32"), (1, 64))
    b.store(b.output("f32"), (1, 0), b.reduce("sum", x * b.convert(b.index(1), "f32")) / float(n))
    return b.finish()


def truths(n):
    """Whether any number is large, and whether all are small."""
    b = LoopNestBuilder((70,), (8 * n,))
    x = b.load(b.input("f32"), (1, 70))
    b.store(b.output("bool"), (1, 0), b.reduce("any", x > 0.999))
    b.store(b.output("bool"), (1, 0), b.reduce("all", x < 0.999))
    return b.finish()


def columns(n):
    """Sums over 96 rows of n columns."""
    b = LoopNestBuilder((n,), (96,))
    b.store(b.output("f32"), (1, 0), b.reduce("sum", b.load(b.input("f32"), (1, n))))
    return b.finish()


def square(n):
    """Sums over n rows of n columns, and how far each number is from its column's mean."""
    b = LoopNestBuilder((n,), (n,))
    x = b.load(b.input("f32"), (1, n))
    b.store(b.output("f32"), (1, n), x - b.reduce("sum", x) / float(n))
    return b.finish()


def batched(n):
    """Largest of 20 rows of n + 1 columns, five times, and where it is."""
    b = LoopNestBuilder((5, n + 1), (20,))
    x = b.load(b.input("f32"), (20 * (n + 1), 1, n + 1))
    b.store(b.output("f32"), (n + 1, 1, 0), b.reduce("max", x))
    b.store(b.output("i64"), (n + 1, 1, 0), b.reduce("argmax", x))
    return b.finish()


def positions(n):
    """Sums over a batch: 12 n columns side by side, of 6 rows."""
    b = LoopNestBuilder((n, 12), (6,))
    x = b.load(b.input("f32"), (12, 1, 12 * n))
    b.store(b.output("f32"), (12, 1, 0), b.reduce("sum", x))
    return b.finish()


def gaps(n):
    """Of every second one of six columns: parts are the only outer loop, and the last inner one is short."""
    b = LoopNestBuilder((), (1000 * n, 3))
    x = b.load(b.input("f32"), (8, 2))
    b.store(b.output("f32"), (0, 0), b.reduce("sum", x))
    b.store(b.output("f32"), (0, 0), b.reduce("max", x))
    return b.finish()


PROGRAMS = [gaps, biases, apart, many, everything, squares, places, truths, columns, square, batched, positions]
IN_PARTS = {gaps, biases, apart, many, everything, squares, places, truths}


def plan_of(make, machine=MACHINE):
    _, samples = chosen_samples(BOUNDS)
    (found,) = unified_rows([(make(s["s0"]),) for s in samples], samples)
    plan = moving_kernel(EMITTERS, found, Names.of(BOUNDS, {"s0": 150}), machine, len(make(8).inputs))
    assert not isinstance(plan, Refusal), plan.reason
    return plan


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for make in PROGRAMS:
        like = make(8)
        entries += [
            (plan_of(make, Machine(MACHINE.isa, threads)), (*like.inputs, "i64"), like.outputs) for threads in (1, 2)
        ]
    found = compile_plans(entries)
    return dict(zip(PROGRAMS, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_equals_program(kernels, make):
    for n in LENGTHS:
        program = make(n)
        rng = np.random.default_rng(n)
        ins = [rng.uniform(-1, 1, reach(program, Load, i)).astype("f4") for i in range(len(program.inputs))]
        kinds = [NUMPY[t] for t in program.outputs]
        wanted = [np.zeros(reach(program, Store, i), k) for i, k in enumerate(kinds)]
        run_program(program, ins, wanted, reference_of)
        for kernel in kernels[make]:
            room = [np.full(len(w) + 2 * GUARD, 7).astype(w.dtype) for w in wanted]
            got = [r[GUARD:-GUARD] for r in room]
            kernel(*map(torch.from_numpy, ins), torch.tensor([n]), *map(torch.from_numpy, got))
            for r, g, w in zip(room, got, wanted, strict=True):
                assert (r[:GUARD] == r.dtype.type(7)).all() and (r[-GUARD:] == r.dtype.type(7)).all(), n
                np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 if make is not places else 0.1, err_msg=str(n))


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_long_ones_are_in_parts(make):
    assert (len(plan_of(make).phases) == 2) == (make in IN_PARTS)


def test_parts_of_images_are_rows():
    """The longest loop goes in parts, or one about as long whose parts lie together."""
    b = LoopNestBuilder((32,), (9, 30, 34))
    b.store(b.output("f32"), (1, 0, 0, 0), b.reduce("sum", b.load(b.input("f32"), (1, 32 * 34 * 30, 32 * 34, 32))))
    assert loop_in_parts(b.finish()) == 2


def test_parts_are_as_exact_as_short_sums(kernels):
    """The error of a sum of 600,000 numbers near 1: hardly more than that of rounding the result."""
    ins = [torch.rand(600_000) + 0.5, torch.zeros(1)]
    got = torch.zeros(1)
    kernels[everything][1](*ins, torch.tensor([600]), got)
    assert abs(got.double() / ins[0].double().mean() - 1).item() < 4 * 2.0**-24
    rows, wide = torch.rand(4800, 96) + 0.5, torch.zeros(96)
    kernels[biases][1](rows, rows, torch.tensor([600]), wide, torch.zeros(96))
    error = (wide.double() / rows.double().sum(0) - 1).abs().max().item()
    assert error < 1.5 * max((rows.sum(0).double() / rows.double().sum(0) - 1).abs().max().item(), 2.0**-22)
