"""Pages of negative log-likelihood losses: the target's element gathered, the gradient by comparing classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, Ref
from dcir.ops.pages.losses import MEAN, NONE, SUM
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _class_dim(x: Ref) -> int:
    return 0 if len(x.shape) == 1 else 1


def _others(x: Ref) -> list[int]:
    return [d for d in range(len(x.shape)) if d != _class_dim(x)]


def _forward(ctx: Lowering, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignored: int) -> tuple[Ref, Ref]:
    refuse_complex(ctx, x)
    loss, weights = ctx.result(0), ctx.result(1)
    axis, others = _class_dim(x), _others(x)
    dims = [x.shape[d] for d in others]
    k = ctx.kernel(dims) if reduction == NONE else ctx.kernel((), dims)
    compute = compute_type(x.dtype)
    of = target.strides if others else ()
    t = k.load(target, of, dtype="i64")
    counts, zero = t.ne(ignored), k.body.const(0, compute)
    v = k.gather(x, [x.strides[d] for d in others], [t], [axis], mask=counts, other=zero)
    if weight is None:
        w = k.body.where(counts, k.body.const(1, compute), zero)
    else:
        wide = k.gather(
            weight, (0,) * len(dims), [t], [0], mask=counts, other=k.body.const(0, compute_type(weight.dtype))
        )
        w = k.body.convert(wide, compute)
    if reduction == NONE:
        k.store(loss, -v * w, loss.strides)
        k.done()
        return loss, ctx.full(0, weights)
    total, share = k.body.reduce("sum", -v * w), k.body.reduce("sum", w)
    k.store(loss, total / share if reduction == MEAN else total, (0,) * len(dims))
    k.store(weights, share, (0,) * len(dims))
    k.done()
    return loss, weights


def _backward(
    ctx: Lowering, grad: Ref, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignored: int, total: Ref
) -> Ref:
    refuse_complex(ctx, grad)
    dst, axis, others = ctx.result(), _class_dim(x), _others(x)
    k = ctx.kernel(dst.shape)
    compute = compute_type(dst.dtype)

    def along(ref: Ref) -> Expr:
        """A value per target, at every class."""
        strides = [0] * len(x.shape)
        if ref.shape:
            for d, s in zip(others, ref.strides[-len(others) :] if others else (), strict=True):
                strides[d] = s
        return k.load(ref, strides)

    t = k.body.convert(along(target), "i64")
    g = -k.body.convert(along(grad), compute)
    if weight is not None:
        g = g * _per_class(k, weight, axis, compute)
    if reduction == MEAN:
        g = g / k.body.convert(along(total), compute)
    hit = t.eq(k.body.index(axis)) & t.ne(ignored)
    k.store(dst, k.body.where(hit, g, k.body.const(0, compute)))
    k.done()
    return dst


def _per_class(k: Kernel, weight: Ref, axis: int, compute: str) -> Expr:
    return k.load(weight, [weight.strides[0] if d == axis else 0 for d in range(len(k.dims))], dtype=compute)


Call = tuple[str, torch.Tensor, torch.Tensor, torch.Tensor | None, int, int]


def _calls(*positions: int) -> Iterable[Call]:
    """(name, log-probabilities, targets, weight, reduction, ignored index) of the samples."""
    n, c = 4, 5
    x = rand(n, c, *positions, low=-4, high=0)
    t = rand(n, *positions, dtype=torch.int64, low=0, high=c, seed=1)
    w, some = rand(c, low=0.2, seed=2), t.clone()
    some.view(-1)[::3] = 2
    for reduction in (MEAN, NONE, SUM):
        yield f"reduction {reduction}", x, t, None, reduction, -100
    yield "weight, ignored", x, some, w, MEAN, 2
    yield "weight, ignored, no reduction", x, some, w, NONE, 2
    yield "all ignored", x, torch.full_like(t, -100), None, MEAN, -100
    yield "bf16", x.bfloat16(), t, w.bfloat16(), MEAN, -100
    if positions:
        yield "channels last", x.to(memory_format=torch.channels_last), t, None, MEAN, -100
    else:
        yield "one sample", x[0].contiguous(), t[0].clone(), w, MEAN, -100


def _forward_samples(*positions: int) -> Callable[[], Iterable[Sample]]:
    return lambda: [Sample((x, t, w, r, i), name=name) for name, x, t, w, r, i in _calls(*positions)]


def _backward_samples(*positions: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        op = torch.ops.aten.nll_loss2d_forward if positions else torch.ops.aten.nll_loss_forward
        for name, x, t, w, r, i in _calls(*positions):
            y, total = op(x, t, w, r, i)
            if name == "channels last":
                continue  # torch wants a contiguous gradient
            yield Sample((rand(*y.shape, seed=3).to(y.dtype), x, t, w, r, i, total), name=name)

    return make


@operator("aten.nll_loss_forward.default", samples=_forward_samples())
def nll_loss(
    ctx: Lowering, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignore_index: int
) -> tuple[Ref, Ref]:
    """-x[target] times the class' weight, and the sum of weights."""
    return _forward(ctx, x, target, weight, reduction, ignore_index)


@operator("aten.nll_loss2d_forward.default", samples=_forward_samples(3, 2))
def nll_loss2d(
    ctx: Lowering, x: Ref, target: Ref, weight: Ref | None, reduction: int, ignore_index: int
) -> tuple[Ref, Ref]:
    """The same at every position of an image."""
    return _forward(ctx, x, target, weight, reduction, ignore_index)


@operator("aten.nll_loss_backward.default", samples=_backward_samples())
def nll_loss_backward(
    ctx: Lowering,
    grad: Ref,
    x: Ref,
    target: Ref,
    weight: Ref | None,
    reduction: int,
    ignore_index: int,
    total_weight: Ref,
) -> Ref:
    """Minus the weighted gradient at the target's class, zero at the others."""
    return _backward(ctx, grad, x, target, weight, reduction, ignore_index, total_weight)


@operator("aten.nll_loss2d_backward.default", samples=_backward_samples(3, 2))
def nll_loss2d_backward(
    ctx: Lowering,
    grad: Ref,
    x: Ref,
    target: Ref,
    weight: Ref | None,
    reduction: int,
    ignore_index: int,
    total_weight: Ref,
) -> Ref:
    """The same at every position of an image."""
    return _backward(ctx, grad, x, target, weight, reduction, ignore_index, total_weight)
