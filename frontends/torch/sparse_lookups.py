"""Look-ups in tables whose gradients are sparse: PyTorch does them, in front of the rest of their graph, which is compiled.

    ids, table, x  -->  [PyTorch: rows = embedding(ids, table, sparse=True)]  -->  rows, x  -->  [compiled]

A sparse gradient is no numbers in strides, so no program can make it; the rows that are looked up are plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dynamo.source import LocalSource
from torch.nn import functional as F

_PLACES: dict[Any, tuple[int, int]] = {F.embedding: (1, 6), F.embedding_bag: (1, 7), torch.embedding: (0, 4)}
"""Of functions that look up, where the table and the wish for a sparse gradient are among their arguments."""
_TABLE = "weight"
SPARSE, DENSE = "a table's gradient is sparse", "sparse=False"
"""What is said of such a graph, and what to try."""


class Split(NamedTuple):
    """A graph of Dynamo's in two parts.

    Attributes:
        first: what PyTorch runs, with the graph's inputs; gives what the rest reads of it.
        rest: another graph; takes the graph's inputs, and then what ``first`` gives.
        examples: of those, as they were traced.
    """

    first: fx.GraphModule
    rest: fx.GraphModule
    examples: list[Any]

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The whole graph, of its compiled rest."""

        def run(*args: Any) -> Any:
            return compiled(*args, *self.first(*args))

        return run


def sparse_lookups(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes of a graph that look up in a table whose gradient is to be sparse."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target in _PLACES and _is_sparse(n)]


def split_off(gm: fx.GraphModule, lookups: Sequence[fx.Node]) -> Split | None:
    """Take look-ups, and what their indices are computed by, out of a graph; None where something may be written before they are done."""
    early = _needed(lookups)
    order = list(gm.graph.nodes)
    last = max(map(order.index, lookups))
    if any(_writes(n) for n in order[:last]):
        return None
    handed = [n for n in order if n in early and any(u not in early for u in n.users)]
    first, rest = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in order:
        if node in early or node.op == "placeholder":
            copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[n] for n in handed))
    # Dynamo goes on with its own graph, so the rest is another one.
    copies = {n: _input(rest, n, n._dynamo_source) for n in order if n.op == "placeholder"}
    for i, node in enumerate(handed):
        copies[node] = _input(rest, node, LocalSource(f"looked up {i}"))
    for node in order:
        if node not in early and node.op != "placeholder":
            copies[node] = rest.node_copy(node, copies.__getitem__)
    whole = fx.GraphModule(gm, rest)
    whole.meta = dict(gm.meta)
    return Split(fx.GraphModule(gm, first), whole, [n.meta["example_value"] for n in handed])


def _input(graph: fx.Graph, node: fx.Node, source: Any) -> fx.Node:
    """An input of a graph for what a node of another one is."""
    made = graph.placeholder(node.name)
    made.meta = dict(node.meta) if node.op == "placeholder" else {"example_value": node.meta["example_value"]}
    made._dynamo_source = source
    return made


def _is_sparse(node: fx.Node) -> bool:
    table_at, sparse_at = _PLACES[node.target]
    sparse = node.args[sparse_at] if len(node.args) > sparse_at else node.kwargs.get("sparse", False)
    table = node.args[table_at] if len(node.args) > table_at else node.kwargs.get(_TABLE)
    value = table.meta.get("example_value") if isinstance(table, fx.Node) else None
    return sparse is True and isinstance(value, torch.Tensor) and value.requires_grad


def _needed(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes with all that they are computed from, but for inputs."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found and node.op != "placeholder":
            found.add(node)
            left += node.all_input_nodes
    return found


def _writes(node: fx.Node) -> bool:
    """Whether a node may change a value that is there, or draws random numbers, or calls what nobody has looked at."""
    if node.op in ("placeholder", "get_attr"):
        return False
    if node.op == "call_module" or "out" in node.kwargs:
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "operator"):
        return name in ("setitem", "delitem") or (
            name.startswith("i") and name not in ("index", "inv", "invert", "is_", "is_not")
        )
    return name.endswith("_") and not name.endswith("__")
