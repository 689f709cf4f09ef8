"""Quantisation: quantise, dequantise, and the integer contractions."""

from __future__ import annotations

from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.conv import integer_conv
from dcir.frontends.onnx.ops.linear import matmul_integer
from dcir.frontends.onnx.quantize import RANGES, to_float4, to_float8
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import FLOAT8, ONNX_TYPES, axis_of, torch_dtype

_T = TensorProto


def _spread(node: Node, part: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point in a shape that broadcasts with `x`: per tensor, per axis, or per block."""
    if part.numel() == 1 and part.ndim <= 1:
        return part.reshape(())
    axis = axis_of(node.get("axis", 1), x.ndim)
    if part.ndim == 1 and not (x.ndim == 1 and node.get("block_size", 0)):
        if part.shape[0] != x.shape[axis]:
            raise InvalidModel(f"{part.shape[0]} scales do not fit axis {axis} of shape {list(x.shape)}")
        return part.reshape(-1, *(1,) * (x.ndim - axis - 1))
    block = node.get("block_size", 0)
    if block < 1 or part.ndim != x.ndim:
        raise InvalidModel(f"scales of shape {list(part.shape)} with block size {block} do not fit {list(x.shape)}")
    return part.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


@onnx_op("QuantizeLinear", since=10)
def quantize_linear(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    code = node.get("output_dtype", 0)
    if not code:
        code = node.narrow.get(2) or (ONNX_TYPES[zero.dtype] if zero is not None else _T.UINT8)
    precision = node.get("precision", 0)
    wide = torch_dtype(precision) if precision else torch.promote_types(scale.dtype, torch.float32)
    if scale.dtype == torch.float8_e8m0fnu:
        wide = torch.float32
    if not precision and scale.dtype in (torch.float16, torch.bfloat16) and x.dtype == scale.dtype:
        wide = x.dtype
    y = x.to(wide) / _spread(node, scale, x).to(wide)
    if code in RANGES:
        shift = _spread(node, zero, x).to(torch.float32) if zero is not None else 0
        low, high = RANGES[code]
        return (torch.round(y.to(torch.float32)) + shift).clamp(low, high).to(torch.int32).to(torch_dtype(code))
    y = y.to(torch.float32)
    if zero is not None:
        y = y + _spread(node, zero, x).to(torch.float32)
    if code == _T.FLOAT4E2M1:
        return to_float4(y)
    return to_float8(y, code, bool(node.get("saturate", 1)))


@onnx_op("DequantizeLinear", since=10)
def dequantize_linear(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    code = node.get("output_dtype", 0)
    dtype = torch_dtype(code) if code else scale.dtype
    wide = torch.float32 if scale.dtype != torch.float64 else torch.float64
    y = x.to(wide)
    if zero is not None:
        y = y - _spread(node, zero, x).to(wide)
    return (y * _spread(node, scale, x).to(wide)).to(dtype)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.zeros((), dtype=x.dtype, device=x.device)
    low, high = torch.minimum(torch.amin(x), nothing), torch.maximum(torch.amax(x), nothing)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, 1, scale)
    zero = torch.round((-low / safe).clamp(0, 255))
    y = (torch.round(x / safe) + zero).clamp(0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


def _requantised(real: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    if zero.dtype in FLOAT8:
        return to_float8(real / scale.to(torch.float32), ONNX_TYPES[zero.dtype], True)
    low, high = RANGES[ONNX_TYPES[zero.dtype]]
    shifted = torch.round(real / scale.to(torch.float32)) + zero.to(torch.float32)
    return shifted.clamp(low, high).to(zero.dtype)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(
    node: Node, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    if a.dtype in FLOAT8:
        left, right = (t.to(torch.float32) - z.to(torch.float32) for t, z in ((a, a_zero), (b, b_zero)))
        real = torch.matmul(left, right)
    else:
        real = matmul_integer(node, a, b, a_zero, b_zero).to(torch.float32)
    rows = a_scale.unsqueeze(-1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    return _requantised(real * (rows.to(torch.float32) * b_scale.to(torch.float32)), y_scale, y_zero)


@onnx_op("QLinearConv", since=10)
def qlinear_conv(
    node: Node, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    total = integer_conv(node, x, w, x_zero, w_zero)
    channel = (-1, *(1,) * (x.ndim - 2))
    if b is not None:
        total = total + b.reshape(channel)
    factor: Any = x_scale * (w_scale.reshape(channel) if w_scale.ndim == 1 else w_scale)
    return _requantised(total.to(torch.float32) * factor, y_scale, y_zero)
