"""A plan is made of kernels that are measured here, for this machine or another one, and changes nothing of the model."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from dcir.cli.main import main
from dcir.cost.threads.planner import ALL, ONE
from dcir.cost.threads.thread_plan import ThreadPlan
from dcir.cost.threads.topology import Cores
from dcir.driver.measure import thread_plan as planning
from dcir.driver.measure.thread_plan import plan_threads
from dcir.errors import InvalidInput, OptionError
from dcir.report.plan_sweep import Way
from tests.cost.test_machine import MODEL

NETWORK = """
import torch
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.ways = nn.ModuleList(nn.Conv2d(16, 8 * n, 3, padding=1) for n in (1, 2, 3))
        self.norm = nn.BatchNorm2d(48)
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        x = self.stem(x).relu()
        return self.head(self.norm(torch.cat([way(x).relu() for way in self.ways], 1)).mean((2, 3)))

MADE = []

def make(batch=2):
    MADE.append(Branches())
    return MADE[-1].eval(), (torch.randn(batch, 3, 12, 12),)

def broken():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = torch.relu(self.first(x))
            torch._dynamo.graph_break()
            return self.last(y)
    return Broken().eval(), (torch.randn(2, 8),)

def nothing():
    return (lambda x: 3), (torch.randn(2),)

def numbers():
    return (lambda x: x.argmax()), (torch.randn(20),)
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    torch.manual_seed(0)
    torch._dynamo.reset()
    monkeypatch.setattr(planning, "rates", lambda: MODEL)
    monkeypatch.setattr(planning, "cores_here", lambda: Cores(2, 2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    (tmp_path / "net.py").write_text(NETWORK)
    yield str(tmp_path / "net.py")
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_plan_for_this_machine_is_measured(source):
    told = []
    found = plan_threads(f"{source}:make", seconds=0.05, progress=lambda *a: told.append(a[0]))
    (graph,) = found.graphs
    assert (graph.kind, found.cores.total, found.teams) == ("inference", 2, (1, 2))
    assert (graph.operators.heavy, graph.operators.depth, graph.operators.widest) == (5, 3, 3)
    assert len(graph.kernels) >= 4 and all(k.one_ms > 0 and k.threads in (1, 2) for k in graph.kernels)
    plan = graph.choice.plan
    assert all(plan.seconds <= s.seconds * (1 + 1e-9) for s in graph.choice.settings.values())
    rows = {row.setting: row for row in found.measured}
    assert set(rows) == {ALL, ONE, "2 calls at once"}
    assert all(row.call_ms >= row.least_ms > 0 for row in found.measured)
    assert rows[ONE].kernels_ms > 0 and rows["2 calls at once"].kernels_ms is None
    # Kernels of one thread in a row are what one thread was measured to take.
    assert sum(k.one_ms for k in graph.kernels) == pytest.approx(graph.choice.settings[ONE].seconds * 1e3)
    assert {"measuring kernels", "measuring"} <= set(told)


def test_a_backward_has_a_plan_of_its_own_and_the_model_stays(source):
    found = plan_threads(f"{source}:make", mode="train", seconds=0.02)
    assert [g.kind for g in found.graphs] == ["forward", "backward"]
    forward, backward = found.graphs
    assert backward.operators.heavy > forward.operators.heavy == 5
    assert {row.setting for row in found.measured} == {ALL, ONE}
    import sys

    (model,) = sys.modules["dcir_model_net"].MADE
    assert not model.training and model.norm.num_batches_tracked == 0 and model.head.weight.grad is None


def test_another_machine_is_planned_for_with_what_is_measured_here(source):
    found = plan_threads(f"{source}:make", cores=Cores(128, 64), seconds=0.02)
    assert found.cores.total == 128 and found.teams == (1, 2) and found.measured == []
    (graph,) = found.graphs
    settings = graph.choice.settings
    assert settings[ALL].team == 128 and graph.choice.plan.seconds <= min(s.seconds for s in settings.values()) * (
        1 + 1e-9
    )
    # Kernels this small do not scale that far.
    assert all(k.stops_at is not None for k in graph.kernels) and settings[ALL].seconds > graph.choice.plan.seconds
    assert "modelled" in found.to_text() and "1 and 2 threads" in found.to_text()
    assert ThreadPlan.from_json(json.loads(json.dumps(found.to_json()))["plan"]) == found.plan


def test_there_are_no_more_threads_than_cores(source):
    found = plan_threads(f"{source}:make", threads=64, seconds=0.02)
    assert found.cores.total == 2 and any("64 threads are more than" in n for n in found.all_notes())
    assert plan_threads(f"{source}:make", threads=1, seconds=0.02).teams == (1,)


def test_a_process_that_torch_has_one_thread_in_is_planned_for_one(source):
    torch.set_num_threads(1)  # as in a worker of a DataLoader
    found = plan_threads(f"{source}:make", seconds=0.02)
    assert found.cores.total == 1 and torch.get_num_threads() == 1 and {row.setting for row in found.measured} == {ALL}
    torch.set_num_threads(2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_graph_of_a_broken_call_is_planned(source):
    found = plan_threads(f"{source}:broken", seconds=0.02)
    assert [g.kind for g in found.graphs] == ["inference 1", "inference 2"]


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [("nothing", {}, InvalidInput), ("numbers", {"mode": "train"}, InvalidInput), ("make", {"mode": "serve"}, OptionError),
     ("make", {"threads": 0}, OptionError)],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(source, name, settings, error):
    with pytest.raises(error):
        plan_threads(f"{source}:{name}", seconds=0.01, **settings)


def test_the_command(source):
    done = CliRunner().invoke(main, ["plan", f"{source}:make", "--seconds", "0.02", "--plain", "--measure"])
    assert done.exit_code == 0, done.output
    assert "calls x threads" in done.output and "planned, one call at a time" in done.output
    assert "planned for 2 cores" in done.output and "heavy operators  5, depth 3" in done.output
    assert all(word in done.output for word in (ALL, ONE, "guideline", "TensorFlow's guide", "run_cpu"))
    done = CliRunner().invoke(main, ["plan", f"{source}:make", "--cores", "4x16", "--seconds", "0.02", "--json"])
    data = json.loads(done.output)
    assert data["cores"] == {"total": 64, "per_socket": 16} and data["predicted_ms"][ALL] > 0
    assert ThreadPlan.from_json(data["plan"]).cores == Cores(64, 16)


@pytest.mark.in_turn(2)
def test_every_way_to_share_the_cores_is_run(source):
    found = plan_threads(f"{source}:make", seconds=0.02, sweep=True)
    swept = found.sweep
    assert {row.way for row in swept.rows} == {Way(1, 1), Way(1, 2), Way(2, 1)}
    assert all(row.median_ms >= row.least_ms > 0 and row.predicted_ms > 0 for row in swept.rows)
    whole = found.graphs[0].planner
    assert swept.rows[0].predicted_ms == pytest.approx(whole.pools(1, 1).seconds * 1e3)
    assert swept.hinted in (Way(1, 2), Way(2, 1)) and swept.guideline == Way(2, 1), "the ways are 1.67 wide"
    assert len(swept.choices()) == 3 and "every way to share 2 cores" in found.to_text()
    assert json.loads(json.dumps(found.to_json()))["sweep"]["cores"] == 2


@pytest.mark.in_turn(4)
def test_a_sweep_of_training_has_one_call_at_a_time(source):
    found = plan_threads(f"{source}:make", mode="train", seconds=0.02, sweep=True)
    assert {row.way for row in found.sweep.rows} == {Way(1, 1), Way(1, 2)} and found.sweep.hinted is None


def test_only_this_machine_is_swept(source):
    with pytest.raises(OptionError, match="this machine"):
        plan_threads(f"{source}:make", cores=Cores(8, 8), sweep=True)


def test_teams_take_turns(source, monkeypatch):
    turns = []
    run = planning._Team.run
    monkeypatch.setattr(
        planning._Team, "run", lambda self, seconds: (turns.append(self.threads), run(self, seconds))[1]
    )
    plan_threads(f"{source}:make", seconds=0.02)
    assert turns == [1, 2] * planning._ROUNDS
