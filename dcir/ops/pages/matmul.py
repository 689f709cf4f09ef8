"""Pages of the matrix products: one contraction each, and a pointwise sum where a matrix is added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type, is_float
from dcir.ops.library.contraction import ContractionSpec, contraction_program
from dcir.ops.library.operand_types import OperandTypes
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def contract(ctx: Lowering, a: Ref, b: Ref, dst: Ref) -> Ref:
    """dst[*, m, n] = sum_k a[*, m, k] b[*, k, n]; leading dimensions of ``a`` and ``b`` broadcast.

    Integers have no fast kernel: they become a loop nest at once, as does a result of another type.
    """
    if any(r.dtype in ("c64", "c128") for r in (a, b, dst)):
        raise NotNative("complex numbers")
    if a.dtype != b.dtype or "bool" in (a.dtype, dst.dtype):
        raise NotNative(f"a product of {a.dtype} and {b.dtype} matrices")
    *batch, m, n = dst.shape
    k = a.shape[-1]
    if not dst.numel:
        return dst
    if k == 0:
        return ctx.full(0, dst)
    spec = ContractionSpec(
        OperandTypes(a.dtype, b.dtype, compute_type(dst.dtype), dst.dtype), tuple(batch), m, n, k,
        a.expand_to((*batch, m, k)), b.expand_to((*batch, k, n)), dst.expand_to(dst.shape),
    )  # fmt: skip
    if is_float(a.dtype) and a.dtype == dst.dtype:
        ctx.emit(spec, [a, b], [dst])
    else:
        ctx.emit(contraction_program(spec), [a, b], [dst])
    return dst


def transposed(x: Ref) -> Ref:
    """The last two dimensions exchanged."""
    return replace(
        x, shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]), strides=(*x.strides[:-2], x.strides[-1], x.strides[-2])
    )


def with_dim(x: Ref, at: int) -> Ref:
    """``x`` with a dimension of extent 1 at position ``at``."""
    return replace(x, shape=(*x.shape[:at], 1, *x.shape[at:]), strides=(*x.strides[:at], 0, *x.strides[at:]))


def scaled_sum(ctx: Lowering, product: Ref, bias: Ref, beta: Any, alpha: Any) -> Ref:
    """beta * bias + alpha * product, where a factor of 1 costs nothing and beta = 0 does not read the bias."""
    if beta == 0:
        return product if alpha == 1 else ctx.pointwise(lambda x: x * alpha, product)

    def add(x: Expr, y: Expr) -> Expr:
        return (x if alpha == 1 else x * alpha) + (y if beta == 1 else y * beta)

    return ctx.pointwise(add, product, bias)


def _matrices(shape_a: Sequence[int], shape_b: Sequence[int], *before: torch.Tensor) -> Iterable[Sample]:
    a, b = rand(*shape_a, seed=1), rand(*shape_b, seed=2)
    yield Sample((*before, a, b))
    lead = a.shape[:-2]
    flipped = (a.transpose(-1, -2).contiguous().transpose(-1, -2), b.transpose(-1, -2).contiguous().transpose(-1, -2))
    yield Sample((*before, *flipped), name="transposed")
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        yield Sample((*(t.to(dtype) for t in before), a.to(dtype), b.to(dtype)), name=str(dtype))
    ints = [rand(*t.shape, dtype=torch.int64, low=-9, high=9, seed=i) for i, t in enumerate((*before, a, b))]
    yield Sample(tuple(ints), name="int64")
    yield Sample((*before, a[..., :0], b[..., :0, :]), name="no terms")
    m, n = a.shape[-2], b.shape[-1]
    yield Sample((*before, rand(*lead, m, 200), rand(*lead, 200, n, seed=1)), name="long sum")


def _mm() -> Iterable[Sample]:
    yield from _matrices((5, 7), (7, 9))
    yield Sample((rand(6, 8)[::2, ::2], rand(8, 5)[::2]), name="strided")
    yield Sample((rand(3).expand(4, 3), rand(3, 1).expand(3, 6)), name="expanded")
    yield Sample((rand(0, 3), rand(3, 4)), name="no rows")
    yield Sample((rand(33, 65), rand(65, 47)), name="larger")


@operator("aten.mm.default", samples=_mm)
def mm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """Matrix product."""
    return contract(ctx, a, b, ctx.result())


def _bmm() -> Iterable[Sample]:
    yield from _matrices((3, 5, 7), (3, 7, 9))
    yield Sample((rand(1, 5, 7).expand(3, 5, 7), rand(3, 7, 2)), name="one matrix for all")
    yield Sample((rand(5, 3, 7).transpose(0, 1), rand(7, 4, 3).permute(2, 0, 1)), name="batch inside")


@operator("aten.bmm.default", samples=_bmm)
def bmm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """Matrix products of a batch."""
    return contract(ctx, a, b, ctx.result())


@operator("aten._int_mm.default", samples=lambda: [
    Sample((rand(20, 8, dtype=torch.int8, low=-99, high=99), rand(8, 16, dtype=torch.int8, low=-99, high=99, seed=1))),
])  # fmt: skip
def int_mm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """Matrix product of i8 with i32 results."""
    return contract(ctx, a, b, ctx.result())


def _addmm() -> Iterable[Sample]:
    yield from _matrices((5, 7), (7, 9), rand(9))
    a, b = rand(5, 7, seed=1), rand(7, 9, seed=2)
    yield Sample((rand(5, 9), a, b), {"beta": 0.5, "alpha": -2.0}, name="factors")
    yield Sample((torch.full((9,), float("nan")), a, b), {"beta": 0}, name="bias unread")
    yield Sample((rand(5, 1), a, b), {"beta": 0, "alpha": 3}, name="only alpha")
    yield Sample((rand(), a, b), name="scalar bias")
    yield Sample((rand(9, dtype=torch.int64), a.long(), b.long()), {"alpha": 2}, name="int factors")


@operator("aten.addmm.default", samples=_addmm)
def addmm(ctx: Lowering, bias: Ref, a: Ref, b: Ref, *, beta: Any = 1, alpha: Any = 1) -> Ref:
    """beta * bias + alpha * a b."""
    product = contract(ctx, a, b, ctx.result())
    return scaled_sum(ctx, product, bias, beta, alpha)


def _baddbmm() -> Iterable[Sample]:
    yield from _matrices((3, 5, 7), (3, 7, 9), rand(9))
    yield Sample((rand(3, 5, 9), rand(3, 5, 7), rand(3, 7, 9)), {"beta": 0.5, "alpha": 0.25}, name="factors")
    yield Sample((rand(3, 1, 9), rand(3, 5, 7), rand(3, 7, 9)), {"beta": 0}, name="bias unread")


@operator("aten.baddbmm.default", samples=_baddbmm)
def baddbmm(ctx: Lowering, bias: Ref, a: Ref, b: Ref, *, beta: Any = 1, alpha: Any = 1) -> Ref:
    """beta * bias + alpha * a b, for a batch."""
    return scaled_sum(ctx, contract(ctx, a, b, ctx.result()), bias, beta, alpha)


@operator("aten.addbmm.default", samples=lambda: [
    Sample((rand(5, 9), rand(3, 5, 7), rand(3, 7, 9))),
    Sample((rand(9), rand(3, 5, 7), rand(3, 7, 9)), {"beta": 2, "alpha": 0.5}, name="factors"),
    Sample((rand(9), rand(3, 5, 0), rand(3, 0, 9)), name="no terms"),
])  # fmt: skip
def addbmm(ctx: Lowering, bias: Ref, a: Ref, b: Ref, *, beta: Any = 1, alpha: Any = 1) -> Ref:
    """beta * bias + alpha * the sum of a batch of products: the batch joins the sum."""
    batch, m, k = a.shape
    rows = replace(a, shape=(m, batch, k), strides=(a.strides[1], a.strides[0], a.strides[2]))
    product = contract(
        ctx, ctx.reshape(rows, (m, batch * k)), ctx.reshape(b, (batch * k, b.shape[2])), ctx.result()
    )  # fmt: skip
    return scaled_sum(ctx, product, bias, beta, alpha)


def _column(x: Ref) -> Ref:
    return with_dim(x, len(x.shape))


@operator("aten.mv.default", samples=lambda: [
    Sample((rand(5, 7), rand(7))), Sample((rand(7, 5).t(), rand(14)[::2]), name="strided"),
    Sample((rand(40, 300).bfloat16(), rand(300).bfloat16()), name="bf16"),
    Sample((rand(4, 3, dtype=torch.int32), rand(3, dtype=torch.int32)), name="int32"),
    Sample((rand(4, 0), rand(0)), name="no terms"),
])  # fmt: skip
def mv(ctx: Lowering, a: Ref, x: Ref) -> Ref:
    """Matrix times vector."""
    dst = ctx.result()
    contract(ctx, a, _column(x), _column(dst))
    return dst


@operator("aten.addmv.default", samples=lambda: [
    Sample((rand(5), rand(5, 7), rand(7))),
    Sample((rand(1), rand(5, 7), rand(7)), {"beta": 0.5, "alpha": 2}, name="factors"),
    Sample((rand(5), rand(5, 7), rand(7)), {"beta": 0}, name="bias unread"),
])  # fmt: skip
def addmv(ctx: Lowering, bias: Ref, a: Ref, x: Ref, *, beta: Any = 1, alpha: Any = 1) -> Ref:
    """beta * bias + alpha * a x."""
    dst = ctx.result()
    contract(ctx, a, _column(x), _column(dst))
    return scaled_sum(ctx, dst, bias, beta, alpha)


@operator("aten.dot.default", "aten.vdot.default", samples=lambda: [
    Sample((rand(17), rand(17, seed=1))), Sample((rand(34)[::2], rand(17, seed=1)), name="strided"),
    Sample((rand(9, dtype=torch.int64), rand(9, dtype=torch.int64, seed=1)), name="int64"),
    Sample((rand(0), rand(0)), name="no terms"), Sample((rand(5000), rand(5000, seed=1)), name="long sum"),
])  # fmt: skip
def dot(ctx: Lowering, x: Ref, y: Ref) -> Ref:
    """Inner product of two vectors."""
    dst = ctx.result()
    contract(ctx, with_dim(x, 0), _column(y), replace(dst, shape=(1, 1), strides=(0, 0)))
    return dst


@operator("aten.addr.default", samples=lambda: [
    Sample((rand(4, 3), rand(4), rand(3, seed=1))),
    Sample((rand(3), rand(4), rand(3, seed=1)), {"beta": 0.5, "alpha": 2}, name="factors"),
    Sample((torch.full((3,), float("nan")), rand(4), rand(3, seed=1)), {"beta": 0}, name="bias unread"),
    Sample((rand(3, dtype=torch.int64), rand(4, dtype=torch.int64), rand(3, dtype=torch.int64)), name="int64"),
])  # fmt: skip
def addr(ctx: Lowering, bias: Ref, x: Ref, y: Ref, *, beta: Any = 1, alpha: Any = 1) -> Ref:
    """beta * bias + alpha * x y^T: pointwise."""
    if ctx.out.dtype == "bool":
        raise NotNative("an outer product of bools")

    def outer(u: Expr, v: Expr) -> Expr:
        return u * v if alpha == 1 else u * v * alpha

    if beta == 0:
        return ctx.pointwise(outer, _column(x), y)
    return ctx.pointwise(lambda u, v, w: outer(u, v) + (w if beta == 1 else w * beta), _column(x), y, bias)


@operator("aten.linear.default", samples=lambda: [
    Sample((rand(2, 5, 7), rand(9, 7, seed=1), rand(9, seed=2))), Sample((rand(7), rand(9, 7, seed=1)), name="vector"),
    Sample((rand(4, 2, 7).transpose(0, 1), rand(9, 7, seed=1)), name="strided"),
    Sample((rand(3, 7).bfloat16(), rand(9, 7, seed=1).bfloat16(), rand(9, seed=2).bfloat16()), name="bf16"),
])  # fmt: skip
def linear(ctx: Lowering, x: Ref, weight: Ref, bias: Ref | None = None) -> Ref:
    """x W^T + bias; the leading dimensions of x are rows."""
    if len(weight.shape) != 2:
        raise NotNative("a weight that is not a matrix")
    dst = ctx.new(ctx.out.shape, ctx.out.dtype)
    rows, n = math.prod(x.shape[:-1]), dst.shape[-1]
    flat = ctx.reshape(x, (rows, x.shape[-1]))
    contract(ctx, flat, transposed(weight), ctx.reshape(dst, (rows, n)))
    return dst if bias is None else scaled_sum(ctx, dst, bias, 1, 1)


@operator("aten._trilinear.default", samples=lambda: [
    Sample((rand(4, 3), rand(5, 3, 2, seed=1), rand(4, 2, seed=2), [1, 3], [0], [1, 2], [2, 3])),
    Sample((rand(4, 3), rand(4, 5, seed=1), rand(4, 2, seed=2), [1, 3], [1, 2], [2, 3], [0])),
])  # fmt: skip
def trilinear(
    ctx: Lowering, x: Ref, y: Ref, z: Ref, expand_x: Sequence[int], expand_y: Sequence[int], expand_z: Sequence[int],
    sum_dims: Sequence[int], unroll_dim: int = 1,
) -> Ref:  # fmt: skip
    """The sum over some dimensions of the product of three tensors, each with missing dimensions put in."""
    operands = []
    for ref, dims in ((x, expand_x), (y, expand_y), (z, expand_z)):
        for d in sorted(dims):
            ref = with_dim(ref, d)
        operands.append(ref)
    if any(r.dtype in ("c64", "c128", "bool") for r in operands):
        raise NotNative("complex numbers")
    shape = [max(extents) if 0 not in extents else 0 for extents in zip(*(r.shape for r in operands), strict=True)]
    kept, summed = [d for d in range(len(shape)) if d not in sum_dims], sorted(sum_dims)
    dst = ctx.result()
    kernel = ctx.kernel([shape[d] for d in kept], [shape[d] for d in summed])
    compute = ctx.promote(operands)
    value: Expr | None = None
    for ref in operands:
        steps = ref.expand_to(shape)
        v = kernel.load(ref, [steps[d] for d in (*kept, *summed)], dtype=compute)
        value = v if value is None else value * v
    assert value is not None
    kernel.store(dst, kernel.body.reduce("sum", value))
    kernel.done()
    return dst
