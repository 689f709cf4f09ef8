"""A training step is measured as it is: all gradients, in the order in which a compiled backward completes them, none of it changed."""

import json
import os

import pytest
import torch
from click.testing import CliRunner

from dcir.cache import Cache
from dcir.cli.main import main
from dcir.cost.links import Link
from dcir.driver.measure import api, local_link, scaling
from dcir.driver.measure.beside import beside, cores_of, pinned
from dcir.driver.measure.scaling import training_steps
from dcir.driver.measure.training_step import Training, mean_squares
from dcir.errors import InvalidInput, OptionError

NETWORK = """
import torch
from torch import nn

WIDTH = 192  # so that each weight is worth a part of its own

def make(batch=8):
    layers = [m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).train(), (torch.randn(batch, WIDTH),)

def cost(out):
    return out.sum()

def rows(out):
    return out.sum(1)

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        y = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return self.last(y), None

def broken():
    return Broken(), (torch.randn(8, WIDTH),)

def nothing():
    return nn.ReLU(), (torch.randn(2, 3),)

def frozen():
    return nn.Linear(3, 3).requires_grad_(False), (torch.randn(2, 3),)

def function():
    return torch.relu, (torch.randn(2, 3),)
"""


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(NETWORK)
    return str(path)


def test_gradients_are_complete_in_the_order_of_the_backward(source):
    dcir, eager = training_steps(Training(f"{source}:make", batch=16), seconds=0.05)
    assert (dcir.name, eager.name) == ("dcir", "eager")
    for step in (dcir, eager):
        assert [g.nbytes for g in step.gradients] == [n * 4 for _ in range(4) for n in (192 * 192, 192, 192, 192)]
        assert all(0 < g.ready_ms <= step.backward_ms and g.dtype == "float32" for g in step.gradients)
        assert all(g.in_ms > 0 and g.out_ms > 0 for g in step.gradients)
        weights = [g.ready_ms for g in step.gradients[::4]]
        assert weights == sorted(weights, reverse=True) and len(set(weights)) == 4
        # Running sums, and numbers of calls.
        assert sorted(step.buffers) == [4 * 8, 4 * 2 * 192 * 4]
        assert min(step.forward_ms, step.backward_ms, step.optimiser_ms) > 0
    assert dcir.parts > 1 and dcir.kernel_ms > 0 and eager.kernel_ms == 0
    # Several gradients end with one part.
    assert len({g.ready_ms for g in dcir.gradients}) <= dcir.parts < len(dcir.gradients)


def test_graphs_that_are_cut_and_parameters_without_a_gradient(source):
    dcir, eager = training_steps(Training(f"{source}:broken"), seconds=0.05)
    for step in (dcir, eager):
        assert len(step.gradients) == 4
        assert max(g.ready_ms for g in step.gradients[2:]) <= min(g.ready_ms for g in step.gradients[:2])


def test_the_losses_and_the_optimisers(source):
    (step,) = training_steps(Training(f"{source}:make", loss="cost", optimiser="7.5"), eager=False, seconds=0.01)
    assert step.optimiser_ms == 7.5
    (step,) = training_steps(Training(f"{source}:make", optimiser="adamw"), eager=False, seconds=0.01)
    assert step.optimiser_ms > 0
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    assert mean_squares([x, (x[:1], torch.ones(1), "text")]).item() == 5 + 1


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"optimiser": "lion"}, OptionError, "sgd, adam, adamw"),
        ({"optimiser": "-1"}, OptionError, "milliseconds"),
        ({"optimiser": "nan"}, OptionError, "milliseconds"),
        ({"loss": "price"}, InvalidInput, "no function 'price'"),
        ({"loss": "rows"}, InvalidInput, "no scalar"),
        ({"link": "string"}, OptionError, "10Gbit"),
    ],
)
def test_options_that_are_none(source, settings, error, words):
    with pytest.raises(error, match=words):
        api.scaling_file(f"{source}:make", nodes=[1], **{"link": "nvlink", **settings})


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "no parameters"), ("frozen", "no parameters"), ("function", "only a module has parameters")],
)
def test_what_cannot_be_trained(source, name, words):
    with pytest.raises(InvalidInput, match=words):
        api.scaling_file(f"{source}:{name}", nodes=[1], link="nvlink")


def test_the_verb_prints_a_table_or_json(source):
    words = [
        "scaling",
        f"{source}:make",
        "--nodes",
        "1..4",
        "--threads",
        "1",
        "--seconds",
        "0.01",
        "--plain",
        "--bucket",
        "0.2",
    ]
    done = CliRunner().invoke(main, [*words, "--no-eager", "--link", "1Gbit,1us", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert [p["nodes"] for p in data["predictions"]] == [1, 2, 4] and len(data["predictions"][1]["exchanges"]) == 3
    done = CliRunner().invoke(main, [*words, "--link", "100Gbit", "--algorithm", "tree"])
    assert done.exit_code == 0, done.output
    assert "eager step ms" in done.output and "100Gbit (12.5 GB/s" in done.output and "--beside 1" in done.output


def doubles(path):
    return {"count": lambda: path.write_text(path.read_text() + "x"), "fail": lambda: 1 / 0}


def test_others_repeat_a_step_meanwhile(tmp_path):
    path = tmp_path / "counted"
    path.write_text("")
    with beside(1, 1, doubles, path) as others:
        assert path.read_text() == ""
        with others.running("count"):
            while not path.read_text():
                pass
        count = len(path.read_text())
        with others.running("something else"):
            pass
        assert len(path.read_text()) == count
        with pytest.raises(InvalidInput, match="beside"), others.running("fail"):
            pass


def test_cores_are_shared_out():
    mine = os.sched_getaffinity(0)
    assert cores_of(0, 1, len(mine) + 1) is None
    assert set().union(*(cores_of(n, 1, len(mine)) for n in range(len(mine)))) == mine
    with pinned({min(mine)}):
        assert os.sched_getaffinity(0) == {min(mine)}
    assert os.sched_getaffinity(0) == mine


def test_the_local_link_is_measured_once(tmp_path, monkeypatch):
    # 20 us two messages, and 16 MiB more in 16 ms; 2 ms and 64 ms beside computing, of which 8 are lost to it.
    found = local_link.Exchanges(20e-6, 20e-6 + 16e-3, 2e-3, 2e-3 + 64e-3, 8e-3)
    link = local_link.fitted(found)
    assert (link.latency, link.bandwidth, link.work) == pytest.approx((10e-6, 2**20 * 1e3, 8e-3 / 2**24))
    assert link.computing == pytest.approx((2**18 * 1e3, 1e-3))
    cache, runs = Cache(tmp_path / "cache"), []

    def measured():
        runs.append(1)
        return found

    monkeypatch.setattr(local_link, "_measured", measured)
    first = local_link.local_link(cache=cache)
    assert first == link
    assert local_link.local_link(cache=cache) == first and runs == [1]
    assert local_link.local_link(again=True, cache=cache) == first and runs == [1, 1]


def test_two_processes_measure_it():
    found = local_link._measured()
    assert 0 < found.short < found.long and 0 < found.short_computing < found.long_computing and found.lost >= 0
    assert isinstance(local_link.fitted(found), Link)


def test_a_compiled_backward_has_the_parts_that_it_would_run_in(source):
    replicas = scaling.replicas_of(Training(f"{source}:make"), eager=False, progress=None)
    (replica,) = replicas.values()
    replica.warm_up()
    (graph,) = replica.watch.graphs
    assert graph.stops and max(graph.ready) == len(graph.stops)
