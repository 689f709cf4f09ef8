"""A refusal is true, equal by its reason, and counted by it."""

from __future__ import annotations

import pytest

from dcir.ir.refusal import Refusal
from dcir.transforms.base import PassResult


def test_refusals_are_equal_by_their_reason():
    assert Refusal("too long") == Refusal("too long") != Refusal("too wide")
    assert str(Refusal("too long")) == "too long"
    assert len({Refusal("too long"), Refusal("too long")}) == 1
    with pytest.raises(AttributeError):
        Refusal("too long").reason = "too wide"


def test_the_first_refusal_of_two_checks_counts():
    assert (None or Refusal("second")) == (Refusal("second") or Refusal("third")) == Refusal("second")


def test_results_count_refusals_by_reason():
    done = PassResult()
    for why in (Refusal("too long"), "too long", Refusal("too wide")):
        done.missed(why)
    assert done.refused == {"too long": 2, "too wide": 1} and not done.changed
