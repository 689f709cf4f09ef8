"""Products for all sizes with B as it lies: rows, columns, steps and batches that move, in every layout that training has."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcir.codegen.cpp.emitters import EMITTERS
from dcir.codegen.moving_kernel import moving_kernel
from dcir.codegen.symbolic import Names
from dcir.cost.machine import Machine
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.ops.analysis.size_unification import chosen_samples, unified_rows
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from tests.codegen.cpp.tiles.gemm.test_epilogues import _epilogue
from tests.codegen.cpp.tiles.tile_harness import RUNNABLE, compile_plans, isa_of
from tests.rotation import taken

BOUNDS = {"s0": Bounds(2, 600)}
LENGTHS = (2, 3, 5, 13, 15, 16, 17, 31, 33, 47, 63, 64, 65, 127, 129, 200, 383, 385, 511, 600)
GUARD = 64
NUMPY = {"f32": np.float32, "f64": np.float64, "bool": np.bool_}


def spec_of(m, n, k, a="mk", b="kn", c="mn", batch=(), kind="", dtype="f32"):
    """A dense product; a layout names an operand's two loops, the inner one last."""
    extents, strides = {"m": m, "n": n, "k": k}, []
    for layout, loops in ((a, "mk"), (b, "kn"), (c, "mn")):
        outer, inner = layout
        steps = {inner: 1, outer: extents[inner]}
        size = extents[outer] * extents[inner]
        of_batch = (size * math.prod(batch[d + 1 :]) for d in range(len(batch)))
        strides.append((*of_batch, *(steps[x] for x in loops)))
    spec = ContractionSpec(alike(dtype), batch, m, n, k, *strides)
    return replace(spec, epilogue=_epilogue(kind, dtype, batch, m, n, strides[2])) if kind else spec


PRODUCTS = {
    "linear": lambda s: spec_of(s, 100, 96, b="nk"),
    "linear, wide": lambda s: spec_of(s, 768, 300, b="nk", kind="bias"),
    "linear, gelu": lambda s: spec_of(s, 130, 64, b="nk", kind="gelu"),
    "linear, one step": lambda s: spec_of(s, 40, 1),
    "data gradient": lambda s: spec_of(3 * s, 70, 96),
    "data gradient, residual": lambda s: spec_of(s, 256, 700, kind="residual"),
    "weight gradient": lambda s: spec_of(96, 100, s, a="km"),
    "weight gradient, large": lambda s: spec_of(128, 384, 8 * s, a="km"),
    "weight gradient, place": lambda s: spec_of(65, 97, 8 * s, a="km", kind="place"),
    "weight gradient, one row": lambda s: spec_of(1, 97, s, a="km"),
    "weight gradient, turned": lambda s: spec_of(200, 300, 3 * s, a="km", c="nm"),
    "columns": lambda s: spec_of(40, s, 64),
    "columns, bias": lambda s: spec_of(40, s, 64, kind="bias"),
    "columns, residual, turned": lambda s: spec_of(40, s, 64, c="nm", kind="residual"),
    "columns of k": lambda s: spec_of(150, 16 * s, 30, b="nk"),
    "scores": lambda s: spec_of(s, s, 32, b="nk", batch=(2, 3)),
    "scores, place": lambda s: spec_of(s, s, 40, b="nk", batch=(2,), kind="place"),
    "values": lambda s: spec_of(s, 40, s, batch=(2, 3)),
    "values, turned": lambda s: spec_of(s, 40, s, a="km", batch=(3,)),
    "values, turned, bias": lambda s: spec_of(s, 40, s, a="km", batch=(3,), kind="bias"),
    "rows of columns": lambda s: spec_of(s, 200, 900, a="km", kind="gelu"),
    "rows of columns, turned": lambda s: spec_of(s, 30, 64, a="km", c="nm", kind="bias"),
    "all": lambda s: spec_of(s, s + 3, 2 * s + 1),
    "all, place": lambda s: spec_of(s, s + 3, 2 * s + 1, kind="place"),
    "all, turned": lambda s: spec_of(s, s + 3, 2 * s + 1, a="km", b="nk", c="nm"),
    "batches": lambda s: spec_of(17, 33, 20, batch=(s,)),
    "f64": lambda s: spec_of(s, 50, 3 * s, a="km", dtype="f64"),
}  # fmt: skip
PAIRS = {
    "pairs": lambda s: replace(spec_of(s, 100, 97, b="nk", kind="bias"), dots=True),
    "pairs, wide": lambda s: replace(spec_of(s, 768, 300, b="nk"), dots=True),
    "pairs, columns": lambda s: replace(spec_of(70, s, 96), dots=True),
    "pairs, steps": lambda s: replace(spec_of(96, 100, s, a="km"), dots=True),
    "pairs, rounded": lambda s: replace(spec_of(s, 100, 96, b="nk", kind="bias"), rounds="bf16"),
}
"""Of numbers of bfloat16, which some processors multiply in pairs."""
PRODUCTS |= PAIRS
ISAS = ("avx512", "avx2", "generic")
CASES = [(name, isa) for name in PRODUCTS for isa in ISAS if name not in PAIRS]
CASES += [(name, "avx512bf16") for name in PAIRS if "avx512bf16" in RUNNABLE]
CASES = taken(CASES, 28)


def moving(make):
    """What a function of the length makes, for all lengths."""
    _, samples = chosen_samples(BOUNDS)
    (found,) = unified_rows([(make(s["s0"]),) for s in samples], samples)
    return found


@pytest.fixture(scope="module")
def products():
    entries = []
    for name, isa in CASES:
        make = PRODUCTS[name]
        like = make(8)
        nest = like.epilogue
        types = (like.dtype, like.dtype, *(() if nest is None else nest.inputs[1:]))
        plan = moving_kernel(EMITTERS, moving(make), Names.of(BOUNDS, {"s0": 128}), Machine(isa_of(isa), 2), len(types))
        assert not isinstance(plan, Refusal), (name, plan.reason)
        entries.append((plan, (*types, "i64"), (like.dtype,) if nest is None else nest.outputs))
    return dict(zip(CASES, zip(entries, compile_plans(entries), strict=True), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(c))
def test_equals_product(products, case):
    (_, types, results), kernel = products[case]
    for n in LENGTHS:
        spec = PRODUCTS[case[0]](n)
        reads, writes = spec.footprint()
        rng = np.random.default_rng(n)
        kinds = [NUMPY[t] for t in types[:-1]]
        ins = [rng.uniform(-1, 1, r // k().itemsize).astype(k) for r, k in zip(reads, kinds, strict=True)]
        if case[0] in PAIRS:
            ins = [torch.from_numpy(x).bfloat16().float().numpy() for x in ins]
        kinds = [NUMPY[t] for t in results]
        wanted = [np.zeros(w // k().itemsize, k) for w, k in zip(writes, kinds, strict=True)]
        spec.reference(ins, wanted)
        room = [np.full(len(w) + 2 * GUARD, 7).astype(w.dtype) for w in wanted]
        got = [r[GUARD:-GUARD] for r in room]
        kernel(*map(torch.from_numpy, ins), torch.tensor([n]), *map(torch.from_numpy, got))
        for r, g, w in zip(room, got, wanted, strict=True):
            assert (r[:GUARD] == r.dtype.type(7)).all() and (r[-GUARD:] == r.dtype.type(7)).all(), n
            if w.dtype == np.bool_:
                assert (g != w).mean() < 0.001
            else:
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=2e-5 * spec.k**0.5, err_msg=str(n))
