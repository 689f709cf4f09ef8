"""Every kernel names all lines of the model whose work it does, forward and backward, held against the nodes of the graph themselves."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import dcir
from dcir.driver.compile import Compilation
from dcir.frontends.torch import importer
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network, sources
from dcir.ir.origins import source_lines
from tests.origins import Before, lines_of

pytestmark = pytest.mark.in_turn(3)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = torch.relu(h)
        h = h * 0.5 + torch.tanh(h)
        y = self.second(h)
        return y - y.mean(1, keepdim=True)


class Block(nn.Module):
    """A block of a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.ModuleDict({"conv": nn.Conv2d(8, 8, 3, padding=1, bias=False), "norm": nn.BatchNorm2d(8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y = self.last["norm"](self.last["conv"](y))
        y = y + x
        return torch.relu(y)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 8**-0.5
        y = scores.softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(b, n, 32))
        return x + y


MODELS = {
    "perceptron": (Perceptron, (6, 24)),
    "residual block": (Block, (2, 8, 10, 10)),
    "attention": (Attention, (2, 12, 32)),
}


class Seen:
    """The graphs of a test: as they were imported, and after all passes."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, str], fx.Node] = {}
        self.graphs: list[tuple[Before, Network]] = []

    def lines(self, net: Network, labels: list[str]) -> set[tuple[str, int]]:
        """The lines of this file in the stacks of the nodes that some operators were made for."""
        nodes = [self.nodes[id(net), label] for label in labels if (id(net), label) in self.nodes]
        lines = lines_of([node.meta.get("stack_trace") or "" for node in nodes])
        return {(file, line) for file, line in lines if file == __file__}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What is compiled, with the node for which every operator was made, without the table that is under test."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    found, call, rewrite = Seen(), importer._Importer._call, Compilation._rewrite

    def called(self: Any, node: fx.Node, table: dict[str, Any]) -> Any:
        before = {op.label for op in self.net.ops()}
        value = call(self, node, table)
        found.nodes.update({(id(self.net), op.label): node for op in self.net.ops() if op.label not in before})
        return value

    def rewritten(self: Compilation, done: Imported) -> None:
        before = Before(done.network)
        rewrite(self, done)
        found.graphs.append((before, done.network))

    monkeypatch.setattr(importer._Importer, "_call", called)
    monkeypatch.setattr(Compilation, "_rewrite", rewritten)
    yield found
    torch._dynamo.reset()


def trained(name: str, level: int) -> tuple[nn.Module, Any]:
    """A model that was called, forward and backward."""
    kind, shape = MODELS[name]
    model = kind()
    fast = dcir.optimize(model, level=level)
    fast(torch.randn(shape, requires_grad=True)).square().sum().backward()
    return model, fast


def told(net: Network, op: Any) -> set[tuple[str, int]]:
    """The lines that an operator names."""
    return {(line.file, line.line) for line in source_lines(net.origins.of(sources(op)))}


@pytest.mark.parametrize("name", MODELS)
def test_a_fused_operator_names_all_lines_between_its_operands(name: str, seen: Seen) -> None:
    trained(name, level=2)
    assert len(seen.graphs) == 2
    for before, net in seen.graphs:
        joined = 0
        for op in net.ops():
            ins, outs = (frozenset(o.data for o in side) for side in (net.ins(op), net.outs(op)))
            rows = before.between(ins, outs & before.containers) if ins <= before.containers else None
            if rows is None:
                continue
            joined += len(rows) > 1
            labels = [row.label for row in rows]
            assert seen.lines(net, labels) <= told(net, op), op.label
            names = {seen.nodes[id(net), label].name for label in labels if (id(net), label) in seen.nodes}
            assert names <= {p.label for p in net.origins.of(op.came_from)}
        assert joined, "no operator was fused whose operands tell of what"


@pytest.mark.parametrize("name", MODELS)
def test_no_line_is_lost_on_the_way_to_a_report(name: str, seen: Seen) -> None:
    model, fast = trained(name, level=4)
    report = fast.dcir.explain()
    modules = dict(model.named_modules())
    for (before, net), graph in zip(seen.graphs, report.to_json()["graphs"], strict=True):
        gone = net.origins.gone
        labels = [row.label for row in before.rows if not row.came_from & gone]
        wanted = seen.lines(net, labels)
        assert len(wanted) >= 3
        rows = graph["kernel_origins"]
        assert wanted <= {(p["file"], p["line"]) for row in rows for p in row["places"]}
        assert {p["module"] for row in rows for p in row["places"]} <= modules.keys()
        assert {p["module"] for row in rows for p in row["places"]} - {""}, "a derivative is its operator's module's"
        assert all(row["came_from"] and row["places"] for row in rows)
        code = {p["line"]: p["code"] for row in rows for p in row["places"] if p["file"] == __file__}
        text = Path(__file__).read_text().splitlines()
        assert all(text[line - 1].strip() == what for line, what in code.items())
    assert "test_origins.py:" in report.to_text() and " more" in report.to_text()


def test_a_profile_has_them(seen: Seen) -> None:
    model, x = Perceptron(), torch.randn(6, 24)
    fast = dcir.optimize(model)
    with torch.no_grad():
        fast(x)
        rows = json.loads(json.dumps(fast.dcir.profile(x, seconds=0.01).to_json()))["rows"]
    ((_, net), *_) = seen.graphs
    every = {(p["file"], p["line"]) for row in rows for p in row["places"]}
    assert every == set().union(*(told(net, op) for op in net.ops())) and len(every) >= 4


SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x.sum(1)
"""

SHOW = """
import json
import torch
import dcir
from model import Model

torch.manual_seed(0)
fast = dcir.optimize(Model())
fast(torch.randn(5, 12)).sum().backward()
print(json.dumps([graph["kernel_origins"] for graph in fast.dcir.explain().to_json()["graphs"]]))
"""


def test_two_processes_give_the_same_labels(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "show.py").write_text(SHOW)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    said = [
        subprocess.run(
            [sys.executable, str(tmp_path / "show.py")], check=True, env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1]
    forward, backward = json.loads(said[0])
    assert {"layers.0", "layers.1"} <= {p["module"] for row in forward for p in row["places"]}
    assert {"layers.0", "layers.1"} <= {p["module"] for row in backward for p in row["places"]}


def test_equal_networks_of_other_files_share_a_library(tmp_path: Path) -> None:
    records = []
    for name, text in (("one", SOURCE), ("other", "# a line more\n" + SOURCE)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(f"origins_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        torch._dynamo.reset()
        fast = dcir.optimize(module.Model())
        with torch.no_grad():
            fast(torch.randn(7, 12))
        records.append(fast.dcir.explain().to_json()["graphs"][0])
        del sys.modules[spec.name]
    one, other = ([[row["kernel"] for row in r["kernel_origins"]] for r in (record,)] for record in records)
    assert one == other and records[1]["generated"] == 0
    files = [{p["file"] for row in r["kernel_origins"] for p in row["places"]} for r in records]
    assert files == [{str(tmp_path / "one.py")}, {str(tmp_path / "other.py")}]
