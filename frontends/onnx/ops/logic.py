"""Comparisons, logic and selection."""

from __future__ import annotations

import torch
from torch import Tensor

from dcir.frontends.onnx.ops.math import Operand, pair
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.unsigned import ordered, widened
from dcir.frontends.onnx.values import operand, to_tensor


@onnx_op("Equal", scalars=True)
@widened
def equal(node: Node, a: Operand, b: Operand) -> Tensor:
    x, y = pair(node, a, b)
    return torch.eq(x, y) if isinstance(x, Tensor) else torch.eq(y, x)


@onnx_op("Greater", scalars=True)
@ordered
def greater(node: Node, a: Operand, b: Operand) -> Tensor:
    x, y = pair(node, a, b)
    return torch.gt(x, y) if isinstance(x, Tensor) else torch.lt(y, x)


@onnx_op("Less", scalars=True)
@ordered
def less(node: Node, a: Operand, b: Operand) -> Tensor:
    x, y = pair(node, a, b)
    return torch.lt(x, y) if isinstance(x, Tensor) else torch.gt(y, x)


@onnx_op("GreaterOrEqual", since=12, scalars=True)
@ordered
def greater_or_equal(node: Node, a: Operand, b: Operand) -> Tensor:
    x, y = pair(node, a, b)
    return torch.ge(x, y) if isinstance(x, Tensor) else torch.le(y, x)


@onnx_op("LessOrEqual", since=12, scalars=True)
@ordered
def less_or_equal(node: Node, a: Operand, b: Operand) -> Tensor:
    x, y = pair(node, a, b)
    return torch.le(x, y) if isinstance(x, Tensor) else torch.ge(y, x)


@onnx_op("And")
def and_(node: Node, a: Tensor, b: Tensor) -> Tensor:
    x, y = pair(node, a, b)
    return torch.logical_and(x, y)


@onnx_op("Or")
def or_(node: Node, a: Tensor, b: Tensor) -> Tensor:
    x, y = pair(node, a, b)
    return torch.logical_or(x, y)


@onnx_op("Xor")
def xor(node: Node, a: Tensor, b: Tensor) -> Tensor:
    x, y = pair(node, a, b)
    return torch.logical_xor(x, y)


@onnx_op("Not")
def not_(node: Node, a: Tensor) -> Tensor:
    return torch.logical_not(a)


@onnx_op("Where", since=9, scalars=True)
def where(node: Node, condition: Operand, a: Operand, b: Operand) -> Tensor:
    mask = to_tensor(condition)
    typed = a if isinstance(a, Tensor) else b
    x, y = operand(a, mask.ndim), operand(b, mask.ndim)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        # Both branches are numbers: give one of them its type, torch would take its default.
        x = torch.full((), x, dtype=typed.dtype, device=mask.device)
    return torch.where(mask, x, y)


@onnx_op("IsNaN", since=9)
def is_nan(node: Node, x: Tensor) -> Tensor:
    return torch.isnan(x if x.dtype.itemsize > 1 else x.to(torch.float32))


@onnx_op("IsInf", since=10)
def is_inf(node: Node, x: Tensor) -> Tensor:
    x = x if x.dtype.itemsize > 1 else x.to(torch.float32)
    if node["detect_positive"] and node["detect_negative"]:
        return torch.isinf(x)
    if node["detect_positive"]:
        return torch.isposinf(x)
    if node["detect_negative"]:
        return torch.isneginf(x)
    return torch.zeros_like(x, dtype=torch.bool)
