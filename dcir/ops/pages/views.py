"""Pages of the view operators: new windows on the same container, no node and no bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dcir.errors import Unsupported
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def dim_of(d: int, rank: int) -> int:
    """A dimension counted from the front."""
    return d + max(rank, 1) if d < 0 else d


def _reshapes() -> Iterable[Sample]:
    yield Sample((rand(4, 6), [2, 12]))
    yield Sample((rand(4, 6), [-1, 3]))
    yield Sample((rand(4, 1, 6)[:, :, :3], [4, 3, 1]), name="gaps")
    yield Sample((rand(0, 6), [3, 0]), name="empty")


@operator("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", samples=_reshapes, view=True)
def view(ctx: Lowering, x: Ref, shape: Sequence[int]) -> Ref:
    """Another shape of the same elements; a copy only where our container is laid out differently from torch's."""
    return ctx.reshape(x, ctx.out.shape)


@operator(
    "aten.permute.default",
    samples=lambda: [Sample((rand(2, 3, 4), [2, 0, 1])), Sample((rand(2, 3), [-1, 0]))],
    view=True,
)
def permute(ctx: Lowering, x: Ref, dims: Sequence[int]) -> Ref:
    """Dimensions in another order."""
    order = [dim_of(d, len(x.shape)) for d in dims]
    return replace(x, shape=tuple(x.shape[d] for d in order), strides=tuple(x.strides[d] for d in order))


@operator("aten.t.default", samples=lambda: [Sample((rand(2, 3),)), Sample((rand(3),))], view=True)
def t(ctx: Lowering, x: Ref) -> Ref:
    """Matrix transpose."""
    return replace(x, shape=x.shape[::-1], strides=x.strides[::-1])


@operator("aten.transpose.int", samples=lambda: [Sample((rand(2, 3, 4), -1, 0))], view=True)
def transpose(ctx: Lowering, x: Ref, a: int, b: int) -> Ref:
    """Two dimensions swapped."""
    order = list(range(len(x.shape)))
    if order:
        a, b = dim_of(a, len(order)), dim_of(b, len(order))
        order[a], order[b] = order[b], order[a]
    turned: Ref = permute(ctx, x, order)
    return turned


@operator(
    "aten.expand.default", samples=lambda: [Sample((rand(3, 1), [2, 3, 4])), Sample((rand(3, 1), [-1, 4]))], view=True
)
def expand(ctx: Lowering, x: Ref, size: Sequence[int], *, implicit: bool = False) -> Ref:
    """Broadcast: strides of 0."""
    shape = ctx.out.shape
    pad = len(shape) - len(x.shape)
    strides = [0] * pad + [
        0 if d == 1 and n != 1 else s for d, s, n in zip(x.shape, x.strides, shape[pad:], strict=True)
    ]
    return replace(x, shape=shape, strides=tuple(strides))


@operator(
    "aten.slice.Tensor", samples=lambda: [Sample((rand(8, 3), 0, 2, 7, 2)), Sample((rand(8, 3), 1, -2))], view=True
)
def slice_(ctx: Lowering, x: Ref, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Ref:
    """A range of one dimension."""
    d = dim_of(dim, len(x.shape))
    n = x.shape[d]
    first = 0 if start is None else min(max(start + n if start < 0 else start, 0), n)
    strides = list(x.strides)
    offset = x.offset + first * strides[d] if all(ctx.out.shape) else x.offset
    strides[d] *= step
    return replace(x, shape=ctx.out.shape, strides=tuple(strides), offset=offset)


@operator("aten.select.int", samples=lambda: [Sample((rand(4, 5), 0, 2)), Sample((rand(4, 5), 1, -1))], view=True)
def select(ctx: Lowering, x: Ref, dim: int, index: int) -> Ref:
    """One index of one dimension."""
    d = dim_of(dim, len(x.shape))
    i = index + x.shape[d] if index < 0 else index
    keep = [k for k in range(len(x.shape)) if k != d]
    return replace(
        x, shape=tuple(x.shape[k] for k in keep), strides=tuple(x.strides[k] for k in keep),
        offset=x.offset + i * x.strides[d],
    )  # fmt: skip


def _squeezed(x: Ref, dims: Iterable[int]) -> Ref:
    drop = {dim_of(d, len(x.shape)) for d in dims}
    keep = [k for k in range(len(x.shape)) if k not in drop or x.shape[k] != 1]
    return replace(x, shape=tuple(x.shape[k] for k in keep), strides=tuple(x.strides[k] for k in keep))


@operator(
    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
    samples=lambda: [Sample((rand(1, 3, 1), [0])), Sample((rand(2, 3, 1), [-1, 1]))], view=True,
)  # fmt: skip
def squeeze(ctx: Lowering, x: Ref, dims: Any = None) -> Ref:
    """Dimensions of extent 1 dropped."""
    return _squeezed(x, range(len(x.shape)) if dims is None else [dims] if isinstance(dims, int) else dims)


@operator("aten.unsqueeze.default", samples=lambda: [Sample((rand(2, 3), 1)), Sample((rand(2, 3), -1))], view=True)
def unsqueeze(ctx: Lowering, x: Ref, dim: int) -> Ref:
    """A dimension of extent 1 more."""
    d = dim + len(x.shape) + 1 if dim < 0 else dim
    return replace(x, shape=(*x.shape[:d], 1, *x.shape[d:]), strides=(*x.strides[:d], 1, *x.strides[d:]))


@operator("aten.as_strided.default", samples=lambda: [Sample((rand(4, 6), [2, 3], [6, 2], 1))], view=True)
def as_strided(
    ctx: Lowering, x: Ref, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Ref:
    """A window by its strides in torch's storage; where ours is laid out otherwise, in a copy that is laid out so.

    Raises:
        Unsupported: the storage has gaps, so that no copy of the tensor can stand for it.
    """
    if ctx.storage is None:
        raise NotNative("as_strided of a tensor of unknown storage")
    base, meta = ctx.storage.base, ctx.storage.meta
    start = (ctx.storage.start if storage_offset is None else storage_offset) - ctx.storage.base_start
    whole = ctx.net.containers[base.data]
    ours = all(a == b or d == 1 for a, b, d in zip(base.strides, meta.strides, meta.shape, strict=True))
    if not ours or base.shape != whole.shape:
        base = ctx.copy(base, ctx.new(meta.shape, meta.dtype, meta.strides))
        whole = ctx.net.containers[base.data]
    last = start + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
    same = all(a == b or d == 1 for a, b, d in zip(whole.strides, meta.strides, meta.shape, strict=True))
    if not same or start < 0 or (last >= whole.size and all(size)):
        raise Unsupported.collect([("as_strided outside the tensor's own elements", ctx.origin)])
    return replace(base, shape=tuple(size), strides=tuple(stride), offset=base.offset + start)


@operator(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    samples=lambda: [Sample((rand(3),))],
    view=True,
)
def alias(ctx: Lowering, x: Ref) -> Ref:
    """The same tensor."""
    return x


@operator(
    "aten.split.Tensor", "aten.split_with_sizes.default",
    samples=lambda: [Sample((rand(7, 2), [3, 4])), Sample((rand(2, 6), [2, 2, 2], 1))], view=True,
)  # fmt: skip
def split(ctx: Lowering, x: Ref, sizes: Any, dim: int = 0) -> tuple[Ref, ...]:
    """Consecutive ranges of one dimension."""
    d = dim_of(dim, len(x.shape))
    if isinstance(sizes, int):
        sizes = [m.shape[d] for m in ctx.outs if m is not None]
    parts, start = [], 0
    for n in sizes:
        shape = (*x.shape[:d], n, *x.shape[d + 1 :])
        parts.append(replace(x, shape=shape, offset=x.offset + (start * x.strides[d] if n else 0)))
        start += n
    return tuple(parts)


@operator("aten.unbind.int", samples=lambda: [Sample((rand(3, 4), 1))], view=True)
def unbind(ctx: Lowering, x: Ref, dim: int = 0) -> tuple[Ref, ...]:
    """Every index of one dimension."""
    return tuple(select(ctx, x, dim, i) for i in range(x.shape[dim_of(dim, len(x.shape))]))


@operator(
    "aten.diagonal.default", samples=lambda: [Sample((rand(4, 5),)), Sample((rand(2, 4, 5), 1, -1, 1))], view=True
)
def diagonal(ctx: Lowering, x: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    """Elements whose two indices differ by ``offset``."""
    a, b = dim_of(dim1, len(x.shape)), dim_of(dim2, len(x.shape))
    keep = [k for k in range(len(x.shape)) if k not in (a, b)]
    start = offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]
    strides = (*(x.strides[k] for k in keep), x.strides[a] + x.strides[b])
    return replace(x, shape=ctx.out.shape, strides=strides, offset=x.offset + (start if all(ctx.out.shape) else 0))


@operator("aten.unfold.default", samples=lambda: [Sample((rand(7, 3), 0, 3, 2))], view=True)
def unfold(ctx: Lowering, x: Ref, dim: int, size: int, step: int) -> Ref:
    """Overlapping windows along one dimension."""
    if not x.shape:
        raise NotNative("unfold of a scalar")
    d = dim_of(dim, len(x.shape))
    strides = (*x.strides[:d], x.strides[d] * step, *x.strides[d + 1 :], x.strides[d])
    return replace(x, shape=ctx.out.shape, strides=strides)
