"""How many calls run at once: what a team costs speaks for many, a cache that does not hold all of them for fewer."""

from __future__ import annotations

import dataclasses

import pytest

from dcir.cost.machine import CacheLevel, MachineRates, Rate
from dcir.cost.stream_number import asked_for, chosen, seconds

# Four threads; every cache but the last is a thread's own; memory gives one thread half of what it gives all.
RATES = MachineRates(
    "a processor", "avx2", 4, (CacheLevel(1, 32 << 10, 8, 64, 1), CacheLevel(3, 8 << 20, 16, 64, 4)),
    Rate(100e9, 400e9), Rate(50e9, 200e9), (Rate(400e9, 1600e9), Rate(100e9, 400e9), Rate(20e9, 40e9)), 2e-6, 5e-7, True, 0.0, 0.0,
)  # fmt: skip


def test_kernels_that_pay_for_their_team_run_on_one_thread_each():
    number = chosen([(10_000, 1000)] * 100, 1000, 1000, 4, RATES)
    assert (number.streams, number.threads) == (4, 1)


def test_scratch_that_fits_into_the_cache_once_only_has_one_stream():
    # 5 MB for a stream, and nothing but bytes to move.
    number = chosen([(0, 4 << 20)] * 10, 1 << 20, 5 << 20, 4, RATES)
    assert (number.streams, number.threads) == (1, 4)
    assert "fit into 8.39 MB" in number.reason


def test_scratch_that_fits_twice_has_two():
    number = chosen([(0, 1 << 20)] * 10, 1 << 20, 3 << 20, 4, RATES)
    assert (number.streams, number.threads) == (2, 2)


def test_where_arithmetic_takes_the_time_a_cache_that_is_too_small_decides_nothing():
    number = chosen([(10**9, 1 << 20)] * 10, 1 << 20, 5 << 20, 4, RATES)
    assert number.streams == 4 and "do not fit" in number.reason


def test_a_kernel_takes_the_time_of_what_is_slower():
    assert seconds([(10**9, 8)], 0, 0, 4, 1, RATES) == pytest.approx(1e-2)
    # A third of 12 MB is beyond the cache, and a fourth of memory's bandwidth is each stream's.
    time = (8 << 20) * (2 / 3 / 100e9 + 1 / 3 / 10e9)
    assert seconds([(8, 8 << 20)], 8 << 20, 1 << 20, 4, 1, RATES) == pytest.approx(time)
    # One of two streams has a barrier at its end.
    assert seconds([(10**9, 8)], 0, 0, 2, 2, RATES) == pytest.approx(5e-3 + 5e-7)


def test_guesses_are_called_so():
    assert "guesses" in chosen([(1, 1)], 1, 1, 4, dataclasses.replace(RATES, measured=False)).reason
    assert "guesses" not in chosen([(1, 1)], 1, 1, 4, RATES).reason


def test_what_is_asked_for_divides_the_processors():
    assert [asked_for(n, 8).threads for n in (1, 2, 3, 8)] == [8, 4, 2, 1]
    assert str(asked_for(2, 8)) == "2 streams of 4 threads each: asked for"
    assert str(asked_for(8, 8)) == "8 streams of 1 thread each: asked for"
