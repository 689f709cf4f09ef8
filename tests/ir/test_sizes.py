"""Polynomials of sizes: exact arithmetic, one form, nothing decided by accident, and what holds everywhere within bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcir.errors import InvalidGraph, InvalidInput
from dcir.ir.moving_network import fixed
from dcir.ir.serialize import decode, encode
from dcir.ir.sizes import (
    Bounds,
    Number,
    Polynomial,
    Quotient,
    check_values,
    corners,
    from_json,
    never_negative,
    polynomial,
    size,
    value_at,
)

S, T = size("s0"), size("s1")
BOX = {"s0": Bounds(2, 13), "s1": Bounds(2, 7)}
numbers = st.dictionaries(
    st.sampled_from([(), (("s0", 1),), (("s1", 1),), (("s0", 2),), (("s0", 1), ("s1", 1))]), st.integers(-40, 40)
).map(lambda terms: polynomial(terms.items()))
calm = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
values = st.fixed_dictionaries({"s0": st.integers(2, 13), "s1": st.integers(2, 7)})


@pytest.mark.parametrize(("over", "under"), [(2, 4), (2, 0), (-2, 0), (0, 0), (0, 3)])
def test_quotients_are_what_generated_code_computes(over: int, under: int) -> None:
    with np.errstate(all="ignore"):
        want = np.divide(np.float64(over), np.float64(under))
    np.testing.assert_array_equal(Quotient(over * S, under * S).at({"s0": 1}), want)
    np.testing.assert_array_equal(fixed(Quotient(over * S, under * S), {"s0": 1}), want)


@calm
@given(numbers, numbers, values)
def test_arithmetic_is_that_of_the_values(a: Number, b: Number, at: dict[str, int]) -> None:
    x, y = value_at(a, at), value_at(b, at)
    assert [value_at(n, at) for n in (a + b, a - b, a * b, -a)] == [x + y, x - y, x * y, -x]


@calm
@given(numbers, numbers)
def test_equal_polynomials_are_equal_objects(a: Number, b: Number) -> None:
    again = (a + b) - b
    assert again == a and hash(again) == hash(a) and repr(again) == repr(a)


def test_what_does_not_move_is_an_integer() -> None:
    assert [type(n) for n in (S - S, S - S + 3, S * 0)] == [int, int, int]
    assert (S + 1) * (S - 1) - S * S == -1


def test_they_read_as_they_are_written() -> None:
    assert str(3 * S * T - S * S + 5 - T) == "3*s0*s1 - s0^2 - s1 + 5"
    assert str(-S) == "-s0"


@pytest.mark.parametrize("ask", [bool, int, range, lambda n: n < 3, lambda n: [0, 1, 2][n]])
def test_no_polynomial_is_taken_for_an_integer(ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError):
        ask(S)


@calm
@given(numbers)
def test_they_survive_json(a: Number) -> None:
    data = json.loads(json.dumps(encode((a, 1))))
    assert decode(data, moving=True) == (a, 1)
    if isinstance(a, Polynomial):  # no graph of constants has one
        with pytest.raises(InvalidGraph, match="moves with sizes"):
            decode(data)


@pytest.mark.parametrize(
    "data",
    [
        [[[["import os", 1]], 1]],
        [[[["s0", 1]], 1.5]],
        [[[["s0", -1]], 1]],
        [[[["s0", 10**9]], 1]],
        [["s0", 1]],
        [3],
        [[[["s0"]], 1]],
    ],
)
def test_malformed_polynomials_are_refused(data: list[list[object]]) -> None:
    with pytest.raises(InvalidGraph):
        from_json(data)


@calm
@given(numbers)
def test_signs_are_those_of_all_values(a: Number) -> None:
    everywhere = all(value_at(a, {"s0": s, "s1": t}) >= 0 for s in range(2, 14) for t in range(2, 8))
    assert never_negative(a, BOX) == everywhere


def test_signs_are_seen_in_large_boxes() -> None:
    wide = {"s0": Bounds(2, 1 << 20), "s1": Bounds(2, 1 << 20)}
    assert never_negative((1 << 40) - S * T, wide)
    assert not never_negative((1 << 40) - S * T - 1, wide)
    assert never_negative((S - 777_777) * (S - 777_777), wide)


def test_values_lie_within_the_bounds() -> None:
    check_values(BOX, {"s0": 2, "s1": 7})
    for wrong in ({"s0": 2}, {"s0": 2, "s1": 8}, {"s0": 1, "s1": 2}, {"s0": 2, "s1": 2, "s2": 2}):
        with pytest.raises(InvalidInput):
            check_values(BOX, wrong)


def test_corners_begin_at_the_least_and_end_at_the_greatest() -> None:
    assert corners(BOX)[0] == {"s0": 2, "s1": 2} and corners(BOX)[-1] == {"s0": 13, "s1": 7} and len(corners(BOX)) == 4


def test_names_of_sizes_cannot_be_code() -> None:
    for name in ("n", "s", "s0; x", "__import__"):
        with pytest.raises(InvalidGraph):
            size(name)
    assert isinstance(size("s10"), Polynomial)
