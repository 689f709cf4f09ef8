"""Reading at indices: gather and its kin, one-hot, compress, reverse-sequence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import Host, axis_of, check_size, scalar, to_tensor


def wrapped(index: Tensor, length: int) -> Tensor:
    """Negative indices count from the end."""
    index = index if index.dtype == torch.int64 else index.to(torch.int64)
    return torch.where(index < 0, index + length, index)


def _in_range(index: Host, length: Any) -> None:
    """Raise `InvalidModel` for a place that is not there, as far as both are plain numbers."""
    if isinstance(length, int) and any(isinstance(i, int) and not -length <= i < length for i in index.values):
        message = f"operand 'indices' is {list(index.values)[:16]}, the axis has {length} elements"
        raise InvalidModel(message, hint=f"from {-length} to {length - 1}")


@onnx_op("Gather", scalars=True, kept=(1,))
def gather(node: Node, data: Operand, index: Operand) -> Tensor:
    x = to_tensor(data)
    axis = axis_of(node["axis"], x.ndim)
    if isinstance(index, Host):
        _in_range(index, x.shape[axis])
    if isinstance(index, Host) and len(index.shape) == 0 and type(index.values[0]) is int:
        return torch.select(x, axis, index.values[0])
    if isinstance(index, Host):
        index = to_tensor(index, x.device)
    places = wrapped(index, x.shape[axis])
    if index.ndim == 1:
        return torch.index_select(x, axis, places)
    if axis == 0 and x.ndim == 2 and x.is_floating_point():
        return torch.nn.functional.embedding(places, x)
    picked = torch.index_select(x, axis, places.reshape(-1))
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@onnx_op("GatherElements", since=11)
def gather_elements(node: Node, x: Tensor, index: Tensor) -> Tensor:
    axis = axis_of(node["axis"], x.ndim)
    return torch.gather(x, axis, wrapped(index, x.shape[axis]))


@onnx_op("GatherND", since=11)
def gather_nd(node: Node, x: Tensor, index: Tensor) -> Tensor:
    batch = node.get("batch_dims", 0)
    depth = index.shape[-1]
    if not 0 <= batch < min(x.ndim, index.ndim) or depth + batch > x.ndim:
        raise InvalidModel(f"batch_dims {batch} and {depth} indices do not fit rank {x.ndim}")
    lead = list(x.shape[:batch])
    count = math.prod(lead)
    inner = x.reshape(count, *x.shape[batch:])
    places = index.reshape(count, -1, depth)
    parts: list[Any] = [torch.arange(count, device=x.device).unsqueeze(1)]
    parts += [wrapped(places[..., i], x.shape[batch + i]) for i in range(depth)]
    picked = inner[tuple(parts)]
    return picked.reshape((*lead, *index.shape[batch:-1], *x.shape[batch + depth :]))


@onnx_op("OneHot", since=9, host=(1,))
def one_hot(node: Node, index: Tensor, depth: Operand, values: Tensor) -> Tensor:
    count = int(scalar(depth))
    axis = axis_of(node["axis"], index.ndim + 1)
    check_size([*index.shape, count])
    places = wrapped(index, count).unsqueeze(axis)
    shape = [1] * (index.ndim + 1)
    shape[axis] = count
    classes = torch.arange(count, device=index.device).reshape(shape)
    return torch.where(places == classes, values[1], values[0])


@onnx_op("Compress", since=9, reads=True)
def compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    axis = node.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    chosen = torch.nonzero(condition)[:, 0]
    return torch.index_select(x, axis_of(axis, x.ndim), chosen)


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = node["time_axis"], node["batch_axis"]
    steps = torch.arange(x.shape[time], device=x.device)
    ends = lengths.to(torch.int64).unsqueeze(1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    places = places if (batch, time) == (0, 1) else places.t()
    places = places.reshape(*places.shape, *(1,) * (x.ndim - 2)).expand(x.shape)
    return torch.gather(x, time, places)


@onnx_op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, x: Tensor, index: Tensor) -> Tensor:
    picked = torch.index_select(x, -1, index.reshape(-1).to(torch.int64))
    return picked.reshape(1, -1) if x.ndim == 1 else picked


@onnx_op("Binarizer", domain="ai.onnx.ml")
def binarizer(node: Node, x: Tensor) -> Any:
    return (x > node["threshold"]).to(x.dtype)
