"""Fake tensors of constant sizes, for graphs with control flow, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def constant_sizes(gm: fx.GraphModule) -> FakeTensorMode:
    """What a graph of constant sizes is traced in.

    ``while_loop`` asks for an environment of sizes, though it has none; other graphs have none, since AOTAutograd would make a symbol of
    each number among their arguments.
    """
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) if calls_graphs(gm) else FakeTensorMode()


def calls_graphs(gm: fx.GraphModule) -> bool:
    """Whether there is control flow in a graph."""
    return any(isinstance(node.target, HigherOrderOperator) for node in gm.graph.nodes)


@contextmanager
def without_unknown_sizes(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[None]:
    """For constant ``inputs``, while it lasts, a graph that Dynamo traced with symbols has no results of sizes that it could not tell.

    ``x[:, :n - 2]`` has: its trace does not say whether n is at least 2. With a number for n there is nothing to bind, and no
    environment that torch could do it in.
    """
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    bound = [node.meta for graph in graphs for node in graph.nodes if node.meta.get("unbacked_bindings")]
    if any(map(is_symbolic, inputs)):
        bound = []
    kept = [meta.pop("unbacked_bindings") for meta in bound]
    try:
        yield
    finally:
        for meta, bindings in zip(bound, kept, strict=True):
            meta["unbacked_bindings"] = bindings


def is_symbolic(x: Any) -> bool:
    """Whether an input is a symbolic number or a tensor of a symbolic size or stride."""
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(x, torch.Tensor) and any(isinstance(d, torch.SymInt) for d in (*x.shape, *x.stride()))
