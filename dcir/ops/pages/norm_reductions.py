"""Pages of vector norms, distances and the logarithm of a sum of exponentials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.types import compute_type
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.reducing import ReducedDims, refuse_complex
from dcir.ops.pages.reductions import fold
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def p_norm(b: LoopNestBuilder, v: Expr, p: float) -> Expr:
    """The p-norm of a value over the inner loops."""
    a = b.op("abs", v)
    if p == math.inf:
        return b.reduce("max", a)
    if p == -math.inf:
        return b.reduce("min", a)
    if p == 0:
        return b.reduce("sum", b.convert(v.ne(0), v.dtype))
    if p == 1:
        return b.reduce("sum", a)
    if p == 2:
        return b.op("sqrt", b.reduce("sum", v * v))
    total = b.reduce("sum", b.op("pow", a, b.const(p, v.dtype)))
    return b.op("pow", total, b.const(1 / p, v.dtype))


def _orders() -> Iterable[Sample]:
    yield Sample((rand(5, 7), 2, [1]))
    yield Sample((rand(5, 7), 1, [0], True), name="1, keepdim")
    yield Sample((rand(3, 4, 5), math.inf, [0, 2]), name="inf")
    yield Sample((rand(3, 4, 5), -math.inf), name="-inf")
    yield Sample((rand(5, 7, dtype=torch.float32).round(), 0, [1]), name="0")
    yield Sample((rand(5, 7).t(), 3, [-1]), name="3")
    yield Sample((rand(5, 7, low=0.5), -1.5), name="-1.5")
    yield Sample((rand(5, 7, dtype=torch.bfloat16), 2, [1]), name="bf16")
    yield Sample((rand(),), name="scalar")
    yield Sample((rand(4, 5), 2, None), {"dtype": torch.float64}, name="to double")


@operator("aten.linalg_vector_norm.default", samples=_orders)
def vector_norm(
    ctx: Lowering, x: Ref, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Ref:
    """The p-norm over some dimensions."""
    return fold(ctx, x, dim, lambda b, v: p_norm(b, v, ord))


@operator("aten.norm.Scalar", samples=lambda: [Sample((rand(4, 5),)), Sample((rand(4, 5), 1.5)), Sample((rand(0),))])
def norm_all(ctx: Lowering, x: Ref, p: float = 2) -> Ref:
    """The p-norm of all elements."""
    return fold(ctx, x, None, lambda b, v: p_norm(b, v, p))


@operator("aten.norm.ScalarOpt_dim", samples=lambda: [
    Sample((rand(4, 5), 2, [1])), Sample((rand(4, 5), None, [0], True)), Sample((rand(4, 5, 2), 3, [0, 2]))
])  # fmt: skip
def norm_dims(ctx: Lowering, x: Ref, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Ref:
    """The p-norm over some dimensions; no p means 2."""
    return fold(ctx, x, dim, lambda b, v: p_norm(b, v, 2 if p is None else p))


@operator("aten.norm.ScalarOpt_dim_dtype", samples=lambda: [
    Sample((rand(4, 5), 2, [1], False), {"dtype": torch.float64}),
    Sample((rand(4, 5, dtype=torch.bfloat16), None, [0], True), {"dtype": torch.float32}),
])  # fmt: skip
def norm_dims_typed(ctx: Lowering, x: Ref, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: Any) -> Ref:
    """The p-norm over some dimensions in another type."""
    return fold(ctx, x, dim, lambda b, v: p_norm(b, v, 2 if p is None else p))


@operator("aten.dist.default", samples=lambda: [
    Sample((rand(4, 5), rand(4, 5, seed=1))), Sample((rand(4, 5), rand(5, seed=1), 1)),
    Sample((rand(6), rand(3, 1, seed=1), math.inf)), Sample((rand(4), rand(4, seed=1), 3)),
])  # fmt: skip
def dist(ctx: Lowering, x: Ref, other: Ref, p: float = 2) -> Ref:
    """The p-norm of the difference."""
    refuse_complex(ctx, x, other)
    dst = ctx.result()
    shape = tuple(torch.broadcast_shapes(x.shape, other.shape))
    k = ctx.kernel((), shape)
    compute = compute_type(dst.dtype)
    k.store(dst, p_norm(k.body, k.load(x, dtype=compute) - k.load(other, dtype=compute), p), (0,) * len(shape))
    k.done()
    return dst


def _exponents() -> Iterable[Sample]:
    inf = math.inf
    yield Sample((rand(3, 37, low=-30, high=30), [1]))
    yield Sample((rand(4, 5, 6), [0, 2], True), name="keepdim")
    yield Sample((torch.tensor([[-inf, -inf], [inf, 1.0], [math.nan, 0.0], [1e4, 1e4]]), [1]), name="special values")
    yield Sample((rand(5, 9, dtype=torch.bfloat16), [-1]), name="bf16")
    yield Sample((rand(5, 9, dtype=torch.int64, low=-5, high=5), [0]), name="int64")
    yield Sample((rand(), [0]), name="scalar")


@operator("aten.logsumexp.default", samples=_exponents)
def logsumexp(ctx: Lowering, x: Ref, dim: Sequence[int], keepdim: bool = False) -> Ref:
    """max + log(sum(exp(x - max))), an infinite maximum taken as 0 so that no infinities are subtracted."""

    def of(b: LoopNestBuilder, v: Expr) -> Expr:
        top = b.reduce("max", v)
        top = b.where(b.op("isinf", top, dtype="bool"), b.const(0, v.dtype), top)
        return b.op("log", b.reduce("sum", b.op("exp", v - top))) + top

    return fold(ctx, x, dim, of)


@operator("aten._weight_norm_interface.default", samples=lambda: [
    Sample((rand(4, 3, 2), rand(4, 1, 1))), Sample((rand(4, 3), rand(1, 3), 1)),
])  # fmt: skip
def weight_norm(ctx: Lowering, v: Ref, g: Ref, dim: int = 0) -> tuple[Ref, Ref]:
    """v g / |v| with the norm over all dimensions but one; also the norms."""
    refuse_complex(ctx, v, g)
    rank = len(v.shape)
    space = ReducedDims(v.shape, tuple(d for d in range(rank) if d != dim % rank))
    dst, norms = ctx.result(0), ctx.result(1)
    k = space.kernel(ctx)
    x = k.load(v, space.strides(v))
    norm = k.body.op("sqrt", k.body.reduce("sum", x * x))
    k.store(norms, norm, space.of_result(norms))
    k.store(dst, x * (k.load(g, space.strides(g), dtype=x.dtype) / norm), space.strides(dst))
    k.done()
    return dst, norms


def _weight_gradients() -> Iterable[Sample]:
    for v, dim in ((rand(4, 3, 2), 0), (rand(4, 3), 1)):
        norms = torch.norm_except_dim(v, 2, dim)
        yield Sample((rand(*v.shape, seed=1), v, rand(*norms.shape, seed=2), norms, dim))


@operator("aten._weight_norm_interface_backward.default", samples=_weight_gradients)
def weight_norm_backward(ctx: Lowering, grad: Ref, v: Ref, g: Ref, norms: Ref, dim: int) -> tuple[Ref, Ref]:
    """dg = sum(dw v) / |v|; dv = g / |v| (dw - v dg / |v|)."""
    refuse_complex(ctx, grad, v, g)
    rank = len(v.shape)
    space = ReducedDims(v.shape, tuple(d for d in range(rank) if d != dim % rank))
    dv, dg = ctx.result(0), ctx.result(1)
    k = space.kernel(ctx)
    x, d = k.load(v, space.strides(v)), k.load(grad, space.strides(grad))
    norm = k.load(norms, space.strides(norms), dtype=x.dtype)
    along = k.body.reduce("sum", d * x) / norm
    k.store(dg, along, space.of_result(dg))
    k.store(dv, (d - x * (along / norm)) * (k.load(g, space.strides(g), dtype=x.dtype) / norm), space.strides(dv))
    k.done()
    return dv, dg
