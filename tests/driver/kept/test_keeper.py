"""A second process runs what the first one traced, without a trace, as long as everything that the trace depended on is the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0


def scaled(x):
    return x * 3.0


class Net(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, ids, mask):
        x = self.norm(self.tokens(ids))
        for layer in self.layers:
            x = x + scaled(F.gelu(layer(x))) * SCALE
        w = mask[..., None].float()
        return (x * w).sum(1) / w.sum(1).clamp(min=1)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return F.dropout(self.out(self.norm(x)), 0.25, self.training)
"""
SCRIPT = """
import copy, json, sys, warnings
import torch, dcir
import model
from torch._dynamo.utils import counters

what = json.loads(sys.argv[1])
torch.manual_seed(0)
net = getattr(model, what.get("net", "Net"))(**what.get("made", {}))
net = net.to(getattr(torch, what.get("dtype", "float32")))
net.train(what.get("train", False))
exec(what.get("before", ""))
own = copy.deepcopy(net)
fast = dcir.optimize(own, keep_traces=what.get("keep", True), **what.get("options", {}))
results, worst = [], 0.0


def call(f, n, seed):
    g = torch.Generator().manual_seed(seed)
    if what.get("net") == "Writing":
        torch.manual_seed(seed)
        return f(torch.randn(n, 16, generator=g))
    return f(torch.randint(0, 50, (2, n), generator=g), (torch.arange(n)[None] < torch.tensor([[n], [n // 2]])).long())


with torch.set_grad_enabled(net.training):
    for i, n in enumerate(what["lengths"]):
        torch.manual_seed(i)
        got = call(fast, n, i)
        torch.manual_seed(i)
        want = call(net, n, i)
        found, right = [got], [want]
        if net.training:
            for m, r in ((own, got), (net, want)):
                m.zero_grad()
                r.pow(2).mean().backward()
            found += [p.grad for p in own.parameters()] + list(own.buffers())
            right += [p.grad for p in net.parameters()] + list(net.buffers())
        for a, b in zip(found, right):
            worst = max(worst, float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-3)))
        results.append([float(t.double().sum()) for t in found])
print("RESULT " + json.dumps({
    "traced": counters["stats"].get("unique_graphs", 0), "results": results, "worst": worst,
    "graphs": [g.kind for g in fast.dcir.explain().graphs],
}))
"""


class Place:
    """A folder with a model in it, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(MODEL)

    def write(self, text: str) -> None:
        (self.folder / "model.py").write_text(text)

    def run(self, **what: Any) -> dict[str, Any]:
        """One process; it must agree with PyTorch."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps({"lengths": [7, 12, 9], **what})],
            capture_output=True, text=True, cwd=self.folder, check=False, timeout=300,
            env=_environment(self.folder),
        )  # fmt: skip
        rows = [row for row in done.stdout.splitlines() if row.startswith("RESULT ")]
        assert rows, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(rows[0].removeprefix("RESULT "))
        assert found["worst"] < 1e-4 if what.get("dtype", "float32") == "float32" else found["worst"] < 0.1, found
        return found


def _environment(folder: Path) -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[3])
    path = os.pathsep.join((root, str(folder), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "DCIR_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder in which one process has traced a model for two lengths, in inference."""
    place = Place(tmp_path_factory.mktemp("kept"))
    assert place.run()["traced"] == 2
    return place


def test_a_second_process_traces_nothing_and_gets_the_same_numbers(known: Place) -> None:
    again = known.run()
    assert again["traced"] == 0
    assert again["results"] == known.run(options={"prepare": "always"})["results"]


def test_other_lengths_are_served_by_the_program_for_all(known: Place) -> None:
    assert known.run(lengths=[31, 5, 18])["traced"] == 0


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "float64"},
        {"made": {"width": 32}},
        {"made": {"layers": 3}},
        {"train": True},
        {"options": {"level": 1}},
        {"options": {"dynamic": True}},
        {"before": "net.layers[0].register_forward_hook(lambda m, i, o: o * 2)"},
        {"before": "net.layers[0].bias.requires_grad_(False); net.layers[0].bias = None"},
        {"before": "model.SCALE = 5.0"},
        {"before": "model.scaled = lambda x: x * 4.0"},
        {"before": "model.F.gelu = torch.nn.functional.relu"},
        {
            "before": "torch.nn.Linear.forward = lambda self, x: F.linear(x, self.weight) if False else x @ self.weight.T"
        },
        {"before": "torch.set_num_threads(1)"},
    ],
    ids=lambda other: str(next(iter(other.values())))[:40],
)
def test_what_a_trace_depended_on_and_is_another_one_is_traced(known: Place, other: dict[str, Any]) -> None:
    assert known.run(lengths=[7], **other)["traced"] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [("x + scaled", "x - scaled"), ("x * 3.0", "x * 7.0"), ("F.gelu(", "F.silu("), ("SCALE = 2.0", "SCALE = 4.0")],
)
def test_code_that_was_edited_is_traced(tmp_path: Path, old: str, new: str) -> None:
    place = Place(tmp_path)
    assert place.run(lengths=[7])["traced"] == 1
    place.write(MODEL.replace(old, new))
    assert place.run(lengths=[7])["traced"] == 1
    place.write("# a comment moves the lines\n" + MODEL)
    assert place.run(lengths=[7])["traced"] == 0


def test_a_training_step_is_kept_with_its_backward(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run(train=True, lengths=[7, 12, 9, 7, 12])
    assert first["traced"] == 2
    again = place.run(train=True, lengths=[7, 12, 9, 7, 12])
    assert again["traced"] == 0
    assert again["results"] == first["results"]


def test_buffers_that_a_graph_writes_and_random_numbers_are_as_in_eager_mode(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run(net="Writing", train=True, lengths=[6, 6, 6])
    assert first["traced"] == 1
    again = place.run(net="Writing", train=True, lengths=[6, 6, 6])
    assert again["traced"] == 0
    assert again["results"] == first["results"]


def test_nothing_is_kept_or_used_unless_asked_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.run(lengths=[7], keep=False)["traced"] == 1
    assert not list((tmp_path / "cache").rglob("*.trace"))
    place.run(lengths=[7])
    assert place.run(lengths=[7], keep=False)["traced"] == 1


def test_a_file_that_was_written_to_is_not_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(lengths=[7])
    (file,) = (tmp_path / "cache").rglob("*.trace")
    file.write_bytes(file.read_bytes()[:-1] + b"x")  # its seal does not match any more
    assert place.run(lengths=[7])["traced"] == 1


def test_a_library_that_is_gone_is_made_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    first = place.run(lengths=[7])
    for library in (tmp_path / "cache").rglob("*.so"):
        library.unlink()
    again = place.run(lengths=[7])
    assert again["traced"] == 1
    assert again["results"] == first["results"]
