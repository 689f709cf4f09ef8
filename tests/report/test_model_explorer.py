"""The file for Model Explorer has the fields and types of its format, edges join what is there, and layers are the model's modules."""

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dcir
from dcir.cli.main import main
from dcir.driver import api
from dcir.errors import InvalidInput
from dcir.transforms.pipelines import pipeline

# graph_builder.py of ai-edge-model-explorer: what each object may have, and of what type; what has no default is in the second set.
PAIR = ({"key": str, "value": str}, {"key", "value"})
METADATA = ({"id": str, "attrs": [PAIR]}, {"id"})
EDGE = ({"sourceNodeId": str, "sourceNodeOutputId": str, "targetNodeInputId": str}, {"sourceNodeId"})
NODE = (
    {
        "id": str, "label": str, "namespace": str, "subgraphIds": [str], "attrs": [PAIR], "incomingEdges": [EDGE],
        "inputsMetadata": [METADATA], "outputsMetadata": [METADATA],
    },
    {"id", "label"},
)  # fmt: skip
GRAPH = ({"id": str, "nodes": [NODE], "groupNodeAttributes": dict}, {"id"})
COLLECTION = ({"label": str, "graphs": [GRAPH]}, {"label"})


def hold(value, kind):
    """A value against a type, a list of one, or the fields of an object."""
    if isinstance(kind, list):
        assert isinstance(value, list)
        for item in value:
            hold(item, kind[0])
    elif isinstance(kind, tuple):
        fields, needed = kind
        assert needed <= value.keys() <= fields.keys(), value.keys()
        for name, item in value.items():
            hold(item, fields[name])
    else:
        assert isinstance(value, kind), value


def held(found):
    """The graphs by name, held against the format, and their edges against their nodes."""
    found = json.loads(json.dumps(found))
    hold(found, COLLECTION)
    graphs = {g["id"]: g for g in found["graphs"]}
    assert len(graphs) == len(found["graphs"])
    for graph in graphs.values():
        assert all(isinstance(v, str) for facts in graph["groupNodeAttributes"].values() for v in facts.values())
        nodes = {n["id"]: n for n in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        for node in nodes.values():
            assert not node["namespace"].startswith("/") and "//" not in node["namespace"]
            assert set(node.get("subgraphIds", [])) <= graphs.keys()
            inputs = {m["id"] for m in node.get("inputsMetadata", [])}
            for edge in node["incomingEdges"]:
                assert edge["sourceNodeOutputId"] in {m["id"] for m in nodes[edge["sourceNodeId"]]["outputsMetadata"]}
                assert not inputs or edge["targetNodeInputId"] in inputs
    return graphs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x) + 1


@pytest.mark.parametrize("level", [0, 4])
def test_a_network(level):
    net = dcir.open(Net().eval(), [torch.randn(4, 6)])
    net.apply(*pipeline(level))
    (graph,) = held(net.model_explorer()).values()
    nodes = {n["id"]: n for n in graph["nodes"]}
    ops = net.operators()
    assert {op.label for op in ops} <= nodes.keys()
    assert graph["groupNodeAttributes"][""] == {
        "operators": str(len(ops)),
        "bytes moved": str(net.network.bytes_moved()),
    }
    for op in ops:
        node = nodes[op.label]
        facts = {a["key"]: a["value"] for a in node["attrs"]}
        assert facts["what"] == op.spec.describe() and node["label"] == op.spec.kind
        read = {o.data for o in net.network.ins(op)}
        tags = [{a["key"]: a["value"] for a in m["attrs"]} for m in node["inputsMetadata"]]
        assert len(tags) == len(net.network.ins(op))
        written = {o.data for other in ops for o in net.network.outs(other)}
        given = {*net.network.inputs, *net.network.constants}
        assert len({e["targetNodeInputId"] for e in node["incomingEdges"]}) == len(
            [o for o in net.network.ins(op) if o.data in written | given]
        ), read
    assert any(n["namespace"].startswith("layers/") for n in nodes.values())
    (last,) = [n for n in nodes.values() if n["namespace"] == "results"]
    assert last["incomingEdges"] and last["label"] == "result 0"


def test_loops_are_graphs_of_their_own():
    def steps(x):
        return torch._higher_order_ops.scan(lambda c, e: (c + e, (c * e).clone()), x[0], x)[1]

    class Scan(nn.Module):
        def forward(self, x):
            return steps(x)

    net = dcir.open(Scan().eval(), [torch.randn(5, 3)])
    graphs = held(net.model_explorer())
    inner = [name for g in graphs.values() for n in g["nodes"] for name in n.get("subgraphIds", [])]
    assert inner and set(inner) == graphs.keys() - {"inference"}


def test_the_command_writes_what_it_explains(tmp_path):
    file, out = tmp_path / "net.onnx", tmp_path / "graph.json"
    torch.onnx.export(Net().eval(), (torch.randn(4, 6),), str(file), dynamo=False, input_names=["x"])
    done = CliRunner().invoke(main, ["explain", str(file), "--format", "model-explorer", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert f"wrote {out}" in done.output and "graph 0 (inference)" in done.output
    found = json.loads(out.read_text())
    held(found)
    assert found["label"] == "net.onnx -O4"
    for words in (["--format", "model-explorer"], ["-o", str(out)]):
        assert CliRunner().invoke(main, ["explain", str(file), *words]).exit_code == 2


def test_a_compiled_file_has_no_network(tmp_path):
    api.save(Net().eval(), [torch.randn(4, 6)], tmp_path / "net.dcir")
    with pytest.raises(InvalidInput, match="compiled already"):
        api.model_explorer_file(tmp_path / "net.dcir", tmp_path / "graph.json")
