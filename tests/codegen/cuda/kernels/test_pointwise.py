"""Pointwise CUDA kernels: vectors where memory has them, remainders, broadcasts, embeddings."""

from __future__ import annotations

from pathlib import Path

from tests.codegen.cuda.nests import biased, embedding, product
from tests.codegen.cuda.running import check_nests, planned


def test_numbers(tmp_path: Path) -> None:
    nests = [
        product(1), product(7), product(1024), product(4099), product(3000, "bf16"), product(2049, "f64"), product(515, "f16"),
        biased(33, 64), biased(30, 65, "bf16"), biased(1, 8), embedding(20, 50, 64), embedding(20, 50, 64, "bf16"),
        embedding(9, 50, 33),
    ]  # fmt: skip
    check_nests(nests, tmp_path)


def test_neighbours_are_moved_in_16_bytes() -> None:
    assert "d_load_vector<4>(a0" in planned(product(4096)).launches[0].text
    assert "d_load_vector<8>(a0" in planned(product(4096, "bf16")).launches[0].text
    assert "d_load_vector<2>(a0" in planned(product(4096, "f64")).launches[0].text


def test_rows_of_an_embedding_are_read_in_vectors() -> None:
    (launch,) = planned(embedding(64, 100, 768)).launches
    assert "if (g1) w1 = d_load_lanes<whole, 4>(a0" in launch.text
    assert launch.arguments == ("o0", "a0", "a1", "status")


def test_rows_of_an_odd_length_are_moved_by_elements() -> None:
    assert "d_aligned" not in planned(embedding(64, 100, 33)).launches[0].text


def test_a_thread_of_a_large_kernel_waits_for_several_pieces() -> None:
    (launch,) = planned(product(1 << 24)).launches
    assert "for (int u = 0; u < 2; u++)" in launch.text
    assert launch.grid == ((1 << 24) // (256 * 4 * 2), 1, 1)
