"""When products by kernels of the target's own pay: where memory decides, and neighbours have bytes to spare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcir.cost.cuda import SETTING, TWIN, CudaMachine, cuda_machine
from dcir.cost.own_products import Work, has_matrix_units, library_seconds, own_pays, own_seconds
from dcir.driver.targets.host import host_machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> CudaMachine:
    monkeypatch.setenv(SETTING, TWIN)
    return cuda_machine(host_machine(1))


def with_sums(m: int, n: int, k: int) -> Work:
    """A convolution of one tap whose statistics are taken."""
    product = 2 * (m * n + m * k + n * k)
    return Work(m, n, k, product, 2 * m * n, product, 1)


def test_memory_decides_where_channels_are_few(machine: CudaMachine) -> None:
    few, many = with_sums(256 * 56 * 56, 256, 64), with_sums(256 * 7 * 7, 2048, 512)
    assert own_pays(few, machine) and not own_pays(many, machine)
    assert own_seconds(few, machine) == pytest.approx(few.together / 4.3e12)
    assert library_seconds(few, machine) == pytest.approx((few.product + few.neighbours) / 4.3e12 + 3e-6)


def test_a_product_that_saves_nothing_is_a_librarys(machine: CudaMachine) -> None:
    work = with_sums(256 * 56 * 56, 64, 64)
    assert not own_pays(replace(work, neighbours=0), machine)


def test_few_blocks_leave_multiprocessors_idle(machine: CudaMachine) -> None:
    deep, wide = with_sums(128, 128, 1 << 16), with_sums(128 * 132, 128, 1 << 16)
    assert own_seconds(deep, machine) == pytest.approx(own_seconds(wide, machine))
    assert not own_pays(deep, machine)


def test_architectures_with_matrix_units_for_halves() -> None:
    assert [has_matrix_units(a) for a in ("sm_75", "sm_80", "sm_90a", "sm_100a", "")] == [
        False,
        True,
        True,
        True,
        False,
    ]
