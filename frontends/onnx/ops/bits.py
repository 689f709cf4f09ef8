"""Bitwise operators, shifts, and reinterpretation of bits."""

from __future__ import annotations

import torch
from torch import Tensor

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import DTYPES, WIDE_UNSIGNED

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SUB_BYTE = (21, 22, 23, 25, 26)


def _signed(x: Tensor) -> Tensor:
    return x.view(_SIGNED[x.dtype]) if x.dtype in _SIGNED else x


@onnx_op("BitwiseAnd", since=18)
def bitwise_and(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_and(_signed(a), _signed(b)).view(a.dtype)


@onnx_op("BitwiseOr", since=18)
def bitwise_or(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_or(_signed(a), _signed(b)).view(a.dtype)


@onnx_op("BitwiseXor", since=18)
def bitwise_xor(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.bitwise_xor(_signed(a), _signed(b)).view(a.dtype)


@onnx_op("BitwiseNot", since=18)
def bitwise_not(node: Node, x: Tensor) -> Tensor:
    return torch.bitwise_not(_signed(x)).view(x.dtype)


@onnx_op("BitShift", since=11)
def bit_shift(node: Node, a: Tensor, b: Tensor) -> Tensor:
    bits = 8 * a.dtype.itemsize
    # Shifting by the width or more is undefined in C; ONNX wants the sign bit alone.
    over = (b.to(torch.int64) < 0) | (b.to(torch.int64) >= bits)
    amount = torch.where(over, 0, b.to(torch.int64))
    if a.dtype == torch.uint64:
        x = a.view(torch.int64)
        if node["direction"] == "LEFT":
            shifted = x << amount
        else:
            # A logical shift from an arithmetic one: clear the copies of the sign bit.
            keep = torch.where(amount == 0, -1, ~(torch.full_like(amount, -1) << (64 - amount).clamp(max=63)))
            shifted = (x >> amount) & keep
        return torch.where(over, 0, shifted).view(torch.uint64)
    wide = a.to(torch.int64)
    shifted = wide << amount if node["direction"] == "LEFT" else wide >> amount
    beyond = torch.where(wide < 0, -1, 0) if node["direction"] == "RIGHT" else torch.zeros_like(wide)
    result = torch.where(over, beyond, shifted)
    if a.dtype in WIDE_UNSIGNED:
        result = result & ((1 << bits) - 1)
    return result.to(a.dtype)


@onnx_op("BitCast", since=26)
def bit_cast(node: Node, x: Tensor) -> Tensor:
    if node["to"] in _SUB_BYTE or node["to"] not in DTYPES:
        raise Unsupported("BitCast to a type narrower than a byte or to strings is not supported")
    dtype = DTYPES[node["to"]]
    if x.dtype == torch.bool or dtype == torch.bool:
        return x.view(torch.uint8).view(dtype)
    if x.dtype.itemsize != dtype.itemsize:
        message = (
            f"attribute 'to' is {node['to']}, of {dtype.itemsize} bytes; the operand's elements have {x.dtype.itemsize}"
        )
        raise InvalidModel(message, hint="types of equal size")
    return x.view(dtype)
