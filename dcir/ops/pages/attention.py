"""Pages of scaled dot product attention as torch runs it on the CPU: one node forward, one node backward."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from dcir.ops.library.attention import AttentionSpec
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def _spec(
    q: Ref, k: Ref, v: Ref, o: Ref, lse: Ref, mask: Ref | None, dropout: float, scale: float | None, *,
    causal: bool, grads: tuple[Ref, ...] = (),
) -> AttentionSpec:  # fmt: skip
    if dropout:
        raise NotNative("attention with dropout")
    if len(q.shape) != 4 or k.shape != v.shape or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise NotNative("attention over heads of different shapes")
    if q.numel and k.numel and q.shape[1] % k.shape[1]:
        raise NotNative("attention over heads of different shapes")
    if not (q.numel and k.numel):
        raise NotNative("attention over nothing")
    batch, heads, m, d = q.shape
    n = k.shape[2]
    steps = () if mask is None else mask.expand_to((batch, heads, m, n))
    return AttentionSpec(
        q.dtype, batch, heads, m, n, d, 1 / math.sqrt(d) if scale is None else float(scale), bool(causal),
        q.expand_to(q.shape), k.expand_to(k.shape), v.expand_to(v.shape), o.expand_to(o.shape),
        lse.expand_to(lse.shape), steps, "f32" if mask is None else mask.dtype,
        tuple(r.expand_to(r.shape) for r in grads), group=heads // k.shape[1],
    )  # fmt: skip


def _cases() -> Iterable[Any]:
    q, k, v = rand(2, 3, 10, 8), rand(2, 3, 7, 8, seed=1), rand(2, 3, 7, 8, seed=2)
    yield q, k, v, False, {}, ""
    yield q, k, v, True, {}, "causal"
    yield (
        rand(1, 2, 5, 8),
        rand(1, 2, 9, 8, seed=1),
        rand(1, 2, 9, 8, seed=2),
        True,
        {"scale": 0.7},
        "causal, more keys",
    )
    yield q, k, v, False, {"attn_mask": rand(10, 7, seed=3)}, "mask"
    holes = rand(2, 1, 10, 7, seed=3)
    holes[holes < 0] = -math.inf
    holes[0, 0, 2] = -math.inf
    yield q, k, v, False, {"attn_mask": holes, "scale": 0.3}, "mask with a row of nothing"
    x = rand(2, 40, 3, 4, 16).permute(2, 0, 3, 1, 4)
    yield x[0], x[1], x[2], True, {}, "packed projections"
    yield rand(1, 2, 131, 40), rand(1, 2, 203, 40, seed=1), rand(1, 2, 203, 40, seed=2), False, {}, "longer"
    y = rand(1, 1, 150, 64), rand(1, 1, 150, 64, seed=1), rand(1, 1, 150, 64, seed=2)
    yield *y, True, {}, "longer, causal"
    shared = rand(2, 6, 10, 8)
    yield shared, k, v, True, {}, "shared keys"
    yield shared[:, :, :2], k, v, False, {"attn_mask": holes[:, :, :2]}, "shared keys, few queries, mask"
    yield q[:, :, :4], k, v, False, {"attn_mask": holes[:, :, :4]}, "few queries, mask"
    yield *(t[:, :, :3].bfloat16() for t in (q, k, v)), True, {}, "few queries, causal, bf16"
    yield *(t.double() for t in (q, k, v)), True, {}, "double"
    yield *(t.bfloat16() for t in y), False, {}, "bf16"
    yield *(t.half() for t in (q, k, v)), False, {"attn_mask": rand(1, 3, 10, 7, dtype=torch.float16)}, "f16"
    yield (
        rand(1, 1, 1, 4, low=50, high=60),
        rand(1, 1, 300, 4, low=-60, high=60),
        rand(1, 1, 300, 4),
        False,
        {},
        "steep",
    )


def _forward() -> Iterable[Sample]:
    for q, k, v, causal, options, name in _cases():
        yield Sample((q, k, v, 0.0, causal), options, name=name)


@operator("aten._scaled_dot_product_flash_attention_for_cpu.default", samples=_forward)
def attention(
    ctx: Lowering, q: Ref, k: Ref, v: Ref, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Ref | None = None, scale: float | None = None,
) -> tuple[Ref, Ref]:  # fmt: skip
    """softmax(scale q k^T + mask) v, and the logarithm of the soft-max's denominators."""
    o, lse = ctx.result(0), ctx.result(1)
    spec = _spec(q, k, v, o, lse, attn_mask, dropout_p, scale, causal=is_causal)
    ctx.emit(spec, [q, k, v, *([attn_mask] if attn_mask is not None else [])], [o, lse])
    return o, lse


def _backward() -> Iterable[Sample]:
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    for q, k, v, causal, options, name in _cases():
        o, lse = forward(q, k, v, 0.0, causal, **options)
        grad = rand(*o.shape, dtype=q.dtype, seed=4)
        yield Sample((grad, q, k, v, o, lse, 0.0, causal), options, name=name)


@operator("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", samples=_backward)
def attention_backward(
    ctx: Lowering, grad: Ref, q: Ref, k: Ref, v: Ref, o: Ref, lse: Ref, dropout_p: float, is_causal: bool, *,
    attn_mask: Ref | None = None, scale: float | None = None,
) -> tuple[Ref, Ref, Ref]:  # fmt: skip
    """Gradients of q, k and v."""
    dq, dk, dv = ctx.result(0), ctx.result(1), ctx.result(2)
    spec = _spec(q, k, v, o, lse, attn_mask, dropout_p, scale, causal=is_causal, grads=(grad, dq, dk, dv))
    masks = [attn_mask] if attn_mask is not None else []
    ctx.emit(spec, [grad, q, k, v, o, lse, *masks], [dq, dk, dv])
    return dq, dk, dv
