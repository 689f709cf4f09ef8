"""Reductions along rows on a GPU: groups of threads, registers, several sweeps, places of largest elements."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.codegen.cuda.kernels.rows import row_shape
from tests.codegen.cuda.nests import batch_norm, layer_norm, row_reduce, softmax
from tests.codegen.cuda.running import check_nests, planned


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_numbers_of_rows_of_all_lengths(dtype: str, tmp_path: Path) -> None:
    lengths = (1, 2, 3, 8, 31, 32, 100, 129, 1000, 1024, 2600, 4100)
    check_nests([row_reduce(5, n, "sum", dtype) for n in lengths], tmp_path)


def test_numbers_of_all_reductions(tmp_path: Path) -> None:
    kinds = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
    nests = [row_reduce(3, n, kind, dtype) for kind in kinds for dtype in ("f32", "i32") for n in (10, 1100)]
    check_nests(nests, tmp_path, below=3)


def test_numbers_of_several_sweeps(tmp_path: Path) -> None:
    nests = [
        softmax(5, 100), softmax(3, 1030), softmax(2, 4097), softmax(4, 136, "bf16"), layer_norm(6, 768, "bf16"),
        layer_norm(3, 9000), layer_norm(4, 33), batch_norm(4, 8, 64), batch_norm(3, 5, 49),
    ]  # fmt: skip
    check_nests(nests, tmp_path)


def test_a_row_that_fits_registers_is_read_once() -> None:
    (launch,) = planned(softmax(4, 1024)).launches
    assert launch.text.count("= d_load_vector") == 2  # in vectors, or element by element
    assert launch.text.count("d_exp(") == 2


@pytest.mark.parametrize(("length", "group"), [(4, 1), (8, 2), (100, 32), (1024, 32), (4096, 128), (32768, 256)])
def test_threads_of_a_row(length: int, group: int) -> None:
    shape = row_shape(row_reduce(1000, length))
    assert (shape.width, shape.group) == (4, group)


def test_every_thread_takes_part_in_shuffles() -> None:
    text = planned(row_reduce(5, 64)).launches[0].text
    assert "live ? wanted : 4" in text
    assert "return" not in text
