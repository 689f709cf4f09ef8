"""A stream of sizes is run whole by each way in turn: percentiles of its calls, totals, and what the first pass took."""

import json
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from dcir.cli.main import main
from dcir.driver.api import compile_file
from dcir.driver.measure import api, stream
from dcir.errors import InvalidInput, OptionError

SIZES = "batch=2 s=3\nbatch=5 s=40\nbatch=2 s=3\nbatch=1 s=9\n"

SOURCE = """
import torch
from torch import nn

def make(batch, s):
    return nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)).eval(), (torch.randn(batch, s, 5),)
"""


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def model(tmp_path):
    """softmax(x @ w - mean) over any batch and length."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 3), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["c"], axes=[0, 1]),
        helper.make_node("Sub", ["m", "c"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"], axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "s", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def sizes(tmp_path):
    path = tmp_path / "sizes.txt"
    path.write_text(SIZES)
    return path


def test_ways_to_run_a_stream(model, sizes):
    installed = [name for name, module in (("ort", "onnxruntime"), ("ov", "openvino")) if find_spec(module)]
    done = api.bench_stream(model, sizes, ["eager", "ort", "ov"], 0.01, 1, percentiles=[90])
    assert [r.name for r in done.rows] == ["dcir", "eager", *installed], done.notes
    assert (done.calls, done.distinct, done.reference) == (4, 3, "float64")
    for row in done.rows:
        assert row.error < 1e-5 and row.passes >= 1 and list(row.percentiles) == ["50", "95", "99", "90"]
        assert 0 < row.percentiles["50"] <= row.percentiles["95"] <= row.percentiles["99"]
        assert row.total > row.percentiles["50"]
    text = done.to_text().splitlines()
    assert "4 calls of 3 sizes" in text[0] and text[1].split()[:4] == ["p50", "ms", "p95", "ms"]
    assert len([line for line in text[2:] if line.split()[0] in ("dcir", "eager", *installed)]) == 2 + len(installed)


def test_the_verb(model, sizes, tmp_path):
    compiled = tmp_path / "m.dcir"
    words = ["--bound", "batch=1..8", "--bound", "s=2..64", "-o", str(compiled), "--plain"]
    assert CliRunner().invoke(main, ["compile", str(model), *words]).exit_code == 0
    done = CliRunner().invoke(main, ["bench", str(compiled), "--sizes", str(sizes), "--seconds", "0.01", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [r["name"] for r in found["rows"]] == ["dcir"] and found["calls"] == 4
    assert "compares" in found["notes"][0]
    # Without a list the file is measured at sizes of its own.
    done = CliRunner().invoke(main, ["bench", str(compiled), "--seconds", "0.01", "--json"])
    assert done.exit_code == 0 and "measured at batch=8, s=64" in json.loads(done.stdout)["notes"][0], done.output


def test_a_function_makes_inputs_of_each_size(sizes, tmp_path):
    (tmp_path / "nets.py").write_text(SOURCE)
    done = api.bench_stream(f"{tmp_path / 'nets.py'}:make", sizes, ["eager", "ort"], 0.01, 1)
    assert [r.name for r in done.rows] == ["dcir", "eager"] and "ONNX files only" in done.notes[0]
    assert all(r.error < 1e-5 for r in done.rows)


def test_what_is_refused(model, sizes, tmp_path):
    (tmp_path / "nets.py").write_text(SOURCE)
    (tmp_path / "other.txt").write_text("c=4")
    fixed = tmp_path / "m.dcir"
    compile_file(model, fixed, shapes={"x": [2, 3, 5]})
    moving = tmp_path / "n.dcir"
    compile_file(model, moving, bounds={"batch": (2, 4), "s": (2, 30)})
    for source, listed, error, words in (
        (fixed, sizes, InvalidInput, "are fixed"),
        (moving, tmp_path / "other.txt", InvalidInput, "named batch, s"),
        (moving, sizes, InvalidInput, "outside its bounds"),
        (model, tmp_path / "other.txt", InvalidInput, "no dimension of an input is named 'c'|leaves sizes"),
        (f"{tmp_path / 'nets.py'}:make", tmp_path / "other.txt", OptionError, "takes no argument 'c'"),
        (tmp_path / "none.onnx", sizes, InvalidInput, "no file"),
    ):
        with pytest.raises(error, match=words):
            stream.bench_stream(source, listed, [], 0.01, 1)
    with pytest.raises(OptionError, match="nothing known"):
        stream.bench_stream(model, sizes, ["other"], 0.01, 1)


def test_a_rival_that_fails_in_its_first_call_is_a_note(sizes, tmp_path, monkeypatch):
    def cannot(call):
        raise RuntimeError("no compiler\nand a long story")

    rival = stream._rival
    monkeypatch.setattr(stream, "_rival", lambda name, *rest: cannot if name == "inductor" else rival(name, *rest))
    (tmp_path / "nets.py").write_text(SOURCE)
    done = api.bench_stream(f"{tmp_path}/nets.py:make", sizes, ["inductor", "eager"], 0.01, 1)
    assert [row.name for row in done.rows] == ["dcir", "eager"]
    assert done.notes == ["inductor is not measured: RuntimeError: no compiler"]
