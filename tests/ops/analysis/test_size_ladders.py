"""Ladders of sizes: what follows from a size by division as polynomials of numbers that are free of each other."""

import pytest

from dcir.ir.sizes import size, value_at
from dcir.ops.analysis.size_ladders import Ladder, ladder

LADDERS = {
    "none": [],
    "strides": [lambda s: (s - 1) // 2, lambda s: (s - 1) // 4, lambda s: (s - 1) // 8],
    "pools": [lambda s: s // 2, lambda s: s // 4],
    "mixed": [lambda s: (s - 1) // 2, lambda s: ((s - 1) // 2 + 1) // 2],
    "thirds": [lambda s: (s - 7) // 3 + 1, lambda s: ((s - 7) // 3 - 2) // 2 + 1],
    "beside": [lambda s: (s + 1) // 2, lambda s: s // 2],
}
FALLING = {"up": [lambda s: -s // 4, lambda s: -(-s // 4)], "both": [lambda s: -s // 4, lambda s: -(-(-s // 4) // -2)]}


@pytest.mark.parametrize("name", LADDERS)
def test_parts_and_polynomials(name):
    functions = LADDERS[name]
    made = ladder(functions, 9)
    names = [f"s{i}" for i in range(len(made.steps) + 1)]
    numbers = made.polynomials([size(n) for n in names])
    for s in range(9, 200):
        parts = made.parts(s)
        assert made.value(parts) == s and all(r >= 0 for r in parts)
        levels = made.levels(s)
        assert [value_at(n, dict(zip(names, parts, strict=True))) for n in numbers] == levels
        for f in functions:
            # Every function is a level but for a constant.
            assert any(f(s) - f(9) == level - first for level, first in zip(levels, made.levels(9), strict=True))


@pytest.mark.parametrize("name", FALLING)
def test_quotients_rounded_up_are_written_with_a_size_that_falls(name):
    made = ladder(FALLING[name], 9)
    assert made.steps[0] == (4, 3)
    for s in range(9, 200):
        assert -(-s // 4) in made.levels(s) and made.value(made.parts(s)) == s


@pytest.mark.parametrize("by", [4, 8, 16])
def test_sizes_that_are_rounded_up_by_remainders(by):
    made = ladder([lambda s: s + (by - s % by) % by, lambda s: s % by], 9)
    assert made.steps == ((by, by - 1),)
    for s in range(9, 200):
        assert -(-s // by) in made.levels(s) and made.value(made.parts(s)) == s


def test_parts_are_free():
    made = ladder(LADDERS["strides"], 9)
    values = {made.value((t, a, b, c)) for t in (3, 4) for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    assert made.period == 8 and values == set(range(min(values), min(values) + 16))


def test_quotients_that_do_not_follow_from_each_other_are_left_out():
    assert ladder([lambda s: (s - 1) // 2, lambda s: (s - 1) // 4, lambda s: s // 8], 9) == Ladder(((2, 1), (2, 1)))
    assert ladder([lambda s: s * s // 3], 9).period == 1


@pytest.mark.parametrize("patch", [4, 7, 8, 16])
def test_a_quotient_that_is_the_same_of_the_first_sizes_is_a_step(patch):
    # The least image of two patches: s // patch is 2 for as many sizes as a ladder without steps is held against.
    made = ladder([lambda s: s // patch, lambda s: s // patch // 2], 2 * patch)
    assert made == Ladder(((patch, 0), (2, 0)))
