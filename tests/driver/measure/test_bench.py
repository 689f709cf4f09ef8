"""Models of the user's are measured next to their rivals, on the same inputs, and every row has its error."""

import json
import sys
import time
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dcir.cli.main import main
from dcir.driver.measure import baselines, bench
from dcir.driver.measure.models import BenchModel, as_onnx, open_model
from dcir.errors import InvalidInput, OptionError

SOURCE = """
from dataclasses import dataclass
import torch
from torch import nn
from helper_beside import WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3)
    def forward(self, x, y):
        return self.linear(x).softmax(-1) + y, x.argmax(1)

def make(batch=4):
    return Net().eval(), (torch.randn(batch, WIDTH), torch.randn(3))

def plain():
    return lambda x: torch.tanh(x) * 2, [torch.randn(5, 7)]

def alone():
    return Net()

def needs(batch):
    return plain()

def wide(batch, width):
    return plain()

def positional(batch=4, /):
    return plain()

def named(**sizes):
    return torch.tanh, [torch.randn(sizes["batch"], 7)]

@dataclass
class Box:
    x: torch.Tensor
    word: str

def nothing():
    return (lambda x: (x * 2, None)[1]), [torch.randn(5, 7)]

def number():
    return (lambda x: (x * 2, 3, 0.5)), [torch.randn(5, 7)]

def text():
    return (lambda x: (x * 2, "text")), [torch.randn(5, 7)]

def box():
    return (lambda x: Box(x * 2, "a")), [torch.randn(5, 7)]
"""


@dataclass
class Box:
    x: torch.Tensor
    word: str


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def source(tmp_path):
    (tmp_path / "helper_beside.py").write_text("WIDTH = 9\n")
    (tmp_path / "nets.py").write_text(SOURCE)
    return f"{tmp_path / 'nets.py'}:"


def test_a_function_of_a_file_gives_the_model(source):
    model = open_model(source + "make")
    assert model.module.linear.weight.shape == (3, 9) and model.inputs[0].shape == (4, 9) and model.path is None
    assert open_model(source + "make", batch=6).inputs[0].shape == (6, 9)
    again = open_model(source + "make")
    assert torch.equal(again.module.linear.weight, model.module.linear.weight)
    assert torch.equal(open_model(source + "plain").inputs[0], open_model(source + "plain").inputs[0])


def test_what_is_no_model_is_refused(source, tmp_path):
    with pytest.raises(InvalidInput, match="no function 'missing'"):
        open_model(source + "missing")
    with pytest.raises(InvalidInput, match="must return the model and a tuple of inputs"):
        open_model(source + "alone")
    with pytest.raises(InvalidInput, match="needs the name of a function"):
        open_model(source[:-1])
    with pytest.raises(InvalidInput, match="no file"):
        open_model(tmp_path / "none.onnx")
    with pytest.raises(InvalidInput, match="no file"):
        open_model(f"{tmp_path}/none.py:make")
    with pytest.raises(OptionError, match="takes no argument 'batch'"):
        open_model(source + "plain", batch=2)
    with pytest.raises(InvalidInput, match="needs wants batch") as caught:
        open_model(source + "needs")
    assert caught.value.hint == "--batch N"
    with pytest.raises(InvalidInput, match="wide wants width"):
        open_model(source + "wide", batch=2)
    with pytest.raises(OptionError, match="takes no argument 'batch'"):
        open_model(source + "positional", batch=2)
    assert open_model(source + "named", batch=3).inputs[0].shape == (3, 7)
    with pytest.raises(OptionError, match="--shape"):
        open_model(source + "make", shapes={"x": [1]})


def test_all_ways_give_the_same_results(source, tmp_path):
    model = open_model(source + "make")
    with torch.no_grad():
        want = [t.numpy() for t in model.module(*model.inputs)]
        runs, notes = baselines.baselines(model, baselines.BASELINES, 1, tmp_path)
        absent = {name for name in baselines.PACKAGES if any(n.startswith(name) for n in notes)}
        assert set(runs) == set(baselines.BASELINES) - absent and len(notes) == len(absent)
        for run in runs.values():
            for got, expected in zip(run(), want, strict=True):
                np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


def test_an_absent_rival_is_a_note(source, tmp_path, monkeypatch):
    def no(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(baselines.importlib, "import_module", no)
    runs, notes = baselines.baselines(open_model(source + "make"), ["eager", "ort", "ov"], 1, tmp_path)
    assert list(runs) == ["eager"]
    assert [n.split()[-1] for n in notes] == ["onnxruntime", "openvino"]


def test_what_writes_a_model_for_rivals_is_named(tmp_path, monkeypatch):
    def absent(model, threads, folder):
        raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")

    monkeypatch.setitem(baselines._START, "ort", absent)
    _, notes = baselines.baselines(BenchModel("m", lambda x: x + 1, (torch.ones(2),)), ["ort"], 1, tmp_path)
    assert notes == [
        "ort is not measured: onnxscript, which PyTorch writes the model with, is not installed; pip install onnxscript"
    ]


def test_measuring_is_told_between_turns():
    told = []
    bench.measure({"dcir": lambda: [torch.ones(1)]}, 0.6, progress=lambda *step: told.append(step))
    assert told[0] == ("measuring", 0, 1)
    assert {step[::2] for step in told} == {("measuring", 1)}


def test_a_rival_that_cannot_is_a_note(tmp_path, monkeypatch):
    def cannot(model, threads, folder):
        raise ValueError("no such operator\nand a long story")

    monkeypatch.setitem(baselines._START, "ort", cannot)
    model = BenchModel("m", lambda x: x + 1, (torch.ones(2),))
    runs, notes = baselines.baselines(model, ["ort"], 1, tmp_path)
    assert not runs and notes == ["ort is not measured: ValueError: no such operator"]


def test_errors_are_against_float64(source):
    done = bench.bench_file(source + "make", ["eager"], 0.05, 1, percentiles=(50, 90.5))
    assert done.reference == "float64" and done.threads == 1
    assert [r.name for r in done.rows] == ["dcir", "eager"]
    ours, eager = done.rows
    assert 0 < ours.error < 1e-6 and 0 < eager.error < 1e-6
    assert ours.percentiles["50"] == ours.median and ours.least <= ours.median <= ours.p95
    assert eager.speed_up == pytest.approx(eager.median / ours.median)
    assert json.loads(json.dumps(done.to_json()))["rows"][1]["name"] == "eager"
    assert "p90.5 ms" in done.to_text() and "error against float64" in done.to_text()
    assert bench.bench_file(source + "plain", [], 0.02, 1).reference == "eager"


def test_rows_are_compared_within_one_run():
    order = []

    def run(name, seconds):
        def call():
            order.append(name)
            time.sleep(seconds)
            return [np.ones(3)]

        return call

    rows = bench.measure({"dcir": run("a", 0.002), "other": run("b", 0.008)}, 0.1, [np.array([1.0, 1.0, 2.0])])
    assert 3 < rows[1].speed_up < 5 and rows[0].speed_up == 1
    assert rows[0].error == rows[1].error == 0.5
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert len(turns) >= 8 and rows[0].calls >= 5 and rows[1].calls >= 5


def test_relative_error():
    assert bench.relative_error([torch.tensor([1.0, 4.5])], [torch.tensor([1.0, 4.0])]) == 0.125
    assert bench.relative_error([np.array([3])], [np.array([3])]) == 0
    assert bench.relative_error([torch.zeros(2) + 1], [torch.zeros(2)]) == 1
    assert bench.relative_error([torch.empty(0)], [torch.empty(0)]) == 0
    assert bench.relative_error([torch.tensor([1 + 5j])], [torch.tensor([1 + 0j])]) == 5
    assert bench.relative_error([torch.tensor([inf, -inf, nan, 1.5])], [torch.tensor([inf, -inf, nan, 1.0])]) == 0.5


@pytest.mark.parametrize(
    "ours, exact",
    [
        ([nan, 1.0], [2.0, 1.0]), ([nan, nan], [2.0, 1.0]), ([5.0, 1.0], [inf, 1.0]), ([5.0, 1.0], [nan, 1.0]), ([inf], [-inf]),
        ([1.0], [1.0, 1.0]),
    ],
)  # fmt: skip
def test_the_error_is_infinite_where_other_places_are_finite(ours, exact):
    assert bench.relative_error([torch.tensor(ours)], [torch.tensor(exact)]) == inf
    assert bench.relative_error([torch.tensor(ours)], [np.array(exact)]) == inf


def test_results_that_are_no_tensors_are_not_compared(source):
    for name in ("nothing", "number", "text", "box"):
        done = bench.bench_file(source + name, ["eager"], 0.02, 1)
        assert all(row.error is not None and row.error < 1e-6 for row in done.rows), name
    one, two = (bench.relative_error([Box(torch.ones(2), "a")], [Box(torch.ones(2) * by, "b")]) for by in (1, 2))
    assert (one, two) == (0, 0.5)


def test_onnx_files_are_made_once(source, tmp_path):
    model = open_model(source + "make")
    path, names = as_onnx(model, tmp_path)
    stamp = path.stat().st_mtime_ns
    assert as_onnx(model, tmp_path) == (path, names) and path.stat().st_mtime_ns == stamp
    assert len(names) == 2


def test_the_verbs(source):
    done = CliRunner().invoke(main, ["bench", source + "make", "--batch", "2", "--seconds", "0.02", "--json"])
    assert done.exit_code == 0, done.output
    assert [r["name"] for r in json.loads(done.stdout)["rows"]] == ["dcir", "eager"]
    done = CliRunner().invoke(main, ["profile", source + "make", "--seconds", "0.02", "--threads", "1"])
    assert done.exit_code == 0 and "product m4 n3 k9" in done.output, done.output
    assert CliRunner().invoke(main, ["profile", source + "none"]).exit_code == 2


def test_a_function_imports_what_lies_beside_its_file(tmp_path):
    """With its file and as it is called; afterwards the search path is as it was."""
    (tmp_path / "beside_a.py").write_text("SIZE = 3\n")
    (tmp_path / "beside_b.py").write_text("ROWS = 2\n")
    (tmp_path / "made.py").write_text(
        "import torch\nfrom beside_a import SIZE\n"
        "def linear():\n    from beside_b import ROWS\n    return torch.nn.Linear(SIZE, 1), (torch.ones(ROWS, SIZE),)\n"
    )
    before = list(sys.path)
    model = open_model(f"{tmp_path / 'made.py'}:linear")
    assert model.module(*model.inputs).shape == (2, 1) and sys.path == before


@pytest.mark.parametrize("name", ["mlp_row", "graph_network", "language_model"])
def test_untuned_networks_are_models(name):
    """The networks of the example that need neither other packages nor a gigabyte."""
    model = open_model(f"{Path(__file__).parents[3] / 'examples' / 'untuned.py'}:{name}")
    with torch.no_grad():
        assert model.module(*model.inputs).isfinite().all()
