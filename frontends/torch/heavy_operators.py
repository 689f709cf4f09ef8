"""The heavy operators of an ATen graph as tasks: what the guideline for pools of threads counts, with their operations.

Heavy are convolutions, products, attention, and looking up embeddings: what libraries and frameworks run on a team of threads. A
convolution's gradient is two of them, since neither that of the images nor that of the weights waits for the other.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from dcir.cost.threads.task_graph import Task, TaskGraph
from dcir.cost.threads.width import Width, width_of
from dcir.frontends.torch.nodes import describe

_PRODUCTS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "_int_mm", "_scaled_mm")
)
_CONVOLUTIONS = frozenset(("convolution", "_convolution", "convolution_backward", "conv1d", "conv2d", "conv3d"))
_LOOK_UPS = frozenset(
    ("embedding", "embedding_dense_backward", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only",
     "_embedding_bag_backward", "_embedding_bag_dense_backward")
)  # fmt: skip
_HEAVY = _PRODUCTS | _CONVOLUTIONS | _LOOK_UPS
_ATTENTION = "scaled_dot_product"
_ATTENTION_BACKWARD = 2.5
"""Five products in the place of two: attention's scores are computed again."""


@dataclass(frozen=True)
class HeavyOperators:
    """An ATen graph as tasks.

    Attributes:
        graph: of all operators.
        operations: of each; 0 of those that are not heavy, or look something up.
        heavy: whether each is.
    """

    graph: TaskGraph
    operations: tuple[float, ...]
    heavy: tuple[bool, ...]

    def width(self) -> Width:
        """How wide the graph of heavy operators is."""
        return width_of(self.graph, self.operations, self.heavy)


def heavy_operators(gm: fx.GraphModule) -> HeavyOperators:
    """The operators of a functional ATen graph whose nodes carry fake tensors in ``meta['val']``."""
    tasks: list[Task] = []
    operations: list[float] = []
    heavy: list[bool] = []
    of_node: dict[fx.Node, tuple[int, ...]] = {}

    def add(node: fx.Node, after: tuple[int, ...], work: float, counts: bool) -> int:
        tasks.append(Task(str(node.target), after, describe(node) if counts else ""))
        operations.append(work)
        heavy.append(counts)
        return len(tasks) - 1

    for node in gm.graph.nodes:
        if node.op != "call_function":
            of_node[node] = ()
            continue
        after = tuple(sorted({t for source in node.all_input_nodes for t in of_node[source]}))
        if node.target is operator.getitem:
            source: Any = node.args[0]
            number: Any = node.args[1]
            parts = _gradients(source)
            of_node[node] = (of_node[source][parts.index(number)],) if number in parts else after
            continue
        counts = is_heavy(node.target)
        work = _operations(node) if counts else 0.0
        parts = _gradients(node)
        of_node[node] = tuple(add(node, after, work / max(1, len(parts)), counts) for _ in parts or (0,))
    return HeavyOperators(TaskGraph(tuple(tasks)), tuple(operations), tuple(heavy))


def is_heavy(target: Any) -> bool:
    """Whether an operator is one that a team of threads is for."""
    name = _name(target)
    return name in _HEAVY or _ATTENTION in name


def _name(target: Any) -> str:
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", ""))


def _gradients(node: fx.Node) -> list[int]:
    """Of a convolution's gradient, which of images (0) and weights (1) it computes."""
    if node.target is not torch.ops.aten.convolution_backward.default:
        return []
    mask: Any = node.args[-1]
    return [i for i in (0, 1) if mask[i]]


def _operations(node: fx.Node) -> float:
    name = _name(node.target)
    args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
    if name == "convolution":
        return _convolved(args[0] if args[6] else node.meta["val"], args[1])
    if name == "convolution_backward":
        return len(_gradients(node)) * _convolved(args[1] if args[7] else args[0], args[2])
    if _ATTENTION in name:
        first = int("backward" in name)
        query, key = args[first], args[first + 1]
        return float(4 * prod(query.shape) * int(key.shape[-2]) * (_ATTENTION_BACKWARD if first else 1.0))
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=node.meta.get("val")))


def _convolved(image: torch.Tensor, weight: torch.Tensor) -> float:
    """Operations of a convolution: each element of the image on the side of the weights' first dimension is a sum of so many products."""
    return 2.0 * prod(image.shape) * prod(weight.shape[1:])
