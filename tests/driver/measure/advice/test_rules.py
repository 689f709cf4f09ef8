"""What rules say is sorted and worth saying; what goes together is predicted as a pair, without what changes numbers."""

from dataclasses import replace

import pytest

from dcir.driver.measure.advice import teams
from dcir.driver.measure.advice.facts import Kept, Memory, Update
from dcir.driver.measure.advice.rules import pieces_of, together
from dcir.report.advice_pieces import LEAST_GAIN, Call
from tests.driver.measure.advice.test_facts import facts_of, kernel


@pytest.fixture(autouse=True)
def handed_over_at_once(monkeypatch):
    monkeypatch.setattr(teams, "_HAND_OVER_MS", 1e-12)


TIMES = {(2, 1, 4): 10.0, (2, 8, 4): 40.0, (1, 1, 4): 16.0, (1, 8, 4): 72.0}


def test_the_largest_gain_is_first_and_small_ones_are_not_given():
    pieces = pieces_of(facts_of(TIMES, pairs=2.0))
    assert [p.rule for p in pieces] == ["batch", "precision", "streams"]
    assert [p.gain for p in pieces] == sorted((p.gain for p in pieces), reverse=True)
    assert pieces_of(facts_of({(2, 1, 4): 10.0, (2, 2, 4): 19.9})) == [], "half a percent is none"
    assert LEAST_GAIN == 1.03


def test_a_batch_and_streams_are_predicted_as_a_pair():
    facts = facts_of(TIMES, pairs=2.0)
    found = together(facts, pieces_of(facts))
    assert found.call == Call(1, 8, 4, streams=2) and found.exact and not found.call.half
    assert found.gain == pytest.approx((2 * 8 / 72) / (1 / 10)), "not the product of both gains"
    assert "torch.cat(items[:8])" in found.python and "streams=2" in found.python


def test_what_goes_alongside_multiplies():
    turn = kernel("loops 1x3x4x4: copy", ms=2.0, flops=0, moved=384, bound="L1")
    facts = facts_of({(2, 1, 2): 10.0, (2, 4, 2): 20.0, (2, 1, 4): 8.0}, kernels=(turn,), images=((192, False),))
    found = together(facts, pieces_of(facts))
    assert found.call == Call(2, 4, 4, turned=True)
    assert found.gain == pytest.approx(2 * 10 / 8 * 10 / 8)


def test_a_whole_step_and_a_fused_update_spare_the_same_and_only_one_of_them_goes_along():
    loop = Update("adamw", 4.0, 40_000_000, 1, "loop")
    facts = facts_of({(2, None, 4): 10.0}, around=2.0, mode="train", update=loop)
    pieces = {p.rule: p for p in pieces_of(facts)}
    assert pieces["step"].gain > pieces["update"].gain > 1
    found = together(facts, list(pieces.values()))
    assert found.call == Call(2, None, 4, whole_step=True) and found.gain == pytest.approx(pieces["step"].gain)
    found = together(facts, [pieces["update"]])
    assert found.call == Call(2, None, 4, fused=True) and found.gain == pytest.approx(pieces["update"].gain)


def test_what_memory_needs_comes_first_and_nothing_goes_together_with_it():
    kept = Kept(500, 400, (1, 300), (2, 600), 0.5)
    update = Update("sgd", 4.0, 1000, 1, "loop")
    facts = facts_of({(2, None, 4): 10.0}, mode="train", update=update, memory=Memory(900, 100, 600, True, (kept,)))
    pieces = pieces_of(facts)
    assert pieces[0].rule == "memory" and pieces[0].gain < 1 < pieces[1].gain
    assert together(facts, pieces) is None
    facts = replace(facts, memory=Memory(900, 100, 600, False, (kept,)))
    assert together(facts, pieces_of(facts)).call.memory_limit is None


def test_one_piece_alone_is_itself():
    facts = facts_of({(2, 1, 4): 10.0, (2, 8, 4): 40.0})
    (piece,) = pieces_of(facts)
    found = together(facts, [piece])
    assert found.rule == "together" and found.call == piece.call and found.evidence == piece.evidence


def test_nothing_to_change():
    facts = facts_of({(2, 1, 4): 10.0, (2, 2, 4): 20.0})
    assert together(facts, pieces_of(facts)) is None
