"""A captured model says what a compilation of it says, with code and without, in inference and in training."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import dcir
from dcir.driver.view.capture import Captured, capture
from dcir.driver.view.files import of_source
from dcir.errors import OptionError
from dcir.options import Options
from dcir.report.session_checks import Wrong
from dcir.report.session_file import check_session
from tests.view import models

SOURCE = "tests/view/models.py"


def captured(name: str, mode: str = "infer", **settings: Any) -> Captured:
    torch._dynamo.reset()
    return capture(of_source(f"{SOURCE}:{name}", mode=mode), Options.make(remarks=True), **settings)


@pytest.fixture(scope="module")
def inference() -> dict[str, Any]:
    return captured("block").record()


@pytest.fixture(scope="module")
def training() -> dict[str, Any]:
    return captured("block", "train").record()


def test_a_record_is_plain_and_as_its_format_says(inference: dict[str, Any], training: dict[str, Any]) -> None:
    for record in (inference, training):
        check_session(json.loads(json.dumps(record, allow_nan=False)))
    assert [g["kind"] for g in inference["graphs"]] == ["inference"]
    assert [g["kind"] for g in training["graphs"]] == ["forward", "backward"]


def test_figures_are_those_of_a_compilation(inference: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model, inputs = models.block()
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(*inputs)
    (real,) = fast.dcir.session.graphs
    (graph,) = inference["graphs"]
    figures = graph["figures"]
    assert figures["key"] == real.key != ""
    assert (figures["kernels"], figures["calls"]) == (real.kernels, real.calls)
    assert (figures["bytes_after"], figures["arena_bytes"]) == (real.bytes_moved, real.arena_bytes)
    assert [k["what"] for k in graph["kernels"].values()] == [what for what, _, _ in real.schedules]


def test_every_step_runs_a_kernel_whose_code_is_there(inference: dict[str, Any]) -> None:
    (graph,) = inference["graphs"]
    assert graph["steps"]
    for v, name in graph["steps"]:
        kernel = graph["kernels"][name]
        assert v in kernel["ops"] and graph["ops"][v]["kernel"] == name
        assert name in inference["texts"][kernel["text"]]
    assert "d_run" in inference["texts"][graph["driver"]] or inference["texts"][graph["driver"]]


def test_operators_name_all_lines_of_the_model_that_they_come_from(inference: dict[str, Any]) -> None:
    (graph,) = inference["graphs"]
    lines = graph["lines"]
    files = {line["file"] for line in lines}
    assert files == {"models.py"}  # and no folder of it
    fused = next(op for v, op in graph["ops"].items() if v in graph["execution"] and len(op["came_from"]) > 2)
    assert {lines[n]["module"] for n in fused["origins"]} >= {"first"} or len(fused["origins"]) > 1
    assert any("torch.relu" in line["code"] for line in lines)


def test_values_lie_where_the_plan_says_and_never_over_each_other(training: dict[str, Any]) -> None:
    for graph in training["graphs"]:
        rows = [r for r in graph["memory"]["rectangles"] if r[1] == "arena"]
        for n, (_, _, at, size, first, last) in enumerate(rows):
            assert at + size <= graph["memory"]["blocks"]["arena"]
            for _, _, other, other_size, begin, end in rows[:n]:
                apart = at + size <= other or other + other_size <= at
                assert apart or last <= begin or end <= first, "both at once"
        peak = graph["memory"]["peak"]
        if rows:
            there = [r for r in rows if r[4] <= peak["at"] <= r[5]]
            assert peak["bytes"] == sum(r[3] for r in there) <= graph["memory"]["blocks"]["arena"]


def test_a_forward_says_what_it_keeps_and_who_reads_it(training: dict[str, Any]) -> None:
    forward, backward = training["graphs"]
    assert forward["together"] == backward["together"] is not None
    assert sum(row["bytes"] for row in forward["saved"]) == forward["figures"]["saved_bytes"]
    assert any("read by " in row["why"] for row in forward["saved"])
    assert backward["saved"] is None


def test_remarks_and_passes_are_there(inference: dict[str, Any]) -> None:
    (graph,) = inference["graphs"]
    assert {r["kind"] for r in graph["remarks"]} >= {"passed"}
    assert any(r["site"].startswith("fuse-epilogues@") for r in graph["remarks"])
    for p in graph["passes"]:
        assert (p["snapshot"] is not None) == (p["diff"] is not None) == (p["changed"] > 0)


def test_measured_steps_have_times_and_bounds() -> None:
    found = captured("mlp", seconds=0.05)
    record = found.record()
    (graph,) = record["graphs"]
    for v, _ in graph["steps"]:
        op = graph["ops"][v]
        assert op["ms"] > 0 and op["least_ms"] <= op["ms"] * 1.001 and op["bound"]
    assert record["profile"]["wall_ms"] > 0 and record["roofline"]["runs"][0]["kernels"]
    check_session(record)


def test_measured_training_has_times_of_both_graphs() -> None:
    record = captured("mlp", "train", seconds=0.05).record()
    for graph in record["graphs"]:
        assert all(graph["ops"][v]["ms"] > 0 for v, _ in graph["steps"])


def test_without_seconds_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcir.codegen.cpp.backend import CppBackend

    def build(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a compiler was asked")

    monkeypatch.setattr(CppBackend, "build", build)
    assert captured("mlp").record()["graphs"]


def test_weights_and_buffers_of_the_user_stay_as_they_are() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    fast = dcir.optimize(model)
    fast.dcir.report(torch.randn(4, 8), loss=lambda out: out.square().mean())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError):
        of_source(f"{SOURCE}:mlp", mode="dream")


@pytest.mark.parametrize("path", ["ops", "values", "snapshots", "kernels", "memory"])
def test_a_record_without_a_part_is_refused(inference: dict[str, Any], path: str) -> None:
    broken = json.loads(json.dumps(inference))
    del broken["graphs"][0][path]
    with pytest.raises(Wrong, match=path):
        check_session(broken)
