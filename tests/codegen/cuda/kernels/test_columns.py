"""Reductions along columns on a GPU: tiles of columns whose threads share the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.codegen.cuda.kernels.columns import by_columns, column_shape
from tests.codegen.cuda.nests import column_reduce, normalised_sums, row_reduce
from tests.codegen.cuda.running import check_nests, planned


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_numbers(dtype: str, tmp_path: Path) -> None:
    sizes = ((1, 5), (2, 8), (33, 13), (64, 64), (100, 200), (7, 1000), (300, 48))
    check_nests([column_reduce(*size, "sum", dtype) for size in sizes], tmp_path)


def test_numbers_of_all_reductions(tmp_path: Path) -> None:
    kinds = ("prod", "max", "min", "any", "all", "argmax", "argmin")
    check_nests([column_reduce(37, 24, kind, t) for kind in kinds for t in ("f32", "i64")], tmp_path, below=3)


def test_which_way_threads_lie() -> None:
    assert by_columns(column_reduce(100, 64))
    assert not by_columns(row_reduce(100, 64))


def test_a_tile_reads_whole_vectors_of_a_row() -> None:
    shape = column_shape(column_reduce(1000, 768, "sum", "bf16"))
    assert (shape.width, shape.across, shape.down, shape.tiles) == (8, 32, 8, 3)
    assert "d_load_vector<8>(a0" in planned(column_reduce(1000, 768, "sum", "bf16")).launches[0].text


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_numbers_with_values_of_columns(dtype: str, tmp_path: Path) -> None:
    sizes = ((1, 5), (2, 8), (33, 13), (64, 64), (100, 200), (7, 1000), (300, 48))
    check_nests([normalised_sums(*size, dtype) for size in sizes], tmp_path)


def test_what_is_the_same_for_all_rows_is_computed_once() -> None:
    text = planned(normalised_sums(1000, 768, "bf16")).launches[0].text
    whole = text[text.index("constexpr bool whole = true") : text.index("constexpr bool whole = false")]
    assert whole.index("d_rsqrt") < whole.index("for (int at = ") < whole.index("d_load_vector<8>(a0")
    assert whole.count("d_load_vector<8>(a1") == whole.count("d_load_vector<8>(a2") == 1
