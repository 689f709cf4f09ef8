"""Every way to share cores is run in turns, and choices are told next to the best: on a machine of eight cores that is a clock."""

from __future__ import annotations

import itertools
import statistics

import pytest

from dcir.cost.threads.planner import Planner
from dcir.cost.threads.topology import Cores
from dcir.driver.measure import plan_sweep, turns
from dcir.driver.measure.plan_sweep import CALLS_OF_A_STREAM, Predicted, calls_of, sweep
from dcir.errors import InvalidInput
from dcir.report.plan_sweep import Way
from tests.cost.test_machine import MODEL
from tests.cost.threads.graphs import Costs, amdahl, chain


class Machine:
    """Eight cores: a call takes 1 + 7 / threads milliseconds, longer the more there are at once, and eight do not fit into the cache.

    One call is fastest on all eight threads, 1.875 ms; an item of four calls at once, each of two threads, 1.294.
    """

    def __init__(self):
        self.now, self.ran = 0.0, []

    def seconds(self, way):
        one = (1 + 7 / way.threads) * 1e-3
        return one * (1 + 0.05 * (way.streams - 1)) * (1.5 if way.streams == 8 else 1)

    def make(self, way):
        def run():
            self.ran.append(way)
            self.now += self.seconds(way) * (CALLS_OF_A_STREAM if way.streams > 1 else 1)
            return []

        return run

    def predicted(self, way):
        return self.seconds(way) / way.streams * 1e3


@pytest.fixture
def machine(monkeypatch):
    found = Machine()
    monkeypatch.setattr(turns.time, "perf_counter", lambda: found.now)
    monkeypatch.setattr(plan_sweep, "share_of_others", lambda threads, work: work() or 0.0)
    return found


def test_all_ways_that_fit_are_run_and_timed_by_item(machine):
    found = sweep(8, machine.make, machine.predicted, 0.5, hinted=Way(8, 1), guideline=Way(3, 2))
    assert len(found.rows) == 8 + 4 + 2 + 2 + 1 + 1 + 1 + 1 and found.exhaustive
    assert {row.way for row in found.rows} == set(machine.ran)
    for row in found.rows:
        assert row.median_ms == pytest.approx(machine.predicted(row.way)) == row.predicted_ms
        assert row.spread == pytest.approx(0, abs=1e-6) and row.turns >= 5
    assert found.planned == Way(1, 8)


def test_choices_are_compared_with_the_best_of_their_kind(machine):
    found = sweep(8, machine.make, machine.predicted, 0.2, hinted=Way(8, 1), guideline=Way(3, 2))
    planned, hinted, guideline = found.choices()
    assert (planned.way, planned.best, planned.part) == (Way(1, 8), Way(1, 8), pytest.approx(1.0))
    best = min(found.rows, key=lambda row: row.median_ms)
    assert best.way == Way(4, 2) and hinted.best == guideline.best == best.way
    assert hinted.part == pytest.approx(machine.predicted(Way(4, 2)) / machine.predicted(Way(8, 1)))
    assert guideline.way == Way(3, 2) and hinted.part < guideline.part < 1


def test_a_plan_that_is_wrong_is_told_so(machine):
    """Predictions that know no scaling plan one thread."""
    found = sweep(8, machine.make, lambda way: 1.0, 0.2)
    (planned,) = found.choices()
    assert planned.way == Way(1, 1) and planned.part == pytest.approx(1.875 / 8)
    assert "less than 0.95" in found.to_text()


def test_ways_take_turns(machine):
    sweep(4, machine.make, machine.predicted, 0.2)
    measured = machine.ran[5 * 8 :]  # behind what is run to warm up
    first = [n for n, way in enumerate(measured) if way == Way(4, 1)]
    gaps = [b - a for a, b in itertools.pairwise(first) if b - a > 1]
    assert len(gaps) >= 4 and statistics.median(gaps) >= 7, "the seven others are between two turns"


def test_what_cannot_run_at_once_is_left_out_with_its_reason(machine):
    def make(way):
        if way.streams == 2:
            raise InvalidInput("it writes to itself")
        return machine.make(way)

    notes = []
    found = sweep(4, make, machine.predicted, 0.1, hinted=Way(2, 2), notes=notes)
    assert all(row.way.streams != 2 for row in found.rows)
    assert notes == ["2 x 1 is not run: it writes to itself", "2 x 2 is not run: it writes to itself"]
    assert [c.way for c in found.choices()] == [found.planned], "the hint's way has no time"
    with pytest.raises(InvalidInput):
        sweep(2, lambda way: make(Way(2, 1)), machine.predicted, 0.1)


def test_training_has_one_call_at_a_time(machine):
    found = sweep(8, machine.make, machine.predicted, 0.1, at_once=False)
    assert [row.way for row in found.rows] == [Way(1, t) for t in range(1, 9)]


def test_a_way_of_several_calls_has_a_few_of_each():
    assert calls_of(Way(1, 8)) == 1 and calls_of(Way(3, 2)) == 3 * CALLS_OF_A_STREAM


def test_predictions_are_the_plans_for_one_call_and_the_stream_models_beside():
    planner = Planner(chain(3), [amdahl(1e-3, 0.0, 1024, 1024)] * 3, Costs(Cores(4, 4)))
    small = Predicted([planner], [(10**6, 1000)], 1000, 1000, MODEL)
    assert small(Way(1, 2)) == pytest.approx(planner.pools(1, 2).seconds * 1e3)
    assert small(Way(4, 1)) == pytest.approx(planner.pools(1, 1).seconds * 1e3 / 4), (
        "nothing is shared but caches that hold it"
    )
    far = Predicted([planner], [(0, 64 << 20)], 640 << 20, 64 << 20, MODEL)
    # One reads 20 GB/s from memory, and four of them 10 each.
    assert far(Way(4, 1)) == pytest.approx(2 * small(Way(4, 1)), rel=0.1)
