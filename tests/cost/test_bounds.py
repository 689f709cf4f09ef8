"""What bounds a kernel is what it takes longest for at least: a roof, a barrier, a call; or none of them explains its time."""

import dataclasses

import pytest

from dcir.cost.bounds import bound_of
from tests.cost.test_machine import MODEL

KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("flops", "size", "seconds", "threads", "name", "share"),
    [
        (10**9, 30 * KB, 0.02, 1, "FLOP", 0.5),
        (0, 30 * KB, 30 * KB / 400e9, 1, "L1", 1.0),
        (0, 30 * KB, 1e-6, 1, "launch", 0.2),
        (0, MB, MB / 200e9, 1, "L2", 1.0),
        (0, 8 * MB, 2 * 8 * MB / 100e9, 1, "L3", 0.5),
        (0, 80 * MB, 80 * MB / 40e9, 4, "memory", 1.0),
        (1000, 4 * KB, 1e-6, 4, "team", 0.5),
        (1000, 4 * KB, 1e-6, 1, "launch", 0.2),
        (10, 64, 5e-8, 1, "launch", 1 - 64 / 400e9 / 5e-8),
        (10**9, 64, 5e-3, 1, "FLOP", 2.0),
        (1000, 4 * KB, 1e-3, 4, "no roof", 0.5e-3),
    ],
)
def test_what_takes_longest_is_the_bound(flops, size, seconds, threads, name, share):
    found = bound_of(MODEL, flops, size, seconds, threads=threads)
    assert found.name == name and found.share == pytest.approx(share)


def test_float64_has_its_own_peak():
    assert bound_of(MODEL, 5e9, 8, 0.1, threads=1, dtype="f64").share == pytest.approx(1.0)
    assert bound_of(MODEL, 5e9, 8, 0.1, threads=1).share == pytest.approx(0.5)


def test_a_call_into_torch_goes_through_python():
    assert bound_of(MODEL, 0, KB, 2e-5, threads=4, torch=True).name == "Python"
    assert bound_of(MODEL, 0, KB, 2e-5, threads=4).name == "no roof"


def test_memories_have_names_and_sizes():
    assert MODEL.memory_names() == ("L1", "L2", "L3", "memory")
    assert [MODEL.memory_of(n, 1) for n in (32 * KB, 32 * KB + 1, 8 * MB, 8 * MB + 1)] == [0, 1, 2, 3]
    assert MODEL.memory_of(4 * 32 * KB, 4) == 0
    alone = dataclasses.replace(MODEL, caches=(), reads=MODEL.reads[-1:])
    assert alone.memory_names() == ("memory",) and alone.read_rate(1, 1) == 20e9
