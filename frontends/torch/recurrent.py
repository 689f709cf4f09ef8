"""Recurrent layers become loops; those of sequences of several lengths, and of sizes that change, stay one call each through torch.

lstm of constant sizes               --> products and loops (``recurrent_layers.py``)
packed sequences, sizes that change  --> dcir::recurrent, a call through torch (``recurrent_operator.py``)
half types, few steps that change    --> as it is: AOTAutograd unrolls it
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, fx

MOST_CELLS = 64
"""Steps of time of all layers and directions that are unrolled; of 70 the first call took four seconds, of 400 twenty."""
LEAST_STEPS = 3
"""Fewer are no loop."""
_COMPUTED = (torch.float32, torch.float64)
_KINDS: dict[Any, str] = {
    function: name
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for function in (getattr(torch, name), getattr(torch.ops.aten, name).input)
}
"""As Dynamo's graphs have them, and as exported ones do."""


def lower_layers(gm: fx.GraphModule, *, through_torch: bool = True) -> None:
    """Make recurrent layers loops in a graph before AOTAutograd, or, long ones that cannot be loops, one operator each.

    Without ``through_torch`` these are left as they are: for graphs that files are made of.
    """
    changed = False
    for node in gm.graph.nodes:
        kind = _KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None or node.kwargs:
            continue
        arguments = _arguments(kind, node.args)
        if arguments is None:
            continue
        if _is_loop(arguments):
            kind, data, _, *rest = arguments
            node.target, node.args = _loops(), (kind, data, *rest)
        elif through_torch and _is_long(arguments):
            node.target, node.args = _operator(), arguments
        else:
            continue
        changed = True
    if changed:
        gm.recompile()


def _is_loop(arguments: tuple[Any, ...]) -> bool:
    """Whether all sequences are of one length, and the numbers of a type that is computed with."""
    _, data, sizes, state, weights, _, _, _, _, _, batch_first = arguments
    values = [_value(t) for t in (data, *state, *weights)]
    if sizes is not None or torch.is_autocast_enabled("cpu"):
        return False
    tensors = [v for v in values if isinstance(v, Tensor)]
    if len(tensors) < len(values) or len({v.dtype for v in tensors}) > 1 or tensors[0].ndim != 3:
        return False
    if tensors[0].dtype not in _COMPUTED or any(type(d) is int and not d for v in tensors for d in v.shape):
        return False
    steps = tensors[0].shape[1 if batch_first else 0]
    return type(steps) is not int or steps >= LEAST_STEPS


def _loops() -> Any:
    """The function; its operator takes torch 30 ms, too."""
    from dcir.frontends.torch.recurrent_layers import recurrent_layers

    return recurrent_layers


def layers_as_loops() -> tuple[Any, ...]:
    """What may stand in a graph for recurrent layers that are loops."""
    module = sys.modules.get("dcir.frontends.torch.recurrent_layers")
    return () if module is None else (module.recurrent_layers,)


def _value(node: fx.Node) -> Any:
    """The fake tensor that a node stands for."""
    return node.meta.get("example_value", node.meta.get("val"))


def _operator() -> Any:
    """The operator; to define it takes torch 30 ms, which only its users shall wait for."""
    from dcir.frontends.torch import recurrent_operator  # noqa: F401  # defines it

    return torch.ops.dcir.recurrent.default


def _arguments(kind: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Those of ``dcir::recurrent``; None of a form that torch does not document."""
    if len(args) != 9:
        return None
    packed = isinstance(args[3], list | tuple)  # (data, sizes, hx, weights, ...) or (data, hx, weights, ...)
    data, sizes, hx, weights, *rest = args if packed else (args[0], None, *args[1:])
    if not isinstance(weights, list | tuple) or not all(isinstance(v, bool | int | float) for v in rest):
        return None
    state = list(hx) if isinstance(hx, list | tuple) else [hx]
    return (kind, data, sizes, state, list(weights), *rest, *([False] if packed else []))


def _is_long(arguments: tuple[Any, ...]) -> bool:
    _, data, sizes, _, _, _, layers, _, _, both, batch_first = arguments
    value = _value(data)
    if sizes is not None or not isinstance(value, Tensor) or value.ndim < 2:
        return True
    steps = value.shape[1 if batch_first and value.ndim == 3 else 0]
    # A length that changes is not looked at: that would make it a constant.
    return not isinstance(steps, int) or math.prod((steps, layers, 2 if both else 1)) > MOST_CELLS
