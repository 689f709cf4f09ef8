"""What is told of a node of a file: its name, operator, operator set and number, and what the exporter wrote; text, whatever it says."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from dcir.frontends.onnx.node_origins import NodeOrigin, short
from dcir.ir.origins import Frame, noted

FILE = NodeOrigin.of_file("/home/me/net.onnx")
TRACE = (
    'File "/home/you/train.py", line 9, in forward\n    return self.block(x)\n'
    'File "/usr/lib/python3/site-packages/torch/nn/modules/conv.py", line 5, in forward\n    return self._conv(x)\n'
)


def node(op: str, name: str = "", domain: str = "", **told: str) -> onnx.NodeProto:
    made = onnx.helper.make_node(op, [], [], name, domain=domain)
    for key, value in told.items():
        made.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return made


def test_a_name_is_a_path_of_modules() -> None:
    found = FILE.at(node("Conv", "/layer1/layer1.0/conv1/Conv"), 12, 17)
    assert found.module == "layer1.0.conv1" and found.title == "/layer1/layer1.0/conv1/Conv (Conv, net.onnx:12)"
    assert found.nodes == (Frame("net.onnx", 12, "", "Conv /layer1/layer1.0/conv1/Conv, ai.onnx opset 17"),)
    assert noted(found.note) == (found.title, found.module, found.nodes)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Relu_3", ""),
        ("", ""),
        ("/Relu", ""),
        ("a/b/Add", "a.b"),
        ("/a/a.0/a.0.b/Add", "a.0.b.b"[:5]),
        ("//x//Add", "x"),
    ],
)
def test_modules_of_names(name: str, module: str) -> None:
    assert FILE.at(node("Add", name), 0, 17).module == module


def test_a_node_without_a_name_has_its_operator_and_number() -> None:
    found = FILE.at(node("FusedConv", domain="com.microsoft"), 3, 1)
    assert found.title == "FusedConv_3 (FusedConv, net.onnx:3)"
    assert found.nodes[-1].code == "FusedConv FusedConv_3, com.microsoft opset 1"
    assert FILE.at(node("Foo", domain="x"), 3, None).nodes[-1].code == "Foo Foo_3, x"


def test_what_torchs_exporter_writes_is_told_without_folders_and_torchs_own_lines() -> None:
    scopes = "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']"
    found = FILE.at(node("Conv", "node_conv2d", name_scopes=scopes, stack_trace=TRACE), 0, 18)
    assert found.module == "layer1.0.conv1" and found.title == "node_conv2d (Conv, net.onnx:0)"
    assert found.python == (Frame("train.py", 9, "forward", "return self.block(x)"),)
    assert noted(found.note) == (found.title, found.module, (*found.python, *found.nodes))


def test_nodes_of_functions_and_subgraphs_stand_behind_those_that_hold_them() -> None:
    outer = FILE.at(node("Loop", "/decoder/Loop", stack_trace=TRACE), 4, 17)
    inner = outer.inside("body").at(node("Add"), 1, 17)
    assert inner.title == "/decoder/Loop/body/Add_1 (Add, net.onnx:4:1)" and inner.python == outer.python
    assert [(f.file, f.line) for f in inner.nodes] == [
        ("net.onnx", 4),
        ("net.onnx:4", 1),
    ] and inner.module == "decoder"
    assert NodeOrigin.of_file(None).at(node("Add"), 0, 17).title == "Add_0 (Add, model:0)"


@pytest.mark.parametrize(
    "told",
    [
        {"name_scopes": "[" * 100_000, "stack_trace": "File " * 100_000},
        {"name_scopes": "['a\\'); import os #', 'b']", "stack_trace": f'File "x", line {"9" * 5000}, in f'},
        {"name_scopes": "__import__('os').system('id')", "stack_trace": 'File "/etc/passwd", line 99999999'},
        {"name_scopes": "", "stack_trace": "\x00\x1b[31m"},
    ],
)
def test_what_no_exporter_writes_is_left_out(told: dict[str, str]) -> None:
    found = FILE.at(node("Add", **told), 0, 17)
    assert found.module in ("", "os", "); import os #") and found.python == () and noted(found.note) is not None


def test_texts_are_short_and_steer_nothing() -> None:
    assert (
        short("a\x1b[31m\u202eb") == "a?[31m?b"
        and short("<img src=x onerror=alert(1)>") == "<img src=x onerror=alert(1)>"
    )
    assert len(short("x" * 10**6)) == 200
    long = FILE.at(node("Add", "x" * 10**6, stack_trace=TRACE * 1000), 0, 17)
    assert len(long.note) < 20_000


@pytest.mark.parametrize(
    "note", ["", "[]", "{}", '["a"]', '["a", "b", [1]]', '["a", "b", [["f", "x", "", ""]]]', "[" * 10**5, None]
)
def test_notes_of_others_are_no_places(note: Any) -> None:
    assert noted(note) is None
