"""Lanes hold each value from what writes it to what reads it last, reuse what is free, and leave far reads to stubs."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dcir.report.session_lanes import FAR, lanes
from tests.counted import growth


def test_a_chain_has_one_lane() -> None:
    found = lanes([[], ["a"], ["b"]], [["a"], ["b"], ["c"]])
    assert found.of == (0, 0, 0) and found.count == 1


def test_a_skip_connection_has_a_lane_of_its_own_until_it_is_read() -> None:
    found = lanes([["x"], ["a"], ["b"], ["a", "c"], ["d"]], [["a"], ["b"], ["c"], ["d"], ["e"]])
    assert found.of[0] == 0 and found.of[1] == 1 and found.of[2] == 1
    assert found.of[3] == 1 and found.of[4] == 1  # of the nearest that ends there
    assert found.count == 2
    assert found.stubs == ((0,), (), (), (), ())


def test_a_read_from_far_above_is_a_stub_and_holds_no_lane() -> None:
    far = FAR + 2
    reads = [[], *([f"v{n}"] for n in range(far)), ["v0", f"v{far}"]]
    found = lanes(reads, [[f"v{n}"] for n in range(far + 2)])
    assert found.stubs[-1] == (0,) and found.count == 1


@given(st.lists(st.lists(st.integers(1, 12), max_size=3), min_size=1, max_size=50))
def test_no_two_values_that_are_wanted_share_a_lane(above: list[list[int]]) -> None:
    reads = [[f"v{row - n}" for n in dict.fromkeys(found) if n <= row] for row, found in enumerate(above)]
    found = lanes(reads, [[f"v{n}"] for n in range(len(reads))])
    last = list(range(len(reads)))
    for row, read in enumerate(reads):
        for n, name in enumerate(read):
            if n not in found.stubs[row]:
                last[int(name[1:])] = row
    for a in range(len(reads)):
        for b in range(a + 1, min(last[a], len(reads))):
            assert found.of[a] != found.of[b], (a, b)
    assert found.count == max(found.of) + 1


def test_work_grows_with_the_operators_and_not_with_their_square() -> None:
    def many(count: int) -> Callable[[], object]:
        reads = [[f"v{n}" for n in (row - 1, row - 7, row // 2) if 0 <= n < row] for row in range(count)]
        writes = [[f"v{n}"] for n in range(count)]
        return lambda: lanes(reads, writes)

    assert growth(many, 1500, 8) < 1.1
