"""bfloat16 is offered with what products gain, and marked as other numbers."""

import pytest

from dcir.cost.bounds import FLOP, NOTHING
from dcir.driver.measure.advice.precision import precision
from dcir.report.advice_pieces import Call
from tests.driver.measure.advice.test_facts import facts_of, kernel


def facts(*kernels, **more):
    return facts_of({(2, None, 4): 10.0}, kernels=kernels, **more)


def test_products_gain_and_nothing_else():
    rest = kernel("convolution forward n1 3->8", ms=2.0), kernel(ms=1.0, bound=NOTHING)
    (piece,) = precision(facts(kernel(ms=4.0, bound=FLOP), kernel(ms=3.0, bound="memory"), *rest, pairs=2.0))
    assert piece.gain == pytest.approx(10 / (10 - 2 - 1.5)) and piece.call == Call(2, None, 4, half=True)
    assert not piece.exact and "bfloat16" in piece.python


def test_without_pairs_only_bytes_are_spared():
    (piece,) = precision(facts(kernel(ms=4.0, bound=FLOP), kernel(ms=4.0, bound="L2"), pairs=1.0))
    assert piece.gain == pytest.approx(10 / 8)


def test_a_model_of_another_type_is_left_alone():
    assert precision(facts(kernel(ms=4.0), pairs=None)) == []
