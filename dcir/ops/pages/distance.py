"""Pages of the distances between the rows of two matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dcir.ir.types import FLOATS
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.pointwise import call, const, maximum, where
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _rows() -> Iterable[Sample]:
    a, b = rand(5, 7), rand(4, 7, seed=1)
    for p in (2.0, 1.0, math.inf, 0.0, 3.0):
        yield Sample((a, b, p, None), name=f"p = {p}")
    yield Sample((rand(2, 3, 5), rand(1, 4, 5, seed=1), 2.0, 2), name="batches")
    holes = a.clone()
    holes[1, 2] = holes[3] = math.nan
    for p in (2.0, math.inf, 0.0):
        yield Sample((holes, b, p, None), name=f"NaN, p = {p}")
        yield Sample((a[:, :0], b[:, :0], p, None), name=f"no features, p = {p}")
    yield Sample((a.double(), b.double(), 2.0, None), name="double")


@operator("aten._cdist_forward.default", samples=_rows)
def cdist(ctx: Lowering, a: Ref, b: Ref, p: float, compute_mode: int | None) -> Ref:
    """d[i, j] = (sum_k |a[i, k] - b[j, k]|^p)^(1/p), as one reduction: no cancellation of squared norms."""
    if a.dtype not in FLOATS:
        raise NotNative(f"distances of {a.dtype}")
    dst = ctx.result()
    batch = dst.shape[:-2]
    k = ctx.kernel(dst.shape, (a.shape[-1],))
    rows = Ref(a.data, (*a.shape[:-1], 1, a.shape[-1]), (*a.strides[:-1], 0, a.strides[-1]), a.offset, a.dtype)
    columns = Ref(b.data, (*b.shape[:-2], 1, *b.shape[-2:]), (*b.strides[:-2], 0, *b.strides[-2:]), b.offset, b.dtype)
    shape = (*batch, *dst.shape[-2:], a.shape[-1])
    gap = call("abs", k.load(rows, rows.expand_to(shape)) - k.load(columns, columns.expand_to(shape)))
    body = k.body
    if p == 2.0:
        result = call("sqrt", body.reduce("sum", gap * gap))
    elif p == 1.0:
        result = body.reduce("sum", gap)
    elif p == math.inf:
        # As in eager, a comparison that starts at 0 and passes NaN over.
        result = maximum(body.reduce("max", call("fmax", gap, const(gap, 0.0))), 0.0)
    elif p == 0.0:
        result = body.reduce("sum", where(gap > 0.0, 1.0, gap))
    else:
        power = body.reduce("sum", call("pow", gap, body.const(p, a.dtype)))
        result = call("pow", power, body.const(1.0 / p, a.dtype))
    k.store(dst, result)
    k.done()
    return dst
