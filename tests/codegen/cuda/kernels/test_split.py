"""Reductions in several kernels: parts that are joined, and sweeps that wait for each other."""

from __future__ import annotations

from pathlib import Path

from dcir.codegen.cuda.kernels.split import stage_nests
from tests.codegen.cuda.nests import batch_norm, column_reduce, layer_norm, row_reduce, softmax
from tests.codegen.cuda.running import check_nests, planned


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
