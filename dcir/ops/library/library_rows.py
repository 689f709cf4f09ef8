"""Scatters, sorts and scans by PyTorch's own kernels: their windows as tensors, and the calls.

None of them waits for the device. An index that leaves its tensor ends a device's work as it does in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dcir.errors import IndexOutOfRange
from dcir.ir.refusal import Refusal
from dcir.ir.types import HALVES, compute_type
from dcir.ops.library.scan import ScanSpec
from dcir.ops.library.scatter import ScatterSpec
from dcir.ops.library.sort import SortSpec
from dcir.ops.library.torch_call import Window
from dcir.ops.torch_types import FROM_NAME

RowSpec = ScatterSpec | SortSpec | ScanSpec
_FOLDS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def refused_rows(spec: RowSpec) -> Refusal | None:
    """Why torch cannot be called for a scatter, sort or scan; None if it can."""
    if isinstance(spec, ScatterSpec):
        if spec.op == "set" and spec.skip is not None:
            return Refusal("points that are passed over would have to be counted first")
        if spec.op != "set" and spec.dtype == "bool":
            return Refusal("bools are not added up")
        return Refusal("a result with steps backwards") if any(s < 0 for s in spec.out) else None
    return Refusal("rows of complex numbers") if "c" in (_dtype(spec)[0]) else None


def _dtype(spec: SortSpec | ScanSpec) -> str:
    return spec.dtype if isinstance(spec, SortSpec) else spec.source


def row_windows(spec: RowSpec) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
    """(shape, strides, dtype) of inputs and of results."""
    if isinstance(spec, ScatterSpec):
        base = [(spec.shape, spec.base, spec.dtype)] if spec.base is not None else []
        places = [(spec.dims, st, t) for st, t in zip(spec.indices, spec.index_types, strict=True)]
        return (*base, (spec.dims, spec.source, spec.dtype), *places), ((spec.shape, spec.out, spec.dtype),)
    if isinstance(spec, SortSpec):
        results = (*spec.rows, spec.k)
        outs = ((results, spec.values, spec.dtype), (results, spec.positions, "i64"))
        return (((*spec.rows, spec.n), spec.x, spec.dtype),), outs
    shape = (*spec.rows, spec.n)
    positions = [(shape, spec.positions, "i64")] if spec.positions is not None else []
    return ((shape, spec.x, spec.source),), ((shape, spec.y, spec.result), *positions)


def call_rows(spec: RowSpec, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
    """Run it: read ``ins``, write ``outs``."""
    if isinstance(spec, ScatterSpec):
        _scatter(spec, list(ins), outs[0])
    elif isinstance(spec, SortSpec):
        values, places = torch.sort(ins[0], dim=-1, descending=spec.descending, stable=True)
        outs[0].copy_(values[..., : spec.k])
        outs[1].copy_(places[..., : spec.k])
    else:
        _scan(spec, ins[0], outs)


def _scan(spec: ScanSpec, x: torch.Tensor, outs: Sequence[torch.Tensor]) -> None:
    v = x.to(FROM_NAME[compute_type(spec.result)])
    if spec.op in ("max", "min"):
        y, places = torch.cummax(v, -1) if spec.op == "max" else torch.cummin(v, -1)
        if spec.positions is not None:
            outs[1].copy_(places)
    elif spec.op == "logsumexp":
        y = torch.logcumsumexp(v, -1)
    else:
        y = torch.cumsum(v, -1, dtype=v.dtype) if spec.op == "sum" else torch.cumprod(v, -1, dtype=v.dtype)
    outs[0].copy_(y)


def _scatter(spec: ScatterSpec, rest: list[torch.Tensor], out: torch.Tensor) -> None:
    if spec.base is None:
        out.fill_(spec.fill)
    else:
        base = rest.pop(0)
        if not spec.kept:
            out.copy_(base)
    source, places = rest[0], rest[1:]
    width = _row(spec)
    dims = spec.dims[:-1] if width > 1 else spec.dims
    at, wanted = _addresses(spec, places, dims)
    if width == 1:
        dims, width = (*dims, 1), 1
        source = source.unsqueeze(-1)
    span = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.out, strict=True))
    rows = -(-span // width)
    whole = torch.as_strided(out, (rows, width), (width, 1), out.storage_offset())
    # Sums of half types are kept in float32, and rounded once.
    wide = whole.float() if spec.dtype in HALVES and spec.op != "set" else whole
    values = source.expand(*dims[: at.dim()], width).reshape(-1, width).to(wide.dtype)
    if wanted is not None:
        neutral = {"add": 0, "mul": 1}.get(spec.op)
        here = wanted.reshape(-1, 1)
        values = torch.where(here, values, wide[:1] if neutral is None else neutral)
        at = torch.where(wanted, at, 0)
    at = at.reshape(-1) // width if width > 1 else at.reshape(-1)
    if spec.op in ("set", "add"):
        wide.index_put_((at,), values, accumulate=spec.op == "add")
    else:
        wide.scatter_reduce_(0, at.unsqueeze(1).expand_as(values), values, _FOLDS[spec.op])
    if wide is not whole:
        whole.copy_(wide)


def _row(spec: ScatterSpec) -> int:
    """Elements of the last loop if whole rows of the result are written, else 1."""
    n = spec.dims[-1] if spec.dims else 1
    span = 1 + sum((d - 1) * s for d, s in zip(spec.shape, spec.out, strict=True))
    steps = (*spec.to[:-1], *spec.index_steps)
    whole = n > 1 and spec.to[-1] == 1 and span % n == 0 and all(s % n == 0 for s in steps)
    return n if whole and not any(st[-1] for st in spec.indices) else 1


def _addresses(
    spec: ScatterSpec, places: Sequence[torch.Tensor], dims: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where each point of some loops goes, and which points count; None: all do."""
    device = places[0].device if places else None
    at = torch.zeros(dims, dtype=torch.int64, device=device)
    for d, (n, step) in enumerate(zip(dims, spec.to, strict=False)):
        if step:
            shape = [n if d == k else 1 for k in range(len(dims))]
            at = at + (torch.arange(n, device=device) * step).reshape(shape)
    wanted: torch.Tensor | None = None
    fine: torch.Tensor | None = None
    for number, given in enumerate(places):
        index = given.select(-1, 0).long() if len(dims) < given.dim() else given.long()
        if number == 0 and spec.skip is not None:
            wanted = index != spec.skip
        if spec.wrap:
            index = torch.where(index < 0, index + spec.extents[number], index)
        inside = (index >= 0) & (index < spec.extents[number])
        inside = inside if wanted is None else inside | ~wanted
        fine = inside if fine is None else fine & inside
        at = at + index * spec.index_steps[number]
    if fine is not None and 0 not in dims:
        if fine.device.type == "cpu" and not bool(fine.all()):
            raise IndexOutOfRange("an index lies outside its tensor")
        torch._assert_async(fine.all())
    return at, wanted
