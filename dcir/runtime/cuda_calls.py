"""Operators that a program on a GPU runs through torch: tensors over its memory, on the same device and stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dcir.ops.torch_types import FROM_NAME

Bases = Sequence[torch.Tensor | None]
"""By table slot the tensor whose memory begins there."""
Place = tuple[int, int]
"""Slot of the table, and byte offset."""


def call_on_device(spec: Any, ins: Sequence[Place], outs: Sequence[Place]) -> Callable[[Bases], None]:
    """The call back of one operator that runs through torch (it says its windows as ``ins`` and ``outs``, and how to ``call``)."""
    reads = [(slot, offset, *_form(w)) for (slot, offset), w in zip(ins, spec.ins, strict=True)]
    writes = [(slot, offset, *_form(w)) for (slot, offset), w in zip(outs, spec.outs, strict=True)]

    def call(bases: Bases) -> None:
        with torch.no_grad():
            spec.call(*([tensor_in(bases[slot], *rest) for slot, *rest in side] for side in (reads, writes)))

    return call


def _form(window: tuple[Sequence[int], Sequence[int], str]) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    shape, strides, dtype = window
    return tuple(shape), tuple(strides), FROM_NAME[dtype]


def tensor_in(
    base: torch.Tensor | None, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over the memory of ``base``, ``offset`` bytes from its first element; it must not outlive the call."""
    assert base is not None
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype, device=base.device)
    if base.dtype == dtype:
        return torch.as_strided(base, shape, strides, base.storage_offset() + offset // dtype.itemsize)
    start = base.storage_offset() * base.itemsize + offset
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), start // dtype.itemsize, shape, strides)
