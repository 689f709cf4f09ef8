"""Pages of the operators that make tensors from numbers: fills, ranges, identity matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr
from dcir.ir.types import compute_type
from dcir.ops.lowering import Kernel, Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def fill_with(ctx: Lowering, value: Any) -> Ref:
    """The result, filled with a number."""
    dtype = ctx.out.dtype
    if isinstance(value, complex) or dtype in ("c64", "c128"):
        raise NotNative("complex numbers")
    if isinstance(value, float) and not math.isfinite(value) and compute_type(dtype)[0] != "f":
        raise NotNative("an integer tensor of infinities")
    return ctx.full(value, ctx.result())


def _shapes() -> Iterable[Sample]:
    yield Sample(([3, 5],))
    yield Sample(([],), name="scalar")
    yield Sample(([0, 3],), name="empty")
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool):
        yield Sample(([2, 3],), {"dtype": dtype}, name=str(dtype))


def _likes() -> Iterable[Sample]:
    yield Sample((rand(3, 5),))
    yield Sample((rand(3, 5).t(),), name="transposed")
    yield Sample((rand(3, 5)[:, ::2],), {"dtype": torch.float16}, name="f16")
    yield Sample((rand(4, dtype=torch.int32),), name="i32")


def _news() -> Iterable[Sample]:
    yield Sample((rand(3), [2, 4]))
    yield Sample((rand(3, dtype=torch.bool), [2]), name="bool")
    yield Sample((rand(3), []), {"dtype": torch.int64}, name="scalar")


@operator("aten.zeros.default", samples=_shapes)
def zeros(ctx: Lowering, size: Any, **options: Any) -> Ref:
    """Zeros."""
    return fill_with(ctx, 0)


@operator("aten.empty.memory_format", samples=lambda: [Sample(([0, 3],))])
def empty(ctx: Lowering, size: Any, **options: Any) -> Ref:
    """Zeros too, since every container is written before it is read."""
    return fill_with(ctx, 0)


@operator("aten.ones.default", samples=_shapes)
def ones(ctx: Lowering, size: Any, **options: Any) -> Ref:
    """Ones."""
    return fill_with(ctx, 1)


@operator("aten.zeros_like.default", "aten.zero.default", samples=lambda: [
    s for s in _likes() if "dtype" not in s.kwargs
])  # fmt: skip
def zeros_like(ctx: Lowering, x: Ref, **options: Any) -> Ref:
    """Zeros of another tensor's shape."""
    return fill_with(ctx, 0)


@operator("aten.empty_like.default", samples=lambda: [Sample((rand(0, 3),))])
def empty_like(ctx: Lowering, x: Ref, **options: Any) -> Ref:
    """Zeros, see ``empty``."""
    return fill_with(ctx, 0)


@operator("aten.ones_like.default", samples=_likes)
def ones_like(ctx: Lowering, x: Ref, **options: Any) -> Ref:
    """Ones of another tensor's shape."""
    return fill_with(ctx, 1)


@operator("aten.new_zeros.default", samples=_news)
def new_zeros(ctx: Lowering, x: Ref, size: Any, **options: Any) -> Ref:
    """Zeros of another tensor's type."""
    return fill_with(ctx, 0)


@operator("aten.new_empty.default", samples=lambda: [Sample((rand(3), [0, 4]))])
def new_empty(ctx: Lowering, x: Ref, size: Any, **options: Any) -> Ref:
    """Zeros, see ``empty``."""
    return fill_with(ctx, 0)


@operator("aten.new_empty_strided.default", samples=lambda: [Sample((rand(3), [2, 0], [1, 2]))])
def new_empty_strided(ctx: Lowering, x: Ref, size: Any, stride: Any, **options: Any) -> Ref:
    """Zeros, see ``empty``."""
    return fill_with(ctx, 0)


@operator("aten.empty_strided.default", "aten.empty_permuted.default", "prims.empty_permuted.default",
          "prims.empty_strided.default", samples=lambda: [])  # fmt: skip
def empty_strided(ctx: Lowering, size: Any, stride: Any, **options: Any) -> Ref:
    """Zeros, see ``empty``."""
    return fill_with(ctx, 0)


@operator("aten.new_ones.default", samples=_news)
def new_ones(ctx: Lowering, x: Ref, size: Any, **options: Any) -> Ref:
    """Ones of another tensor's type."""
    return fill_with(ctx, 1)


def _fulls() -> Iterable[Sample]:
    yield Sample(([3, 5], 1.5))
    yield Sample(([2], -math.inf), name="infinity")
    yield Sample(([4], 7), name="int64")
    yield Sample(([4], True), name="bool")
    yield Sample(([4], 0.1), {"dtype": torch.bfloat16}, name="bf16")
    yield Sample(([], math.nan), {"dtype": torch.float64}, name="scalar")


@operator("aten.full.default", samples=_fulls)
def full(ctx: Lowering, size: Any, value: Any, **options: Any) -> Ref:
    """One number everywhere."""
    return fill_with(ctx, value)


def _full_likes() -> Iterable[Sample]:
    yield Sample((rand(3, 5).t(), -2.5))
    yield Sample((rand(3, dtype=torch.int64), 3), name="int64")
    yield Sample((rand(3, dtype=torch.float16), 0.1), name="f16")


@operator("aten.full_like.default", "aten.fill.Scalar", samples=_full_likes)
def full_like(ctx: Lowering, x: Ref, value: Any, **options: Any) -> Ref:
    """One number in another tensor's shape."""
    return fill_with(ctx, value)


@operator("aten.fill.Tensor", samples=lambda: [Sample((rand(3, 2), rand(dtype=torch.int64)))])
def fill_tensor(ctx: Lowering, x: Ref, value: Ref) -> Ref:
    """A scalar tensor's value everywhere."""
    return ctx.copy(value, ctx.result())


@operator("aten.new_full.default", samples=lambda: [Sample((rand(3), [2, 4], 0.3)), Sample((rand(3), [2], 1),
          {"dtype": torch.int64})])  # fmt: skip
def new_full(ctx: Lowering, x: Ref, size: Any, value: Any, **options: Any) -> Ref:
    """One number, in another tensor's type."""
    return fill_with(ctx, value)


@operator("aten.scalar_tensor.default", samples=lambda: [Sample((2.5,)), Sample((3,), {"dtype": torch.int64}),
          Sample((True,), {"dtype": torch.bool})])  # fmt: skip
def scalar_tensor(ctx: Lowering, value: Any, **options: Any) -> Ref:
    """A number as a tensor of no dimensions."""
    return fill_with(ctx, value)


def _counted(ctx: Lowering, value: Any) -> Ref:
    """A 1-D result from its position; floats are worked out in f64 as torch does, then rounded once."""
    dst = ctx.result()
    if dst.dtype in ("c64", "c128", "bool"):
        raise NotNative(f"a range of {dst.dtype}")
    k = ctx.kernel(dst.shape)
    compute = "f64" if compute_type(dst.dtype)[0] == "f" else "i64"
    k.store(dst, value(k.body.convert(k.body.index(0), compute), k))
    k.done()
    return dst


def _range(ctx: Lowering, start: Any, step: Any) -> Ref:
    if compute_type(ctx.out.dtype)[0] != "f" and any(isinstance(v, float) for v in (start, step)):
        start, step = int(start), int(step)
    return _counted(ctx, lambda i, k: i * step + start)


@operator(
    "aten.arange.default", samples=lambda: [Sample((7,)), Sample((3.5,)), Sample((5,), {"dtype": torch.bfloat16})]
)
def arange(ctx: Lowering, end: Any, **options: Any) -> Ref:
    """0, 1, 2, … below ``end``."""
    return _range(ctx, 0, 1)


@operator("aten.arange.start", samples=lambda: [Sample((2, 9)), Sample((-1.5, 4)), Sample((3, 3))])
def arange_start(ctx: Lowering, start: Any, end: Any, **options: Any) -> Ref:
    """start, start + 1, … below ``end``."""
    return _range(ctx, start, 1)


def _steps() -> Iterable[Sample]:
    yield Sample((0, 10, 3))
    yield Sample((1.0, -1.0, -0.3), name="downwards")
    yield Sample((0, 1, 0.1), {"dtype": torch.float64}, name="double")
    yield Sample((5, 0, -2), {"dtype": torch.int32}, name="i32")


@operator("aten.arange.start_step", samples=_steps)
def arange_step(ctx: Lowering, start: Any, end: Any, step: Any = 1, **options: Any) -> Ref:
    """start, start + step, … before ``end``."""
    return _range(ctx, start, step)


@operator("prims.iota.default", samples=lambda: [
    Sample((6,), {"start": 2, "step": 3, "dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False})
])  # fmt: skip
def iota(ctx: Lowering, length: int, *, start: Any, step: Any, **options: Any) -> Ref:
    """start + step * i."""
    return _range(ctx, start, step)


def _between(ctx: Lowering, start: float, end: float, steps: int, then: Any = None) -> Ref:
    if compute_type(ctx.out.dtype)[0] != "f":
        raise NotNative("linspace of integers")
    step = (float(end) - float(start)) / max(steps - 1, 1)

    def value(i: Expr, k: Kernel) -> Expr:
        # Both ends come out exactly: the second half counts down from the end, as torch's kernel does.
        v = k.body.where(i < steps // 2, i * step + float(start), (i * -1.0 + float(steps - 1)) * -step + float(end))
        v = v if steps > 1 else k.body.const(start, "f64")
        return then(v, k) if then else v

    return _counted(ctx, value)


def _linspaces() -> Iterable[Sample]:
    yield Sample((-1, 1, 7))
    yield Sample((0.0, 3.0, 1), name="one")
    yield Sample((2, -2, 6), {"dtype": torch.float64}, name="double")
    yield Sample((0, 1, 5), {"dtype": torch.bfloat16}, name="bf16")


@operator("aten.linspace.default", samples=_linspaces)
def linspace(ctx: Lowering, start: Any, end: Any, steps: int, **options: Any) -> Ref:
    """``steps`` numbers from start to end, both included."""
    return _between(ctx, start, end, steps)


@operator("aten.logspace.default", samples=lambda: [Sample((-1, 1, 7)), Sample((0.0, 3.0, 5, 2.0))])
def logspace(ctx: Lowering, start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Ref:
    """base ** linspace."""
    return _between(ctx, start, end, steps, lambda v, k: k.body.op("pow", k.body.const(base, "f64"), v))


@operator("aten.eye.default", "aten.eye.m", samples=lambda: [Sample((4,)), Sample((3, 5)), Sample((3, 2),
          {"dtype": torch.int64})])  # fmt: skip
def eye(ctx: Lowering, n: int, m: int | None = None, **options: Any) -> Ref:
    """The identity matrix."""
    dst = ctx.result()
    k = ctx.kernel(dst.shape)
    k.store(dst, k.body.index(0).eq(k.body.index(1)))
    k.done()
    return dst
