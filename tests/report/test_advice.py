"""Advice prints predicted beside measured, what it rests on, and the way from eager PyTorch to what it leads to."""

import json
from dataclasses import replace

import pytest

from dcir.report.advice import Advice, Led, Speed
from dcir.report.advice_pieces import BOTH, HERE, Call, Measured, Piece, worth_giving
from tests.report.test_roofline import roofline

NOW, EAGER = Speed(Call(2, 1), 50.0, 20.0), Speed(Call(2, 1, None), 20.0, 50.0)
BATCH = Piece(
    "batch", "8 items in a call instead of 1", 1.5, 5.3, HERE, "8 take 106 ms", "y = fast(x)", "dcir bench n.py:m", Call(2, 8)
)  # fmt: skip
HALF = Piece("precision", "bfloat16", 1.4, 0.7, BOTH, "products", "model.bfloat16()", "", Call(2, 1, half=True), False)
ALL = Piece("together", "all of it", 2.0, 8.0, BOTH, "both", "y = fast(x)", "", Call(1, 8, streams=2))


def measured(piece, gain):
    return piece.applied(Measured(piece.call, 50.0 * gain, 1.0, gain, 0.04, 5))


def advice(*pieces, together=None, applied=False, others=0.0):
    return Advice(roofline(), NOW, EAGER, pieces, together, applied, others)


def test_before_it_is_tried_the_way_is_a_prediction():
    found = advice(BATCH, HALF, together=ALL)
    assert found.led_to == Led(ALL.call, 100.0, measured=False) and found.headline == 5.0 and found.notes == []
    text = str(found)
    assert (
        "1.50 x         -" in text and "measured here: 8 take 106 ms" in text and "command: dcir bench n.py:m" in text
    )
    assert "bfloat16  (changes numbers)" in text and "all    2.00 x" in text
    last = text.splitlines()[-1]
    assert last.startswith("eager PyTorch, batch 1, 2 threads 20 items/s -> dcir as called 50 items/s -> as advised")
    assert last.endswith("(-O4, batch 8, 2 streams of 1 thread) 100 items/s (predicted): 5.00 x")


def test_what_was_tried_stands_beside_what_was_predicted():
    found = advice(measured(BATCH, 1.6), measured(HALF, 2.1), together=measured(ALL, 1.8), applied=True, others=0.4)
    assert [p.holds for p in found.pieces] == [True, False] and found.pieces[1].ratio == pytest.approx(1.5)
    assert found.led_to == Led(ALL.call, 90.0, measured=True) and found.headline == 4.5
    text = found.to_text(5)
    assert "1.50 x    1.60 x     4%       5.30 x" in text and "(predicted)" not in text
    assert "1 of 2 measured gains are within 30%" in text and "40% of the processors' time" in text
    assert (
        text.startswith("net.py:make, infer") and "advice for net.py:make, infer; now -O4, batch 1, 2 threads" in text
    )


def test_a_ratio_at_the_edge_holds():
    assert [measured(BATCH, 1.5 * r).holds for r in (0.69, 0.71, 1.29, 1.31)] == [False, True, True, False]
    assert BATCH.holds is None and BATCH.ratio is None


def test_nothing_to_change():
    found = advice()
    assert found.led_to == Led(NOW.call, 50.0, measured=True) and found.headline == 2.5
    assert "nothing to change" in str(found) and str(found).endswith("2.50 x")


def test_the_piece_that_is_all_of_it_is_told_once():
    lines = str(advice(BATCH, together=replace(BATCH, rule="together"))).splitlines()
    assert [line for line in lines if line.startswith("all")] == []


def test_json_has_the_same():
    found = advice(measured(BATCH, 1.6), HALF, together=ALL, applied=True)
    data = json.loads(json.dumps(found.to_json()))
    assert data["model"] == "net.py:make" and len(data["runs"]) == 1, "the roofline is there, too"
    rows = data["advice"]["pieces"]
    assert (rows[0]["gain"], rows[0]["measured"]["gain"], rows[0]["holds"]) == (1.5, 1.6, True)
    assert rows[1]["measured"] is None and rows[1]["exact"] is False and rows[1]["call"]["half"] is True
    advised = data["advice"]["advised"]
    assert (advised["items_per_second"], advised["measured"], advised["gain_over_eager"]) == (80.0, True, 4.0)
    assert advised["call"]["batch"] == 8


def test_what_was_tried_is_chosen_from_by_its_measurement():
    """All of it together may bring less than one piece, or than nothing; what changes numbers is not chosen."""
    slow, fast = measured(ALL, 0.5), measured(HALF, 9.0)
    assert advice(measured(BATCH, 1.6), fast, together=slow, applied=True).led_to == Led(
        BATCH.call, 80.0, measured=True
    )
    assert advice(measured(BATCH, 0.9), fast, together=slow, applied=True).led_to == Led(NOW.call, 50.0, measured=True)


def test_what_makes_a_step_fit_is_advised_whatever_it_costs():
    limit = Piece(
        "memory", "a limit", 0.8, 1.25, BOTH, "plans", "memory_limit=7", "", Call(2, 1, memory_limit=7), saves=3 * 10**6,
        needed=True,
    )  # fmt: skip
    assert worth_giving([BATCH, limit]) == [limit, BATCH]
    assert advice(limit, BATCH).led_to == Led(limit.call, 40.0, measured=False)
    found = advice(measured(limit, 0.9), measured(BATCH, 1.6), applied=True)
    assert found.led_to == Led(limit.call, 45.0, measured=True), "neither the batch nor the call of now"
    assert "a limit  (saves 3 MB)" in str(found) and "memory_limit=7" in str(limit.call)
    offered = replace(limit, needed=False)
    assert advice(measured(offered, 0.9), applied=True).led_to == Led(NOW.call, 50.0, measured=True)


def test_small_gains_are_not_given():
    small = replace(BATCH, gain=1.029)
    assert worth_giving([HALF, small, BATCH]) == [BATCH, HALF]
