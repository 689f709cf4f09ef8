"""Operators that a program runs through torch: tensors over the memory that dcir owns, and the call itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dcir.ops.torch_types import FROM_NAME


def call_into_torch(
    spec: Any, ins: Sequence[tuple[int, int]], outs: Sequence[tuple[int, int]]
) -> Callable[[Any], None]:
    """The call back of one ``TorchCall``; operands lie at (slot of the table, byte offset)."""

    def call(table: Any) -> None:
        tensors = [
            [tensor_at((table[slot] or 0) + offset, *w) for (slot, offset), w in zip(places, windows, strict=True)]
            for places, windows in ((ins, spec.ins), (outs, spec.outs))
        ]
        spec.call(*tensors)

    return call


def tensor_at(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> torch.Tensor:
    """A tensor over memory that dcir owns; it must not outlive the call."""
    torch_type = FROM_NAME[dtype]
    if any(d == 0 for d in shape):
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=torch_type)
    size = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (size * torch_type.itemsize)).from_address(address)
    return torch.as_strided(torch.frombuffer(memory, dtype=torch_type), tuple(shape), tuple(strides))
