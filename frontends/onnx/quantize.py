"""Conversions between element types with ONNX's rules: saturation, float8, and types narrower than a byte."""

from __future__ import annotations

import math

import torch
from onnx import TensorProto
from torch import Tensor

from dcir.errors import Unsupported
from dcir.frontends.onnx.values import FLOAT8, WIDE_UNSIGNED, torch_dtype

_T = TensorProto
RANGES: dict[int, tuple[int, int]] = {
    _T.UINT8: (0, 255), _T.INT8: (-128, 127), _T.UINT16: (0, 65535), _T.INT16: (-32768, 32767),
    _T.UINT4: (0, 15), _T.INT4: (-8, 7), _T.UINT2: (0, 3), _T.INT2: (-2, 1), _T.INT32: (-(2**31), 2**31 - 1),
}  # fmt: skip
_MAXIMA: dict[int, float] = {
    _T.FLOAT8E4M3FN: 448.0,
    _T.FLOAT8E4M3FNUZ: 240.0,
    _T.FLOAT8E5M2: 57344.0,
    _T.FLOAT8E5M2FNUZ: 57344.0,
}
_NARROW: dict[int, int] = {_T.UINT4: 4, _T.INT4: 4, _T.UINT2: 2, _T.INT2: 2}


def cast_to(x: Tensor, code: int, saturate: bool = True, round_mode: str = "up") -> Tensor:
    """`x` as ONNX element type `code`."""
    dtype = torch_dtype(code)
    if x.dtype in FLOAT8 and dtype in FLOAT8 and x.dtype == dtype:
        return x
    if code in _NARROW:
        return _to_narrow(x, code)
    if code == _T.FLOAT4E2M1:
        return to_float4(x.to(torch.float32))
    if code in _MAXIMA:
        return to_float8(x, code, saturate)
    if code == _T.FLOAT8E8M0:
        return _to_e8m0(x.to(torch.float32), saturate, round_mode)
    if dtype in WIDE_UNSIGNED and x.is_floating_point() and dtype != torch.uint64:
        return x.to(torch.int64).to(dtype)
    if x.is_floating_point() and dtype in (torch.uint8, torch.int8, torch.int16):
        # A direct conversion is undefined outside the range; through int64 it wraps as ONNX's own files expect.
        return x.to(torch.int64).to(dtype)
    return x.to(dtype)


def _to_narrow(x: Tensor, code: int) -> Tensor:
    """Integers of 4 or 2 bits keep their low bits."""
    bits = _NARROW[code]
    whole = x.to(torch.float32).to(torch.int64) if x.is_floating_point() else x.to(torch.int64)
    low = whole & ((1 << bits) - 1)
    if code in (_T.INT4, _T.INT2):
        half = 1 << (bits - 1)
        low = (low ^ half) - half
    return low.to(torch_dtype(code))


def to_float8(x: Tensor, code: int, saturate: bool) -> Tensor:
    """To one of the four 8-bit floats; beyond the largest value: that value, or infinity/NaN without saturation."""
    dtype = torch_dtype(code)
    wide = x.to(torch.float32) if x.dtype in FLOAT8 or not x.is_floating_point() else x
    wide = wide.to(torch.float32)
    if not saturate:
        # torch saturates this one type; the values from 464 on round to what would be the next number, a NaN.
        lost = wide.abs() > 464 if code == _T.FLOAT8E4M3FN else None
        return (wide if lost is None else torch.where(lost, math.nan, wide)).to(dtype)
    bound = _MAXIMA[code]
    return torch.where(torch.isnan(wide), wide, wide.clamp(-bound, bound)).to(dtype)


def to_float4(x: Tensor) -> Tensor:
    """Round to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to even mantissa; values stay float32."""
    magnitude = x.abs().clamp(max=6.0)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    rounded = torch.round(magnitude / step) * step
    # There is no NaN here; ONNX's own files turn it into minus zero.
    return torch.where(torch.isnan(x), -0.0, torch.copysign(rounded, x))


def _to_e8m0(x: Tensor, saturate: bool, round_mode: str) -> Tensor:
    """Powers of two from 2**-127 to 2**127; the sign is lost."""
    bits = x.abs().contiguous().view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    if round_mode == "up":
        step = torch.where((exponent == 0) & (mantissa <= 0x400000), 0, (mantissa > 0).to(torch.int32))
    elif round_mode == "nearest":
        step = torch.where(exponent == 0, mantissa > 0x400000, mantissa >= 0x400000).to(torch.int32)
    elif round_mode == "down":
        step = torch.zeros_like(exponent)
    else:
        raise Unsupported(f"rounding mode {round_mode} is not supported")
    code = exponent + step
    finite = exponent < 255
    if saturate:
        code = torch.where(finite, code.clamp(max=254), code)
    code = torch.where(torch.isnan(x), 255, torch.where(finite, code, 254 if saturate else 255))
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)
