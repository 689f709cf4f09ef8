"""Arithmetic on uint16, uint32 and uint64, which torch stores but hardly computes on: as int64, exact over the whole range.

uint64 does not fit int64. Sums and products wrap alike; an order is kept with the highest bit turned round; a quotient is
made of that of halves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from dcir.frontends.onnx.registry import Node
from dcir.frontends.onnx.values import WIDE_UNSIGNED, Host, to_tensor

_LOWEST = -(2**63)


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator for which it makes no difference whether wide unsigned integers wrap at 2**63 or at 2**64."""
    return _as_signed(function, lambda x: x.to(torch.int64), lambda x, dtype: x.to(dtype))


def ordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that compares and chooses, and makes no new numbers."""
    return _as_signed(function, to_ordered, from_ordered)


def _as_signed(
    function: Callable[..., Any], enter: Callable[[Tensor], Tensor], leave: Callable[[Tensor, torch.dtype], Tensor]
) -> Callable[..., Any]:
    @wraps(function)
    def call(node: Node, *operands: Any) -> Any:
        dtype = wide_type(operands)
        if dtype is None:
            return function(node, *operands)
        signed = [enter(v) if isinstance(v, Tensor) and v.dtype == dtype else v for v in _tensors(operands, dtype)]
        results = function(node, *signed)
        if isinstance(results, tuple):
            return (leave(results[0], dtype), *results[1:])
        return leave(results, dtype) if isinstance(results, Tensor) and results.dtype == torch.int64 else results

    return call


def wide_type(operands: Any) -> torch.dtype | None:
    """The wide unsigned type among the operands."""
    for value in operands:
        if isinstance(value, Tensor) and value.dtype in WIDE_UNSIGNED:
            return value.dtype
    return None


def _tensors(operands: Any, dtype: torch.dtype) -> list[Any]:
    """Numbers of uint64 as tensors, since they need not fit where a Python number goes."""
    wide = dtype == torch.uint64
    return [to_tensor(v) if wide and isinstance(v, Host) and v.dtype == dtype else v for v in operands]


def to_ordered(x: Tensor) -> Tensor:
    """As int64, in the same order."""
    signed = x.to(torch.int64)
    return signed ^ _LOWEST if x.dtype == torch.uint64 else signed


def from_ordered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What `to_ordered` was made of."""
    return (x ^ _LOWEST if dtype == torch.uint64 else x).to(dtype)


def divide_wide(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and rest of two uint64 tensors."""
    x, y = torch.broadcast_tensors(a.to(torch.int64), b.to(torch.int64))
    large = y < 0
    divisor = y.masked_fill(large, 1)
    # Half of a fits int64; the quotient of the halves, doubled, is the quotient or one less.
    quotient = torch.div((x >> 1) & (2**63 - 1), divisor, rounding_mode="trunc") << 1
    rest = x - quotient * divisor
    quotient = quotient + ((rest ^ _LOWEST) >= (divisor ^ _LOWEST)).to(torch.int64)
    quotient = torch.where(large, ((x ^ _LOWEST) >= (y ^ _LOWEST)).to(torch.int64), quotient)
    return quotient.to(torch.uint64), (x - quotient * y).to(torch.uint64)
