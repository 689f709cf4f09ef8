"""What is predicted of a change is what its compilation says, to the byte; undoing it and its script give the same library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dcir
from dcir.driver.view.capture import capture
from dcir.driver.view.delta import Delta
from dcir.driver.view.files import of_source
from dcir.driver.view.subject import Call
from dcir.driver.view.workshop import Workshop
from dcir.errors import InvalidInput, OptionError
from dcir.options import Options

SOURCE = "tests/view/models.py"
ROOT = Path(__file__).parents[3]

CHANGES: list[dict[str, Any]] = [
    {"disable": ["fuse-epilogues"]},
    {"disable": ["assign-layouts", "fuse-producers"]},
    {"level": 1},
    {"level": 0},
    {"threads": 1},
]


def workshop(name: str, mode: str = "infer") -> Workshop:
    torch._dynamo.reset()
    return Workshop(
        capture(of_source(f"{SOURCE}:{name}", mode=mode), Options.make(remarks=True), sources=True), seconds=0.05
    )


def compiled(found: Workshop, delta: Delta) -> list[Any]:
    """Records of a real compilation with a change."""
    torch._dynamo.reset()
    captured = found._captured
    call: Call = captured.subject.call(delta.batch)
    options = delta.options(captured.options)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        session = dcir.driver.session.Session(options)
        with torch.set_grad_enabled(call.trains):
            call.run(captured.subject.compiled(call.model, session))
    finally:
        torch.set_num_threads(before)
    return session.graphs


@pytest.fixture(scope="module")
def inference() -> Workshop:
    return workshop("block")


@pytest.fixture(scope="module")
def training() -> Workshop:
    return workshop("block", "train")


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_is_predicted_is_what_is_compiled(
    mode: str, change: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    found: Workshop = request.getfixturevalue(mode)
    variant = found.predict(0, change)
    assert variant["error"] is None
    rows = variant["predicted"]["graphs"]
    real = compiled(found, Delta.from_json(change))
    assert [(r["kind"], r["bytes"], r["scratch"], r["saved"], r["kernels"], r["calls"]) for r in rows] == [
        (g.kind, g.bytes_moved, g.arena_bytes, g.saved_bytes, g.kernels, g.calls) for g in real
    ]
    assert [r["key"] for r in rows] == [g.key for g in real]


def test_a_change_that_fuses_less_moves_more(inference: Workshop) -> None:
    base, less = inference.variants[0], inference.predict(0, {"disable": ["fuse-epilogues", "fuse-producers"]})
    assert less["predicted"]["bytes"] > base["predicted"]["bytes"]
    assert less["parent"] == 0 and less["delta"]["disable"] == ["fuse-epilogues", "fuse-producers"]


def test_undoing_a_change_gives_the_library_that_was(inference: Workshop) -> None:
    keys = [[g["key"] for g in v["predicted"]["graphs"]] for v in (
        inference.variants[0], inference.predict(0, {"disable": ["fuse-epilogues"]}), inference.predict(1, {})
    )]  # fmt: skip
    assert keys[0] == keys[2] != keys[1]
    assert keys[0] == [g.key for g in compiled(inference, Delta())] != [""]


def test_a_place_that_is_switched_off_is_one_place(inference: Workshop) -> None:
    record = inference.session()
    site = next(
        r["site"]
        for r in record["graphs"][0]["remarks"]
        if r["site"].startswith("fuse-epilogues@") and "+" in r["site"]
    )
    off, all_off = (inference.predict(0, d)["predicted"] for d in ({"skip": [site]}, {"disable": ["fuse-epilogues"]}))
    assert off["graphs"][0]["key"] not in (
        all_off["graphs"][0]["key"],
        inference.variants[0]["predicted"]["graphs"][0]["key"],
    )
    assert off["graphs"][0]["key"] == compiled(inference, Delta(skip=(site,)))[0].key


def test_another_batch_is_traced_anew(inference: Workshop) -> None:
    found = inference.predict(0, {"batch": 3})
    assert found["predicted"]["graphs"][0]["bytes"] == compiled(inference, Delta(batch=3))[0].bytes_moved


@pytest.mark.parametrize(
    "change",
    [
        {"disable": ["fuse-everything"]},
        {"disable": "fuse-epilogues"},
        {"fields": {"fuse-epilogues": {"speed": 11}}},
        {"fields": {"split-reduction": []}},
        {"level": 7},
        {"level": True},
        {"threads": 0},
        {"threads": 10**9},
        {"batch": -1},
        {"skip": ["no place"]},
        {"path": "/etc/passwd"},
        [],
        None,
        {"disable": ["plan-arena"], "level": "4"},
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_a_variant_that_says_why(inference: Workshop, change: Any) -> None:
    variant = inference.predict(0, change)
    assert variant["predicted"] is None and variant["error"]["message"]
    with pytest.raises(InvalidInput):
        inference.measure(variant["id"])


@pytest.mark.parametrize("parent", [-1, 10**6, None, True, "0"])
def test_a_parent_that_there_is_not_is_refused(inference: Workshop, parent: Any) -> None:
    with pytest.raises(InvalidInput):
        inference.predict(parent, {})


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_variant_is_measured_next_to_the_session(mode: str, request: pytest.FixtureRequest) -> None:
    torch._dynamo.reset()
    found: Workshop = request.getfixturevalue(mode)
    variant = found.predict(0, {"disable": ["fuse-epilogues"]})
    measured = found.measure(variant["id"])["measured"]
    assert measured["ms"] > 0 < measured["base_ms"]
    assert measured["gain"] == pytest.approx(measured["base_ms"] / measured["ms"])
    assert measured["reference"] == "float64"
    assert 0 < measured["error"] < 1e-5 and 0 < measured["base_error"] < 1e-5


def test_what_is_only_looked_at_is_not_measured() -> None:
    found = workshop("mlp")
    found.measures = False
    with pytest.raises(OptionError):
        found.measure(0)


@pytest.mark.parametrize("change", [{}, {"disable": ["fuse-epilogues"]}, {"level": 2, "batch": 3}], ids=str)
def test_the_script_gives_the_same_library_in_another_process(change: dict[str, Any], tmp_path: Path) -> None:
    found = workshop("mlp")
    variant = found.predict(0, change)
    path = tmp_path / "script.py"
    path.write_text(variant["script"] + "print(*[g.key for g in fast.dcir.session.graphs])\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == [g["key"] for g in variant["predicted"]["graphs"]]


def test_every_export_is_there(inference: Workshop) -> None:
    for form in ("model-explorer", "sdfg", "json"):
        assert inference.export(form)
    assert inference.export("chrome-trace") is None  # nothing was measured
    with pytest.raises(OptionError):
        inference.export("../../etc/passwd")
