"""Operators of an ONNX file name its nodes on every way: tables, remarks, sites, sessions, profiles, traces; as text, never in code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import dcir
from dcir.frontends.onnx import load
from dcir.ir.origins import source_lines

pytestmark = pytest.mark.in_turn(3)

HOSTILE = "<img src=x onerror=alert(1)>${oops}*/ #include <stdio.h>"
NAMES = [
    "/layer1/layer1.0/conv1/Conv", "/layer1/layer1.0/relu/Relu", "/layer1/layer1.0/conv2/Conv", HOSTILE, "/layer1/layer1.0/Relu",
    "/pool", "", "/fc/Gemm",
]  # fmt: skip
TRACE = 'File "/home/you/net.py", line 31, in forward\n    x = self.fc(x)\n'


def residual() -> onnx.ModelProto:
    """A block of convolutions with a way around it, and a classifier; one node has no name, one a hostile one."""
    x = [
        ("Conv", ["x", "w1", "b1"], "c1", {"pads": [1, 1, 1, 1]}), ("Relu", ["c1"], "r1", {}), ("Conv", ["r1", "w2"], "c2", {}),
        ("Add", ["c2", "r1"], "s", {}), ("Relu", ["s"], "r2", {}), ("GlobalAveragePool", ["r2"], "p", {}),
        ("Flatten", ["p"], "f", {}), ("Gemm", ["f", "w3"], "y", {}),
    ]  # fmt: skip
    nodes = [
        helper.make_node(op, ins, [out], name, **attributes)
        for (op, ins, out, attributes), name in zip(x, NAMES, strict=True)
    ]
    for key, value in (("name_scopes", "['', 'head', 'head.fc', 'linear']"), ("stack_trace", TRACE)):
        nodes[-1].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    draw = np.random.default_rng(0)
    shapes = {"w1": (16, 8, 3, 3), "b1": (16,), "w2": (16, 16, 1, 1), "w3": (16, 5)}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, [2, 8, 10, 10])], [helper.make_tensor_value_info("y", 1, [2, 5])],
        [numpy_helper.from_array(draw.normal(size=s).astype(np.float32), n) for n, s in shapes.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(residual(), str(file))
    return file


@pytest.fixture(autouse=True)
def _dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def titles() -> list[str]:
    """What the nodes are called, in their order."""
    ops = [n.op_type for n in residual().graph.node]
    return [f"{name or 'Flatten_6'} ({op}, net.onnx:{n})" for n, (name, op) in enumerate(zip(NAMES, ops, strict=True))]


def lines_of(record: dict[str, Any]) -> set[str]:
    return {f"{p['file']}:{p['line']}" for row in record["kernel_origins"] for p in row["places"]}


def test_every_node_is_named_by_kernels_forward_and_backward(path: Path) -> None:
    fast = dcir.optimize(load(path))
    fast(torch.randn(2, 8, 10, 10)).square().sum().backward()
    report = fast.dcir.explain()
    forward, backward = (next(g for g in report.graphs if g.kind == kind) for kind in ("forward", "backward"))
    # A flattening makes no operator: it is a window on what is there.
    computed = {f"net.onnx:{n}" for n in range(8) if n != 6}
    data = {g["kind"]: g for g in report.to_json()["graphs"]}
    assert lines_of(data["forward"]) >= computed and "net.py:31" in lines_of(data["forward"])
    assert lines_of(data["backward"]) >= {"net.onnx:0", "net.onnx:2", "net.onnx:7"}
    assert {p.title for p in forward.origins.places} >= {t for n, t in enumerate(titles()) if n != 6}
    assert {p.title for p in backward.origins.places} <= {*titles(), ""}
    codes = {p["code"] for row in data["forward"]["kernel_origins"] for p in row["places"]}
    assert f"Add {HOSTILE}, ai.onnx opset 17" in codes and "x = self.fc(x)" in codes
    assert titles()[0] in report.to_text()


def test_remarks_and_sites_are_found_by_a_nodes_name(path: Path) -> None:
    x = torch.randn(2, 8, 10, 10)
    fast = dcir.optimize(load(path).eval(), remarks=True)
    with torch.no_grad():
        fast(x)
    found = [
        r
        for r in fast.dcir.remarks(operator="/layer1/layer1.0/conv1/Conv")
        if r.remark.kind == "passed" and r.remark.site
    ]
    assert found and all(any("/conv1/Conv" in o.origin for o in (*r.remark.ops, *r.remark.made)) for r in found)
    sites = {r.remark.site for r in found}
    other = dcir.optimize(load(path).eval(), skip=sorted(sites))
    with torch.no_grad():
        torch.testing.assert_close(other(x), fast(x), rtol=1e-4, atol=1e-5)
    skipped = [s for g in other.dcir.explain().graphs for p in g.passes for s in p.skipped]
    assert set(skipped) & sites


def test_a_session_shows_nodes_modules_and_the_files_name(path: Path) -> None:
    fast = dcir.optimize(load(path).eval(), history=True)
    with torch.no_grad():
        fast(torch.randn(2, 8, 10, 10))
    data = fast.dcir.report().to_json()
    assert isinstance(data, dict)
    graph = data["graphs"][0]
    ops = [graph["ops"][v] for v in graph["execution"]]
    lines = [graph["lines"][n] for op in ops for n in op["origins"]]
    assert {"layer1.0.conv1", "layer1.0", "head.fc"} <= {op["group"] for op in graph["ops"].values()}
    assert {x["file"] for x in lines} == {"net.onnx", "net.py"}
    assert any(HOSTILE in x["code"] for x in lines) and any(op["place"] == titles()[0] for op in ops)
    kernels = "".join(data["texts"].values())
    assert kernels and not any(part in kernels for part in ("oops", "layer1", "onerror", "net.onnx", "stdio"))


def test_profiles_traces_and_model_explorer_say_the_node(path: Path) -> None:
    x = torch.randn(2, 8, 10, 10)
    fast = dcir.optimize(load(path).eval())
    with torch.no_grad():
        fast(x)
        profile = fast.dcir.profile(x, seconds=0.05)
    assert {s.origin for s in profile.steps} <= set(titles()) and titles()[0] in profile.to_text()
    assert titles()[0] in json.dumps(profile.to_chrome_trace())
    explorer = json.dumps(dcir.open(path, [x]).model_explorer())
    assert "layer1/0/conv1" in explorer and "net.onnx:0" in explorer and "layer1_" not in explorer


class Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).mean((2, 3)))


def test_a_file_of_torchs_exporter_tells_of_modules_and_lines_of_python(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    file = str(tmp_path / "out.onnx")
    torch.onnx.export(Exported().eval(), (x,), file, dynamo=True, verbose=False)
    net = dcir.open(file, [x]).network
    places = net.origins.places
    assert {p.module for p in places} >= {"stem.0", "head"} and all(", out.onnx:" in p.title for p in places)
    lines = [line for line in source_lines(places) if line.file == Path(__file__).name]
    assert {line.code for line in lines} == {"return self.head(self.stem(x).mean((2, 3)))"}
    assert not any("torch" in line.file for line in source_lines(places))


def test_keys_know_nothing_of_names(path: Path, tmp_path: Path) -> None:
    model = residual()
    for node in model.graph.node:
        node.name = "other" + node.name
        del node.metadata_props[:]
    other, x, keys = tmp_path / "other.onnx", torch.randn(2, 8, 10, 10), []
    onnx.save(model, str(other))
    for file in (path, other):
        fast = dcir.optimize(load(file).eval())
        with torch.no_grad():
            fast(x)
        keys.append([g.key for g in fast.dcir.explain().graphs])
        torch._dynamo.reset()
    assert keys[0] == keys[1] != [""]


def test_a_loops_body_names_its_own_nodes(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["c", "w"], ["m"], "scaled"), helper.make_node("Tanh", ["m"], ["n"]),
            helper.make_node("Identity", ["on"], ["go"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("on", 9, []),
            helper.make_tensor_value_info("c", 1, [4, 6]),
        ],
        [helper.make_tensor_value_info("go", 9, []), helper.make_tensor_value_info("n", 1, [4, 6])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], "/decoder/Loop", body=body)
    graph = helper.make_graph(
        [loop], "g", [helper.make_tensor_value_info("x", 1, [4, 6])], [helper.make_tensor_value_info("y", 1, [4, 6])],
        [numpy_helper.from_array(np.array(5), "count"), numpy_helper.from_array(np.full(6, 0.5, np.float32), "w")],
    )  # fmt: skip
    file = tmp_path / "loop.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(file))
    fast, x = dcir.optimize(load(file).eval()), torch.randn(4, 6)
    with torch.no_grad():
        y, want = fast(x), x
    for _ in range(5):
        want = torch.tanh(want * 0.5)
    torch.testing.assert_close(y, want)
    named = {p.title for g in fast.dcir.explain().graphs for p in g.origins.places}
    assert "/decoder/Loop/body/scaled (Mul, loop.onnx:0:0)" in named
