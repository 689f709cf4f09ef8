"""Writing at indices: scatter and its kin. Results are new tensors, as everywhere in ONNX."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.index import wrapped
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import axis_of

_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis = axis_of(node["axis"], x.ndim)
    places = wrapped(index, x.shape[axis])
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _named(reduction), include_self=True)


def _named(reduction: str) -> str:
    if reduction not in _REDUCE:
        raise InvalidModel(f"reduction {reduction!r} does not exist")
    return _REDUCE[reduction]


@onnx_op("ScatterND", since=11)
def scatter_nd(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    depth = index.shape[-1]
    parts: tuple[Any, ...] = tuple(wrapped(index[..., i], x.shape[i]) for i in range(depth))
    reduction = node.get("reduction", "none")
    if depth == 0:
        return updates.reshape(x.shape)
    if reduction == "none":
        return torch.index_put(x, parts, updates)
    if reduction == "add":
        return torch.index_put(x, parts, updates, accumulate=True)
    # One flat index per row of trailing elements.
    rows = torch.zeros_like(parts[0])
    lead, tail = 1, 1
    for i, part in enumerate(parts):
        rows = rows * x.shape[i] + part
        lead *= x.shape[i]
    for d in x.shape[depth:]:
        tail *= d
    flat = x.reshape(lead, tail)
    places = rows.reshape(-1, 1).expand(-1, tail)
    return torch.scatter_reduce(flat, 0, places, updates.reshape(-1, tail), _named(reduction)).reshape(x.shape)


@onnx_op("TensorScatter", since=24)
def tensor_scatter(node: Node, past: Tensor, update: Tensor, write: Tensor | None = None) -> Tensor:
    """Writes a block of a key/value cache at each batch entry's own position."""
    axis = axis_of(node["axis"], past.ndim)
    length, total = update.shape[axis], past.shape[axis]
    start = torch.zeros(past.shape[0], dtype=torch.int64, device=past.device) if write is None else write
    places = start.to(torch.int64).unsqueeze(1) + torch.arange(length, device=past.device)
    if node["mode"] == "circular":
        places = torch.remainder(places, total)
    shape = [1] * past.ndim
    shape[0], shape[axis] = past.shape[0], length
    return torch.scatter(past, axis, places.reshape(shape).expand(update.shape), update)
