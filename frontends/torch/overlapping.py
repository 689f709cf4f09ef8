"""Gradients of outputs whose elements share memory (``Tensor.unfold``) get memory of their own.

AOTAutograd expects the gradient of an output in the output's strides and copies it into them where it comes in others. Where
elements overlap, the copy loses all but one of the values at each place: the gradient was silently wrong. PyTorch 2.13 looks for
strides of 0 alone (``expand``); here every overlap counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory: true where the dimensions do not lie one inside the other."""
    reach = 0
    for stride, extent in sorted((s, d) for s, d in zip(strides, shape, strict=True) if d != 1):
        if extent == 0:
            return False
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


@contextlib.contextmanager
def gradients_of_overlapping_outputs() -> Iterator[None]:
    """AOTAutograd asks for contiguous gradients of outputs that overlap, while this lasts."""
    original = MemoryFormatMeta.from_tensor

    def from_tensor(t: torch.Tensor, *more: Any, **named: Any) -> Any:
        static = t.layout == torch.strided and all(isinstance(n, int) for n in (*t.shape, *t.stride()))
        if static and overlaps(t.shape, t.stride()):
            return MemoryFormatMeta(memory_format=torch.contiguous_format)
        return original(t, *more, **named)

    with mock.patch.object(MemoryFormatMeta, "from_tensor", staticmethod(from_tensor)):
        yield
