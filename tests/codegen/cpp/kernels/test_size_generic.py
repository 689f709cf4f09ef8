"""Kernels for any sizes: equal numbers as the loop nest, few texts for many sizes, and whole networks that prepare with them."""

import numpy as np
import pytest
import torch

import dcir
from dcir.codegen.cpp.emitters import plan
from dcir.codegen.cpp.kernels.size_generic import size_generic
from dcir.cost.machine import Machine
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.statements import Load, Store
from dcir.ops.library.packing import pack_program
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of

MACHINE = Machine(isa_of("avx512"), 2)


def packing(columns, depth, groups=()):
    """Weights (*groups, column, depth) into panels."""
    strides = contiguous((*groups, columns, *depth))
    rank = len(groups)
    return pack_program("f32", groups, columns, depth, 32, strides[:rank], strides[rank], strides[rank + 1 :])


def scaling(shape):
    """w * s over output channels, and s as it is, twice as wide."""
    body = LoopNestBuilder(shape)
    strides = contiguous(shape)
    w, s, o, c = body.input("f32"), body.input("f32"), body.output("f32"), body.output("f32")
    value = body.load(s, (1,) + (0,) * (len(shape) - 1))
    body.store(o, strides, body.load(w, strides) * value + 0.5)
    body.store(c, tuple(2 * n for n in strides), value)
    return body.finish()


def turned(shape):
    """A transposition of the two outer dimensions, from the end to the start of the last."""
    body = LoopNestBuilder(shape)
    strides = contiguous((shape[1], shape[0], *shape[2:]))
    source = (strides[1], strides[0], *(strides[2:-1]), -1)
    body.store(body.output("f32"), contiguous(shape), body.load(body.input("f32"), source))
    return body.finish()


PROGRAMS = [
    *(packing(c, d, g) for c, d, g in (
        (64, (3, 3, 5), ()), (96, (1, 1, 7), ()), (40, (5,), ()), (33, (2, 3), (4,)), (1000, (64,), ()), (32, (1,), ()),
    )),
    *map(scaling, ((5, 4, 3, 3), (64, 300), (7,), (200, 3, 5, 5), (1, 1))),
    *map(turned, ((3, 4, 5), (70, 30, 9), (2, 2, 2, 17))),
]  # fmt: skip


def reach(program, kind, operand):
    """Elements of an operand, and where its lowest address is."""
    low = high = 0
    for s in program.body:
        if isinstance(s, kind) and s.operand == operand:
            ends = [st * (n - 1) for st, n in zip(s.strides, program.dims, strict=True)]
            low, high = min(low, sum(e for e in ends if e < 0)), max(high, sum(e for e in ends if e > 0))
    return high - low + 1 + 64, -low


@pytest.fixture(scope="module")
def kernels():
    """One kernel for every spec."""
    specs = {s: None for p in PROGRAMS for s in [size_generic(p, MACHINE)[0]]}
    entries = [(plan(s, MACHINE), (*s.pattern.inputs, "i64"), s.pattern.outputs) for s in specs]
    return dict(zip(specs, compile_plans(entries), strict=True))


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_equals_program(kernels, number):
    program = PROGRAMS[number]
    spec, table = size_generic(program, MACHINE)
    rng = np.random.default_rng(number)
    ins = [rng.uniform(-1, 1, reach(program, Load, i)[0]).astype("f4") for i in range(len(program.inputs))]
    starts = [reach(program, Load, i)[1] for i in range(len(ins))]
    sizes = [reach(program, Store, i)[0] for i in range(len(program.outputs))]
    wanted, got = ([np.full(n, 7, "f4") for n in sizes] for _ in range(2))
    run_program(program, ins, wanted, reference_of, starts)
    tensors = [torch.from_numpy(a)[start:] for a, start in zip(ins, starts, strict=True)]
    kernels[spec](*tensors, torch.tensor(table), *map(torch.from_numpy, got))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-7, atol=1e-7)


def test_few_texts():
    """Sizes make no kernels: one packs all convolutions of a kind, whatever their channels."""
    many = {size_generic(packing(32 * c, (3, 3, d)), MACHINE)[0] for c in range(10, 20) for d in range(20, 30)}
    assert len(many) == 1
    assert len({size_generic(scaling((c, 9 * d)), MACHINE)[0] for c in range(100, 110) for d in range(300, 310)}) == 1


def test_reductions_have_sizes():
    body = LoopNestBuilder((4,), (8,))
    value = body.load(body.input("f32"), (8, 1))
    body.store(body.output("f32"), (1, 0), body.reduce("sum", value))
    assert size_generic(body.finish(), MACHINE) is None


def test_network_prepares_again():
    """Convolutions with different channels share the kernels that prepare them, and follow their weights."""
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Conv2d(a, b, 3), torch.nn.BatchNorm2d(b), torch.nn.ReLU())
              for a, b in ((3, 40), (40, 33), (33, 64), (64, 70))]  # fmt: skip
    net = torch.nn.Sequential(*layers).eval()
    fast, x = dcir.optimize(net), torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
            for p in net.parameters():
                p.mul_(1.25)
