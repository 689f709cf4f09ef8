"""Pages of the operators that read at computed places: indexing, embedding, gather, take."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import HALVES
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.pages.movement import real
from dcir.ops.pages.views import dim_of
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import generator, rand


def places(*shape: int, below: int, low: int = 0, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Random indices in [low, below)."""
    return torch.randint(low, below, shape, generator=generator(seed)).to(dtype)


def wrapped(k: Kernel, index: Expr, extent: int) -> Expr:
    """Negative indices count from the end."""
    return k.body.where(index < 0, index + extent, index)


def _load_index(k: Kernel, index: Ref, strides: Sequence[int]) -> Expr:
    if index.dtype not in ("i64", "i32"):
        raise NotNative(f"an index of type {index.dtype}")
    return k.load(index, strides, dtype="i64")


def placement(indexed: Sequence[int]) -> int:
    """Where the broadcast index dimensions stand in an indexing's result: the first one's place, or the front."""
    adjacent = all(b - a == 1 for a, b in itertools.pairwise(indexed))
    return indexed[0] if adjacent else 0


def _indexed(ctx: Lowering, x: Ref, indices: Sequence[Ref | None], *, checked: bool, masked: Any = None) -> Ref:
    """x[indices]: the loops of the index tensors first or in place, the other dimensions around them."""
    real(ctx)
    dims = [d for d, i in enumerate(indices) if i is not None]
    refs = [i for i in indices if i is not None]
    if any(i.dtype in ("bool", "u8") for i in refs):
        raise NotNative("a mask as index: the result's size depends on its values")
    if not refs:
        return x
    shared = torch.broadcast_shapes(*(i.shape for i in refs))
    at, rank = placement(dims), len(ctx.out.shape)
    others = [d for d in range(len(x.shape)) if d not in dims]
    before = others[:at]
    extents = [x.shape[d] for d in others]
    if ctx.out.shape != (*extents[:at], *shared, *extents[at:]):
        # Torch's shape inference takes a last index of no dimensions for all of them.
        raise NotNative("a result whose shape was inferred otherwise")
    dst = ctx.result()
    k = ctx.kernel(dst.shape)

    def among(strides: Sequence[int]) -> tuple[int, ...]:
        """Strides over the index dimensions, as strides over all loops."""
        return (*(0,) * len(before), *strides, *(0,) * (rank - len(before) - len(strides)))

    where = [wrapped(k, _load_index(k, i, among(i.expand_to(shared))), x.shape[d])
             for i, d in zip(refs, dims, strict=True)]  # fmt: skip
    own = [x.strides[d] for d in others]
    strides = (*own[: len(before)], *(0,) * len(shared), *own[len(before) :])
    if masked is None:
        v = k.gather(x, strides, where, dims, checked=checked)
    else:
        mask, fill = masked
        ok = k.load(mask, among(mask.expand_to(shared)))
        compute = "f32" if x.dtype in HALVES else x.dtype
        v = k.gather(x, strides, where, dims, checked=checked, mask=ok, other=k.body.const(fill, compute))
    k.store(dst, v)
    k.done()
    return dst


def _indexings() -> Iterable[Sample]:
    x = rand(4, 5, 6)
    yield Sample((x, [places(3, below=4, low=-4)]))
    yield Sample((x, [None, places(2, 3, below=5), places(3, below=6)]), name="adjacent")
    yield Sample((x, [places(2, 1, below=4), None, places(3, below=6, low=-6)]), name="apart")
    yield Sample((x.permute(2, 0, 1), [None, places(below=4)]), name="scalar index")
    yield Sample((x.bfloat16(), [None, places(3, below=5, dtype=torch.int32)]), name="bf16")
    yield Sample((rand(5, dtype=torch.int64), [places(0, below=5)]), name="empty")


@operator("aten.index.Tensor", samples=_indexings)
def index(ctx: Lowering, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """x[i, :, j]: negative indices wrap, others are checked."""
    return _indexed(ctx, x, indices, checked=True)


@operator("aten._unsafe_index.Tensor", samples=_indexings)
def unsafe_index(ctx: Lowering, x: Ref, indices: Sequence[Ref | None]) -> Ref:
    """x[i, :, j] with indices known to lie inside."""
    return _indexed(ctx, x, indices, checked=False)


@operator("aten._unsafe_masked_index.default", samples=lambda: [
    Sample((rand(4, 5), torch.tensor([True, False, True]), [places(3, below=4), places(3, below=5)], 0.5)),
    Sample((rand(4, 5), torch.tensor([[True], [False]]), [places(2, 1, below=4), places(3, below=5)], 0)),
])  # fmt: skip
def unsafe_masked_index(ctx: Lowering, x: Ref, mask: Ref, indices: Sequence[Ref | None], fill: Any) -> Ref:
    """x[i, j] where the mask holds, else ``fill``."""
    if any(i is None for i in indices):
        raise NotNative("a mask with whole dimensions")
    return _indexed(ctx, x, indices, checked=False, masked=(mask, fill))


def _along(ctx: Lowering, x: Ref, dim: int, index: Ref) -> Ref:
    real(ctx)
    if not x.shape:
        x, dst = ctx.reshape(x, (1,)), ctx.result()
        k = ctx.kernel(dst.shape)
        k.store(dst, k.gather(x, (0,) * len(dst.shape), [_load_index(k, index, ())], [0]))
        k.done()
        return dst
    d, dst = dim_of(dim, len(x.shape)), ctx.result()
    k = ctx.kernel(dst.shape)
    strides = (0,) * d + (index.strides if index.shape else (0,)) + (0,) * (len(dst.shape) - d - 1)
    where = _load_index(k, index, strides)
    k.store(dst, k.gather(x, [0 if i == d else s for i, s in enumerate(x.strides)], [where], [d]))
    k.done()
    return dst


@operator("aten.index_select.default", samples=lambda: [
    Sample((rand(4, 5), 0, places(3, below=4))), Sample((rand(4, 5).t(), -1, places(6, below=4, dtype=torch.int32))),
    Sample((rand(4, 5, dtype=torch.int64), 1, places(below=5))), Sample((rand(3), 0, places(0, below=3))),
    Sample((rand(), 0, places(1, below=1))),
])  # fmt: skip
def index_select(ctx: Lowering, x: Ref, dim: int, index: Ref) -> Ref:
    """Some indices of one dimension."""
    return _along(ctx, x, dim, index)


@operator("aten.embedding.default", samples=lambda: [
    Sample((rand(7, 4), places(2, 3, below=7))), Sample((rand(7, 4), places(5, below=7, dtype=torch.int32), 1)),
    Sample((rand(7, 4, dtype=torch.bfloat16), places(below=7))), Sample((rand(4, 7).t(), places(0, 2, below=7))),
])  # fmt: skip
def embedding(
    ctx: Lowering,
    weight: Ref,
    index: Ref,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Ref:
    """Rows of a table; the options only concern its gradient."""
    real(ctx)
    dst = ctx.result()
    k = ctx.kernel(dst.shape)
    where = _load_index(k, index, (*index.strides, 0))
    k.store(dst, k.gather(weight, (*(0,) * len(index.shape), weight.strides[1]), [where], [0]))
    k.done()
    return dst


@operator("aten.gather.default", samples=lambda: [
    Sample((rand(4, 5), 1, places(4, 3, below=5))), Sample((rand(4, 5).t(), 0, places(2, 3, below=5))),
    Sample((rand(2, 3, 4, dtype=torch.bfloat16), -1, places(2, 3, 1, below=4))),
    Sample((rand(3), 0, places(0, below=3))), Sample((rand(), 0, places(below=1))),
])  # fmt: skip
def gather(ctx: Lowering, x: Ref, dim: int, index: Ref, *, sparse_grad: bool = False) -> Ref:
    """y[i, j] = x[i, index[i, j]]."""
    real(ctx)
    if not x.shape:
        x = ctx.reshape(x, (1,) * max(len(index.shape), 1))
    d, dst = dim_of(dim, len(x.shape)), ctx.result()
    k = ctx.kernel(dst.shape)
    strides = [0 if i == d else s for i, s in enumerate(x.strides)] if dst.shape else []
    k.store(dst, k.gather(x, strides, [_load_index(k, index, index.strides)], [d]))
    k.done()
    return dst


@operator("aten.take.default", samples=lambda: [
    Sample((rand(3, 4), places(2, 5, below=12, low=-12))), Sample((rand(3, 4).t(), places(5, below=12))),
    Sample((rand(4, dtype=torch.int32), places(below=4))),
])  # fmt: skip
def take(ctx: Lowering, x: Ref, index: Ref) -> Ref:
    """Elements by their number in row-major order."""
    real(ctx)
    x, dst = ctx.reshape(x, (x.numel,)), ctx.result()
    k = ctx.kernel(dst.shape)
    where = wrapped(k, _load_index(k, index, index.strides), x.numel)
    k.store(dst, k.gather(x, (0,) * len(dst.shape), [where], [0]))
    k.done()
    return dst
