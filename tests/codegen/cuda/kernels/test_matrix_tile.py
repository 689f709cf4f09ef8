"""Tiles of products: what they read, how shared memory is walked, and that it suffices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.codegen.cuda.device import SHARED_BYTES
from dcir.codegen.cuda.kernels.matrix_tile import WARPS, tile_of
from dcir.ops.library.fused_product import FusedProduct
from tests.codegen.cuda.products import check_products, matrices, stored


def test_operands_are_read_once_where_columns_fit_a_tile(tmp_path: Path) -> None:
    s = matrices(256, 64, 64)
    twin, _ = check_products([FusedProduct(s, stored(s))], tmp_path)
    assert twin.bytes_loaded == 2 * (256 * 64 + 2 * 64 * 64)  # B once a block
    assert twin.bytes_stored == 2 * 256 * 64


@pytest.mark.parametrize(("a", "b"), [("rows", "rows"), ("columns", "columns")])
def test_lines_of_a_matrix_lie_in_different_banks(a: str, b: str, tmp_path: Path) -> None:
    specs = [FusedProduct(s, stored(s)) for s in (matrices(64, n, 64, a=a, b=b) for n in (32, 64, 128))]
    assert check_products(specs, tmp_path)[0].bank_conflicts == 0


def test_sums_and_tiles_fit_into_shared_memory() -> None:
    for n in (8, 32, 64, 96, 128, 192, 500, 4096):
        for sums in (0, 4, 8, 12, 24):
            for tile in (tile_of(n, sums), tile_of(n, sums, short=True)):
                assert 2 * 2 * tile.stage + WARPS * tile.columns * sums <= SHARED_BYTES
                assert tile.columns >= min(n, 64) and min(tile.own) >= 16
