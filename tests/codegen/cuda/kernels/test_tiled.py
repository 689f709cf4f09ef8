"""Transpositions on a GPU: tiles that turn in shared memory."""

from __future__ import annotations

from pathlib import Path

from dcir.codegen.cuda.kernels.tiled import turning_loop
from tests.codegen.cuda.nests import biased, transposed
from tests.codegen.cuda.running import check_nests


def test_numbers(tmp_path: Path) -> None:
    plans = check_nests([transposed(70, 100), transposed(65, 200, "bf16"), transposed(64, 64, "f64")], tmp_path)
    assert all("D_SHARED(" in p.launches[0].text and "d_barrier();" in p.launches[0].text for p in plans)


def test_which_loop_turns() -> None:
    assert turning_loop(transposed(70, 100)) == 0
    assert turning_loop(biased(70, 100)) is None
    assert turning_loop(transposed(8, 16)) is None  # in a cache anyway
