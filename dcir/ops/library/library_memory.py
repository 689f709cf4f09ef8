"""Memory that a call of a library takes beside its operands: copies of what it reads, and results before they are copied."""

from __future__ import annotations

import math

import torch

from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.library_call import LibraryCall, in_one_stride, joined
from dcir.ops.library.library_layouts import turned_bytes
from dcir.ops.library.sort import SortSpec
from dcir.ops.library.torch_call import TorchCall


def own_bytes(spec: LibraryCall | TorchCall, *, last_alone: bool = False) -> int:
    """Bytes that a call allocates while it runs, without a result that stays where the library made it.

    Args:
        spec: the call.
        last_alone: whether the library convolves with channels last alone.
    """
    if isinstance(spec, TorchCall):
        return sum(spec.footprint()[1])  # whatever it makes is copied to its place
    of = spec.of
    if isinstance(of, ConvolutionSpec):
        return turned_bytes(of, last_alone=last_alone) // 2
    if isinstance(of, ContractionSpec):
        return copied_bytes(of)
    rows = math.prod(of.rows) * of.n
    if isinstance(of, SortSpec):
        return rows * (itemsize(of.dtype) + itemsize("i64"))
    return rows * (2 * itemsize(compute_type(of.result)) + (itemsize("i64") if of.positions is not None else 0))


def copied_bytes(spec: ContractionSpec) -> int:
    """Bytes of the operands and of the result whose batch lies in no one stride, so that they are copied."""
    if len(spec.batch) < 2:
        return 0
    at, types = (spec.a, spec.b, spec.c), (spec.types.a, spec.types.b, spec.types.c)
    a, b, c = (torch.empty_strided(s, st, device="meta") for s, st in zip(spec.shapes, at, strict=True))
    found = joined(a, b, c)
    if found[2].dim() <= 3:
        return 0
    return sum(t.numel() * itemsize(dtype) for t, dtype in zip(found, types, strict=True) if not in_one_stride(t))
