"""Loads under way and blocks at once: as many as memory wants and registers hold."""

from __future__ import annotations

import pytest

from dcir.codegen.cuda.device import MULTIPROCESSORS
from dcir.codegen.cuda.kernels.flight import at_once, parts_of_a_wave
from dcir.codegen.cuda.kernels.widths import vector_width
from tests.codegen.cuda.nests import column_reduce, row_reduce
from tests.codegen.cuda.running import planned


@pytest.mark.parametrize(
    ("dtype", "length", "pieces"), [("f32", 4096, 8), ("bf16", 4096, 8), ("f64", 4096, 8), ("f32", 4097, 16)]
)
def test_pieces_of_a_row_at_once(dtype: str, length: int, pieces: int) -> None:
    nest = row_reduce(100, length, "sum", dtype)
    assert at_once(nest, vector_width(nest, 1), 1) == pieces


def test_partial_results_take_registers_of_loads() -> None:
    nest = column_reduce(4096, 256, "argmax", "f32")
    assert at_once(nest, 4, 0) == 4 < at_once(column_reduce(4096, 256), 4, 0)


def test_all_parts_are_under_way_together() -> None:
    assert parts_of_a_wave(32, 256) == 16
    assert parts_of_a_wave(1000, 256) == 0
    for nest in (
        column_reduce(16384, 4096),
        row_reduce(100, 1 << 20),
        row_reduce(1, 1 << 24),
        column_reduce(1 << 16, 96),
    ):
        first, *rest = planned(nest).launches
        blocks = first.grid[0] * first.grid[1]
        assert MULTIPROCESSORS * 3 < blocks <= MULTIPROCESSORS * 4 and len(rest) == 1


def test_the_second_step_has_a_short_way() -> None:
    _, last = planned(column_reduce(65536, 96)).launches
    assert last.grid[0] >= 3 and "half = 16" in last.text
