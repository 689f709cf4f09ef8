"""Gradients of attention for all sizes: any number of queries, of keys and of batches, with masks, causal, and with shared heads."""

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
from dcir.ops.library.attention import AttentionSpec
from tests.codegen.cpp.tiles.tile_harness import compile_plans, isa_of
from tests.rotation import taken

LENGTHS = (
    2,
    3,
    5,
    6,
    7,
    15,
    16,
    17,
    31,
    33,
    47,
    48,
    49,
    63,
    64,
    65,
    80,
    96,
    97,
    127,
    128,
    129,
    145,
    200,
    255,
    257,
    300,
)
BOUNDS = {"s0": Bounds(2, 300)}
BOTH = {"s0": Bounds(2, 40), "s1": Bounds(2, 150)}
SIZES = [(2, 2), (3, 150), (40, 7), (17, 33), (8, 64), (5, 129), (2, 149), (33, 16), (4, 97)]
ISAS = ("avx512", "avx2")
GUARD = 64


def attention(kind, n, batch=2):
    """Of (batch, queries, heads 4, elements), as projections leave it; the gradients lie likewise."""
    d, key_heads = (40 if kind == "narrow" else 24 if kind == "f64" else 64), (2 if "grouped" in kind else 4)
    m = {"few queries": 9, "more keys": n, "more queries": 2 * n + 1}.get(kind, n)
    keys = {"few keys": 11, "more keys": n + 37}.get(kind, n)
    rows = lambda count, heads: (count * heads * d, d, heads * d, 1)  # noqa: E731
    q, kv = rows(m, 4), rows(keys, key_heads)
    mask = {"masked": (keys, 0, 0, 1), "biased": (0, m * keys, keys, 1)}.get(kind, ())
    return AttentionSpec(
        "f64" if kind == "f64" else "f32", batch, 4, m, keys, d, d**-0.5, "causal" in kind, q, kv, kv, q, (4 * m, m, 1), mask,
        group=4 // key_heads,
    )  # fmt: skip


KINDS = ("plain", "causal", "masked", "biased", "narrow", "f64", "grouped", "causal, grouped", "few queries", "few keys", "more keys",
         "more queries")  # fmt: skip
CASES = taken(
    [*((kind, isa, False) for kind in KINDS for isa in ISAS), *((kind, "avx512", True) for kind in KINDS[:3])], 12
)


def gradients(kind, n, batch=2):
    spec = attention(kind, n, batch)
    return replace(spec, grads=(spec.q, spec.q, spec.k, spec.v))


def moving(kind, both):
    bounds = BOTH if both else BOUNDS
    _, samples = chosen_samples(bounds)
    made = [gradients(kind, s["s1"], s["s0"]) if both else gradients(kind, s["s0"]) for s in samples]
    (found,) = unified_rows([(m,) for m in made], samples)
    return found


@pytest.fixture(scope="module")
def kernels():
    entries = []
    for kind, isa, both in CASES:
        spec = moving(kind, both)
        names = Names.of(BOTH, {"s0": 10, "s1": 37}) if both else Names.of(BOUNDS, {"s0": 75})
        types = [spec.dtype] * (7 if spec.mask else 6)
        plan = moving_kernel(EMITTERS, spec, names, Machine(isa_of(isa), 2), len(types))
        assert not isinstance(plan, Refusal), plan.reason
        entries.append((plan, (*types, "i64"), (spec.dtype,) * 3))
    return dict(zip(CASES, compile_plans(entries), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}{'-both' if c[2] else ''}")
def test_equals_attention(kernels, case):
    kind, _, both = case
    for batch, n in SIZES if both else [(2, n) for n in LENGTHS]:
        spec = gradients(kind, n, batch)
        dtype = np.float64 if spec.dtype == "f64" else np.float32
        reads, writes = spec.footprint()
        rng = np.random.default_rng(n)
        ins = [rng.uniform(-1, 1, r // dtype().itemsize).astype(dtype) for r in reads]
        if kind == "masked":  # padding, as it is in a batch of sentences; every row has a key
            ins[-1] = np.where(rng.uniform(size=len(ins[-1])) < 0.3, -np.inf, 0.0).astype(dtype)
            ins[-1].reshape(batch, -1)[:, 0] = 0
        forward = replace(spec, grads=())
        forward.reference([*ins[1:4], *ins[6:]], ins[4:6])
        wanted = [np.zeros(w // dtype().itemsize, dtype) for w in writes]
        spec.reference(ins, wanted)
        room = [np.full(len(w) + 2 * GUARD, 7, dtype) for w in wanted]
        got = [r[GUARD:-GUARD] for r in room]
        kernels[case](
            *map(torch.from_numpy, ins), torch.tensor([batch, n] if both else [n]), *map(torch.from_numpy, got)
        )
        for r, g, w in zip(room, got, wanted, strict=True):
            assert (r[:GUARD] == 7).all() and (r[-GUARD:] == 7).all(), n
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5, err_msg=f"{batch} {n}")


def test_scratch_is_that_of_the_upper_ends():
    """Parts of dq are as many as keep threads busy, for few heads and for many: their room is not that of both at once."""
    spec = moving("plain", True)
    plan = moving_kernel(EMITTERS, spec, Names.of(BOTH, {"s0": 10, "s1": 37}), Machine(isa_of("avx512"), 2), 6)
    most = EMITTERS.plan(gradients("plain", 151, 41), Machine(isa_of("avx512"), 2)).scratch
    assert most <= plan.scratch < 2 * most
