"""Pages of sums and means of a table's rows, bag by bag, and of their gradients: a bag is a stretch of the indices.

The offsets of the bags are a list of points by group already, so the forward is a fold of it, without a sort. Which bag a point
belongs to, which the gradient needs, is one less than how many offsets are at most the point's number: a count of offsets by
where they point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.types import compute_type
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.scatter import Index, scatter
from dcir.ops.library.segments import GroupSpec, SegmentSpec
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand

_SUM, _MEAN = 0, 1
_INDICES = ("i64", "i32")
_MOST = 2**31 - 2


def _refuse(mode: int, *tensors: Ref) -> None:
    if mode not in (_SUM, _MEAN):
        raise NotNative("the largest elements of bags: torch passes over those that are no numbers")
    if any(t.dtype not in _INDICES for t in tensors):
        raise NotNative("indices of another type than i64 and i32")
    if any(t.numel > _MOST for t in tensors):
        raise NotNative("more points than a list has numbers")


def _points(ctx: Lowering, count: int) -> Ref:
    """The numbers from 0 to ``count``."""
    k = ctx.kernel((count + 1,))
    order = ctx.new((count + 1,), "i32")
    k.store(order, k.body.convert(k.body.index(0), "i32"))
    k.done()
    return order


def _starts(ctx: Lowering, offsets: Ref, order: Ref, bags: int, *, to_the_end: bool) -> Ref:
    """Where every bag starts, and where the last one ends: at the last offset, or after the last point.

    Offsets that do not begin at 0, fall, or lead beyond the points are found out by what they read of the points' numbers.
    """
    points = order.numel - 1
    starts = ctx.new((bags + 1,), "i32")
    k = ctx.kernel(starts.shape)
    bag = k.body.index(0)
    if to_the_end:
        inside = k.gather(offsets, (0,), [k.body.op("min", bag, k.body.const(bags - 1, "i64"))], [0], checked=False)
        here = k.body.where(bag < bags, k.body.convert(inside, "i64"), k.body.const(points, "i64"))
    else:
        here = k.load(offsets, dtype="i64")
    before = k.gather(offsets, (0,), [k.body.op("max", bag - 1, k.body.const(0, "i64"))], [0], checked=False)
    floor = k.body.where(bag > 0, k.body.convert(before, "i64"), k.body.const(0, "i64"))
    good = (here >= floor) & ((bag > 0) | here.eq(0))
    where = k.body.where(good, here, k.body.const(-1, "i64"))
    k.store(starts, k.gather(order, (0,), [where], [0]))
    k.done()
    return starts


def _fold(
    ctx: Lowering, starts: Ref, order: Ref, value: LoopNest, finish: LoopNest, dtype: str, ins: Sequence[Ref], dst: Ref
) -> None:  # fmt: skip
    """Add a sum of every bag's values; ``ins`` are the operands of ``value``, then those of ``finish``."""
    points, bags = order.numel - 1, starts.numel - 1
    spec = SegmentSpec("add", dtype, None, 0, points, bags, value, finish)
    ctx.emit(spec, [starts, order, *ins], [dst])


def _bag_sizes(ctx: Lowering, starts: Ref, order: Ref, indices: Ref, padding: int, dst: Ref) -> None:
    """How many points every bag has, those of the padding left out."""
    if padding < 0:
        k = ctx.kernel(dst.shape)
        first, end = k.load(starts, (1,), dtype="i64"), k.load(_behind(starts), (1,), dtype="i64")
        k.store(dst, k.body.convert(end - first, compute_type(dst.dtype)))
        k.done()
        return
    body, compute = LoopNestBuilder((indices.numel,)), compute_type(dst.dtype)
    row = body.convert(body.load(body.input(indices.dtype), (indices.strides[0],)), "i64")
    body.store(body.output(compute), (1,), body.convert(row.ne(padding), compute))
    finish = identity_epilogue(dst.shape, dst.dtype, dst.strides)
    _fold(ctx, starts, order, body.finish(), finish, dst.dtype, [indices], dst)


def _behind(starts: Ref) -> Ref:
    """The same numbers from the second on."""
    return replace(starts, shape=(starts.numel - 1,), offset=starts.offset + starts.strides[0])


def _bag_of(ctx: Lowering, offsets: Ref, bags: int, points: int) -> Ref:
    """How many bags start at every point or before, which is one more than the number of the point's bag."""
    spec = GroupSpec((bags,), ((offsets.strides[0] if bags > 1 else 0,),), (offsets.dtype,), (points + 1,), wrap=False)
    counts, order = ctx.new((points + 2,), "i32"), ctx.new((bags,), "i32")
    ctx.emit(spec, [offsets], [counts, order])
    return replace(counts, shape=(points,), offset=1)


def _total(weight: Ref, indices: Ref, scale: Ref | None, padding: int) -> LoopNest:
    """The rows that points name, times their scale: a program over (points, columns)."""
    body, compute = LoopNestBuilder((indices.numel, weight.shape[1])), compute_type(weight.dtype)
    row = body.convert(body.load(body.input(indices.dtype), (indices.strides[0], 0)), "i64")
    table = body.input(weight.dtype)
    value = body.gather(table, (0, weight.strides[1]), [row], [weight.shape[0]], [weight.strides[0]])
    if scale is not None:
        value = value * body.convert(body.load(body.input(scale.dtype), (scale.strides[0], 0)), compute)
    if padding >= 0:
        value = body.where(row.ne(padding), value, body.const(0, compute))
    body.store(body.output(compute), contiguous(body.outer), value)
    return body.finish()


def _mean(dst: Ref, sizes: Ref) -> LoopNest:
    """The finish of a mean."""
    body, compute = LoopNestBuilder(dst.shape), compute_type(dst.dtype)
    value = body.load(body.input(compute), contiguous(dst.shape))
    size = body.convert(body.load(body.input(sizes.dtype), (sizes.strides[0], 0)), compute)
    body.store(body.output(dst.dtype), dst.strides, value / body.op("max", size, body.const(1, compute)))
    return body.finish()


def _cases() -> Iterable[tuple[str, tuple[Any, ...]]]:
    """(name, arguments of the forward)."""
    weight, indices = rand(9, 5), torch.tensor([1, 4, 8, 0, 4, 4, 2])
    offsets = torch.tensor([0, 3, 3, 6])
    scale = rand(7, seed=1)
    for mode in (_SUM, _MEAN):
        yield "", (weight, indices, offsets, False, mode)
        yield "padding", (weight, indices, offsets, False, mode, False, None, False, 4)
        yield "with the end", (weight, indices, torch.tensor([0, 3, 3, 7]), False, mode, False, None, True)
        yield "int32", (weight, indices.int(), offsets.int(), False, mode)
        yield "transposed, double", (rand(5, 9).t().double(), indices, offsets, False, mode)
        yield "one bag of one", (weight, indices[:1], offsets[:1], False, mode)
        yield "strided", (weight[:, ::2], indices, offsets, False, mode)
    yield "bf16", (weight.bfloat16(), indices, offsets, False, _MEAN)
    yield "scaled", (weight, indices, offsets, False, _SUM, False, scale)
    yield "scaled, padding", (weight, indices, offsets, False, _SUM, False, scale, False, 4)
    yield "scaled, f16", (weight.half(), indices, offsets, False, _SUM, False, scale.half())


def _forward() -> Iterable[Sample]:
    for name, args in _cases():
        yield Sample(args, name=name)


@operator("aten._embedding_bag_forward_only.default", samples=lambda: [
    s for s in _forward() if s.args[7:8] != (True,)  # of another shape than torch says beforehand
])  # fmt: skip
@operator("aten._embedding_bag.default", samples=_forward)
def embedding_bag(
    ctx: Lowering, weight: Ref, indices: Ref, offsets: Ref, scale_grad_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, per_sample_weights: Ref | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Ref, Ref, Ref, Ref]:  # fmt: skip
    """Sums or means of rows; the bags of the points, the bags' sizes and what torch returns for the largest elements' places.

    As in torch, sums have sizes of 0, and the last offset ends the last bag only where torch needs no bags of points.
    """
    _refuse(mode, indices, offsets)
    metas = ctx.outs
    points, bags = indices.numel, offsets.numel - include_last_offset
    if not points or bags < 1 or not weight.numel or any(m is None for m in metas):
        raise NotNative("no points, bags or columns")
    dst, bag_of, sizes, places = (ctx.result(n) for n in range(4))
    if not bags <= sizes.numel <= offsets.numel or places.numel > sizes.numel or bag_of.numel not in (0, points):
        raise NotNative("results of other shapes")
    order = _points(ctx, points)
    starts = _starts(ctx, offsets, order, bags, to_the_end=not include_last_offset)
    if include_last_offset and bag_of.numel:
        starts = _ended(ctx, starts, points)
    if bag_of.numel:
        counts = _bag_of(ctx, offsets, bags, points)
        ctx.pointwise(lambda n: n - 1, counts, compute=compute_type(bag_of.dtype), out=bag_of)
    value = _total(weight, indices, per_sample_weights, padding_idx)
    ins = [indices, weight, *([per_sample_weights] if per_sample_weights is not None else [])]
    if mode == _SUM:
        ctx.full(0, sizes)
        finish, rest = identity_epilogue(dst.shape, dst.dtype, dst.strides), []
    else:
        each = replace(sizes, shape=(bags,))
        _bag_sizes(ctx, starts, order, indices, padding_idx, each)
        finish, rest = _mean(dst, each), [each]
        if sizes.numel > bags:
            ctx.full(0, replace(sizes, shape=(1,), offset=sizes.offset + bags * sizes.strides[0]))
    ctx.copy(replace(sizes, shape=places.shape), places)
    _fold(ctx, starts, order, value, finish, dst.dtype, [*ins, *rest], dst)
    return dst, bag_of, sizes, places


def _ended(ctx: Lowering, starts: Ref, points: int) -> Ref:
    """Starts whose last bag ends after the last point."""
    ended = ctx.new(starts.shape, "i32")
    k = ctx.kernel(starts.shape)
    last = k.body.index(0).eq(starts.numel - 1)
    k.store(ended, k.body.where(last, k.body.const(points, "i32"), k.load(starts)))
    k.done()
    return ended


def _results(args: tuple[Any, ...]) -> tuple[Any, ...]:
    results: tuple[Any, ...] = torch.ops.aten._embedding_bag.default(*args)
    return results


def _backward() -> Iterable[Sample]:
    for name, args in _cases():
        weight, indices, offsets, _, mode, *more = args
        out, bag_of, sizes, places = _results(args)
        given = dict(enumerate(more))
        scale, last, padding = given.get(1), given.get(2, False), given.get(3, -1)
        if not last:
            yield Sample(
                (rand(*out.shape).to(out.dtype), indices, offsets, bag_of, sizes, places, len(weight), False, mode, False,
                 scale, padding), name=name)  # fmt: skip


@operator("aten._embedding_bag_backward.default", samples=_backward)
def embedding_bag_backward(
    ctx: Lowering, grad: Ref, indices: Ref, offsets: Ref, offset2bag: Ref, bag_size: Ref, maximum_indices: Ref,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Ref | None,
    padding_idx: int = -1,
) -> Ref:  # fmt: skip
    """The bags' gradients added up in the rows that their points name."""
    if sparse:
        raise NotNative("a sparse gradient")
    _refuse(mode, indices, offsets, offset2bag)
    bags = grad.shape[0]
    if offset2bag.numel or not indices.numel or not bags:
        bag_of, first = offset2bag, 0
    else:
        bag_of, first = _bag_of(ctx, offsets, bags, indices.numel), 1
    options = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    return _rows(ctx, grad, indices, bag_of, first, bag_size, *options)


def _dense() -> Iterable[Sample]:
    for s in _backward():
        grad, indices, _, bag_of, sizes, places, count, by_frequency, mode, _, scale, padding = s.args
        if bag_of.numel():
            yield Sample((grad, indices, bag_of, sizes, places, count, by_frequency, mode, scale, padding), name=s.name)


@operator("aten._embedding_bag_dense_backward.default", samples=_dense)
def embedding_bag_dense_backward(
    ctx: Lowering, grad: Ref, indices: Ref, offset2bag: Ref, bag_size: Ref, maximum_indices: Ref, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Ref | None, padding_idx: int = -1,
) -> Ref:  # fmt: skip
    """The same with the points' bags at hand."""
    _refuse(mode, indices, offset2bag)
    options = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    return _rows(ctx, grad, indices, offset2bag, 0, bag_size, *options)


def _rows(
    ctx: Lowering, grad: Ref, indices: Ref, bag_of: Ref, first: int, sizes: Ref, rows: int, by_frequency: bool, mode: int,
    scale: Ref | None, padding: int,
) -> Ref:  # fmt: skip
    """Every point's share of its bag's gradient, sent to its row; bags are numbered from ``first`` on."""
    if by_frequency:
        raise NotNative("gradients scaled by how often a row was looked up")
    dst, points, columns = ctx.result(), indices.numel, grad.shape[1]
    if not points or not grad.numel:
        return ctx.full(0, dst)
    k = ctx.kernel((points, columns))
    bag = _bag(k, bag_of, first, (bag_of.strides[0], 0))
    value = k.gather(grad, (0, grad.strides[1]), [bag], [0])
    compute = compute_type(grad.dtype)
    if scale is not None:
        value = value * k.load(scale, (scale.strides[0], 0), dtype=compute)
    if mode == _MEAN:
        size = k.body.convert(k.gather(sizes, (0, 0), [bag], [0]), compute)
        value = value / k.body.op("max", size, k.body.const(1, compute))
    if padding >= 0:
        # Added as zeros, not passed over: so the shares may be computed where they are added up, and their bags are checked there.
        row = k.load(indices, (indices.strides[0], 0), dtype="i64")
        value = k.body.where(row.ne(padding), value, k.body.const(0, compute))
    shares = ctx.new((points, columns), grad.dtype)
    k.store(shares, value)
    k.done()
    where = Index(indices, (indices.strides[0], 0), rows, dst.strides[0])
    return scatter(
        ctx, 0, dst, "add", shares, [where], dims=shares.shape, to=(0, dst.strides[1]), strides=shares.strides
    )  # fmt: skip


def _bag(k: Kernel, bag_of: Ref, first: int, strides: Sequence[int]) -> Expr:
    number = k.load(bag_of, strides, dtype="i64")
    return number - first if first else number


def _scales() -> Iterable[Sample]:
    for name, args in _cases():
        weight, indices, offsets, _, mode, *more = args
        if len(more) > 1 and more[1] is not None:
            out, bag_of, *_ = _results(args)
            yield Sample(
                (rand(*out.shape).to(out.dtype), weight, indices, offsets, bag_of, mode, more[3] if len(more) > 3 else -1),
                name=name)  # fmt: skip


@operator("aten._embedding_bag_per_sample_weights_backward.default", samples=_scales)
def embedding_bag_scale_backward(
    ctx: Lowering, grad: Ref, weight: Ref, indices: Ref, offsets: Ref, offset2bag: Ref, mode: int, padding_idx: int = -1
) -> Ref:
    """The gradient of every point's scale: its row times its bag's gradient, 0 for the padding."""
    _refuse(mode, indices, offsets, offset2bag)
    points, columns = indices.numel, grad.shape[1]
    if mode != _SUM or not points or not grad.numel:
        raise NotNative("no points, or means")
    bag_of, first = (offset2bag, 0) if offset2bag.numel else (_bag_of(ctx, offsets, grad.shape[0], points), 1)
    dst, compute = ctx.result(), compute_type(weight.dtype)
    k = ctx.kernel((points,), (columns,))
    row = k.load(indices, (indices.strides[0], 0), dtype="i64")
    bag = _bag(k, bag_of, first, (bag_of.strides[0], 0))
    product = k.gather(weight, (0, weight.strides[1]), [row], [0]) * k.gather(grad, (0, grad.strides[1]), [bag], [0])
    total = k.body.reduce("sum", product)
    if padding_idx >= 0:
        total = k.body.where(row.ne(padding_idx), total, k.body.const(0, compute))
    k.store(dst, total, (*dst.strides, 0))
    k.done()
    return dst
