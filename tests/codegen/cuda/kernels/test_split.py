"""Reductions in several kernels: parts that are joined, and sweeps that wait for each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcir.codegen.cuda.kernels.split import stage_nests
from dcir.ir.loop_nest import LoopNest
from tests.codegen.cuda.nests import batch_norm, column_reduce, layer_norm, row_reduce, running, softmax
from tests.codegen.cuda.running import check_nests, planned, values
from tests.codegen.cuda.samples import difference
from tests.codegen.cuda.twin import Twin, aligned_like


def test_numbers_of_rows_and_columns_in_parts(tmp_path: Path) -> None:
    plans = check_nests(
        [row_reduce(1, 70000), row_reduce(3, 50003, "max"), column_reduce(5000, 24), column_reduce(4099, 9, "min")],
        tmp_path,
    )
    assert [len(p.launches) for p in plans] == [2, 2, 2, 2]
    assert all(p.launches[0].grid[1] > 1 for p in plans)


def test_numbers_of_long_rows_in_several_sweeps(tmp_path: Path) -> None:
    plans = check_nests([softmax(2, 40000), layer_norm(1, 50000), batch_norm(40, 3, 1024)], tmp_path)
    assert all(len(p.launches) == 5 for p in plans[::2])


def test_the_place_of_a_largest_element_is_found_in_one_go() -> None:
    assert len(planned(row_reduce(1, 70000, "argmax")).launches) == 1


def test_many_rows_are_not_shared() -> None:
    assert len(planned(row_reduce(4096, 4096)).launches) == 1


def test_sweeps_of_their_own() -> None:
    nests = stage_nests(softmax(2, 100))
    assert [len(n.inner) for n in nests] == [1, 1, 0]
    assert nests[0].outputs == nests[1].outputs == ("f32", "f32", "f32")  # the result's, and both reductions'


@pytest.mark.parametrize("order", ["forwards", "backwards", "3"])
@pytest.mark.parametrize(
    "nest", [running(5, 64), running(3, 3000), running(40, 33, down=True), running(2, 40000)],
    ids=["warps", "blocks", "columns", "stages"],
)  # fmt: skip
def test_results_in_place_of_what_is_read(
    nest: LoopNest, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCIR_TWIN_ORDER", order)
    rng = np.random.default_rng(6)
    plan = planned(nest)
    points, rows = nest.points(), nest.outer[0]
    x, r = values("f32", points, rng), values("f32", rows, rng)
    want = [np.zeros(points, np.float32), np.zeros(rows, np.float32)]
    nest.reference([x, r.copy()], want)
    y = aligned_like(x, 0xFF)
    Twin(plan.launches, tmp_path).run(plan, [x, r], [y, r])
    assert not difference(y, want[0], "f32")
    assert not difference(r, want[1], "f32")
