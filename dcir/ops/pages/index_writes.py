"""Pages of the writes at indices that several tensors give, and of the gradients of look-ups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dcir.ir.types import compute_type
from dcir.ops.library.scatter import Index, scatter
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.scatter import along, folded, number
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _masked(ctx: Lowering, x: Ref, indices: Sequence[Ref | None], values: Ref, *, accumulate: bool) -> Ref:
    """One mask over leading dimensions and values that do not depend on its count: a choice at every element."""
    places = [i for i, t in enumerate(indices) if t is not None]
    mask = indices[places[0]]
    assert mask is not None
    if len(places) > 1 or values.numel != 1:
        raise NotNative("a mask as index: the source's size depends on its values")
    first, rank = places[0], len(x.shape)
    dst, strides = ctx.result(), [0] * rank
    strides[first : first + len(mask.shape)] = mask.strides
    k = ctx.kernel(dst.shape)
    old = k.load(x)
    new = k.load(values, (0,) * rank, dtype=old.dtype)
    chosen = k.body.convert(k.load(mask, strides), "bool")
    k.store(dst, k.body.where(chosen, old + new if accumulate else new, old))
    k.done()
    return dst


def _index_put(ctx: Lowering, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool) -> Ref:
    tensors = [t for t in indices if t is not None]
    if any(t.dtype in ("bool", "u8") for t in tensors):
        return _masked(ctx, x, indices, values, accumulate=accumulate)
    if not tensors:
        raise NotNative("a write without indices")
    indexed = [d for d, t in enumerate(indices) if t is not None]
    shared = tuple(torch.broadcast_shapes(*(t.shape for t in tensors)))
    free = [d for d in range(len(x.shape)) if d not in indexed]
    # Neighbouring indices put their shared dimensions where they stand, others in front.
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    before = [d for d in free if together and d < indexed[0]]
    after = [d for d in free if d not in before]
    dims = [*(x.shape[d] for d in before), *shared, *(x.shape[d] for d in after)]
    dst = ctx.result()
    to = [*(dst.strides[d] for d in before), *(0 for _ in shared), *(dst.strides[d] for d in after)]
    lead, tail = (0,) * len(before), (0,) * len(after)
    where = [
        Index(t, (*lead, *t.expand_to(shared), *tail), x.shape[d], dst.strides[d])
        for d, t in zip(indexed, tensors, strict=True)
    ]
    op = "add" if accumulate else "set"
    return scatter(ctx, x, dst, op, values, where, dims=dims, to=to, strides=values.expand_to(dims), wrap=True)


def _puts(*, accumulate: bool) -> Iterable[Sample]:
    def idx(*shape: int, high: int, seed: int = 3) -> torch.Tensor:
        if accumulate:
            return rand(*shape, dtype=torch.int64, low=-high, high=high, seed=seed)
        return (torch.randperm(high, generator=torch.Generator().manual_seed(seed))[: math.prod(shape)] - 1).reshape(
            shape
        )

    x = rand(6, 7, 3)
    yield Sample((x, [idx(4, high=6)], rand(4, 7, 3, seed=1), accumulate), name="first")
    yield Sample((x, [None, idx(2, 2, high=7)], rand(6, 2, 2, 3, seed=1), accumulate), name="middle")
    yield Sample((x, [idx(2, 1, high=6), idx(2, high=7)], rand(3, seed=1), accumulate), name="two, broadcast")
    yield Sample((x, [idx(3, high=6), None, idx(3, high=3)], rand(3, 7, seed=1), accumulate), name="apart")
    yield Sample((x.permute(2, 0, 1), [None, idx(4, high=6)], rand(seed=1), accumulate), name="permuted, number")
    yield Sample(
        (torch.zeros(9, dtype=torch.bfloat16), [idx(5, high=9)], rand(5, seed=1).bfloat16(), accumulate), name="bf16"
    )
    yield Sample((x, [rand(6, 7, dtype=torch.bool)], rand(seed=1), accumulate), name="mask")
    yield Sample((x, [idx(0, high=6)], rand(0, 7, 3), accumulate), name="nothing")


@operator("aten.index_put.default", "aten._unsafe_index_put.default",
          samples=lambda: [*_puts(accumulate=False), *_puts(accumulate=True)])  # fmt: skip
def index_put(ctx: Lowering, x: Ref, indices: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    """x[i, j] = values, or += where duplicates add up."""
    return _index_put(ctx, x, indices, values, accumulate)


def _send(ctx: Lowering, base: Ref | float, dim: int, index: Ref, source: Ref, op: str, dst: Ref, *, wrap: bool) -> Ref:
    """Slices of the source go to the stored places along ``dim``; a source of one number goes everywhere."""
    d, n = along(dim, len(dst.shape)), index.numel
    dims = [*dst.shape[:d], n, *dst.shape[d + 1 :]]
    to = [0 if i == d else s for i, s in enumerate(dst.strides)]
    step = index.strides[0] if index.shape else 0
    where = Index(index, tuple(step if i == d else 0 for i in range(len(dims))), dst.shape[d], dst.strides[d])
    strides = source.strides if source.shape else (0,) * len(dims)
    return scatter(ctx, base, dst, op, source, [where], dims=dims, to=to, strides=strides, wrap=wrap)


def _slices(*more: Any, duplicates: bool = False, **kw: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        x, source = rand(5, 6, 3), rand(5, 4, 3, seed=1)
        index = torch.tensor([1, 3, 1, 5] if duplicates else [1, 3, 0, 5])
        yield Sample((x, 1, index, source, *more), dict(kw))
        yield Sample((x.permute(1, 0, 2), -3, index, source.permute(1, 0, 2), *more), dict(kw), name="permuted")
        yield Sample((x.bfloat16(), 1, index.int(), source.bfloat16(), *more), dict(kw), name="bf16, int32")
        yield Sample((x, 1, index[:0], source[:, :0], *more), dict(kw), name="nothing")

    return make


@operator("aten.index_add.default", samples=lambda: [*_slices(duplicates=True)(), *_slices(alpha=-0.5)()])
def index_add(ctx: Lowering, x: Ref, dim: int, index: Ref, source: Ref, *, alpha: Any = 1) -> Ref:
    """Slices added to their places."""
    if not x.shape:
        raise NotNative("a scalar")
    if alpha != 1:
        scaled = ctx.new(source.shape, source.dtype)
        source = ctx.pointwise(lambda v: v * alpha, source, compute=compute_type(source.dtype), out=scaled)
    return _send(ctx, x, dim, index, source, "add", ctx.result(), wrap=False)


@operator("aten.index_copy.default", samples=lambda: [s for s in _slices()() if s.args[2].dtype == torch.int64])
def index_copy(ctx: Lowering, x: Ref, dim: int, index: Ref, source: Ref) -> Ref:
    """Slices written to their places."""
    if not x.shape:
        raise NotNative("a scalar")
    return _send(ctx, x, dim, index, source, "set", ctx.result(), wrap=False)


@operator("aten.index_fill.int_Scalar", samples=lambda: [
    Sample((rand(5, 6), 1, torch.tensor([1, 3, -1]), 2.5)), Sample((rand(5, 6).t(), 0, torch.tensor([0]), 1)),
    Sample((rand(5, dtype=torch.int64, low=-9, high=9), 0, torch.tensor([0, 0, 2]), 1)),
])  # fmt: skip
def index_fill(ctx: Lowering, x: Ref, dim: int, index: Ref, value: Any) -> Ref:
    """A number written to slices."""
    if not x.shape:
        raise NotNative("a scalar")
    return _send(ctx, x, dim, index, number(ctx, value, x.dtype), "set", ctx.result(), wrap=True)


@operator("aten.index_fill.int_Tensor", samples=lambda: [
    Sample((rand(5, 6), 1, torch.tensor([1, 3]), torch.tensor(2.5))),
])  # fmt: skip
def index_fill_tensor(ctx: Lowering, x: Ref, dim: int, index: Ref, value: Ref) -> Ref:
    """A scalar tensor written to slices."""
    if not x.shape:
        raise NotNative("a scalar")
    return _send(ctx, x, dim, index, value, "set", ctx.result(), wrap=True)


@operator("aten.index_reduce.default", samples=lambda: [
    s for r in ("prod", "mean", "amax", "amin") for own in (True, False)
    for s in list(_slices(r, duplicates=True, include_self=own)())[:2]
])  # fmt: skip
def index_reduce(
    ctx: Lowering, x: Ref, dim: int, index: Ref, source: Ref, reduce: str, *, include_self: bool = True
) -> Ref:
    """Slices folded into their places."""
    if not x.shape:
        raise NotNative("a scalar")

    def send(base: Ref | float, values: Ref, op: str, dst: Ref | None) -> Ref:
        return _send(ctx, base, dim, index, values, op, dst or ctx.result(), wrap=False)

    return folded(ctx, x, reduce, send, source, include_self=include_self)


@operator("aten.put.default", samples=lambda: [
    Sample((rand(4, 5), torch.tensor([[0, 7], [-1, 12]]), rand(2, 2, seed=1))),
    Sample((rand(5, 4).t(), torch.tensor([0, 7, 7, -20]), rand(4, seed=1), True), name="transposed, added"),
])  # fmt: skip
def put(ctx: Lowering, x: Ref, index: Ref, source: Ref, accumulate: bool = False) -> Ref:
    """Elements written or added at flat positions."""
    dst = ctx.new(x.shape, x.dtype)
    values = ctx.reshape(source, index.shape)
    where = Index(index, index.strides, x.numel, 1)
    op = "add" if accumulate else "set"
    to = (0,) * len(index.shape)
    return scatter(ctx, x, dst, op, values, [where], dims=index.shape, to=to, strides=values.strides, wrap=True)


def _lookups() -> Iterable[Sample]:
    i = torch.tensor([[1, 4, 1], [0, 8, 4]])
    yield Sample((rand(2, 3, 5), i, 9, -1, False))
    yield Sample((rand(2, 3, 5), i, 9, 4, False), name="padding")
    yield Sample((rand(5, 2, 3).permute(1, 2, 0), i.int(), 9, -1, False), name="permuted, int32")
    yield Sample((rand(2, 3, 5, dtype=torch.float64), i, 9, -1, False), name="double")
    yield Sample((rand(0, 5), i.view(-1)[:0], 3, -1, False), name="nothing")
    yield Sample((rand(5), torch.tensor(2), 3, -1, False), name="one")


@operator("aten.embedding_dense_backward.default", samples=_lookups)
def embedding_backward(
    ctx: Lowering, grad: Ref, indices: Ref, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Ref:
    """Gradients added up in the rows that were looked up, but for the padding's."""
    if scale_grad_by_freq:
        raise NotNative("gradients scaled by how often a row was looked up")
    dst = ctx.result()
    where = Index(indices, (*indices.strides, 0), num_weights, dst.strides[0])
    return scatter(
        ctx, 0, dst, "add", grad, [where], dims=grad.shape, to=(*(0 for _ in indices.shape), dst.strides[1]),
        strides=grad.strides, skip=padding_idx if padding_idx >= 0 else None,
    )  # fmt: skip
