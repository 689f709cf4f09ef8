"""A limit of memory is given for the bytes that it saves, with the time that computing again is predicted to take."""

from dataclasses import replace

import pytest

from dcir.driver.measure.advice.facts import Kept, Memory, Update
from dcir.driver.measure.advice.memory import memory, over_roofs
from dcir.report.advice_pieces import BOTH, Call, worth_giving
from tests.cost.test_machine import MODEL
from tests.driver.measure.advice.test_facts import facts_of, kernel

KEPT = Kept(500_000_000, 480_000_000, (3, 200_000_000), (5, 400_000_000), 0.001)
ROOM = Memory(900_000_000, 100_000_000, 600_000_000, True, (KEPT,))


def facts(room=ROOM, **more):
    # 40 MB take 1 ms from memory, which is half of what the kernel was measured at.
    copy = kernel(ms=2.0, flops=0, moved=40_000_000, bound="memory")
    return facts_of(
        {(4, None, 4): 10.0}, kernels=(copy,), memory=room, **{"mode": "train", "update": Update("sgd", 1.0, 1)} | more
    )


def test_kernels_are_taken_to_be_as_far_from_their_roofs_as_the_measured_ones():
    assert over_roofs(facts()) == pytest.approx(2.0)
    (piece,) = memory(facts())
    assert piece.slower == pytest.approx(12 / 10) and piece.gain == pytest.approx(10 / 12)
    assert piece.call == Call(4, None, 4, memory_limit=500_000_000) and piece.basis == BOTH and piece.exact
    assert piece.saves == 420_000_000 and piece.needed
    assert piece.python == "fast = dcir.optimize(model, memory_limit=500_000_000)"
    assert "3 values (200 MB) are kept and 5 values (400 MB) computed again" in piece.evidence
    assert "600 MB are allowed" in piece.evidence and "least" not in piece.what


def test_kernels_that_were_disturbed_are_put_in_the_time_of_a_step():
    settled = facts()
    assert over_roofs(replace(settled, times={settled.now: 7.5})) == pytest.approx(1.5)


def test_calls_into_torch_and_kernels_at_their_roofs_lengthen_nothing():
    slow = kernel("torch aten.sort", ms=50.0, flops=0, moved=40_000_000)
    quick = kernel(ms=0.5, flops=0, moved=40_000_000)
    assert over_roofs(facts_of({(4, None, 4): 60.0}, kernels=(slow, quick))) == 1.0
    assert over_roofs(facts_of({(4, None, 4): 60.0}, kernels=(slow,))) == 1.0


def test_time_that_a_plan_is_predicted_to_spare_is_no_gain():
    (piece,) = memory(facts(replace(ROOM, kept=(replace(KEPT, seconds=-1.0),))))
    assert piece.gain == 1.0 and worth_giving([piece]) == [piece]


def test_what_still_does_not_fit_is_the_least_there_is():
    (piece,) = memory(facts(replace(ROOM, allowed=550_000_000)))
    assert piece.what.endswith("the least there is")


def test_nothing_where_all_fits_or_nothing_is_saved():
    assert memory(facts(None)) == [] and memory(facts(replace(ROOM, kept=()))) == []
    assert memory(facts(replace(ROOM, kept=(replace(KEPT, peak=ROOM.peak),)))) == []
    assert memory(facts(mode="infer", update=None)) == []


def test_unasked_it_is_offered_and_not_needed():
    (piece,) = memory(facts(replace(ROOM, asked=False)))
    assert piece.saves and not piece.needed and "half of the machine's memory" in piece.evidence
    assert MODEL.threads == 4
