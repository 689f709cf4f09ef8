"""Predicted steps stand beside measured ones: medians of turns, of the slowest process, with what a busy machine does to them."""

import json

import pytest

from dcir.cost.links import Link
from dcir.report.scaling import Gradient, TrainingStep
from dcir.report.scaling_check import CheckedTurn, ScalingCheck

LINK = Link("local", 1e9, 0.0)


def step(forward, name="dcir"):
    """An exchange of 4 MB between two, 4 ms, begins 4 ms before the backward's end."""
    return TrainingStep(name, forward, 20.0, 2.0, (Gradient(4 * 10**6, ready_ms=16.0),))


def check(*turns, nodes=2, **settings):
    found = ScalingCheck("net.py:make", LINK, **settings)
    found.add("dcir", nodes, 1, [CheckedTurn(tuple(step(f) for f in forward), measured) for forward, measured in turns])
    return found


def test_the_slowest_process_counts_and_the_median_of_turns():
    found = check(((10.0, 8.0), (30.0, 32.0)), ((10.0, 18.0), (40.0, 39.0)), ((11.0, 10.0), (33.0, 66.0)))
    (row,) = found.rows
    assert (row.alone_ms, row.predicted_ms, row.measured_ms) == pytest.approx((33.0, 33.0, 40.0))
    assert row.ratio == pytest.approx(1.0) and row.turns == 3, "32 / 32, 40 / 40 and 33 / 66"
    assert row.spread == pytest.approx(0.5) and row.holds


def test_a_row_for_each_and_how_much_faster():
    found = check(((10.0,), (40.0,)), others=0.4, notes=["a note"])
    found.add("eager", 2, 1, [CheckedTurn((step(30.0, "eager"),), (60.0,))])
    found.add("dcir", 4, 1, [CheckedTurn((step(10.0),), (34.0,))])
    text = found.to_text()
    lines = [line.split() for line in text.splitlines()]
    assert ["2", "1", "dcir", "32.000", "32.000", "40.000", "0.80", "0.00", "1", "not", "within", "15%"] in lines
    # Three messages more: 6 ms, of which 2 are behind the backward.
    assert ["4", "1", "dcir", "32.000", "34.000", "34.000", "1.00", "0.00", "1"] in lines
    assert "eager's step over dcir's on 2: 1.50" in text and "on 4" not in text
    assert "40% of the processors' time" in text and "note: a note" in text


def test_json_has_the_same():
    data = json.loads(json.dumps(check(((10.0,), (40.0,)), algorithm="tree", cap=1).to_json()))
    # Up and down a tree: 8 ms, of which 4 are behind the backward.
    assert data["rows"][0]["ratio"] == pytest.approx(36 / 40) and data["rows"][0]["holds"] is True
    assert data["link"]["name"] == "local" and (data["algorithm"], data["cap"]) == ("tree", 1)
