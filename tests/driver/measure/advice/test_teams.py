"""Threads as measured; streams from the time of a smaller team, what sharing memory costs, and the interpreter's part."""

from dataclasses import replace

import pytest

from dcir.cost.machine import Rate
from dcir.driver.measure.advice import teams
from dcir.driver.measure.advice.facts import Update
from dcir.driver.measure.advice.teams import slow_down, streams, streams_at, threads
from dcir.report.advice_pieces import BOTH, HERE, Call
from dcir.report.roofline_points import Setting
from tests.cost.test_machine import MODEL
from tests.driver.measure.advice.test_facts import facts_of, kernel


@pytest.fixture(autouse=True)
def handed_over_at_once(monkeypatch):
    monkeypatch.setattr(teams, "_HAND_OVER_MS", 1e-12)


def test_fewer_threads_where_a_call_is_faster():
    (piece,) = threads(facts_of({(4, 1, 4): 4.0, (1, 1, 4): 2.0, (2, 1, 4): 3.0, (1, 8, 4): 0.1}))
    assert (piece.call, piece.basis, piece.gain, piece.slower) == (Call(1, 1, 4), HERE, 2.0, 0.5)
    assert piece.evidence.endswith("1: 2 ms, 2: 3 ms, 4: 4 ms") and "set_num_threads(1)" in piece.python
    assert threads(facts_of({(4, 1, 4): 4.0, (1, 1, 4): 5.0})) == []


def test_as_many_calls_at_a_time_as_teams_fit():
    facts = facts_of({(4, None, 4): 4.0, (1, None, 4): 8.0, (2, None, 4): 5.0, (3, None, 4): 4.5})
    found = {t.call: t for t in streams_at(facts, facts.now)}
    assert set(found) == {Call(1, None, 4, streams=4), Call(2, None, 4, streams=2)}, "three threads divide no four"
    assert found[Call(1, None, 4, streams=4)].items_per_second == pytest.approx(500.0)
    (piece,) = streams(facts)
    assert piece.call == Call(1, None, 4, streams=4) and piece.basis == BOTH and piece.exact
    assert piece.gain == pytest.approx(2.0) and piece.slower == pytest.approx(2.0)
    assert "streams=4" in piece.python and "8 ms" in piece.evidence


def test_a_small_team_has_to_be_measured():
    assert streams(facts_of({(4, None, 4): 4.0})) == []
    assert streams(facts_of({(1, None, 4): 4.0})) == [], "one processor has one stream"
    trains = facts_of({(4, None, 4): 4.0, (1, None, 4): 8.0}, mode="train", update=Update("sgd", 1.0, 1))
    assert streams(trains) == []


def test_calls_that_share_memory_are_slower_by_the_cost_model():
    """64 MB of a kernel that memory brings: one reads 20 GB/s alone, and four of them 10 each."""
    far = kernel(ms=8.0, flops=0, moved=64 << 20, bound="memory")
    facts = facts_of({(4, None, 4): 8.0, (1, None, 4): 8.0}, kernels=(far,), weights=640 << 20)
    run = facts.runs[Setting(1, None, 4)]
    assert slow_down(facts, run, 4) == pytest.approx(2.0, rel=0.1)
    wide = replace(facts, rates=replace(MODEL, reads=(*MODEL.reads[:-1], Rate(20e9, 80e9))))
    assert slow_down(wide, run, 4) == pytest.approx(1.0, rel=0.1)
    (piece,) = streams(facts)
    assert piece.gain == pytest.approx(4 / slow_down(facts, run, 4))
    near = facts_of({(4, None, 4): 8.0, (1, None, 4): 8.0}, kernels=(kernel(flops=10**9, moved=1000),))
    assert slow_down(near, near.runs[Setting(1, None, 4)], 4) == 1.0


def test_the_interpreter_runs_one_call_at_a_time(monkeypatch):
    monkeypatch.setattr(teams, "_HAND_OVER_MS", 0.05)
    facts = facts_of({(4, None, 4): 0.3, (1, None, 4): 0.3}, around=0.2)
    (team,) = streams_at(facts, facts.now)
    assert team.items_per_second == pytest.approx(1000 / 0.25), "handing over and what is around add up"
    assert team.ms == pytest.approx(0.35)
