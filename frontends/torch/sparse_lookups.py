"""Look-ups in tables whose gradients are sparse: PyTorch does them, in front of the rest of their graph, which is compiled.

    ids, table, x  -->  [PyTorch: rows = embedding(ids, table, sparse=True)]  -->  rows, x  -->  [compiled]

A sparse gradient is no numbers in strides, so no program can make it; the rows that are looked up are plain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._dynamo.source import LocalSource
from torch.nn import functional as F

_PLACES: dict[Any, tuple[int, int]] = {F.embedding: (1, 6), F.embedding_bag: (1, 7), torch.embedding: (0, 4)}
"""Of functions that look up, where the table and the wish for a sparse gradient are among their arguments."""
_TABLE = "weight"
_SETS = ("_enter", "_exit", "_set", "set_")
"""How functions begin that open, close or set something, such as autocast."""
_RANDOM = re.compile("rand|bernoulli|multinomial|normal|poisson|dropout|exponential|geometric|cauchy|gumbel|rrelu")
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
    """Take look-ups, and what their indices are computed by, out of a graph; None where what comes before them may not come behind."""
    early = _needed(lookups)
    order = list(gm.graph.nodes)
    last = max(map(order.index, lookups))
    if any(map(_has_effects, order[:last])) or any(map(_draws, early)):
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
    values = [n.meta.get("example_value") if isinstance(n, fx.Node) else None for n in (table, node)]
    # In a part without gradients the rows need none, and are looked up as any others.
    return sparse is True and all(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


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


def _has_effects(node: fx.Node) -> bool:
    """Whether a node may change a value that is there, or a setting, or calls what nobody has looked at."""
    if node.op in ("placeholder", "get_attr"):
        return False
    # What nobody reads is there for what it does.
    if node.op == "call_module" or "out" in node.kwargs or not node.users:
        return True
    name = _name(node)
    if node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "operator"):
        return name.startswith("i") and name not in ("index", "inv", "invert", "is_", "is_not")
    return name.startswith(_SETS) or (name.endswith("_") and not name.endswith("__"))


def _draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers, which must stay in their order."""
    return _RANDOM.search(_name(node)) is not None


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
