"""Scans and sorts as loop nests: what the interpreter makes of them is what their references say, ties and NaN included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import contiguous
from dcir.ir.operator import Operator
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference
from dcir.ir.types import to_numpy
from dcir.ops.library.scan import ScanSpec
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
