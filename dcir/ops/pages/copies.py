"""Pages of the operators that copy or convert: the same tensor again wherever values need not change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.views import slice_
from dcir.ops.reach import is_elsewhere
from dcir.ops.registry import PAGES, Sample, operator
from dcir.ops.samples import rand, specials


def converted(ctx: Lowering, x: Ref) -> Ref:
    """``x`` in the result's type: itself where it has that type already, since graphs are functional."""
    if x.dtype == ctx.out.dtype:
        return x
    if x.dtype in ("c64", "c128") or ctx.out.dtype in ("c64", "c128"):
        raise NotNative("complex numbers")
    return ctx.copy(x, ctx.result())


def _clones() -> Iterable[Sample]:
    yield Sample((rand(3, 5),))
    yield Sample((rand(3, 5).t(),), {"memory_format": torch.contiguous_format}, name="contiguous")
    yield Sample((rand(3, 6, dtype=torch.int64)[:, ::2],), name="strided")
    yield Sample((rand(0, 2),), name="empty")


@operator("aten.clone.default", samples=_clones, view=True)
def clone(ctx: Lowering, x: Ref, *, memory_format: Any = None) -> Ref:
    """The same values; layouts are ours, so nothing has to move."""
    return x


@operator("aten.lift_fresh.default", "aten.lift.default", samples=lambda: [Sample((rand(3),))], view=True)
def lift(ctx: Lowering, x: Ref) -> Ref:
    """The same tensor."""
    return x


def _conversions() -> Iterable[Sample]:
    x = rand(3, 7, low=-5, high=5)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        yield Sample((x,), {"dtype": dtype}, name=str(dtype))
    yield Sample((rand(9, dtype=torch.int64, low=-9, high=9),), {"dtype": torch.float16}, name="int to f16")
    yield Sample((specials(),), {"dtype": torch.bfloat16}, name="special values")
    yield Sample((rand(4, 3, dtype=torch.bfloat16).t(),), {"dtype": torch.float32}, name="permuted bf16")
    yield Sample((rand(6, dtype=torch.bool),), {"dtype": torch.uint8}, name="bool to u8")


@operator("aten._to_copy.default", samples=_conversions)
def to_copy(ctx: Lowering, x: Ref | bool | float, *, device: Any = None, **options: Any) -> Ref:
    """Another element type; traces under vmap hand a number over as it is."""
    if is_elsewhere(device):
        raise NotNative("another device")
    return converted(ctx, x) if isinstance(x, Ref) else ctx.full(x, ctx.result())


@operator("prims.convert_element_type.default", samples=lambda: [
    Sample((rand(4), torch.float64)), Sample((rand(4), torch.bfloat16)),
    Sample((rand(4, dtype=torch.bool), torch.float32)),
])  # fmt: skip
def convert_element_type(ctx: Lowering, x: Ref, dtype: Any) -> Ref:
    """Another element type."""
    return converted(ctx, x)


@operator("aten.copy.default", samples=lambda: [
    Sample((rand(3, 4), rand(4, seed=1))), Sample((rand(3), rand(3, dtype=torch.int64, seed=1))),
    Sample((rand(3, dtype=torch.float16), rand(1, seed=1))),
])  # fmt: skip
def copy(ctx: Lowering, x: Ref, source: Ref, non_blocking: bool = False) -> Ref:
    """The source's values in the shape and type of ``x``."""
    return converted(ctx, replace(source, shape=ctx.out.shape, strides=source.expand_to(ctx.out.shape)))


_VIEWS = (
    "view", "permute", "t", "transpose.int", "expand", "slice.Tensor", "select.int", "squeeze", "squeeze.dim",
    "squeeze.dims", "unsqueeze", "alias", "detach", "split.Tensor", "split_with_sizes", "unbind.int", "diagonal",
    "unfold",
)  # fmt: skip


def _register_copies() -> None:
    """The copying form of every view operator is the view: a result that would alias is copied at the graph's end."""
    for view in _VIEWS:
        packet, _, over = view.partition(".")
        page = PAGES[f"aten.{packet}.{over or 'default'}"]
        operator(f"aten.{packet}_copy.{over or 'default'}", samples=page.samples, view=True)(page.lower)


_register_copies()


@operator("aten.narrow_copy.default", samples=lambda: [Sample((rand(5, 3), 0, 1, 3))], view=True)
def narrow_copy(ctx: Lowering, x: Ref, dim: int, start: int, length: int) -> Ref:
    """A range of one dimension."""
    window: Ref = slice_(ctx, x, dim, start, start + length)
    return window


@operator("aten._reshape_alias.default", samples=lambda: [Sample((rand(4, 6), [8, 3], [3, 1]))], view=True)
def reshape_alias(ctx: Lowering, x: Ref, size: Any, stride: Any) -> Ref:
    """Another shape of the same elements."""
    return ctx.reshape(x, ctx.out.shape)
