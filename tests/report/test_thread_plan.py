"""The report of a plan: settings beside what was measured of them, kernels that stop scaling, and what to know before believing it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dcir.cost.threads.curves import stops_at
from dcir.cost.threads.planner import ALL, CHOSEN, GUIDELINE, ONE, Planner
from dcir.cost.threads.topology import Cores
from dcir.cost.threads.width import width_of
from dcir.report.thread_plan import MeasuredSetting, PlannedGraph, PlannedKernel, ThreadPlanReport
from tests.cost.test_machine import MODEL
from tests.cost.threads.graphs import Costs, amdahl, branches

SIXTEEN = Cores(16, 16)


def planned(kind, serial, cores):
    graph = branches(2, (1, 1, 1))
    curves = [amdahl(1e-3, serial, 1024, 1024)] * len(graph)
    width = width_of(graph, [1.0] * len(graph), [True] * len(graph))
    choice = Planner(graph, curves, Costs(cores), kind=kind).chosen(width.average)
    kernels = tuple(
        PlannedKernel(
            f"kernel {n}",
            f"model.{n}",
            1.0,
            slot.threads,
            (slot.end - slot.start) * 1e3,
            stops_at(curves[n], cores.total),
        )
        for n, slot in enumerate(choice.plan.slots)
    )
    return PlannedGraph(kind, width, width, width, choice, kernels)


def report(*serial, cores=SIXTEEN, **settings):
    kinds = ("inference",) if len(serial) == 1 else ("forward", "backward")
    graphs = [planned(kind, part, cores) for kind, part in zip(kinds, serial, strict=True)]
    return ThreadPlanReport("net.py:make", "infer", cores, MODEL, (1, 2), graphs, **settings)


def row(text, name):
    return next(line for line in text.splitlines() if line.startswith(name))


def test_settings_stand_beside_what_was_measured():
    rows = [MeasuredSetting(ALL, 1.5, 2.5, 2.25), MeasuredSetting("2 calls at once", None, 0.75, 0.5)]
    found = report(0.0, measured=rows)
    text = found.to_text()
    assert row(text, ALL).split()[-3:] == ["1.5000", "2.5000", "2.2500"]
    assert row(text, ONE).split()[-3:] == ["-", "-", "-"]
    assert row(text, "2 calls at once").split() == ["2", "calls", "at", "once", "-", "0.7500", "0.5000"]
    assert row(text, CHOSEN).split()[5] == "1.00x"
    assert "2 x" in row(text, GUIDELINE)
    head, chosen, more = (row(text, n) for n in ("setting", CHOSEN, "2 calls at once"))
    assert len(head) == len(chosen) == len(more)


def test_graphs_have_columns_where_there_are_several():
    found = report(0.0, 1.0)
    text = found.to_text()
    head, chosen = row(text, "setting"), row(text, CHOSEN)
    assert "forward ms" in head and "backward ms" in head and len(head) == len(chosen)
    # "planned", its teams in three words, and a column for each graph.
    forward, backward, total = map(float, chosen.split()[4:7])
    assert forward + backward == pytest.approx(total, abs=2e-4)


def test_kernels_that_stop_scaling_are_listed_and_the_rest_counted():
    text = report(1.0).to_text(limit=3)
    assert "9 of 9 kernels, 100% of the time on one thread, stop scaling" in text
    assert text.count("kernel ") >= 3 and "6 more" in text and "model.0" in text
    assert "all kernels scale up to 16 threads" in report(0.0).to_text()


def test_what_to_know():
    notes = report(0.0).all_notes()
    assert any("not carried out" in n for n in notes) and any("1 and 2 threads" in n for n in notes)
    assert not any("guesses" in n for n in notes)
    guessed = report(0.0, cores=Cores(2, 2))
    guessed.rates = dataclasses.replace(MODEL, measured=False)
    assert any("guesses" in n for n in guessed.all_notes()) and not any("modelled" in n for n in guessed.all_notes())


def test_json():
    found = report(0.0, 1.0, notes=["a note"])
    data = json.loads(json.dumps(found.to_json()))
    assert data["predicted_ms"][CHOSEN] == pytest.approx(found.plan.seconds * 1e3)
    assert [g["kind"] for g in data["graphs"]] == ["forward", "backward"]
    assert data["graphs"][0]["width"]["average"] == found.graphs[0].width.average and "a note" in data["notes"]
    assert len(data["plan"]["graphs"][1]["slots"]) == 9
