"""Scatters on a GPU: without races, the last point wins, folds in the order of the points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcir.ops.library.scatter import ScatterSpec
from tests.codegen.cuda.running import check, planned, values
from tests.codegen.cuda.twin import Twin

ROWS, POINTS, COLUMNS = 9, 40, 12
SPEC = ScatterSpec(
    "add", "f32", (ROWS, COLUMNS), (COLUMNS, 1), 0, (COLUMNS, 1), (POINTS, COLUMNS), (0, 1), (COLUMNS, 1),
    ((1, 0),), ("i64",), (ROWS,), (COLUMNS,), wrap=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype", "order"),
    [
        ("set", "f32", "forwards"), ("set", "f32", "5"), ("set", "i64", "backwards"), ("add", "f32", "forwards"), ("add", "f32", "5"),
        ("add", "bf16", "6"), ("add", "i64", "7"), ("mul", "f32", "8"), ("max", "bf16", "9"), ("min", "i64", "backwards"),
    ],
)  # fmt: skip
def test_rows(op: str, dtype: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_TWIN_ORDER", order)
    spec = replace(SPEC, op=op, dtype=dtype)
    _check(spec, [ROWS * COLUMNS, POINTS * COLUMNS, POINTS], tmp_path)


@pytest.mark.parametrize("op", ["set", "add"])
def test_every_element_with_an_index_of_its_own(op: str, tmp_path: Path) -> None:
    spec = replace(SPEC, op=op, indices=((COLUMNS, 1),))
    _check(spec, [ROWS * COLUMNS, POINTS * COLUMNS, POINTS * COLUMNS], tmp_path)


@pytest.mark.parametrize("op", ["set", "add"])
def test_into_a_number_everywhere(op: str, tmp_path: Path) -> None:
    spec = replace(SPEC, op=op, base=None, fill=2.0, skip=3)
    _check(spec, [POINTS * COLUMNS, POINTS], tmp_path)


def _check(spec: ScatterSpec, counts: list[int], folder: Path) -> None:
    plan = planned(spec)
    rng = np.random.default_rng(3)
    *stored, index = counts
    ins = [*(values(spec.dtype, n, rng, 4) for n in stored), values("i64", index, rng, ROWS)]
    check(spec, plan, Twin(plan.launches, folder), ins, [(spec.dtype, ROWS * COLUMNS)])
