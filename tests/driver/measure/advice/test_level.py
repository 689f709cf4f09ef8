"""The fastest measured level."""

import pytest

from dcir.driver.measure.advice.level import level
from dcir.report.advice_pieces import Call
from tests.driver.measure.advice.test_facts import facts_of


def test_the_fastest_level():
    (piece,) = level(facts_of({(2, None, 2): 4.0, (2, None, 4): 3.0, (1, None, 4): 1.0}))
    assert piece.call == Call(2, None, 4) and piece.gain == pytest.approx(4 / 3) == 1 / piece.slower
    assert piece.evidence.endswith("-O2: 4 ms, -O4: 3 ms") and "level=4" in piece.python
    assert level(facts_of({(2, None, 4): 3.0, (2, None, 0): 9.0})) == []
