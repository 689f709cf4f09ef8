"""Training of two processes is measured beside what is predicted of it, and what fails there is told here."""

import json

import pytest
import torch
from click.testing import CliRunner

from dcir.cli.main import main
from dcir.cost.links import Link
from dcir.driver.measure import api
from dcir.driver.measure import scaling_check as checking
from dcir.errors import InvalidInput, OptionError
from tests.driver.measure.test_scaling import NETWORK

MORE = """
class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        raise ValueError("not today")

def fails():
    return Fails(), (torch.randn(2, 4),)
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(checking, "link_of", lambda name: Link(name, 1e9, 50e-6))
    path = tmp_path / "checked.py"
    path.write_text(NETWORK + MORE)
    return str(path)


@pytest.mark.in_turn(3)
def test_two_processes_train_in_turns_with_steps_alone(source):
    words = ["scaling", f"{source}:make", "--check", "2", "--seconds", "0.2", "--bucket", "0.2", "--plain"]
    done = CliRunner().invoke(main, [*words, "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    rows = data["rows"]
    assert [(r["name"], r["nodes"], r["threads"]) for r in rows] == [("dcir", 2, 1), ("eager", 2, 1)]
    for row in rows:
        assert row["turns"] == 5 and row["spread"] >= 0
        assert row["predicted_ms"] >= row["alone_ms"] > 0 and row["measured_ms"] > 0
        assert 0.01 < row["ratio"] < 100
    assert data["link"]["name"] == "local"


@pytest.mark.in_turn(3)
def test_a_process_that_fails_is_told(source):
    with pytest.raises(InvalidInput, match="not today"):
        api.scaling_check_file(f"{source}:fails", nodes=[2], seconds=0.1, threads=1, eager=False)


def test_what_cannot_be_checked(source):
    for nodes in ([1], [], [2, 65]):
        with pytest.raises(OptionError, match="processes of this machine"):
            api.scaling_check_file(f"{source}:make", nodes=nodes)
    with pytest.raises(InvalidInput, match="no parameters"):
        api.scaling_check_file(f"{source}:nothing", nodes=[2])


def test_processes_that_share_cores_are_noted(source, monkeypatch):
    monkeypatch.setattr(checking, "usable_threads", lambda: 2)
    asked = []

    def measured(training, nodes, *rest, **named):
        asked.append((nodes, training.threads))
        return [[{"dcir": (checking.TrainingStep("dcir", 1.0, 2.0), 3.0)}] for _ in range(nodes)]

    monkeypatch.setattr(checking, "_measured", measured)
    found = api.scaling_check_file(f"{source}:make", nodes=[2, 4], bucket_mib=0.5)
    assert asked == [(2, 1), (4, 1)], "as many threads as leave each its own cores, and one at least"
    assert [r.ratio for r in found.rows] == pytest.approx([1.0, 1.0], rel=0.01) and found.cap == 1 << 19
    assert [n.split(":")[0] for n in found.all_notes() if "share" in n] == ["4 processes of 1 thread share 2 cores"]
