"""Curves: roofs and waits where nothing was measured, what was measured where it was, and a serial part beyond."""

import pytest

from dcir.cost.threads.curves import Corrected, Measured, Modelled, Work, curve_of, stops_at, team_sizes
from dcir.cost.threads.team_rates import TeamRates
from dcir.cost.threads.topology import Cores
from dcir.errors import InvalidInput
from tests.cost.test_machine import MODEL

HERE = TeamRates(Cores(4, 4), MODEL)
SERVER = TeamRates(Cores(128, 64), MODEL)
PRODUCT = Work(10**9, 1 << 20, (4096,))


def test_arithmetic_divides_among_threads():
    curve = Modelled(PRODUCT, HERE)
    assert curve.seconds(1) == pytest.approx(1e9 / 100e9, rel=1e-3)
    assert curve.seconds(4) == pytest.approx(1e9 / 380e9 + MODEL.barrier_seconds, rel=1e-3)


def test_jobs_are_whole():
    assert [Work(1, 1, (6,)).at_work(n) for n in (1, 2, 4, 5, 6, 128)] == [1, 2, 3, 3, 6, 6]
    assert Work(1, 1).at_work(7) == 7.0 and Work(1, 1, (1, 12)).at_work(12) == 12.0
    curve = Modelled(Work(10**9, 8, (3,)), HERE)
    assert curve.body(2) == pytest.approx(curve.body(1) * 2 / 3, rel=1e-3)


def test_each_phase_has_a_barrier():
    one, three = (Modelled(Work(8, 8, (64,) * n), HERE) for n in (1, 3))
    assert three.waits(4) == pytest.approx(3 * one.waits(4)) and one.waits(1) == 0.0


def test_bytes_do_not_scale_beyond_what_memory_gives():
    curve = Modelled(Work(8, 1 << 32), SERVER)
    assert curve.seconds(16) == pytest.approx(curve.seconds(32), rel=1e-3)
    assert curve.seconds(16, beside=4) > 2 * curve.seconds(16)
    assert stops_at(curve, 128) == 8


def test_float64_and_torch():
    assert Modelled(Work(10**9, 8, dtype="f64"), HERE).body(1) == pytest.approx(1e9 / 50e9, rel=1e-3)
    assert Modelled(Work(0, 0, torch=True), HERE).body(1) > Modelled(Work(0, 0), HERE).body(1) > 0


def test_a_measured_curve_goes_through_its_points():
    curve = Measured.of({4: 2e-3, 1: 8e-3})
    assert [curve.seconds(n) for n in (1, 4, 64)] == [8e-3, 2e-3, 2e-3]
    assert curve.seconds(2) == pytest.approx(4e-3)


@pytest.mark.parametrize("points", [{}, {1: 0.0}, {0: 1.0}, {1: float("nan")}, {1: float("inf")}, {1: -1.0}])
def test_times_that_are_none(points):
    with pytest.raises(InvalidInput, match="positive time"):
        Measured.of(points)


def test_a_corrected_curve_goes_through_what_was_measured():
    times = {1: 20e-3, 2: 13e-3, 4: 9e-3}
    curve = curve_of(PRODUCT, SERVER, times)
    assert [curve.seconds(n) for n in times] == pytest.approx(list(times.values()))
    assert 9e-3 > curve.seconds(8) > curve.seconds(64)


def test_a_part_that_does_not_scale_is_found_and_stays():
    model = Modelled(PRODUCT, SERVER)

    def real(threads):
        ratio = model.body(threads) / model.body(1)
        return 20e-3 * (0.25 + 0.75 * ratio) + model.waits(threads)

    curve = curve_of(PRODUCT, SERVER, {n: real(n) for n in (1, 2)})
    assert isinstance(curve, Corrected) and curve.serial == pytest.approx(0.25)
    for threads in (4, 16, 64, 128):
        assert curve.seconds(threads) == pytest.approx(real(threads))


def test_what_is_slower_on_two_threads_stays_so():
    curve = curve_of(PRODUCT, HERE, {1: 1e-6, 2: 3e-6})
    assert curve.seconds(2) == pytest.approx(3e-6) and curve.seconds(4) > 2e-6
    assert stops_at(curve, 4) == 1


def test_one_thread_alone_scales_as_the_model_does():
    curve, model = curve_of(PRODUCT, HERE, {1: 20e-3}), Modelled(PRODUCT, HERE)
    assert curve.seconds(4) == pytest.approx(20e-3 * model.body(4) / model.body(1) + model.waits(4))


def test_what_was_not_measured_is_modelled():
    for times in ({}, {1: 0.0}, {2: 1e-3}):
        assert curve_of(PRODUCT, HERE, times) == Modelled(PRODUCT, HERE)


def test_who_runs_beside_counts_for_what_was_measured_too():
    work = Work(8, 1 << 32)
    curve = curve_of(work, SERVER, {1: 0.4, 2: 0.2})
    assert curve.seconds(16, 8) > 2 * curve.seconds(16)


def test_sizes_of_teams():
    assert team_sizes(1) == (1,) and team_sizes(2) == (1, 2) and team_sizes(7) == (1, 2, 3, 4, 6, 7)
    assert team_sizes(128) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def test_where_a_curve_stops():
    assert stops_at(Measured.of({1: 4.0, 4: 1.0}), 16) == 4
    assert stops_at(Measured.of({1: 16.0, 16: 1.0}), 16) is None and stops_at(Measured.of({1: 1.0}), 1) is None
