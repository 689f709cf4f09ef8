"""The doors: files and models, one or two, from Python and kept as they were compiled; pages that need nothing else."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dcir
from dcir.driver.view.files import view_files
from dcir.driver.view.view import View, check_name
from dcir.errors import InvalidInput, OptionError
from dcir.report.session_file import read_session
from tests.view.models import mlp

SOURCE = "tests/view/models.py:mlp"
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def view() -> View:
    torch._dynamo.reset()
    return view_files([SOURCE])


def embedded(page: str) -> Any:
    found = re.search(r'<script type="application/gzip" id="session">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_a_report_is_one_file_that_asks_for_nothing(view: View, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    view.save(path)
    page = path.read_text()
    assert embedded(page) == json.loads(json.dumps(view.to_json()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    assert "connect-src" not in policy[1]
    assert not re.search(r'<(?:script|link|img)[^>]* (?:src|href)="(?!data:)', page)
    assert path.stat().st_size < 1_500_000


def test_what_a_model_calls_itself_stays_data(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(EVIL.replace(".", ""), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (inner,) = self.children()
            return torch.relu(inner(x))

    torch._dynamo.reset()
    view = dcir.optimize(Named()).dcir.report(torch.randn(2, 4))
    path = tmp_path / "r.html"
    view.save(path)
    page = path.read_text()
    assert "<img src=x" not in page and "alert(2)</script>" not in page
    assert EVIL in json.dumps(embedded(page)).replace('\\"', '"') or "onerror" in json.dumps(embedded(page))


def test_a_session_is_saved_and_looked_at_again(view: View, tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    view.save(path)
    again = view_files([str(path)])
    assert again.sessions == [read_session(path)] and again.workshop is None
    again.save(tmp_path / "r.html")
    assert embedded((tmp_path / "r.html").read_text())["format"] == "dcir-session/1"
    with pytest.raises(OptionError):
        again.save(tmp_path / "g.json", "sdfg")


def test_two_are_compared(tmp_path: Path) -> None:
    torch._dynamo.reset()
    view_files([SOURCE], level=1).save(tmp_path / "old.dcirsession")
    torch._dynamo.reset()
    both = view_files([SOURCE, str(tmp_path / "old.dcirsession")])
    both.save(tmp_path / "r.html")
    found = embedded((tmp_path / "r.html").read_text())
    assert [s["options"]["level"] for s in found] == [4, 1]
    with pytest.raises(OptionError):
        both.save(tmp_path / "both.dcirsession")


@pytest.mark.parametrize("count", [0, 3])
def test_none_and_three_are_refused(count: int) -> None:
    with pytest.raises(OptionError):
        view_files([SOURCE] * count)


def test_a_file_that_is_no_session_and_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.dcirsession"
    path.write_text("{}")
    with pytest.raises(dcir.errors.DcirError):
        view_files([str(path)])
    with pytest.raises(InvalidInput):
        view_files([str(tmp_path / "nothing.onnx")])


@pytest.mark.parametrize("form", ["model-explorer", "sdfg", "json"])
def test_other_viewers_have_their_formats(form: str, view: View, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    view.save(path, form)
    data = json.loads(path.read_text())
    assert {"model-explorer": "graphs", "sdfg": "nodes", "json": "snapshots"}[form] in json.dumps(data)


def test_a_trace_needs_a_profile(view: View, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="chrome-trace"):
        view.save(tmp_path / "t.json", "chrome-trace")


@pytest.mark.parametrize("name", ["r.pdf", "r", "r.json"])
def test_a_name_that_says_nothing_is_refused(name: str) -> None:
    with pytest.raises(OptionError):
        check_name(name)


def test_a_module_is_looked_at_by_a_call_and_stays_as_it_is() -> None:
    torch._dynamo.reset()
    model, inputs = mlp()
    fast = dcir.optimize(model, level=2)
    found = fast.dcir.report(*inputs).to_json()
    assert found["model"]["name"] == "Sequential" and found["options"]["level"] == 2
    assert found["model"]["inputs"] == [{"name": "input 0", "dtype": "float32", "shape": [4, 32]}]
    assert not fast.dcir.session.graphs
    trained = fast.dcir.report(*inputs, loss=lambda out: out.sum()).to_json()
    assert [g["kind"] for g in trained["graphs"]] == ["forward", "backward"]


def test_what_was_kept_is_looked_at_without_a_call() -> None:
    torch._dynamo.reset()
    model, inputs = mlp()
    fast = dcir.optimize(model, history=True, remarks=True)
    with torch.no_grad():
        fast(*inputs)
    found = fast.dcir.report().to_json()
    (graph,) = found["graphs"]
    assert len(graph["snapshots"]) > 1 and graph["remarks"] and found["texts"]
    with pytest.raises(OptionError, match="kept"):
        dcir.optimize(model).dcir.report()


def test_a_program_for_all_sizes_is_looked_at_as_it_was_compiled() -> None:
    torch._dynamo.reset()
    model, (x,) = mlp()
    fast = dcir.optimize(model, dynamic=True, history=True)
    with torch.no_grad():
        fast(x)
        fast(torch.cat([x, x, x]))
    graphs = fast.dcir.report().to_json()["graphs"]
    assert graphs and all(g["snapshots"] and g["kernels"] for g in graphs)


def test_a_training_step_is_looked_at_as_it_was_compiled() -> None:
    torch._dynamo.reset()
    model, inputs = mlp()
    step = dcir.train_step(
        model.train(), nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1), history=True
    )  # fmt: skip
    with pytest.raises(InvalidInput):
        step.dcir.report(*inputs)
    step(*inputs, torch.zeros(4, 8))
    assert [g["kind"] for g in step.dcir.report().to_json()["graphs"]] == ["training step"]


def test_graphs_of_torch_compile_are_looked_at() -> None:
    torch._dynamo.reset()
    model, inputs = mlp()
    fast = torch.compile(model, backend="dcir", options={"history": True})
    with torch.no_grad():
        fast(*inputs)
    handle = dcir.sessions()[-1]
    assert handle.report().to_json()["graphs"][0]["snapshots"]


def test_it_is_served_beside_the_process() -> None:
    pytest.importorskip("uvicorn", reason="the packages of the extra view are not installed")
    torch._dynamo.reset()
    model, inputs = mlp()
    server = dcir.optimize(model).dcir.view(*inputs)
    try:
        assert server.address.startswith("http://127.0.0.1:")
    finally:
        server.close()


def test_parts_that_are_frozen_stay_so_in_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    model[1].eval()
    found = dcir.optimize(model).dcir.report(torch.randn(8, 4), loss=lambda y: y.square().mean()).to_json()
    assert not any(graph["updates"] for graph in found["graphs"])
