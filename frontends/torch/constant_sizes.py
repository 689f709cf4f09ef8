"""Fake tensors of constant sizes, for graphs with control flow, too."""

from __future__ import annotations

from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def constant_sizes(gm: fx.GraphModule) -> FakeTensorMode:
    """What a graph of constant sizes is traced in.

    ``while_loop`` asks for an environment of sizes, though it has none; other graphs have none, since AOTAutograd would make a symbol of
    each number among their arguments.
    """
    calls_graphs = any(isinstance(node.target, HigherOrderOperator) for node in gm.graph.nodes)
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) if calls_graphs else FakeTensorMode()
