"""Scatters for all sizes: any number of indices, of rows they choose from, and of columns; an index outside is told at every size."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.plan import Phase
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.errors import IndexOutOfRange
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from dcir.ops.library.scatter import ScatterSpec
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of

BOUNDS = {"s0": Bounds(2, 600)}
LENGTHS = (2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 300, 511, 512, 513, 600)
GUARD = 64
NUMPY = {"f32": np.float32, "i64": np.int64, "i32": np.int32}


def of(op, shape, dims, to, source, indices, extents, steps, *, wrap=False, skip=None, based=False, types=()):
    """A scatter into a dense result."""
    out = (shape[1], 1)
    base, fill = (out, 0) if based else (None, 0)
    types = types or ("i64",) * len(indices)
    return ScatterSpec(op, "f32", shape, base, fill, out, dims, to, source, indices, types, extents, steps, wrap, skip)


SCATTERS = {
    "embedding": lambda n: of("add", (50, 96), (3, n, 96), (0, 0, 1), (96 * n, 96, 1), ((n, 1, 0),), (50,), (96,)),
    "embedding, padding": lambda n: of(
        "add", (70, 3), (20, n, 3), (0, 0, 1), (3 * n, 3, 1), ((n, 1, 0),), (70,), (3,), skip=5
    ),
    "every other, from the end": lambda n: of(
        "add", (301, 3), (30 * n, 3), (0, 1), (3, 1), ((2, 0),), (301,), (3,), wrap=True, types=("i32",)
    ),
    "gather's gradient": lambda n: of("add", (n, 40), (n, 33), (40, 0), (33, 1), ((33, 1),), (40,), (1,)),
    "rows of any number": lambda n: of("add", (n, 24), (5 * n, 24), (0, 1), (24, 1), ((1, 0),), (n,), (24,)),
    "columns": lambda n: of("add", (50, n), (300, n), (0, 1), (n, 1), ((1, 0),), (50,), (n,)),
    "set": lambda n: of("set", (n, 24), (3, 24), (0, 1), (24, 1), ((1, 0),), (n,), (24,), based=True),
    "largest": lambda n: of("max", (50, 20), (7 * n, 20), (0, 1), (20, 1), ((1, 0),), (50,), (20,), based=True),
    "two indices": lambda n: of(
        "add", (30, n), (400, 9), (0, 0), (9, 1), ((1, 0), (0, 1)), (30, n), (n, 1), types=("i64", "i32")
    ),
    "overlapping": lambda n: of("add", (n + 1, 60), (n, 60), (60, 1), (60, 1), ((0, 1),), (60,), (1,)),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    entries = []
    _, samples = chosen_samples(BOUNDS)
    for make in SCATTERS.values():
        (spec,) = unified_rows([(make(s["s0"]),) for s in samples], samples)
        types = (*(("f32",) if spec.base is not None else ()), "f32", *spec.index_types)
        for threads in (1, 2):
            machine = Machine(isa_of("avx512"), threads)
            plan = moving_kernel(EMITTERS, spec, Names.of(BOUNDS, {"s0": 150}), machine, len(types))
            assert not isinstance(plan, Refusal), plan.reason
            told = tuple(Phase(p.jobs, f"int *status = o1;\n{p.code}") for p in plan.phases)
            entries.append((replace(plan, phases=told), (*types, "i64"), ("f32", "i32")))
    found = compile_plans(entries)
    return dict(zip(SCATTERS, zip(found[::2], found[1::2], strict=True), strict=True))


def operands(spec, n):
    """Base, source and indices."""
    rng = np.random.default_rng(n)
    reads, _ = spec.footprint()
    extents = [(1 + max(0, sum((d - 1) * s for d, s in zip(spec.dims, st, strict=True)))) for st in spec.indices]
    floats = [rng.uniform(-1, 1, r // 4).astype("f4") for r in reads[: len(reads) - len(extents)]]
    low = [-e if spec.wrap else 0 for e in spec.extents]
    indices = [
        rng.integers(a, e, size).astype(NUMPY[t])
        for a, e, size, t in zip(low, spec.extents, extents, spec.index_types, strict=True)
    ]
    return [*floats, *indices]


def call(kernel, spec, n, ins):
    """The result and the status, with nothing written around it."""
    size = spec.shape[0] * spec.shape[1]
    room, status = np.full(size + 2 * GUARD, 7, "f4"), np.zeros(1, "i4")
    got = room[GUARD:-GUARD]
    kernel(*map(torch.from_numpy, ins), torch.tensor([n]), torch.from_numpy(got), torch.from_numpy(status))
    assert (room[:GUARD] == 7).all() and (room[-GUARD:] == 7).all(), n
    return got, status[0]


@pytest.mark.parametrize("name", SCATTERS)
def test_equals_scatter(kernels, name):
    for n in LENGTHS:
        spec = SCATTERS[name](n)
        ins = operands(spec, n)
        wanted = np.zeros(spec.shape[0] * spec.shape[1], "f4")
        spec.reference(ins, [wanted])
        results = [call(kernel, spec, n, ins) for kernel in kernels[name]]
        for got, status in results:
            assert status == 0
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=str(n))
        assert np.array_equal(results[0][0], results[1][0]), "the order of sums depends on threads"


@pytest.mark.parametrize("name", SCATTERS)
def test_index_outside(kernels, name):
    for n in LENGTHS[::3]:
        spec = SCATTERS[name](n)
        ins = operands(spec, n)
        ins[-1][-1] = spec.extents[-1]
        with pytest.raises(IndexOutOfRange):
            spec.reference(ins, [np.zeros(spec.shape[0] * spec.shape[1], "f4")])
        for kernel in kernels[name]:
            assert call(kernel, spec, n, ins)[1] == 1
