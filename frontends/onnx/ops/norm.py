"""Normalisations and dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import axes_of_list, axis_of, scalar, torch_dtype


@onnx_op("BatchNormalization", state=(3, 4))
def batch_normalization(node: Node, x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Any:
    epsilon, momentum = node["epsilon"], node.get("momentum", 0.9)
    # Before opset 14 the node trains exactly when it has more than one result.
    training = bool(node.get("training_mode", 0)) if node.version >= 14 else node.outputs > 1
    if not training:
        if scale.dtype != x.dtype or mean.dtype != x.dtype:
            return _normalised(x, scale, b, mean, var, epsilon)
        return F.batch_norm(x, mean, var, scale, b, False, 0.0, epsilon)
    dims = (0, *range(2, x.ndim))
    wide = x.to(mean.dtype)
    batch_mean, batch_var = torch.mean(wide, dims), torch.var(wide, dims, correction=0)
    y = _normalised(x, scale, b, batch_mean, batch_var, epsilon)
    new_mean = mean * momentum + batch_mean * (1 - momentum)
    new_var = var * momentum + batch_var * (1 - momentum)
    return (y, new_mean.to(mean.dtype), new_var.to(var.dtype), batch_mean, batch_var)


def _normalised(x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    shape = (1, -1, *(1,) * (x.ndim - 2))
    centred = (x - mean.reshape(shape)) * torch.rsqrt(var.reshape(shape) + epsilon)
    return (centred * scale.reshape(shape) + b.reshape(shape)).to(x.dtype)


@onnx_op("InstanceNormalization")
def instance_normalization(node: Node, x: Tensor, scale: Tensor, b: Tensor) -> Tensor:
    if math.prod(x.shape[2:]) == 1:  # which torch refuses: all that is left of it is the shift
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return (x - x) * scale.reshape(shape) + b.reshape(shape)
    return F.instance_norm(x, weight=scale, bias=b, eps=node["epsilon"])


@onnx_op("LayerNormalization", since=17)
def layer_normalization(node: Node, x: Tensor, scale: Tensor, b: Tensor | None = None) -> Any:
    axis = axis_of(node["axis"], x.ndim)
    shape = list(x.shape[axis:])
    stash = torch_dtype(node["stash_type"])
    wide = x if x.dtype in (torch.float64, stash) else x.to(stash)
    whole = list(scale.shape) == shape and (b is None or b.shape == scale.shape)
    if node.used == 1 and wide.dtype == x.dtype and whole:
        return F.layer_norm(x, shape, scale, b, node["epsilon"])
    dims = tuple(range(axis, x.ndim))
    mean = torch.mean(wide, dims, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt(torch.mean(centred * centred, dims, keepdim=True) + node["epsilon"])
    y = (centred * inverse).to(x.dtype) * scale
    return y if b is None else y + b, mean.to(stash), inverse.to(stash)


@onnx_op("RMSNormalization", since=23)
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axis = axis_of(node["axis"], x.ndim)
    wide = x if x.dtype == torch.float64 else x.to(torch_dtype(node["stash_type"]))
    square = torch.mean(wide * wide, tuple(range(axis, x.ndim)), keepdim=True)
    return ((wide * torch.rsqrt(square + node["epsilon"])).to(x.dtype) * scale).to(scale.dtype)


@onnx_op("GroupNormalization", since=18)
def group_normalization(node: Node, x: Tensor, scale: Tensor, b: Tensor) -> Tensor:
    groups = node["num_groups"]
    if node.version < 21:
        # Opset 18 has one factor per group, opset 21 one per channel.
        per_group = x.shape[1] // groups
        scale, b = scale.repeat_interleave(per_group), b.repeat_interleave(per_group)
    elif x.dtype != torch_dtype(node["stash_type"]) and x.dtype != torch.float64:
        wide = F.group_norm(x.to(torch_dtype(node["stash_type"])), groups, eps=node["epsilon"]).to(x.dtype)
        shape = (1, -1, *(1,) * (x.ndim - 2))
        return wide * scale.reshape(shape) + b.reshape(shape)
    return F.group_norm(x, groups, scale, b, node["epsilon"])


@onnx_op("LRN")
def lrn(node: Node, x: Tensor) -> Tensor:
    size = node["size"]
    before = (size - 1) // 2
    # ONNX looks (size-1)//2 back and the rest ahead; torch does it the other way round for even sizes.
    square = (x * x).unsqueeze(1).flatten(3)
    padded = F.pad(square, (0, 0, before, size - 1 - before))
    window = F.avg_pool2d(padded, (size, 1), 1).squeeze(1).reshape(x.shape)
    return x / torch.pow(window * node["alpha"] + node["bias"], node["beta"])


@onnx_op("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    axis = axis_of(node["axis"], x.ndim)
    if node["p"] not in (1, 2):
        raise InvalidModel(f"attribute 'p' is {node['p']}", hint="1 or 2")
    norm = torch.linalg.vector_norm(x, node["p"], axis, keepdim=True)
    return torch.where(norm == 0, 0, x / torch.where(norm == 0, 1, norm))


@onnx_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Node, x: Tensor) -> Tensor:
    axes = tuple(axes_of_list(node.get("axes", (0, 2, 3)), x.ndim))
    centred = x - torch.mean(x, axes, keepdim=True)
    deviation = torch.sqrt(torch.mean(centred * centred, axes, keepdim=True))
    return centred / (deviation + 1e-9)


@onnx_op("Dropout", random=True)
def dropout_attribute(node: Node, x: Tensor) -> Any:
    # Before opset 7 the default of `is_test` is to train; a file that is loaded to be run is taken not to.
    return _dropout(node, x, node.get("ratio", 0.5), False)


@onnx_op("Dropout", since=12, host=(1, 2), random=True)
def dropout(node: Node, x: Tensor, ratio: Operand | None = None, training: Operand | None = None) -> Any:
    rate = 0.5 if ratio is None else scalar(ratio)
    if isinstance(rate, float) and not 0 <= rate < 1:
        raise InvalidModel(f"operand 'ratio' is {rate}", hint="a number from 0, less than 1")
    return _dropout(node, x, rate, training is not None and bool(scalar(training)))


def _dropout(node: Node, x: Tensor, ratio: float, training: bool) -> Any:
    mask_type = torch.bool if node.version >= 10 else x.dtype
    if not training or ratio == 0:
        return (x, torch.ones_like(x, dtype=mask_type)) if node.used > 1 else x
    if node.used == 1:
        return F.dropout(x, ratio, True)
    mask = torch.rand_like(x) >= ratio
    return x * mask / (1 - ratio), mask.to(mask_type)
