"""A whole step keeps the kernels, and has the optimiser at memory's rate."""

import pytest

from dcir.driver.measure.advice.facts import Update
from dcir.driver.measure.advice.step import whole_step
from dcir.report.advice_pieces import Call
from tests.driver.measure.advice.test_facts import facts_of


def test_what_a_whole_step_spares():
    """40 MB at 40 GB/s take a millisecond."""
    update = Update("sgd", 3.0, 40_000_000)
    (piece,) = whole_step(facts_of({(4, None, 4): 10.0}, around=2.0, mode="train", update=update))
    assert piece.gain == pytest.approx(10 / (5 + 1 + 1)) and piece.call == Call(4, None, 4, whole_step=True)
    assert "train_step" in piece.python
    slow = Update("sgd", 3.0, 40_000_000_000)
    (piece,) = whole_step(facts_of({(4, None, 4): 10.0}, around=2.0, mode="train", update=slow))
    assert piece.gain == pytest.approx(10 / (5 + 1 + 3)), "no roof makes it slower than it is"
    assert whole_step(facts_of({(4, None, 4): 7.0})) == []
