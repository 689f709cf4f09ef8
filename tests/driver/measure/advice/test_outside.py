"""Calls into torch and graph breaks are told with the most that could be gained, and cannot be applied."""

import pytest

from dcir.driver.measure.advice.outside import breaks, fallbacks
from dcir.report.advice_pieces import MODELLED
from tests.cost.test_machine import MODEL
from tests.driver.measure.advice.test_facts import facts_of, kernel


def test_a_fallback_could_run_at_its_roof():
    sort = kernel("torch aten.sort", ms=4.0, flops=0, moved=2000, calls=2)
    (piece,) = fallbacks(facts_of({(1, None, 4): 10.0}, kernels=(kernel(ms=5.0), sort)))
    floor = 2 * MODEL.floor_seconds(0, 1000, threads=1) * 1e3
    assert piece.gain == pytest.approx(10 / (10 - 4 + floor)) and piece.call is None and piece.basis == MODELLED
    assert piece.what.startswith("aten.sort") and "net.py:3" in piece.evidence
    assert fallbacks(facts_of({(1, None, 4): 10.0})) == []


@pytest.mark.parametrize(("mode", "graphs", "gain"), [("infer", 4, 10 / 7), ("train", 4, 10 / 8), ("infer", 1, None)])
def test_breaks_share_what_is_around(mode, graphs, gain):
    found = breaks(facts_of({(1, None, 4): 10.0}, around=4.0, graphs=["inference"] * graphs, mode=mode))
    assert [p.gain for p in found] == ([] if gain is None else [pytest.approx(gain)])
    assert all(p.call is None and "strict=True" in p.python for p in found)
