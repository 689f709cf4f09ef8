"""Pages of the soft-max family: every row in one program that reads it once per sweep and writes it once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.types import compute_type
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.reducing import ReducedDims, axes, refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _rows(ctx: Lowering, tensors: list[Ref], dim: int, of: Callable[..., Expr]) -> Ref:
    """One program over rows along ``dim``: ``of`` makes the result's element from the tensors' elements."""
    refuse_complex(ctx, *tensors)
    dst = ctx.result()
    space = ReducedDims(dst.shape, axes(dim, len(dst.shape)))
    k = space.kernel(ctx)
    compute = compute_type(tensors[0].dtype)
    values = [k.load(t, space.strides(t), dtype=compute) for t in tensors]
    k.store(dst, of(k.body, *values), space.strides(dst))
    k.done()
    return dst


def _samples(*more: Any) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        yield Sample((rand(3, 37, low=-20, high=20), 1, *more))
        yield Sample((rand(4, 5, 6), 1, *more), name="middle")
        yield Sample((rand(2, 5, 3, 4).to(memory_format=torch.channels_last), 1, *more), name="channels last")
        yield Sample((rand(6, 20).t(), -1, *more), name="columns")
        yield Sample((rand(5, 9, dtype=torch.bfloat16), -1, *more), name="bf16")
        yield Sample((rand(), 0, *more), name="scalar")
        yield Sample((torch.tensor([[0.0, float("-inf"), 1.0], [1e4, -1e4, 0.0], [float("nan"), 1.0, 2.0]]), 1, *more),
                     name="special values")  # fmt: skip
        yield Sample((rand(0, 4), 1, *more), name="empty")

    return make


def _shifted(b: LoopNestBuilder, v: Expr) -> tuple[Expr, Expr]:
    """(v - max, sum of its exponentials)."""
    d = v - b.reduce("max", v)
    return d, b.reduce("sum", b.op("exp", d))


def _soft(b: LoopNestBuilder, v: Expr) -> Expr:
    d, total = _shifted(b, v)
    return b.op("exp", d) / total


def _log_soft(b: LoopNestBuilder, v: Expr) -> Expr:
    d, total = _shifted(b, v)
    return d - b.op("log", total)


@operator("aten._softmax.default", samples=_samples(False))
def softmax(ctx: Lowering, x: Ref, dim: int, half_to_float: bool) -> Ref:
    """exp(x - max) / sum(exp(x - max))."""
    return _rows(ctx, [x], dim, _soft)


@operator("aten._log_softmax.default", samples=_samples(False))
def log_softmax(ctx: Lowering, x: Ref, dim: int, half_to_float: bool) -> Ref:
    """x - max - log(sum(exp(x - max)))."""
    return _rows(ctx, [x], dim, _log_soft)


def _safes() -> Iterable[Sample]:
    inf = float("-inf")
    yield Sample((torch.tensor([[0.0, inf, 1.0], [inf, inf, inf]]), 1), name="masked row")
    yield Sample((rand(3, 9), -1))
    yield Sample((rand(3, 9, dtype=torch.bfloat16), -1), name="bf16")


@operator("aten._safe_softmax.default", samples=_safes)
def safe_softmax(ctx: Lowering, x: Ref, dim: int, dtype: Any = None) -> Ref:
    """Soft-max that is zero where a whole row is minus infinity."""

    def of(b: LoopNestBuilder, v: Expr) -> Expr:
        masked = b.reduce("all", v.eq(float("-inf")))
        return b.where(masked, b.const(0, v.dtype), _soft(b, v))

    return _rows(ctx, [x], dim, of)


def _gradients(fn: Callable[..., torch.Tensor]) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for x, dim, name in (
            (rand(3, 37), 1, ""),
            (rand(4, 5, 6), 1, "middle"),
            (rand(2, 5, 3, 4).to(memory_format=torch.channels_last), 1, "channels last"),
            (rand(5, 9, dtype=torch.bfloat16), -1, "bf16"),
            (rand(), 0, "scalar"),
        ):
            y = fn(x, dim)
            yield Sample((torch.ones_like(y) * 0.5 + y * y, y, dim, x.dtype), name=name)

    return make


@operator("aten._softmax_backward_data.default", samples=_gradients(torch.softmax))
def softmax_backward(ctx: Lowering, grad: Ref, output: Ref, dim: int, input_dtype: Any) -> Ref:
    """(g - sum(g y)) y."""
    return _rows(ctx, [grad, output], dim, lambda b, g, y: (g - b.reduce("sum", g * y)) * y)


@operator("aten._log_softmax_backward_data.default", samples=_gradients(torch.log_softmax))
def log_softmax_backward(ctx: Lowering, grad: Ref, output: Ref, dim: int, input_dtype: Any) -> Ref:
    """g - exp(y) sum(g)."""
    return _rows(ctx, [grad, output], dim, lambda b, g, y: g - b.op("exp", y) * b.reduce("sum", g))
