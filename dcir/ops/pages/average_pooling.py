"""Pages of average pooling: windows as inner loops, divided by a count known beforehand or reckoned per position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.lowering import Lowering, Ref
from dcir.ops.pages.pooling_windows import Windows, both, per_dimension
from dcir.ops.pages.reducing import refuse_complex
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _windows(x: Ref, out: tuple[int, ...], n: int, kernel: Any, stride: Any, padding: Any, rounded_up: bool) -> Windows:
    kernel, padding = per_dimension(kernel, n), per_dimension(padding, n)
    step = per_dimension(stride, n) if isinstance(stride, int) or len(stride) else kernel
    return Windows(x.shape[-n:], out[-n:], kernel, step, padding, (1,) * n, rounded_up)


def _divisor(
    b: LoopNestBuilder, w: Windows, window: list[Expr], override: int | None, dtype: str, *, count_pad: bool
) -> Expr:
    """What a window's sum is divided by: the taps inside the padded input, or inside the input."""
    if override is not None:
        return b.const(override, dtype)
    fixed = math.prod(w.kernel[d] for d in range(w.n) if _full(w, d, count_pad=count_pad))
    result = b.const(fixed, "i64")
    for d, o in enumerate(window):
        if not _full(w, d, count_pad=count_pad):
            start = o * w.stride[d] - w.padding[d]
            edge = w.size[d] + (w.padding[d] if count_pad else 0)
            end = b.op("min", start + w.kernel[d], b.const(edge, "i64"))
            result = (end - (start if count_pad else b.op("max", start, b.const(0, "i64")))) * result
    return b.convert(result, dtype)


def _full(w: Windows, d: int, *, count_pad: bool) -> bool:
    """Whether all windows count all their taps in a dimension."""
    if w.open_ended(d):
        return False
    last = (w.out[d] - 1) * w.stride[d] - w.padding[d] + w.kernel[d]
    return last <= w.size[d] + w.padding[d] if count_pad else w.inside(d)


def _forward(ctx: Lowering, x: Ref, w: Windows, override: int | None, *, count_pad: bool) -> Ref:
    refuse_complex(ctx, x)
    dst, lead = ctx.result(), len(x.shape) - w.n
    k = ctx.kernel(dst.shape, w.kernel)
    total = k.body.reduce("sum", w.load(k, x, lead, 0))
    window = [k.body.index(lead + d) for d in range(w.n)]
    by = _divisor(k.body, w, window, override, total.dtype, count_pad=count_pad)
    k.store(dst, _over(k.body, total, by), dst.strides + (0,) * w.n)
    k.done()
    return dst


def _over(b: LoopNestBuilder, total: Expr, by: Expr) -> Expr:
    return total / by if total.dtype in FLOATS else b.op("idiv_trunc", total, by)


def _backward(ctx: Lowering, grad: Ref, x: Ref, w: Windows, override: int | None, *, count_pad: bool) -> Ref:
    refuse_complex(ctx, grad)
    dst, rank, n = ctx.result(), len(x.shape), w.n
    lead = rank - n
    k = ctx.kernel(x.shape, [w.covering(d) for d in range(n)])
    b = k.body
    places = [w.window(b, d, b.index(lead + d), b.index(rank + d)) for d in range(n)]
    mask = both([w.covers(b, d, b.index(lead + d), o) for d, o in enumerate(places)])
    compute = compute_type(grad.dtype)
    strides = (*grad.strides[:lead], *(0,) * (2 * n))
    g = k.gather(grad, strides, places, range(lead, rank), checked=False, mask=mask, other=b.const(0, compute))
    by = _divisor(b, w, places, override, compute, count_pad=count_pad)
    part = g / by
    if override is None and mask is not None and not all(_full(w, d, count_pad=count_pad) for d in range(n)):
        part = b.where(mask, part, b.const(0, compute))  # the count of a window that is none may be zero
    k.store(dst, b.reduce("sum", part), dst.strides + (0,) * n)
    k.done()
    return dst


def _calls(n: int) -> Iterable[tuple[str, torch.Tensor, tuple[Any, ...]]]:
    """(name, input, (kernel, stride, padding, ceil_mode, count_include_pad, divisor)) of the samples."""
    tail = {1: (11,), 2: (7, 6), 3: (5, 4, 4)}[n]
    x = rand(2, 3, *tail)
    k2, k3, no, one = [2] * n, [3] * n, [0] * n, [1] * n
    yield "", x, (k2, k2, no, False, True, None)
    yield "padding", x, (k3, k2, one, False, True, None)
    yield "padding not counted", x, (k3, k2, one, False, False, None)
    yield "ceil mode", x, (k3, k2, one, True, True, None)
    yield "ceil mode, padding not counted", x, (k2, k2, no, True, False, None)
    if n > 1:
        yield "divisor", x, (k3, [], one, False, True, 5)
        image = torch.channels_last if n == 2 else torch.channels_last_3d
        yield "channels last", x.to(memory_format=image), (k3, one, one, False, True, None)
    other = x[0].double() if n == 3 else x[0].bfloat16()  # torch has no half types in three dimensions
    yield "no batch, other type", other, (k2, k3, no, False, True, None)


def _forward_samples(n: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        for name, x, args in _calls(n):
            yield Sample((x, *args[: 5 if n == 1 else 6]), name=name)

    return make


def _backward_samples(n: int) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        op = torch.ops.aten.avg_pool2d if n == 2 else torch.ops.aten.avg_pool3d
        for name, x, args in _calls(n):
            y = op(x, *args)
            grad = rand(*y.shape, seed=3).to(y.dtype)
            if name == "channels last":
                grad = grad.contiguous(memory_format=torch.channels_last if n == 2 else torch.channels_last_3d)
            yield Sample((grad, x, *args), name=name)

    return make


def _register(n: int) -> None:
    @operator(f"aten.avg_pool{n}d.default", samples=_forward_samples(n))
    def forward(
        ctx: Lowering, x: Ref, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Ref:  # fmt: skip
        """Means of windows."""
        w = _windows(x, ctx.out.shape, n, kernel_size, stride, padding, ceil_mode)
        return _forward(ctx, x, w, divisor_override, count_pad=count_include_pad)

    if n == 1:
        return

    @operator(f"aten.avg_pool{n}d_backward.default", samples=_backward_samples(n))
    def backward(
        ctx: Lowering, grad: Ref, x: Ref, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Ref:  # fmt: skip
        """Each element gathers its share from the windows around it."""
        w = _windows(x, grad.shape, n, kernel_size, stride, padding, ceil_mode)
        return _backward(ctx, grad, x, w, divisor_override, count_pad=count_include_pad)


for _n in (1, 2, 3):
    _register(_n)
