"""A larger batch is advised with the rates that were measured, and said to take longer for each call."""

import pytest

from dcir.driver.measure.advice.batch import batch
from dcir.driver.measure.advice.facts import Update
from dcir.report.advice_pieces import HERE, Call
from tests.driver.measure.advice.test_facts import facts_of


def test_the_best_of_the_measured_batches():
    facts = facts_of({(2, 1, 4): 4.0, (2, 4, 4): 8.0, (2, 16, 4): 40.0, (1, 64, 4): 1.0}, source="net.py:make")
    (piece,) = batch(facts)
    assert (piece.call, piece.basis) == (Call(2, 4, 4), HERE)
    assert piece.gain == pytest.approx(2.0) and piece.slower == pytest.approx(2.0)
    assert "4 take 8 ms, 1 take 4" in piece.evidence and piece.command == "dcir bench net.py:make --batch 4"


def test_nothing_where_none_is_better():
    assert batch(facts_of({(2, 4, 4): 4.0, (2, 1, 4): 2.0})) == []
    assert batch(facts_of({(2, None, 4): 4.0})) == []


def test_of_a_training_step_the_optimiser_is_shared_too():
    (piece,) = batch(facts_of({(2, 1, 4): 8.0, (2, 4, 4): 20.0}, mode="train", update=Update("sgd", 4.0, 100)))
    assert piece.gain == pytest.approx((4 / 20) / (1 / 8)) and piece.command == "" and "loss" in piece.python
