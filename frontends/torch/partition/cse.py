"""Common subexpressions of a joint graph are computed once; two random draws stay two.

PyTorch's own pass (``torch._functorch.compile_utils.fx_graph_cse``) knows random operators from a list, in which ``randn_like``,
``normal_``, ``uniform_`` and others are missing: of two draws in a training step it makes one. It also takes a second of
processor time in every process, for it imports inductor's lowerings.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef

from dcir.frontends.torch.partition.joint_graph import is_random, packet, tensors

aten = torch.ops.aten

# What they hold is not defined, so that two of them are not equal.
UNDEFINED = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.empty_permuted,
    aten.new_empty,
    aten.new_empty_strided,
}
# Modules of the functions on sizes and tuples that a graph holds next to operators.
PLAIN = {operator.__name__, "_operator", math.__name__}


def merge_equal(graph: fx.Graph) -> int:
    """Let each later node that computes what an earlier one has computed give way to it; returns how many did.

    Kept apart are random draws, results of their own for the caller (eager gives each its own memory), what may see different
    contents because something in between writes, and operators of higher order.
    """
    (output,) = graph.find_nodes(op="output")
    returned = {s for n in output.all_input_nodes for s in _storages(n)}
    first: dict[Hashable, fx.Node] = {}
    merged = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if not _follows_from_arguments(node):
            if not is_random(node):
                first.clear()
            continue
        if packet(node) in UNDEFINED or returned & _storages(node) or free_unbacked_symbols(node.meta.get("val")):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        try:
            earlier = first.setdefault(key, node)
        except TypeError:  # an argument such as a size that is not a node, which has no hash
            continue
        if earlier is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)
            merged += 1
    return merged


def _follows_from_arguments(node: fx.Node) -> bool:
    """Whether a node's result depends on nothing but its arguments, and the node changes nothing."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload):
        return not op._schema.is_mutable and not is_random(node) and not node.is_impure()
    return getattr(op, "__module__", None) in PLAIN or getattr(op, "__name__", "").startswith("sym_")


def _storages(node: fx.Node) -> set[StorageWeakRef]:
    found = set()
    for value in tensors(node):
        try:
            found.add(StorageWeakRef(value.untyped_storage()))
        except NotImplementedError:  # sparse tensors have none
            continue
    return found


def _key(argument: Any) -> Hashable:
    """An argument by value: a number with its type, and with its sign where it is zero."""
    if isinstance(argument, fx.Node):
        return argument
    if isinstance(argument, tuple | list):
        return tuple(map(_key, argument))
    if isinstance(argument, dict):
        return tuple((k, _key(v)) for k, v in sorted(argument.items()))
    if isinstance(argument, slice):
        return slice, _key(argument.start), _key(argument.stop), _key(argument.step)
    if isinstance(argument, float | complex):
        return type(argument), repr(argument)
    return type(argument), argument
