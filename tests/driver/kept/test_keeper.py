"""A second process runs what the first one traced, without a trace, as long as everything that the trace depended on is the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.in_turn(3)

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
import copy, importlib, json, sys
import torch, dcir
import model
from torch._dynamo.utils import counters

GELU, LINEAR, THREADS = torch.nn.functional.gelu, torch.nn.Linear.forward, torch.get_num_threads()


def tried(what):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = getattr(model, what.get("net", "Net"))(**what.get("made", {}))
    net = net.to(getattr(torch, what.get("dtype", "float32")))
    net.train(what.get("train", False))
    exec(what.get("before", ""), {"net": net, "model": model, "torch": torch})
    own = copy.deepcopy(net)
    fast = dcir.optimize(own, keep_traces=what.get("keep", True), **what.get("options", {}))
    results, worst = [], 0.0

    def call(f, n, seed):
        g = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        if what.get("net") == "Writing":
            return f(torch.randn(n, 16, generator=g))
        mask = (torch.arange(n)[None] < torch.tensor([[n], [n // 2]])).long()
        return f(torch.randint(0, 50, (2, n), generator=g), mask)

    with torch.set_grad_enabled(net.training):
        for i, n in enumerate(what.get("lengths", [7, 12, 9])):
            got, want = call(fast, n, i), call(net, n, i)
            found, right = [got], [want]
            if net.training:
                for m, r in ((own, got), (net, want)):
                    m.zero_grad()
                    r.pow(2).mean().backward()
                found += [p.grad for p in own.parameters()] + list(own.buffers())
                right += [p.grad for p in net.parameters()] + list(net.buffers())
            for a, b in zip(found, right):
                worst = max(worst, float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-3)))
            results.append([float(t.double().sum()) for t in found])
    graphs = [g.kind for g in fast.dcir.explain().graphs]
    # Whatever was put in the place of something goes again.
    torch.nn.functional.gelu, torch.nn.Linear.forward = GELU, LINEAR
    torch.set_num_threads(THREADS)
    importlib.reload(model)
    return {"traced": counters["stats"].get("unique_graphs", 0), "results": results, "worst": worst, "graphs": graphs}


print("RESULT " + json.dumps([tried(what) for what in json.loads(sys.argv[1])]))
"""


class Place:
    """A folder with a model in it, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(MODEL)

    def write(self, text: str) -> None:
        (self.folder / "model.py").write_text(text)

    def run(self, **what: Any) -> dict[str, Any]:
        """One process that tries one thing."""
        (found,) = self.runs([what])
        return found

    def runs(self, tries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One process; it must agree with PyTorch."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(tries)],
            capture_output=True, text=True, cwd=self.folder, check=False, timeout=300,
            env=_environment(self.folder),
        )  # fmt: skip
        rows = [row for row in done.stdout.splitlines() if row.startswith("RESULT ")]
        assert rows, done.stderr[-3000:]
        found: list[dict[str, Any]] = json.loads(rows[0].removeprefix("RESULT "))
        assert all(f["worst"] < 1e-4 for f in found), found
        return found


def _environment(folder: Path) -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[3])
    path = os.pathsep.join((root, str(folder), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "DCIR_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    """A folder in which one process has traced a model for two lengths, in inference, and what it found."""
    place = Place(tmp_path_factory.mktemp("kept"))
    first = place.run()
    assert first["traced"] == 2
    return place, first


def test_a_second_process_traces_nothing_and_gets_the_same_numbers(known: tuple[Place, dict[str, Any]]) -> None:
    place, first = known
    again, others = place.runs([{}, {"lengths": [31, 5, 18]}])
    assert (again["traced"], again["results"], again["graphs"]) == (0, first["results"], first["graphs"])
    assert others["traced"] == 0


OTHERS: list[dict[str, Any]] = [
    {"dtype": "float64"},
    {"made": {"width": 32}},
    {"made": {"layers": 3}},
    {"train": True},
    {"options": {"level": 1}},
    {"options": {"dynamic": True}},
    {"before": "net.layers[0].register_forward_hook(lambda m, i, o: o * 2)"},
    {"before": "net.layers[0].bias = None"},
    {"before": "net.layers[0].eps = 1.0; net.norm.eps = 1.0"},
    {"before": "model.SCALE = 5.0"},
    {"before": "model.scaled = lambda x: x * 4.0"},
    {"before": "torch.nn.functional.gelu = torch.nn.functional.relu"},
    {"before": "torch.nn.Linear.forward = lambda self, x: x @ self.weight.T"},
    {"before": "torch.set_num_threads(torch.get_num_threads() % 2 + 1)"},
]


def test_what_a_trace_depended_on_and_is_another_one_is_traced(known: tuple[Place, dict[str, Any]]) -> None:
    found = known[0].runs([{}, *({"lengths": [7], "keep": True, **other} for other in OTHERS), {}])
    traced = [f["traced"] for f in found]
    assert traced == [0, *([1] * len(OTHERS)), 0], list(zip(traced[1:], OTHERS, strict=False))


def test_code_that_was_edited_is_traced_and_lines_that_moved_are_not(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for text, traced in (
        (MODEL, 1),
        (MODEL.replace("x * 3.0", "x * 7.0"), 1),
        (MODEL.replace("F.gelu(", "F.silu("), 1),
        ("# a comment\n" + MODEL, 0),
    ):
        place.write(text)
        assert place.run(lengths=[7])["traced"] == traced, text


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
    assert not list((tmp_path / "cache").glob("v1/traces/*/*.trace"))
    place.run(lengths=[7])
    assert place.run(lengths=[7], keep=False)["traced"] == 1


def test_a_file_that_was_written_to_is_not_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(lengths=[7])
    (file,) = (tmp_path / "cache").glob("v1/traces/*/*.trace")
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
