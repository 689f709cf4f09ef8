"""Pages of the layer and root-mean-square normalisations: rows outside, the normalised dimensions inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.moments import spread
from dcir.ops.pages.reducing import ReducedDims, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

Results = tuple[Ref | None, ...]


def _spaces(x: Ref, normalized: Sequence[int]) -> tuple[ReducedDims, ReducedDims]:
    """The loops of row programs, and those of programs that sum over the rows."""
    split = len(x.shape) - len(normalized)
    rank = len(x.shape)
    return ReducedDims(x.shape, tuple(range(split, rank))), ReducedDims(x.shape, tuple(range(split)))


def _factor(k: Kernel, space: ReducedDims, weight: Ref | None, dtype: str) -> Expr:
    """The weight of an element, 1 without one."""
    if weight is None:
        return k.body.const(1, dtype)
    return k.load(weight, space.strides(weight), dtype=dtype)


def wanted(ctx: Lowering, mask: Sequence[bool]) -> list[Ref | None]:
    """Results that were asked for, None for the others."""
    return [ctx.result(i) if m and ctx.outs[i] is not None else None for i, m in enumerate(mask)]


def _forward_samples() -> Iterable[Sample]:
    w, b = rand(8, seed=1), rand(8, seed=2)
    yield Sample((rand(5, 8), [8], w, b, 1e-5))
    yield Sample((rand(2, 3, 8), [8], None, None, 1e-5), name="no weight")
    yield Sample((rand(4, 3, 8), [3, 8], rand(3, 8, seed=1), None, 1e-3), name="two dimensions, no bias")
    yield Sample((rand(8, 6).t(), [8], w, b, 1e-5), name="columns")
    yield Sample((rand(5, 8, dtype=torch.bfloat16), [8], w.bfloat16(), b.bfloat16(), 1e-5), name="bf16")
    yield Sample((rand(5, 8, dtype=torch.float64), [8], w.double(), b.double(), 1e-5), name="double")
    yield Sample((rand(5, 8) + 50.0, [8], w, b, 1e-5), name="far from zero")
    yield Sample((rand(0, 8), [8], w, b, 1e-5), name="no rows")


@operator("aten.native_layer_norm.default", samples=_forward_samples)
def layer_norm(
    ctx: Lowering, x: Ref, normalized: Sequence[int], weight: Ref | None, bias: Ref | None, eps: float
) -> Results:
    """(x - mean) / sqrt(variance + eps) * weight + bias, with mean and reciprocal root for the backward pass."""
    refuse_complex(ctx, x)
    space, _ = _spaces(x, normalized)
    dst, means, roots = (ctx.result(i) for i in range(3))
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x))
    mean, difference, squares = spread(k, v, space.count)
    root = k.body.op("rsqrt", squares / space.count + eps)
    y = difference * root
    if weight is not None:
        y = y * k.load(weight, space.strides(weight), dtype=y.dtype)
    if bias is not None:
        y = y + k.load(bias, space.strides(bias), dtype=y.dtype)
    k.store(dst, y, space.strides(dst))
    k.store(means, mean, space.of_result(means))
    k.store(roots, root, space.of_result(roots))
    k.done()
    return dst, means, roots


def _backward_samples() -> Iterable[Sample]:
    for x, shape, weight, name in (
        (rand(5, 8), [8], rand(8, seed=1), ""),
        (rand(4, 3, 8), [3, 8], rand(3, 8, seed=1), "two dimensions"),
        (rand(5, 8), [8], None, "no weight"),
        (rand(5, 8, dtype=torch.float64), [8], rand(8, seed=1).double(), "double"),
        (rand(5, 8, dtype=torch.bfloat16), [8], rand(8, seed=1).bfloat16(), "bf16"),
    ):
        _, mean, root = torch.native_layer_norm(x, shape, weight, None, 1e-5)
        grad, has = rand(*x.shape, seed=3).to(x.dtype), weight is not None
        yield Sample((grad, x, shape, mean, root, weight, weight, [True, has, has]), name=name)
    x, w = rand(5, 8), rand(8, seed=1)
    _, mean, root = torch.native_layer_norm(x, [8], w, None, 1e-5)
    for mask in ([True, False, False], [False, True, False], [True, False, True]):
        yield Sample((rand(5, 8, seed=3), x, [8], mean, root, w, w, mask), name=f"only {mask}")


@operator("aten.native_layer_norm_backward.default", samples=_backward_samples)
def layer_norm_backward(
    ctx: Lowering, grad: Ref, x: Ref, normalized: Sequence[int], mean: Ref, root: Ref,
    weight: Ref | None, bias: Ref | None, output_mask: Sequence[bool],
) -> Results:  # fmt: skip
    """dx = (h - mean(h) - y mean(h y)) root, h = g weight, y = (x - mean) root; dweight = sum(g y), dbias = sum(g)."""
    refuse_complex(ctx, grad, x)
    rows, columns = _spaces(x, normalized)
    dx, dw, db = wanted(ctx, output_mask)
    compute = compute_type(x.dtype)

    def normal(k: Kernel, space: ReducedDims) -> Expr:
        v = k.load(x, space.strides(x))
        return (v - k.load(mean, space.strides(mean), dtype=compute)) * k.load(root, space.strides(root), dtype=compute)

    if dx is not None:
        k = rows.kernel(ctx)
        y = normal(k, rows)
        h = k.load(grad, rows.strides(grad), dtype=compute) * _factor(k, rows, weight, compute)
        n = max(rows.count, 1)
        even, tilt = k.body.reduce("sum", h) / n, k.body.reduce("sum", h * y) / n
        k.store(dx, (h - even - y * tilt) * k.load(root, rows.strides(root), dtype=compute), rows.strides(dx))
        k.done()
    if dw is not None or db is not None:
        k = columns.kernel(ctx)
        g = k.load(grad, columns.strides(grad), dtype=compute)
        if dw is not None:
            k.store(dw, k.body.reduce("sum", g * normal(k, columns)), columns.of_result(dw))
        if db is not None:
            k.store(db, k.body.reduce("sum", g), columns.of_result(db))
        k.done()
    return dx, dw, db


def _rms_samples() -> Iterable[Sample]:
    w = rand(8, seed=1)
    yield Sample((rand(5, 8), [8], w, 1e-5))
    yield Sample((rand(2, 3, 8), [3, 8], None, None), name="no weight, eps of the type")
    yield Sample((rand(5, 8, dtype=torch.bfloat16), [8], w.bfloat16(), 1e-5), name="bf16")
    yield Sample((rand(5, 8, dtype=torch.float64), [8], w.double(), 1e-5), name="double")


@operator("aten._fused_rms_norm.default", samples=_rms_samples)
def rms_norm(ctx: Lowering, x: Ref, normalized: Sequence[int], weight: Ref | None, eps: float | None) -> Results:
    """x / sqrt(mean(x^2) + eps) * weight, with the reciprocal root for the backward pass."""
    refuse_complex(ctx, x)
    space, _ = _spaces(x, normalized)
    dst, roots = ctx.result(0), ctx.result(1)
    k = space.kernel(ctx)
    v = k.load(x, space.strides(x))
    small = torch.finfo(torch.float64 if v.dtype == "f64" else torch.float32).eps if eps is None else eps
    root = k.body.op("rsqrt", k.body.reduce("sum", v * v) / max(space.count, 1) + small)
    k.store(dst, v * root * _factor(k, space, weight, v.dtype), space.strides(dst))
    k.store(roots, root, space.of_result(roots))
    k.done()
    return dst, roots
