"""The sweep of ways as text and JSON, and which ways there are."""

import json

import pytest

from dcir.report.plan_sweep import PlanSweep, SweptWay, Way, ways_of

ROWS = (
    SweptWay(Way(1, 1), 8.0, 10.0, 9.0, 0.01, 9),
    SweptWay(Way(1, 2), 4.0, 5.0, 4.5, 0.02, 18),
    SweptWay(Way(2, 1), None, 4.0, 3.0, 0.04, 6),
)


def test_choices_stand_below_the_rows():
    found = PlanSweep(2, ROWS, Way(1, 2), Way(2, 1), Way(1, 2), others=0.3)
    text = found.to_text()
    assert "every way to share 2 cores" in text
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if " x " in line}
    assert lines["1 x 2"] == ["1", "x", "2", "4.0000", "5.0000", "4.5000", "2%", "18", "0.80"]
    assert lines["2 x 1"][3] == "-"
    assert "planned, one call at a time: 1 x 2, 5.0000 ms; the best is 1 x 2, 5.0000 ms: 1.00 of it\n" in text
    assert 'hint="throughput": 2 x 1, 4.0000 ms; the best is 2 x 1' in text
    assert "calls at once: 1 x 2, 5.0000 ms; the best is 2 x 1, 4.0000 ms: 0.80 of it, less than 0.95" in text
    assert "30% of the processors' time" in text


def test_json_has_the_same():
    data = json.loads(json.dumps(PlanSweep(2, ROWS, Way(1, 2), Way(2, 1)).to_json()))
    assert data["rows"][1]["way"] == {"streams": 1, "threads": 2} and data["exhaustive"]
    assert [(c["part"], c["holds"]) for c in data["choices"]] == [(1.0, True), (1.0, True)]


def test_every_way_that_has_cores_of_its_own():
    assert ways_of(1, at_once=True) == [Way(1, 1)]
    assert ways_of(2, at_once=True) == [Way(1, 1), Way(1, 2), Way(2, 1)]
    six = ways_of(6, at_once=True)
    assert len(six) == len(set(six)) == 6 + 3 + 2 + 1 + 1 + 1 and Way(2, 3) in six and Way(3, 2) in six
    assert ways_of(6, at_once=False) == [Way(1, t) for t in range(1, 7)]


@pytest.mark.parametrize("cores", [24, 64, 128])
def test_many_cores_have_fewer_ways_and_those_that_others_choose(cores):
    found = ways_of(cores, at_once=True, besides=[Way(3, cores // 3), Way(cores, 2)])
    assert len(found) < 60 and all(w.streams * w.threads <= cores for w in found)
    assert {Way(1, cores), Way(cores, 1), Way(2, cores // 2), Way(3, cores // 3)} <= set(found)
    assert not PlanSweep(cores, (), Way(1, 1)).exhaustive
