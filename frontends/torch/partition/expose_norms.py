"""Batch normalisation in a joint graph: its result written out as arithmetic, so that the partition may recompute it.

The partition takes an operator as one piece: what a batch normalisation gives is either stored for the backward or the whole
normalisation, statistics included, is done again. Its backward keeps the input and the statistics anyway, and from these the
result is one multiplication and one addition per element. So an activation behind it (a clamp, a SiLU) need not have its
own input stored: a write in the forward and up to two reads in the backward less, per layer.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten

# Operator -> where ``training`` stands among its arguments; None: it always is.
NORMS: dict[Any, int | None] = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._batch_norm_with_update_functional.default: None,
    aten._native_batch_norm_legit.no_stats: 3,
}


def expose_norms(joint: fx.GraphModule) -> int:
    """Write out results of batch normalisations over the batch's own statistics; returns how many.

    The arithmetic and its order are those of the operator's page (``dcir/ops/pages/batch_norm.py``).
    """
    done = 0
    for node in list(joint.graph.nodes):
        if node.op != "call_function" or node.target not in NORMS:
            continue
        place = NORMS[node.target]
        if place is not None and node.args[place] is not True:
            continue
        parts = {u.args[1]: u for u in node.users if u.target is operator.getitem}
        if 0 in parts and isinstance(parts[0].meta.get("val"), FakeTensor):
            _write_out(joint.graph, node, parts)
            done += 1
    if done:
        joint.graph.lint()
        joint.recompile()
    return done


def _write_out(graph: fx.Graph, node: fx.Node, parts: dict[int, fx.Node]) -> None:
    """y = (x - mean) (root weight) + bias, in the type of the statistics."""
    x, weight, bias = node.args[:3]
    y, like = parts[0], node.meta["val"][1].dtype
    each = [-1, *(1 for _ in range(y.meta["val"].dim() - 2))]
    for i in (1, 2):
        if i not in parts:
            with graph.inserting_after(node):
                parts[i] = graph.call_function(operator.getitem, (node, i))
            parts[i].meta = y.meta | {"val": node.meta["val"][i]}
    for part in parts.values():
        node.append(part)  # every part right behind the operator
    end = node.next
    while end in parts.values():
        end = end.next

    def emit(target: Any, *args: Any, val: torch.Tensor | None = None, **kwargs: Any) -> fx.Node:
        with graph.inserting_before(end):
            made = graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in node.meta.items() if k not in ("val", "tensor_meta")}
        if val is None:
            given = args[0].meta["val"]
            with given.fake_mode:
                val = target(given, *args[1:], **kwargs)
        made.meta["val"] = val
        return made

    def wide(value: Any) -> Any:
        return value if value.meta["val"].dtype == like else emit(aten._to_copy.default, value, dtype=like)

    def channel(value: Any) -> fx.Node:
        return emit(aten.view.default, value, each)

    result = y.meta["val"]
    with result.fake_mode:
        whole = result.to(like)
    factor = parts[2] if weight is None else emit(aten.mul.Tensor, parts[2], wide(weight), val=parts[2].meta["val"])
    out = emit(aten.sub.Tensor, wide(x), channel(parts[1]), val=whole)
    out = emit(aten.mul.Tensor, out, channel(factor), val=whole)
    if bias is not None:
        out = emit(aten.add.Tensor, out, channel(wide(bias)), val=whole)
    if like != result.dtype:
        out = emit(aten._to_copy.default, out, dtype=result.dtype)
    y.replace_all_uses_with(out)
    graph.erase_node(y)
