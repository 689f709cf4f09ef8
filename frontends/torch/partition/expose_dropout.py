"""Dropout in a joint graph: its result written out as arithmetic, so that the partition may recompute it from the mask.

    y, mask = native_dropout(x, p)  -->  mask = native_dropout(x, p)[1];  y = x * mask * (1 / (1 - p))

A random operator cannot run twice, but the numbers it drew are kept for the gradient anyway, in a byte each. The arithmetic is
that of the operator's page (``dcir/ops/pages/dropout.py``), which draws the mask and nothing else where only the mask is read.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def expose_dropout(joint: fx.GraphModule) -> int:
    """Write out the results of dropouts in training; returns how many."""
    done = 0
    for node in joint.graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = _arguments(*node.args, **node.kwargs)
        parts = {u.args[1]: u for u in node.users if u.target is operator.getitem}
        if train is not True or not 0 < p < 1 or not parts.keys() >= {0, 1}:
            continue
        result, mask = parts[0], parts[1]
        result.prepend(mask)
        kept = _emit(joint.graph, result, aten.mul.Tensor, x, mask)
        result.replace_all_uses_with(_emit(joint.graph, result, aten.mul.Tensor, kept, 1.0 / (1.0 - p)))
        joint.graph.erase_node(result)
        done += 1
    if done:
        joint.graph.lint()
        joint.recompile()
    return done


def _arguments(input: Any, p: Any, train: Any) -> tuple[Any, Any, Any]:
    return input, p, train


def _emit(graph: fx.Graph, before: fx.Node, target: Any, *args: Any) -> fx.Node:
    with graph.inserting_before(before):
        made = graph.call_function(target, args)
    made.meta = {k: v for k, v in before.meta.items() if k not in ("val", "tensor_meta")}
    made.meta["val"] = before.meta["val"]
    return made
