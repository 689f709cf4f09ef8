"""Long recurrent layers stay one operator each: unrolled, every step of time would be operators of its own.

    lstm of 1000 steps   --> dcir::recurrent, a call through torch     else some 13 operators for each step of each layer
    lstm of 20 steps     --> as it is: AOTAutograd unrolls it, and the products are compiled

What the operator does is in ``recurrent_operator``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

MOST_CELLS = 64
"""Steps of time of all layers and directions that are unrolled; of 70 the first call took four seconds, of 400 twenty."""
_KINDS: dict[Any, str] = {getattr(torch, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


def keep_long_layers(gm: fx.GraphModule) -> None:
    """Make recurrent layers of many steps, and those of packed sequences, one operator each in Dynamo's graph."""
    operator = None
    for node in gm.graph.nodes:
        kind = _KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None or node.kwargs:
            continue
        arguments = _arguments(kind, node.args)
        if arguments is None or not _is_long(arguments):
            continue
        if operator is None:
            operator = _operator()
        node.target, node.args = operator, arguments
    if operator is not None:
        gm.recompile()


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
    value = data.meta.get("example_value")
    if sizes is not None or not isinstance(value, Tensor) or value.ndim < 2:
        return True
    steps = value.shape[1 if batch_first and value.ndim == 3 else 0]
    # A length that changes is not looked at: that would make it a constant.
    return not isinstance(steps, int) or math.prod((steps, layers, 2 if both else 1)) > MOST_CELLS
