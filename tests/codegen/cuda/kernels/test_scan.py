"""Scans on a GPU: a thread a row, or a block a row tile by tile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcir.ops.library.scan import ScanSpec
from tests.codegen.cuda.running import check, planned, values
from tests.codegen.cuda.twin import Twin


@pytest.mark.parametrize(
    ("op", "n"), [("sum", 1), ("sum", 700), ("max", 20), ("max", 700), ("min", 256), ("logsumexp", 700)]
)
def test_numbers(op: str, n: int, tmp_path: Path) -> None:
    positions = (n, 1) if op in ("max", "min") else None
    spec = ScanSpec(op, "f32", "f32", (3,), n, (n, 1), (n, 1), positions)
    plan = planned(spec)
    source = values("f32", 3 * n, np.random.default_rng(4))
    if op == "max" and n > 300:
        source[[10, 290]] = np.nan
    results = [("f32", 3 * n), *([("i64", 3 * n)] if positions else [])]
    check(spec, plan, Twin(plan.launches, tmp_path), [source], results)


def test_products_of_integers_wrap(tmp_path: Path) -> None:
    spec = ScanSpec("prod", "i32", "i64", (2,), 300, (1, 2), (1, 2))
    plan = planned(spec)
    check(spec, plan, Twin(plan.launches, tmp_path), [values("i32", 600, np.random.default_rng(5), 5)], [("i64", 600)])


def test_rows_that_are_many_have_a_thread_each() -> None:
    (launch,) = planned(ScanSpec("sum", "f32", "f32", (10000,), 100, (100, 1), (100, 1))).launches
    assert launch.grid[0] == 40
    (launch,) = planned(ScanSpec("sum", "f32", "f32", (10,), 100, (100, 1), (100, 1))).launches
    assert launch.grid[0] == 10
