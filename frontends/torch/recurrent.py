"""Recurrent layers become products and loops, for sequences of one length and for packed ones (``recurrent_layers.py``).

Fewer steps than make a loop stay as they are: AOTAutograd unrolls them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from dcir.ops.reach import device

LEAST_STEPS = 3
"""Fewer are no loop."""
_COMPUTED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_KINDS: dict[Any, str] = {
    function: name
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for function in (getattr(torch, name), getattr(torch.ops.aten, name).input)
}
"""As Dynamo's graphs have them, and as exported ones do."""


def lower_layers(gm: fx.GraphModule) -> None:
    """Make recurrent layers loops in a graph before AOTAutograd."""
    changed = False
    for node in gm.graph.nodes:
        kind = _KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None or node.kwargs:
            continue
        arguments = _arguments(kind, node.args)
        if arguments is None:
            continue
        target, args = node.target, node.args
        if _is_loop(arguments):
            kind, data, sizes, *rest = arguments
            target, args = _loops(sizes is not None), (kind, data, *([] if sizes is None else [sizes]), *rest)
        if (dtype := _autocast(node, arguments)) is not None:
            # PyTorch's decompositions would leave the result in the type of what is multiplied in it last.
            target, args = _in_type, (target, dtype, *args)
        changed |= target is not node.target
        node.target, node.args = target, args
    if changed:
        gm.recompile()


def _autocast(node: fx.Node, arguments: tuple[Any, ...]) -> torch.dtype | None:
    """The type that autocast has a layer computed in; None where it has no part in it."""
    value, given = _value(node), _value(arguments[1])
    output = value[0] if isinstance(value, tuple | list) and value else next(iter(map(_value, node.users)), None)
    if not isinstance(output, Tensor) or not isinstance(given, Tensor) or output.dtype == given.dtype:
        return None
    return output.dtype


def _in_type(function: Any, dtype: torch.dtype, *args: Any) -> Any:
    """A layer of operands in another type."""
    cast = pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, args)
    with torch.autocast(device(), enabled=False):
        return function(*cast)


def _is_loop(arguments: tuple[Any, ...]) -> bool:
    """Whether the numbers are of a type that is computed with, and the steps are worth a loop; packed ones have no other form."""
    _, data, sizes, state, weights, *_, first = arguments
    values = [_value(t) for t in (data, *state, *weights)]
    tensors = [v for v in values if isinstance(v, Tensor)]
    if len(tensors) < len(values) or len({v.dtype for v in tensors}) > 1:
        return False
    if tensors[0].dtype not in _COMPUTED or any(type(d) is int and not d for v in tensors for d in v.shape):
        return False
    if sizes is not None:
        return isinstance(_value(sizes), Tensor) and tensors[0].ndim == 2
    if tensors[0].ndim != 3:
        return False
    steps = tensors[0].shape[1 if first else 0]
    return type(steps) is not int or steps >= LEAST_STEPS


def _loops(packed: bool) -> Any:
    """The function; its operator takes torch 30 ms, too."""
    from dcir.frontends.torch.recurrent_layers import packed_layers, recurrent_layers

    return packed_layers if packed else recurrent_layers


def layers_as_loops() -> tuple[Any, ...]:
    """What may stand in a graph for recurrent layers that are loops."""
    module = sys.modules.get("dcir.frontends.torch.recurrent_layers")
    return (_in_type,) if module is None else (_in_type, module.recurrent_layers)


def _value(node: fx.Node) -> Any:
    """The fake tensor that a node stands for."""
    return node.meta.get("example_value", node.meta.get("val"))


def _arguments(kind: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """(kind, data, sizes or None, states, weights, biases, layers, dropout, train, both, batch first unless packed).

    None of a form that torch does not document.
    """
    if len(args) != 9:
        return None
    packed = isinstance(args[3], list | tuple)  # (data, sizes, hx, weights, ...) or (data, hx, weights, ...)
    data, sizes, hx, weights, *rest = args if packed else (args[0], None, *args[1:])
    if not isinstance(weights, list | tuple) or not all(isinstance(v, bool | int | float) for v in rest):
        return None
    state = list(hx) if isinstance(hx, list | tuple) else [hx]
    return (kind, data, sizes, state, list(weights), *rest)
