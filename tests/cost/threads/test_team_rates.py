"""Rates of teams are those that were measured where they were, and go on from there for machines that are imagined."""

import itertools

import pytest

from dcir.cost.threads.team_rates import TeamRates
from dcir.cost.threads.topology import Cores
from tests.cost.test_machine import MODEL

HERE = TeamRates(Cores(4, 4), MODEL)
SERVER = TeamRates(Cores(128, 64), MODEL)


def test_what_was_measured_holds():
    assert [HERE.flops(n) for n in (1, 2, 4)] == [100e9, 200e9, 380e9] and HERE.flops(4, "f64") == 190e9
    assert [HERE.read_rate(1 << 30, n) for n in (1, 2, 4)] == [20e9, 40e9, 40e9]
    assert HERE.read_rate(16 << 10, 2) == 800e9
    assert HERE.barrier(4) == pytest.approx(MODEL.barrier_seconds) and HERE.barrier(1) == 0.0
    assert HERE.opening(4) == MODEL.region_seconds and HERE.opening(1) == 0.0
    assert not HERE.imagined and SERVER.imagined


def test_arithmetic_and_caches_grow_with_threads():
    assert SERVER.flops(128) == pytest.approx(32 * 380e9)
    assert SERVER.read_rate(16 << 10, 64) == pytest.approx(64 * 400e9)


def test_a_socket_is_saturated_and_another_adds_some():
    rates = [SERVER.read_rate(1 << 40, n) for n in (1, 8, 10, 64, 128)]
    assert rates[:4] == pytest.approx([20e9, 160e9, 200e9, 200e9]) and 200e9 < rates[4] < 400e9


def test_teams_beside_each_other_share_memory_and_caches():
    assert SERVER.read_rate(1 << 40, 8, 16) == pytest.approx(SERVER.read_rate(1 << 40, 128) / 16)
    assert SERVER.read_rate(1 << 40, 8, 1) == pytest.approx(160e9)
    # Four threads share the last cache: two teams of two have one of 8 MiB, not one each.
    assert HERE.read_rate(6 << 20, 2, 1) > HERE.read_rate(6 << 20, 2, 2)


def test_barriers_grow_and_more_so_across_sockets():
    waits = [SERVER.barrier(n) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert waits == sorted(waits) and waits[0] == 0.0 and waits[-1] - waits[-2] > waits[-2] - waits[-3]
    opens = [SERVER.opening(n) for n in (1, 2, 4, 8, 64, 128)]
    assert opens == sorted(opens) and opens[1] == MODEL.region_seconds
    assert SERVER.handoff == SERVER.barrier(2)


def test_more_threads_are_never_less():
    for rates in (HERE, SERVER):
        for size in (1 << 12, 1 << 20, 1 << 40):
            found = [rates.read_rate(size, n) for n in range(1, rates.cores.total + 1)]
            assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(found)), (rates.cores, size)
        flops = [rates.flops(n) for n in range(1, rates.cores.total + 1)]
        assert flops == sorted(flops)
