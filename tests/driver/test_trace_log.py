"""With TORCH_TRACE each graph leaves its report and its network in torch's trace, under the number of its compilation."""

import json
import os
import subprocess
import sys

import pytest

from dcir.driver.trace_log import is_traced

PROGRAM = """
import torch
import dcir
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU())
fast = torch.compile(model, backend="dcir")
fast(torch.ones(2, 6)).sum().backward()
print(dcir.sessions()[-1].explain().to_json()["graphs"][0]["operators"])
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The artefacts in the file that a process writes, by name: (record, payload); and what it printed."""
    folder = tmp_path_factory.mktemp("trace")
    environment = {**os.environ, "TORCH_TRACE": str(folder), "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    (file,) = folder.glob("dedicated_log_torch_trace_*.log")
    found, payload = {}, []
    for line in file.read_text().splitlines():
        if line.startswith("\t"):
            payload.append(line[1:])
            continue
        start = line.find("{")
        record = json.loads(line[start:]) if start >= 0 else {}
        payload = []
        if "artifact" in record:
            found.setdefault(record["artifact"]["name"], []).append((record, payload))
    ours = {name: rows for name, rows in found.items() if name.startswith("dcir_")}
    return {name: (row[0], "\n".join(row[1])) for name, (row,) in ours.items()}, done.stdout


def test_every_graph_has_its_artefacts(traced):
    artefacts, _ = traced
    kinds = ("forward", "backward")
    assert set(artefacts) == {
        f"{what}_{k}" for what in ("dcir_report", "dcir_report_json", "dcir_network") for k in kinds
    }
    assert {record["artifact"]["encoding"] for record, _ in artefacts.values()} == {"string", "json"}
    # The backward's code is made in its first call, after torch's compilation has ended.
    numbers = {(record["frame_id"], record["frame_compile_id"]) for record, _ in artefacts.values()}
    assert len(numbers) == 1


def test_they_say_what_the_session_says(traced):
    artefacts, printed = traced
    report = json.loads(artefacts["dcir_report_json_forward"][1])
    assert [g["kind"] for g in report["graphs"]] == ["forward"] and report["graphs"][0]["operators"] == int(printed)
    text = artefacts["dcir_report_backward"][1]
    assert text.startswith("graph 0 (backward): ") and "kernels" in text
    network = artefacts["dcir_network_forward"][1]
    assert network.startswith("network of ") and "results" in network


def test_without_a_folder_there_is_no_trace():
    assert not is_traced()
