"""Runs operators' CUDA plans through the twin beside their references, over random operands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dcir.codegen.cuda.emitters import plan_of
from dcir.codegen.cuda.launch import CudaPlan
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.statements import Access, Gather, Store
from dcir.ir.types import TYPES, f32_to_bf16, to_numpy
from tests.codegen.cuda.samples import difference
from tests.codegen.cuda.twin import Array, Twin, aligned_like


def planned(spec: Operator) -> CudaPlan:
    """The plan of an operator that has one."""
    plan = plan_of(spec)
    assert isinstance(plan, CudaPlan)
    return plan


def values(dtype: str, count: int, rng: np.random.Generator, below: int = 50) -> Array:
    """Random elements: normal numbers, or whole ones in range(below)."""
    if TYPES[dtype].kind == "float":
        found = rng.standard_normal(count).astype(np.float32)
        return aligned_like(f32_to_bf16(found) if dtype == "bf16" else found.astype(to_numpy(dtype)))
    return aligned_like(rng.integers(0, below, count).astype(to_numpy(dtype)))


def sizes(p: LoopNest) -> tuple[list[int], list[int]]:
    """Elements that each operand of a nest reaches to."""
    reach = [[1] * len(p.inputs), [1] * len(p.outputs)]
    for s in p.body:
        if isinstance(s, Access):
            far = sum(st * (n - 1) for st, n in zip(s.strides, p.dims, strict=True))
            if isinstance(s, Gather):
                far += sum(st * (e - 1) for st, e in zip(s.steps, s.extents, strict=True))
            side = reach[isinstance(s, Store)]
            side[s.operand] = max(side[s.operand], far + 1)
    return reach[0], reach[1]


def check_nests(nests: Sequence[LoopNest], folder: Path, *, below: int = 50) -> list[CudaPlan]:
    """Each nest's plan against its reference; the plans."""
    plans = [planned(n) for n in nests]
    twin = Twin((launch for plan in plans for launch in plan.launches), folder)
    rng = np.random.default_rng(0)
    for nest, plan in zip(nests, plans, strict=True):
        reads, writes = sizes(nest)
        ins = [values(t, n, rng, below) for t, n in zip(nest.inputs, reads, strict=True)]
        check(nest, plan, twin, ins, list(zip(nest.outputs, writes, strict=True)))
    return plans


def check(
    spec: Operator, plan: CudaPlan, twin: Twin, ins: Sequence[Array], results: Sequence[tuple[str, int]]
) -> list[Array]:
    """A plan against its reference, over operands and (element type, elements) of the results; these."""
    outs = [aligned_like(np.zeros(n, to_numpy(t)), 0xFF) for t, n in results]
    want = [np.zeros(n, to_numpy(t)) for t, n in results]
    with np.errstate(all="ignore"):
        spec.reference(list(ins), want)
    assert not twin.run(plan, ins, outs)
    for got, expected, (dtype, _) in zip(outs, want, results, strict=True):
        wrong = difference(got, expected, dtype)
        assert not wrong, f"{spec.describe()}: {wrong}"
    return outs
