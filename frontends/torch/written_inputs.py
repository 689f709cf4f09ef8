"""Inputs that a graph writes: which are no parameters, and how their new contents become results in place of them.

..., y = f(x); copy_(x, y); return r   -->   return r, y     y is written where x lies
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_MARK = "_dynamo_static_input_type"
_WRITE = torch.ops.aten.copy_.default


class WrittenElsewhere(Exception):
    """The graph cannot write its inputs itself: gradients are wanted, or a write is no copy over the whole of a plain input."""


def forget_marks(gm: fx.GraphModule) -> None:
    """Take the mark of a fixed address off those inputs of Dynamo's graph that no module holds.

    ``mark_static_address`` says where a tensor lies (transformers says so of its caches), not that its contents stay; to
    AOTAutograd it looks like a parameter.
    """
    for node in gm.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        source: Any = getattr(argument, "source", None)
        if source is None or isinstance(getattr(argument, "example", None), torch.nn.Parameter):
            continue
        where = source.guard_source
        held = where.is_unspecialized_nn_module() or where.is_specialized_nn_module() or where.is_fsdp_module()
        if not held and "tensor_dict" in node.meta:
            node.meta["tensor_dict"].pop(_MARK, None)


def updates_at_the_end(graph: fx.GraphModule, kind: str) -> dict[int, int]:
    """Turn the writes to inputs at the end of an ATen graph into further results.

    Returns:
        From the number of each such result to that of the input that it replaces (``GraphContext.updates``).

    Raises:
        WrittenElsewhere: see there; the graph is as it was then.
    """
    inputs = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    writes = [n for n in graph.graph.nodes if n.op == "call_function" and _writes(n)]
    if not writes:
        return {}
    done: list[int] = []
    for n in writes:
        plain = n.target is _WRITE and not n.users and n.args[0] in inputs and len(n.args) == 2 and not n.kwargs
        if kind != "inference" or not plain or not _is_plain(n.args[0].meta["val"], n.args[1]):
            raise WrittenElsewhere
        done.append(inputs[n.args[0]])
    if len({*done}) < len(done):
        raise WrittenElsewhere
    end = next(iter(graph.graph.find_nodes(op="output")))
    shown = tuple(end.args[0])
    end.args = ((*shown, *(n.args[1] for n in writes)),)
    for n in writes:
        graph.graph.erase_node(n)
    graph.recompile()
    return {len(shown) + i: place for i, place in enumerate(done)}


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    values = [*node.args, *node.kwargs.values()]
    return any(isinstance(v, fx.Node) and v.op == "placeholder" for v in values)


def _is_plain(old: Any, new: Any) -> bool:
    """Whether a result may be stored as it is computed: same shape and type, every element in a place of its own."""
    if not isinstance(new, fx.Node) or not isinstance(old, torch.Tensor):
        return False
    value = new.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.shape != old.shape or value.dtype != old.dtype:
        return False
    if old.is_conj() or old.is_neg() or value.is_conj() or value.is_neg():
        return False
    reach = 0
    for stride, size in sorted((s, d) for d, s in zip(old.shape, old.stride(), strict=True) if d > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True
