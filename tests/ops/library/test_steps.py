"""Scans, sorts and folds of lists as loop nests: what the interpreter makes of them is what their references say, ties and NaN included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import Operator
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ir.types import to_numpy
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from dcir.ops.library.sort import SortSpec

ROWS, N = (2, 3), 7


def data(dtype: str) -> Any:
    """With ties, infinities and NaN."""
    rng = np.random.default_rng(0)
    values = rng.integers(-2, 3, (*ROWS, N)).astype(to_numpy(dtype))
    if dtype in ("f32", "f64"):
        values[0, 1, 3], values[1, 0, 0], values[1, 1, 2], values[1, 1, 5] = np.nan, -np.inf, np.inf, np.nan
        values[1, 2] = -np.inf
    return values.reshape(-1)


def by_steps(spec: Operator, ins: list[Any], outs: list[Any]) -> None:
    found = spec.steps()
    assert found is not None
    temporaries, rows = found
    buffers = {name: np.zeros(size, to_numpy(dtype)) for name, dtype, size in temporaries}
    buffers |= {f"a{i}": v for i, v in enumerate(ins)} | {f"o{i}": v for i, v in enumerate(outs)}
    for nest, sources, results in rows:
        assert isinstance(nest, LoopNest)
        with np.errstate(all="ignore"):
            run_program(nest, [buffers[n] for n in sources], [buffers[n] for n in results], reference)


def check(spec: Operator, x: Any, dtypes: list[str], size: int) -> None:
    want, got = ([np.zeros(size, to_numpy(d)) for d in dtypes] for _ in range(2))
    with np.errstate(all="ignore"):
        spec.reference([x], want)
    by_steps(spec, [x], got)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "u8"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "logsumexp"])
def test_scans(op: str, dtype: str) -> None:
    if op == "logsumexp" and dtype[0] != "f":
        return
    strides = contiguous((*ROWS, N))
    positions = strides if op in ("max", "min") else None
    spec = ScanSpec(op, dtype, dtype, ROWS, N, strides, strides, positions)
    check(spec, data(dtype), [dtype, "i64"] if positions else [dtype], 42)


@pytest.mark.parametrize("dtype", ["f32", "i64", "u8"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("k", [1, 4, 7])
def test_sorts(dtype: str, descending: bool, k: int) -> None:
    short = contiguous((*ROWS, k))
    spec = SortSpec(dtype, ROWS, N, k, descending, contiguous((*ROWS, N)), short, short)
    check(spec, data(dtype), [dtype, "i64"], 6 * k)


def test_a_scan_of_a_column() -> None:
    """Strides in any order, and a result that lies otherwise."""
    spec = ScanSpec("sum", "f32", "f32", (4,), 3, (1, 4), (3, 1))
    check(spec, np.arange(12, dtype=np.float32), ["f32"], 12)


@pytest.mark.parametrize("skip", [None, 1])
def test_groups(skip: int | None) -> None:
    """Two indices, one of which counts from the end."""
    rng = np.random.default_rng(1)
    spec = GroupSpec((3, 5), ((5, 1), (0, 1)), ("i64", "i32"), (4, 3), wrap=True, skip=skip)
    ins = [rng.integers(-4, 4, 15), rng.integers(-3, 3, 5).astype(np.int32)]
    ins[0][4] = 1
    want, got = ([np.zeros(n, np.int32) for n in (13, 15)] for _ in range(2))
    spec.reference(ins, want)
    by_steps(spec, ins, got)
    np.testing.assert_array_equal(got[0], want[0])
    listed = want[0][-1]
    assert (listed < 15) == (skip is not None)
    np.testing.assert_array_equal(got[1][:listed], want[1][:listed])


@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
def test_segments(op: str, based: bool) -> None:
    """Values that are computed, groups of none, and a finish with an operand of its own that gives two results."""
    value = LoopNestBuilder((7, 2))
    x, y = value.load(value.input("f32"), (1, 7)), value.load(value.input("f32"), (1, 0))
    value.store(value.output("f32"), (2, 1), x * y)
    finish = LoopNestBuilder((2, 2, 2))
    folded, more = finish.load(finish.input("f32"), (4, 2, 1)), finish.load(finish.input("f32"), (0, 0, 1))
    finish.store(finish.output("f32"), (1, 4, 2), folded + more)
    finish.store(finish.output("f64"), (4, 2, 1), finish.op("neg", folded))
    spec = SegmentSpec(op, "f32", (1, 2, 4) if based else None, 0.5, 7, 4, value.finish(), finish.finish())
    rng = np.random.default_rng(2)
    starts, order = np.array([0, 3, 3, 4, 6], np.int32), np.array([5, 0, 2, 6, 1, 3, -9], np.int32)
    base = [rng.normal(size=8).astype(np.float32)] if based else []
    ins = [starts, order, *base, *(rng.normal(size=n).astype(np.float32) for n in (14, 7, 2))]
    want, got = ([np.zeros(8, np.float32), np.zeros(8)] for _ in range(2))
    spec.reference(ins, want)
    by_steps(spec, ins, got)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
