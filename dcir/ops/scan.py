"""Running sums, products and extremes along one dimension: a library node, and the pages that make it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dcir.ir.serialize import register
from dcir.ir.types import bf16_to_f32, compute_type, f32_to_bf16, itemsize, to_numpy
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand, specials


@register
@dataclass(frozen=True)
class ScanSpec:
    """y[row, i] = x[row, 0] op … op x[row, i]; extremes also tell the last position that set them.

    Attributes:
        op: "sum", "prod", "max", "min" or "logsumexp".
        source, result: element types of x and y. Integers work in the result's type, floats in f64 as torch does.
        rows: extents of the other dimensions.
        n: extent of the scanned dimension.
        x, y: strides over (*rows, n).
        positions: strides of the positions (i64, a second result), None where there is none.
    """

    op: str
    source: str
    result: str
    rows: tuple[int, ...]
    n: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    positions: tuple[int, ...] | None = None

    kind = "scan"

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of source and results."""
        count = math.prod(self.rows) * self.n
        outs = (count * itemsize(self.result), *([count * 8] if self.positions is not None else []))
        return (count * itemsize(self.source),), outs

    def operations(self) -> int:
        """One operation per element."""
        return math.prod(self.rows) * self.n

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over NumPy buffers."""
        shape = (*self.rows, self.n)
        v = ins[0][grid(shape, self.x)]
        v = bf16_to_f32(v) if self.source == "bf16" else v
        v = v.astype(to_numpy(compute_type(self.result)))
        if self.op in ("max", "min"):
            y, where = _extremes(v, self.op)
            if self.positions is not None:
                outs[1][grid(shape, self.positions)] = where
        elif self.op == "logsumexp":
            y = np.logaddexp.accumulate(v.astype(np.float64), axis=-1)
        else:
            fold = np.add if self.op == "sum" else np.multiply
            y = fold.accumulate(v.astype(np.float64) if v.dtype.kind == "f" else v, axis=-1)
        y = y.astype(v.dtype)
        outs[0][grid(shape, self.y)] = f32_to_bf16(y) if self.result == "bf16" else y.astype(to_numpy(self.result))


def _extremes(v: Any, op: str) -> tuple[Any, Any]:
    y, where = v.copy(), np.zeros(v.shape, np.int64)
    for i in range(1, v.shape[-1]):
        old, new = y[..., i - 1], v[..., i]
        better = (new >= old) if op == "max" else (new <= old)
        if v.dtype.kind == "f":
            better = np.isnan(new) | (~np.isnan(old) & better)
        y[..., i] = np.where(better, new, old)
        where[..., i] = np.where(better, i, where[..., i - 1])
    return y, where


def grid(shape: Sequence[int], strides: Sequence[int]) -> Any:
    """The address of every element."""
    at = np.zeros(tuple(shape), np.int64)
    for d, (n, s) in enumerate(zip(shape, strides, strict=True)):
        at = at + (np.arange(n, dtype=np.int64) * s).reshape([-1 if i == d else 1 for i in range(len(shape))])
    return at


def rows_of(x: Ref, dim: int) -> tuple[tuple[int, ...], int, Callable[[Ref], tuple[int, ...]]]:
    """(extents of the other dimensions, extent of ``dim``, strides over both of a tensor of that shape)."""
    if not x.shape:
        return (), 1, lambda ref: (0,)
    d = dim % len(x.shape)
    order = [*(i for i in range(len(x.shape)) if i != d), d]
    return tuple(x.shape[i] for i in order[:-1]), x.shape[d], lambda ref: tuple(ref.strides[i] for i in order)


def _scan(ctx: Lowering, x: Ref, dim: int, op: str) -> tuple[Ref, ...]:
    refuse_complex(ctx, x)
    results = [ctx.result(i) for i in range(len(ctx.outs))]
    if not x.numel:
        return tuple(results)
    if op in ("sum", "prod") and results[0].dtype == "bool":
        raise NotNative("running sums of truth values")
    rows, n, over = rows_of(x, dim)
    positions = over(results[1]) if len(results) > 1 else None
    spec = ScanSpec(op, x.dtype, results[0].dtype, rows, n, over(x), over(results[0]), positions)
    ctx.emit(spec, [x], results)
    return tuple(results)


def _samples(*, ints: bool = True, special: bool = True) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        yield Sample((rand(3, 17), 1))
        yield Sample((rand(17, 9), 0), name="columns")
        yield Sample((rand(4, 5, 6).permute(2, 0, 1), -2), name="permuted")
        yield Sample((rand(2, 5, 3, 4).to(memory_format=torch.channels_last), 1), name="channels last")
        yield Sample((rand(5, 9, dtype=torch.bfloat16), -1), name="bf16")
        yield Sample((rand(), 0), name="scalar")
        yield Sample((rand(0, 3), 1), name="empty")
        if ints:
            yield Sample((rand(4, 6, dtype=torch.int32, low=-3, high=4), 0), name="int32")
        if special:
            yield Sample((specials(), 0), name="special values")

    return make


def _typed(make: Callable[[], Iterable[Sample]]) -> Callable[[], Iterable[Sample]]:
    def more() -> Iterable[Sample]:
        yield from make()
        yield Sample((rand(5, 6), 0), {"dtype": torch.float64}, name="to double")
        yield Sample((rand(5, 6, dtype=torch.bool), 0), name="bool")

    return more


@operator("aten.cumsum.default", samples=_typed(_samples()))
def cumsum(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    """Running sums; integers in i64."""
    return _scan(ctx, x, dim, "sum")[0]


@operator("aten.cumprod.default", samples=_typed(_samples()))
def cumprod(ctx: Lowering, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    """Running products; integers in i64."""
    return _scan(ctx, x, dim, "prod")[0]


@operator("aten.logcumsumexp.default", samples=_samples(ints=False, special=False))
def logcumsumexp(ctx: Lowering, x: Ref, dim: int) -> Ref:
    """Logarithms of running sums of exponentials."""
    return _scan(ctx, x, dim, "logsumexp")[0]


@operator("aten.cummax.default", samples=_samples())
def cummax(ctx: Lowering, x: Ref, dim: int) -> tuple[Ref, ...]:
    """Running maxima and the last position of each; NaN stays."""
    return _scan(ctx, x, dim, "max")


@operator("aten.cummin.default", samples=_samples())
def cummin(ctx: Lowering, x: Ref, dim: int) -> tuple[Ref, ...]:
    """Running minima and the last position of each; NaN stays."""
    return _scan(ctx, x, dim, "min")
