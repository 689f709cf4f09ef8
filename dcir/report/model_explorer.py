"""Networks as a graph collection of Google's Model Explorer, which opens it from disk: operators in the modules that they come from.

The format is that of its package ``ai-edge-model-explorer`` (``graph_builder.py``): nodes with a namespace (a path of layers), attributes,
incoming edges that name the outputs and inputs they join, and metadata of these. All values are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Container, Network, Operand
from dcir.ir.places import modules_around, places_of

_INPUTS, _RESULTS = "inputs", "results"


def collection(label: str, networks: Sequence[tuple[str, Network]]) -> dict[str, Any]:
    """A graph collection.

    Args:
        label: its name.
        networks: names and networks; names are made unique by a number where several are equal.
    """
    graphs: list[dict[str, Any]] = []
    for name, net in networks:
        count = sum(g["id"] == name or g["id"].startswith(f"{name} #") for g in graphs)
        graphs += _Graph(f"{name} #{count + 1}" if count else name, net).all()
    return {"label": label, "graphs": graphs}


class _Graph:
    """One network, and those in the bodies of its loops and branches."""

    def __init__(self, name: str, net: Network) -> None:
        self.name, self.net = name, net
        self.order = net.positions()
        self.prepared = net.prepared_ops()
        self.inner: list[dict[str, Any]] = []

    def all(self) -> list[dict[str, Any]]:
        """The graph, then the inner ones."""
        net = self.net
        given = [*net.inputs, *net.constants]
        nodes = [_of_container(_INPUTS, name, net, []) for name in given if name in net.containers]
        nodes += [self._node(op) for op in net.ops()]
        for number, result in enumerate(net.results):
            edges = self._edges(Operand(result.data, result.offset), 0, len(self.order))
            nodes.append(_of_container(_RESULTS, result.data, net, edges, f"result {number}"))
        facts = {"operators": str(len(net.ops())), "bytes moved": str(net.bytes_moved())}
        return [{"id": self.name, "nodes": nodes, "groupNodeAttributes": {"": facts}}, *self.inner]

    def _node(self, op: Op) -> dict[str, Any]:
        net, places, at = self.net, places_of(op), self.order[op]
        ins, outs = net.ins(op), net.outs(op)
        facts = {
            "what": op.spec.describe(), "made by": op.made_by, "operations": op.spec.operations(), "bytes": net.moved_by(op),
            "number": at, "runs": "once, when parameters change" if op in self.prepared else "in every call",
        }  # fmt: skip
        attributes = [*_pairs(facts), *_pairs({f"place {n}" if n else "place": p for n, p in enumerate(places)})]
        if op.own_schedule is not None:
            attributes += _pairs({"schedule": op.own_schedule})
        node = {
            "id": op.label,
            "label": op.spec.kind,
            "namespace": "/".join(part.replace("/", "_") for part in modules_around(op, net.origins)),
            "attrs": attributes,
            "incomingEdges": [edge for n, o in enumerate(ins) for edge in self._edges(o, n, at)],
            "inputsMetadata": [_metadata(n, o, net.containers[o.data], net) for n, o in enumerate(ins)],
            "outputsMetadata": [_metadata(n, o, net.containers[o.data], net) for n, o in enumerate(outs)],
        }
        names = [self._body(f"{self.name}: {op.label} {n}", body.network) for n, body in enumerate(op.spec.bodies())]
        return node | ({"subgraphIds": names} if names else {})

    def _body(self, name: str, net: Network) -> str:
        self.inner += _Graph(name, net).all()
        return name

    def _edges(self, read: Operand, number: int, at: int) -> list[dict[str, str]]:
        """From those that have written a container when it is read; of one that is given, from itself."""
        writers = [op for op in self.net.writers(read.data) if self.order[op] < at]
        if not writers:
            given = read.data in self.net.inputs or read.data in self.net.constants
            return [_edge(f"{_INPUTS} {read.data}", 0, number)] if given else []
        return [
            _edge(op.label, n, number)
            for op in writers
            for n, written in enumerate(self.net.outs(op))
            if written.data == read.data
        ]


def _of_container(
    group: str, name: str, net: Network, edges: list[dict[str, str]], title: str = ""
) -> dict[str, Any]:  # fmt: skip
    """The node of what a call is given, or gives."""
    c = net.containers[name]
    side = {"outputsMetadata": [_metadata(0, Operand(name), c, net)]} if group == _INPUTS else {}
    return {
        "id": f"{group} {title or name}", "label": title or net.names.get(name, name), "namespace": group,
        "attrs": _pairs({"container": name, "role": "parameter" if name in net.static else c.role}), "incomingEdges": edges, **side,
    }  # fmt: skip


def _edge(source: str, output: int, into: int) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(into)}


def _metadata(number: int, o: Operand, c: Container, net: Network) -> dict[str, Any]:
    facts = {
        "__tensor_tag": net.names.get(o.data, o.data), "tensor_shape": f"{c.dtype}[{','.join(map(str, c.shape))}]",
        "strides": list(c.strides), "first element": o.offset, "memory": net.memory.describe(o.data) or c.role,
    }  # fmt: skip
    return {"id": str(number), "attrs": _pairs(facts)}


def _pairs(facts: dict[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)} for key, value in facts.items()]
