"""Activations and softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import axis_of


@onnx_op("Relu")
def relu(node: Node, x: Tensor) -> Tensor:
    return F.relu(x)


@onnx_op("Sigmoid")
def sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.sigmoid(x)


@onnx_op("Tanh")
def tanh(node: Node, x: Tensor) -> Tensor:
    return torch.tanh(x)


@onnx_op("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node["alpha"])


@onnx_op("PRelu")
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    if node.version < 7 and slope.ndim == 1 and slope.shape[0] > 1 and x.ndim > 1:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return torch.where(x >= 0, x, x * slope)


@onnx_op("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node["alpha"])


@onnx_op("Celu", since=12)
def celu(node: Node, x: Tensor) -> Tensor:
    return F.celu(x, node["alpha"])


@onnx_op("Selu")
def selu(node: Node, x: Tensor) -> Any:
    alpha, gamma = node["alpha"], node["gamma"]
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.minimum(x, torch.zeros_like(x))))


@onnx_op("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(node["alpha"] * x + node["beta"], 0, 1)


@onnx_op("HardSwish", since=14)
def hard_swish(node: Node, x: Tensor) -> Tensor:
    return F.hardswish(x)


@onnx_op("Mish", since=18)
def mish(node: Node, x: Tensor) -> Tensor:
    return F.mish(x)


@onnx_op("Gelu", since=20)
def gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node["approximate"])


@onnx_op("Swish", since=24)
def swish(node: Node, x: Tensor) -> Any:
    alpha = node["alpha"]
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@onnx_op("SwiGLU", since=28)
def swiglu(node: Node, gate: Tensor, value: Tensor) -> Any:
    return swish(node, gate) * value


@onnx_op("Softplus")
def softplus(node: Node, x: Tensor) -> Tensor:
    return F.softplus(x)


@onnx_op("Softsign")
def softsign(node: Node, x: Tensor) -> Tensor:
    return F.softsign(x)


@onnx_op("Shrink", since=9)
def shrink(node: Node, x: Tensor) -> Tensor:
    bias, lambd = node["bias"], node["lambd"]
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, (x + bias).to(x.dtype), torch.where(x > lambd, (x - bias).to(x.dtype), zero))


@onnx_op("ThresholdedRelu", since=10)
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > node["alpha"], x, 0)


def _flattened(node: Node, x: Tensor) -> tuple[Tensor, int]:
    """Before opset 13 these act on the whole trailing block as one axis."""
    axis = node["axis"]
    if node.version >= 13:
        return x, axis_of(axis, x.ndim)
    axis = axis + x.ndim if axis < 0 else axis
    if axis == x.ndim - 1 and x.ndim > 0:
        return x, axis
    return x.reshape(math.prod(x.shape[:axis]), -1), 1


@onnx_op("Softmax")
def softmax(node: Node, x: Tensor) -> Tensor:
    y, axis = _flattened(node, x)
    return torch.softmax(y, axis).reshape(x.shape) if y is not x else torch.softmax(x, axis)


@onnx_op("LogSoftmax")
def log_softmax(node: Node, x: Tensor) -> Tensor:
    y, axis = _flattened(node, x)
    return torch.log_softmax(y, axis).reshape(x.shape) if y is not x else torch.log_softmax(x, axis)


@onnx_op("Hardmax")
def hardmax(node: Node, x: Tensor) -> Tensor:
    y, axis = _flattened(node, x)
    chosen = torch.argmax(y, axis, keepdim=True)
    return torch.zeros_like(y).scatter(axis, chosen, 1.0).reshape(x.shape)
