"""Arithmetic, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.unsigned import divide_wide, ordered, wide_type, widened
from dcir.frontends.onnx.values import WIDE_UNSIGNED, Host, axis_of, operand, scalar, to_tensor

Operand = Tensor | Host


def pair(node: Node, a: Operand, b: Operand) -> tuple[Any, Any]:
    """Two operands ready for torch's broadcasting; before opset 7, B is lined up with A at attribute `axis`."""
    if node.version < 7 and node.get("broadcast") and node.get("axis") is not None:
        a, b = to_tensor(a), to_tensor(b)
        axis = axis_of(node["axis"], a.ndim)
        return a, b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))
    rank_a = a.ndim if isinstance(a, Tensor) else len(a.shape)
    rank_b = b.ndim if isinstance(b, Tensor) else len(b.shape)
    return operand(a, rank_b), operand(b, rank_a)


def like(value: Any, other: Any) -> Tensor:
    """`value` as a tensor of the type and device of `other`."""
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=other.dtype, device=other.device)


@onnx_op("Add", scalars=True)
@widened
def add(node: Node, a: Operand, b: Operand) -> Any:
    x, y = pair(node, a, b)
    return x + y


@onnx_op("Sub", scalars=True)
@widened
def sub(node: Node, a: Operand, b: Operand) -> Any:
    x, y = pair(node, a, b)
    return x - y


@onnx_op("Mul", scalars=True)
@widened
def mul(node: Node, a: Operand, b: Operand) -> Any:
    x, y = pair(node, a, b)
    return x * y


@onnx_op("Div", scalars=True)
def div(node: Node, a: Operand, b: Operand) -> Any:
    if wide_type((a, b)) == torch.uint64:
        return divide_wide(*_both(node, a, b))[0]
    return _div(node, a, b)


def _both(node: Node, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Two operands as tensors, lined up."""
    x, y = pair(node, to_tensor(a), to_tensor(b))
    return x, y


@widened
def _div(node: Node, a: Operand, b: Operand) -> Any:
    x, y = pair(node, a, b)
    typed = x if isinstance(x, Tensor) else y
    if typed.is_floating_point() or typed.is_complex():
        return x / y
    return _integer(x, y, typed, lambda p, q: torch.div(p, q, rounding_mode="trunc"), lambda p: -p)


def _integer(x: Any, y: Any, typed: Tensor, divide: Any, minus_one: Any) -> Any:
    """Integer division; the smallest integer divided by -1 traps in hardware, so that case goes another way."""
    if not isinstance(y, Tensor):
        return minus_one(x) if y == -1 else divide(x, y)
    x = like(x, y)
    if not typed.dtype.is_signed:
        return divide(x, y)
    risky = y == -1
    return torch.where(risky, minus_one(x), divide(x, y.masked_fill(risky, 1)))


@onnx_op("Mod", since=10, scalars=True)
def mod(node: Node, a: Operand, b: Operand) -> Any:
    if wide_type((a, b)) == torch.uint64:
        return divide_wide(*_both(node, a, b))[1]
    return _mod(node, a, b)


@widened
def _mod(node: Node, a: Operand, b: Operand) -> Any:
    x, y = pair(node, a, b)
    typed = x if isinstance(x, Tensor) else y
    fmod = node["fmod"] == 1
    if typed.is_floating_point():
        if fmod:
            return torch.fmod(like(x, typed), y)
        y, x = like(y, typed), like(x, typed)
        rest = torch.remainder(x, y)
        return torch.where(torch.isinf(y) & torch.isfinite(x) & (x != 0), torch.where((x < 0) == (y < 0), x, y), rest)
    divide = torch.fmod if fmod else torch.remainder
    return _integer(like(x, typed), y, typed, divide, torch.zeros_like)


@onnx_op("Pow", scalars=True)
@widened
def power(node: Node, a: Operand, b: Operand) -> Tensor:
    # The exponent may have another type than the base; the result has the base's.
    x, y = pair(node, a, b)
    dtype = a.dtype
    if not isinstance(x, Tensor):
        x = torch.full((), x, dtype=dtype, device=y.device)
    if not isinstance(y, Tensor):
        if math.isfinite(y) and float(y) == int(y):
            y = int(y)
        if not dtype.is_floating_point and (isinstance(y, float) or y < 0):
            return torch.pow(x.to(torch.float64), y).to(dtype)
        return torch.pow(x, y)
    if y.dtype in WIDE_UNSIGNED:
        y = y.to(torch.int64)
    if dtype.is_floating_point:
        return torch.pow(x, y.to(dtype) if y.dtype != dtype else y)
    if y.is_floating_point():
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(dtype)
    wide = torch.promote_types(dtype, y.dtype)
    return torch.pow(x.to(wide), y.to(wide)).to(dtype)


def _fold(function: Callable[[Any, Any], Any], node: Node, operands: tuple[Operand, ...]) -> Tensor:
    if len(operands) == 1:
        return to_tensor(operands[0])
    result = to_tensor(operands[0])
    for value in operands[1:]:
        x, y = pair(node, result, value)
        result = function(like(x, result), y)
    return result


@onnx_op("Sum", scalars=True)
def sum_(node: Node, *operands: Operand) -> Tensor:
    return _fold(lambda x, y: x + y, node, operands)


@onnx_op("Mean", scalars=True)
def mean(node: Node, *operands: Operand) -> Tensor:
    total = _fold(lambda x, y: x + y, node, operands)
    return total if len(operands) == 1 else total / len(operands)


@onnx_op("Max", scalars=True)
@ordered
def maximum(node: Node, *operands: Operand) -> Tensor:
    return _fold(lambda x, y: torch.maximum(x, like(y, x)), node, operands)


@onnx_op("Min", scalars=True)
@ordered
def minimum(node: Node, *operands: Operand) -> Tensor:
    return _fold(lambda x, y: torch.minimum(x, like(y, x)), node, operands)


def _unary(name: str, function: Callable[[Tensor], Tensor], since: int = 1) -> None:
    @widened
    def call(node: Node, x: Tensor) -> Tensor:
        return function(x)

    onnx_op(name, since=since)(call)


def _rounded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) if x.is_floating_point() else x


@onnx_op("Abs")
def absolute(node: Node, x: Tensor) -> Tensor:
    return torch.abs(x) if x.dtype.is_signed else x


@onnx_op("Sign", since=9)
def sign(node: Node, x: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.where(torch.isnan(x), x, torch.sign(x))
    return torch.sign(x) if x.dtype.is_signed else (x != 0).to(x.dtype)


_unary("Neg", torch.neg)
_unary("Ceil", _rounded(torch.ceil))
_unary("Floor", _rounded(torch.floor))
_unary("Round", _rounded(torch.round))
_unary("Sqrt", torch.sqrt)
_unary("Reciprocal", torch.reciprocal)
_unary("Exp", torch.exp)
_unary("Log", torch.log)
_unary("Erf", torch.erf)
_unary("Sin", torch.sin)
_unary("Cos", torch.cos)
_unary("Tan", torch.tan)
_unary("Asin", torch.asin)
_unary("Acos", torch.acos)
_unary("Atan", torch.atan)
_unary("Sinh", torch.sinh)
_unary("Cosh", torch.cosh)
_unary("Asinh", torch.asinh)
_unary("Acosh", torch.acosh)
_unary("Atanh", torch.atanh)
_unary("Det", torch.linalg.det)


@onnx_op("Clip")
def clip_attributes(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(x, node.get("min"), node.get("max"))


@onnx_op("Clip", since=11, scalars=True)
@ordered
def clip(node: Node, x: Operand, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    value = to_tensor(x)
    if low is None and high is None:
        return value
    if isinstance(low, Host) and isinstance(high, Host) and low.values[0] > high.values[0]:
        return torch.full_like(value, high.values[0])
    bounds = [operand(b, 1) if b is not None else None for b in (low, high)]
    bounds = [b.reshape(()) if isinstance(b, Tensor) else b for b in bounds]
    if isinstance(bounds[0], Tensor) or isinstance(bounds[1], Tensor):
        bounds = [like(b, value) if b is not None else None for b in bounds]
    return torch.clamp(value, bounds[0], bounds[1])


@onnx_op("CumSum", since=11, host=(1,))
def cumsum(node: Node, x: Tensor, axis: Operand) -> Tensor:
    return _cumulative(node, x, axis, torch.cumsum, 0)


@onnx_op("CumProd", since=26, host=(1,))
def cumprod(node: Node, x: Tensor, axis: Operand) -> Tensor:
    return _cumulative(node, x, axis, torch.cumprod, 1)


def _cumulative(node: Node, x: Tensor, axis: Operand, function: Any, start: int) -> Tensor:
    dim = axis_of(scalar(axis), x.ndim)
    if node["reverse"]:
        x = torch.flip(x, (dim,))
    result = function(x, dim).to(x.dtype)
    if node["exclusive"]:
        first = torch.full_like(x.narrow(dim, 0, 1), start)
        result = torch.cat((first, result.narrow(dim, 0, x.shape[dim] - 1)), dim)
    return torch.flip(result, (dim,)) if node["reverse"] else result
