"""Opened models: looked at, changed by passes, by hand and by DaCe's own calls, drawn, run by stock DaCe, and compiled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dace
import numpy as np
import onnx
import pytest
import torch
from dace.transformation.dataflow import MapExpansion, MapFusionVertical
from onnx import TensorProto, helper
from torch import nn

import dcir
from dcir.driver import api
from dcir.errors import InvalidGraph, InvalidInput
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Compute
from dcir.runtime.model import CompiledModel
from dcir.transforms.tier1_operator.expand_loops import ExpandLoops
from dcir.transforms.tier2_fusion.fuse_producers import FuseProducers


class Stage(nn.Module):
    """The beginning of a residual network, small: a stem, a pool, a bottleneck with its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.body = nn.Sequential(
            nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4),
            nn.ReLU(), nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16),
        )  # fmt: skip
        self.side = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return torch.relu(self.body(x) + self.side(x))


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(torch.softmax(x @ x.transpose(-1, -2), -1) @ x, approximate="tanh")


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-4, atol=1e-5)


def test_walk_and_match() -> None:
    opened = dcir.open(Stage().eval(), [torch.randn(1, 3, 32, 32)])
    assert len(opened.operators("convolution")) == 5
    assert opened.operators("kernel 7x7")[0] is opened.operators()[0]
    assert "convolution forward n1 3->8" in str([op.spec.describe() for op in opened.operators()])
    assert "containers" in str(opened)


def test_unchanged_it_is_the_model() -> None:
    model, x = Stage().eval(), torch.randn(2, 3, 32, 32)
    again = dcir.open(model, [x]).compile()
    close(again(x), model(x).detach())
    assert isinstance(again, CompiledModel) and again.dcir.report["graphs"][0]["kind"] == "inference"


def test_passes() -> None:
    x = torch.randn(2, 5, 6)
    model = nn.Sequential(nn.Tanh(), nn.Softmax(-1))
    opened = dcir.open(model, [x])
    before = len(opened.network.ops())
    (record,) = opened.apply(FuseProducers())
    assert record.changed and len(opened.network.ops()) < before
    close(opened.compile(level=1)(x), model(x))


def test_daces_own_calls() -> None:
    x = torch.randn(2, 5, 6)
    opened = dcir.open(nn.Sequential(nn.GELU("tanh"), nn.Softmax(-1)), [x])

    def edit(sdfg: Any) -> None:
        sdfg.apply_transformations_repeated(MapExpansion)
        sdfg.apply_transformations_repeated(MapFusionVertical)

    assert opened.transform(edit) == 1
    (op,) = opened.network.ops()
    assert op.made_by == "edit"
    close(opened.compile()(x), torch.softmax(nn.functional.gelu(x, approximate="tanh"), -1))


@pytest.mark.parametrize("expanded", [False, True], ids=["as it is", "with loops for products"])
def test_simplify(expanded: bool) -> None:
    """DaCe's own clean-up goes through, and numbers stay."""
    x = torch.randn(2, 5, 6)
    opened = dcir.open(Attention(), [x])
    if expanded:
        opened.apply(ExpandLoops())
    opened.transform(lambda sdfg: sdfg.simplify())
    close(opened.compile()(x), Attention()(x))


def test_what_changes_numbers_is_refused() -> None:
    opened = dcir.open(nn.Softmax(-1), [torch.randn(3, 4)])

    def edit(sdfg: Any) -> None:
        for node, _ in sdfg.all_nodes_recursive():
            if isinstance(node, dace.nodes.Tasklet) and "dcir_exp" in node.code.as_string:
                node.code.as_string = node.code.as_string.replace("dcir_exp", "dcir_exp2")

    with pytest.raises(InvalidGraph, match="other numbers"):
        opened.transform(edit)


def test_an_operator_by_another() -> None:
    """The user knows what they do: here a sine becomes a cosine."""
    x = torch.randn(3, 4)
    opened = dcir.open(nn.Sequential(nn.Tanh(), Sine()), [x])
    (op,) = opened.operators("sin")
    nest = op.known(LoopNest)
    body = tuple(replace(s, op="cos") if isinstance(s, Compute) and s.op == "sin" else s for s in nest.body)
    opened.replace(op, replace(nest, body=body))
    close(opened.compile()(x), torch.cos(torch.tanh(x)))


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


def test_saved_file_has_maps_and_memlets(tmp_path: Path) -> None:
    """Nothing is opaque: each edge inside a map says which element moves."""
    opened = dcir.open(Stage().eval(), [torch.randn(1, 3, 32, 32)])
    opened.save(tmp_path / "stage.sdfg")
    sdfg = dace.SDFG.from_file(str(tmp_path / "stage.sdfg"))
    sdfg.validate()
    nodes = [n for n, _ in sdfg.all_nodes_recursive()]
    assert not any(isinstance(n, dace.nodes.LibraryNode) for n in nodes)
    assert sum(isinstance(n, dace.nodes.MapEntry) for n in nodes) >= len(opened.network.ops())
    points = [
        e.data
        for e, _ in sdfg.all_edges_recursive()
        if isinstance(e.data, dace.Memlet) and not e.data.is_empty() and e.data.subset.num_elements() == 1
    ]
    assert len(points) > 20


def test_loops_are_regions(tmp_path: Path) -> None:
    opened = dcir.open(nn.LSTM(3, 4).eval(), [torch.randn(5, 2, 3)])
    opened.save(tmp_path / "lstm.sdfg")
    sdfg = dace.SDFG.from_file(str(tmp_path / "lstm.sdfg"))
    found = [b for inner in sdfg.all_sdfgs_recursive() for b in inner.all_control_flow_regions()]
    assert any(isinstance(b, dace.sdfg.state.LoopRegion) for b in found)


@pytest.mark.parametrize("model", [Attention(), Stage().eval()], ids=["attention", "stage"])
def test_stock_dace_computes_the_same(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(1, 3, 16, 16) if isinstance(model, Stage) else torch.randn(2, 5, 6)
    opened = dcir.open(model, [x])
    net = opened.network
    (result,) = net.results
    values: dict[str, Any] = {n: t.detach().numpy().copy() for n, t in opened.constants().items()}
    values[net.inputs[0]] = x.numpy().copy()
    values[result.data] = np.zeros(net.containers[result.data].shape, np.float32)
    sdfg = opened.sdfg()
    sdfg(**{n: v for n, v in values.items() if n in sdfg.arrays})
    close(values[result.data].reshape(result.shape), model(x).detach())


def test_onnx_file(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])), tmp_path / "m.onnx")
    opened = dcir.open(tmp_path / "m.onnx")
    x = torch.randn(2, 3)
    close(opened.compile()(x), x.relu())


def test_what_is_no_model(tmp_path: Path) -> None:
    api.save(nn.ReLU(), (torch.zeros(2, 3),), tmp_path / "m.dcir")
    for model, words in (
        (3, "of type int"),
        (torch.relu, "a module is captured"),
        (tmp_path / "m.dcir", "compiled already"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            dcir.open(model, [torch.zeros(2, 3)])  # type: ignore[arg-type]
        assert caught.value.hint
    with pytest.raises(InvalidInput, match="of type type"):
        api.save(nn.ReLU, (torch.zeros(2, 3),), tmp_path / "n.dcir")  # type: ignore[arg-type]
