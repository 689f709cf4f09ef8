"""Sorts and scans by PyTorch's own kernels: their windows as tensors, and the calls. None of them waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dcir.ir.types import compute_type
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.sort import SortSpec
from dcir.ops.library.torch_call import Window
from dcir.ops.torch_types import FROM_NAME

RowSpec = SortSpec | ScanSpec


def row_windows(spec: RowSpec) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
    """(shape, strides, dtype) of inputs and of results."""
    shape = (*spec.rows, spec.n)
    if isinstance(spec, SortSpec):
        results = (*spec.rows, spec.k)
        return ((shape, spec.x, spec.dtype),), ((results, spec.values, spec.dtype), (results, spec.positions, "i64"))
    positions = [(shape, spec.positions, "i64")] if spec.positions is not None else []
    return ((shape, spec.x, spec.source),), ((shape, spec.y, spec.result), *positions)


def call_rows(spec: RowSpec, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
    """Run it: read ``ins``, write ``outs``."""
    if isinstance(spec, SortSpec):
        values, places = torch.sort(ins[0], dim=-1, descending=spec.descending, stable=True)
        outs[0].copy_(values[..., : spec.k])
        outs[1].copy_(places[..., : spec.k])
        return
    v = ins[0].to(FROM_NAME[compute_type(spec.result)])
    if spec.op in ("max", "min"):
        y, places = torch.cummax(v, -1) if spec.op == "max" else torch.cummin(v, -1)
        if spec.positions is not None:
            outs[1].copy_(places)
    elif spec.op == "logsumexp":
        y = torch.logcumsumexp(v, -1)
    else:
        y = torch.cumsum(v, -1, dtype=v.dtype) if spec.op == "sum" else torch.cumprod(v, -1, dtype=v.dtype)
    outs[0].copy_(y)
