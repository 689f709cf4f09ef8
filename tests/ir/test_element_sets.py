"""Sets of elements against sets of Python's numbers."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from dcir.ir.element_sets import ElementSet, box, strided, sum_of, union

DIMS = st.lists(st.tuples(st.integers(0, 5), st.integers(-12, 12)), max_size=4)
STARTS = st.lists(st.integers(-5, 40), min_size=1, max_size=5, unique=True).map(sorted)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def listed(dims: list[tuple[int, int]], starts: list[int]) -> set[int]:
    if any(n == 0 for n, _ in dims):
        return set()
    return {
        a + sum(i * s for i, (_, s) in zip(at, dims, strict=True))
        for a in starts
        for at in itertools.product(*(range(n) for n, _ in dims))
    }


def check(found: ElementSet, wanted: set[int]) -> None:
    assert found.exact and found.size == len(wanted)
    assert set(found.listed().tolist()) == wanted
    if wanted:
        assert (found.starts[0], found.last) == (min(wanted), max(wanted))


@settings(max_examples=300, deadline=None)
@given(DIMS, STARTS)
def test_strided(dims: list[tuple[int, int]], starts: list[int]) -> None:
    check(strided(dims, starts), listed(dims, starts))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(DIMS, STARTS), min_size=1, max_size=3), DIMS)
def test_unions_and_sums(parts: list[tuple[list[tuple[int, int]], list[int]]], more: list[tuple[int, int]]) -> None:
    sets, plain = [strided(d, s) for d, s in parts], [listed(d, s) for d, s in parts]
    check(union(sets), set().union(*plain))
    check(
        union([sum_of([s, strided(more)]) for s in sets]), {a + b for p in plain for a in p for b in listed(more, [0])}
    )


@settings(max_examples=500, deadline=None)
@given(st.data(), SHAPES, st.permutations(range(4)))
def test_boxes(data: st.DataObject, shape: list[int], order: list[int]) -> None:
    """A window of a container is its own box, however the container lies; anything else lies in its box."""
    strides, step = [0] * len(shape), 1
    for d in [d for d in order if d < len(shape)]:
        strides[d], step = step, step * shape[d]
    window = []
    for n in shape:
        first, step = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 3))
        window.append((first, step, data.draw(st.integers(1, (n - 1 - first) // step + 1))))
    offset = sum(a * s for (a, _, _), s in zip(window, strides, strict=True))
    found = strided((n, step * s) for (_, step, n), s in zip(window, strides, strict=True))
    got = box(found, offset, shape, strides)
    assert math.prod((b - a) // step + 1 for a, b, step in got) == found.size
    wanted = [(a, a + (n - 1) * step, step if n > 1 else 1) for a, step, n in window]
    assert list(got) == wanted
    some = sorted(data.draw(st.sets(st.integers(0, math.prod(shape) - 1), min_size=1, max_size=6)))
    places = {
        sum(i * s for i, s in zip(at, strides, strict=True))
        for at in itertools.product(
            *(range(a, b + 1, step) for a, b, step in box(strided([], some), 0, shape, strides))
        )
    }
    assert places >= set(some)


def test_directions_that_go_on_in_the_next_dimension() -> None:
    assert box(strided([(12, 1)]), 0, (3, 4), (4, 1)) == ((0, 2, 1), (0, 3, 1))
    assert box(strided([(6, 2)]), 1, (3, 4), (4, 1)) == ((0, 2, 1), (1, 3, 2))
    assert box(strided([(8, 1)]), 4, (3, 4), (4, 1)) == ((1, 2, 1), (0, 3, 1))
    assert box(strided([(3, 1)]), 3, (3, 4), (4, 1)) == ((0, 1, 1), (0, 3, 1))  # over an edge: around it


def test_windows_that_slide() -> None:
    assert strided([(5, 2), (3, 1)]) == ElementSet((0,), ((11, 1),), 11)
    assert strided([(5, 4), (3, 1)]).size == 15


def test_what_is_too_large_to_list_is_bounded() -> None:
    found = strided([(1000, 1001), (1000, 999), (1000, 7)])
    assert not found.exact and found.size <= found.last + 1
