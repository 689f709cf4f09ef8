"""Reductions along rows on a GPU: groups of threads, registers, several sweeps, places of largest elements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcir.codegen.cuda.kernels.rows import row_shape, rows
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.launch import CudaPlan
from dcir.ir.loop_forms import collapse, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from tests.codegen.cuda.nests import batch_norm, layer_norm, row_reduce, running, softmax
from tests.codegen.cuda.running import check, check_nests, planned, sizes, values
from tests.codegen.cuda.twin import Twin


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


def several_at_once(nest: LoopNest, count: int) -> CudaPlan:
    """The plan of a nest whose groups of threads take several rows at once, as of many more rows they would."""
    p = collapse(order_loops(drop_unit_loops(nest)))
    shape = replace(row_shape(p), rows=count)
    return CudaPlan((rows(p, Places(), shape),))


@pytest.mark.parametrize("order", ["forwards", "backwards", "5"])
def test_numbers_of_several_rows_at_once(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_TWIN_ORDER", order)
    nests = [
        row_reduce(37, 49), row_reduce(16, 64, "argmax"), row_reduce(37, 4, "max", "i32"), softmax(21, 40), softmax(9, 24, "bf16"),
        layer_norm(33, 60), running(19, 64), running(5, 7),
    ]  # fmt: skip
    plans = [several_at_once(nest, count) for nest, count in zip(nests, (4, 2, 4, 2, 4, 2, 2, 4), strict=True)]
    twin = Twin((launch for plan in plans for launch in plan.launches), tmp_path)
    rng = np.random.default_rng(3)
    for nest, plan in zip(nests, plans, strict=True):
        reads, writes = sizes(nest)
        ins = [values(t, n, rng, 3) for t, n in zip(nest.inputs, reads, strict=True)]
        check(nest, plan, twin, ins, list(zip(nest.outputs, writes, strict=True)))
        assert "mine" in plan.launches[0].text


def test_short_rows_are_taken_several_at_once_where_there_are_many() -> None:
    assert [row_shape(row_reduce(n, 64)).rows for n in (1000, 20000, 1 << 16)] == [1, 2, 4]
    assert row_shape(row_reduce(1 << 20, 128, "sum", "bf16")).rows == 4
    assert row_shape(row_reduce(1 << 20, 4096)).rows == 1
    (launch,) = planned(row_reduce(1 << 16, 64)).launches
    assert launch.grid == ((1 << 16) // (4 * 8), 1, 1)


def test_a_row_that_is_swept_once_waits_for_all_of_its_loads() -> None:
    (launch,) = planned(row_reduce(16384, 4096)).launches
    assert launch.block[0] == 128 and launch.text.count("u < 8") == 4  # loads, and what is done with them, in both ways
    assert "for (int at" not in launch.text


def test_what_all_rows_share_is_not_held() -> None:
    b = LoopNestBuilder((64,), (4096,))
    x = b.load(b.input("bf16"), (4096, 1)) + b.load(b.input("bf16"), (0, 1))
    b.store(b.output("bf16"), (4096, 1), x - b.reduce("max", x))
    (launch,) = planned(b.finish()).launches
    assert re.findall(r"= d_load_vector<8>\((a\d)", launch.text.split("else {")[0]) == ["a0", "a1", "a1"]
