"""Pages of the convolutions and their gradients: three kinds of library node, transposed ones with roles exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dcir.ir.types import compute_type, is_float
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.lowering import Lowering, NotNative, Ref
from dcir.ops.pages.matmul import scaled_sum
from dcir.ops.registry import Sample, operator
from dcir.ops.samples import rand


def product(
    ctx: Lowering, kind: str, x: Ref, w: Ref, y: Ref, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, bias: Ref | None = None,
) -> None:  # fmt: skip
    """Add the node that writes ``y``, ``x`` or ``w`` from the other two (see ``ConvolutionSpec``)."""
    if len({r.dtype for r in (x, w, y)}) > 1 or x.dtype in ("c64", "c128", "bool"):
        raise NotNative(f"convolution of {x.dtype} with {w.dtype}")
    target = {"forward": y, "backward_data": x, "backward_weight": w}[kind]
    if not target.numel:
        return
    spec = ConvolutionSpec(
        kind, alike(x.dtype), x.shape[0], groups, w.shape[1], w.shape[0] // groups, x.shape[2:], w.shape[2:], y.shape[2:],
        tuple(stride), tuple(padding), tuple(dilation),
        x.expand_to(x.shape), w.expand_to(w.shape), y.expand_to(y.shape), bias is not None,
    )  # fmt: skip
    ins = [r for r in (x, w, y) if r is not target]
    if kind == "backward_data":
        ins.reverse()
    if any(not r.numel for r in ins):
        if bias is not None:
            ctx.copy(_per_channel(bias, y), y)
        else:
            ctx.full(0, target)
        return
    if bias is not None:
        ins.append(ctx.contiguous(bias))
    ctx.emit(spec if is_float(x.dtype) else spec.loop_nest(), ins, [target])


def _per_channel(bias: Ref, like: Ref) -> Ref:
    """A vector over channels, to be broadcast to ``like``."""
    spatial = len(like.shape) - 2
    return replace(bias, shape=(*bias.shape, *[1] * spatial), strides=(*bias.strides, *[0] * spatial))


def _every(values: Sequence[int], spatial: int) -> tuple[int, ...]:
    """A setting of each spatial dimension from a list with one value for all or one each."""
    return tuple(values) * spatial if len(values) == 1 else tuple(values)


def _channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def _case(x: torch.Tensor, w: torch.Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
          transposed: bool = False, output_padding: Any = 0, groups: int = 1) -> tuple[Any, ...]:  # fmt: skip
    """Arguments of ``aten.convolution``; single numbers count for all spatial dimensions."""
    many = [[v] * (x.dim() - 2) if isinstance(v, int) else v for v in (stride, padding, dilation, output_padding)]
    return (x, w, bias, *many[:3], transposed, many[3], groups)


def _cases() -> Iterable[tuple[tuple[Any, ...], str]]:
    x, w, b = rand(2, 4, 9, 8), rand(6, 4, 3, 3, seed=1), rand(6, seed=2)
    yield _case(x, w, b, padding=1), ""
    yield _case(x, w), "no padding"
    yield _case(x, w, b, stride=2, padding=[1, 2], dilation=[2, 1]), "strided, dilated"
    yield _case(x, rand(6, 2, 3, 3, seed=1), b, padding=1, groups=2), "groups"
    yield _case(x, rand(8, 1, 3, 3, seed=1), rand(8), padding=1, groups=4), "depthwise"
    yield _case(x, rand(5, 4, 1, 1, seed=1), rand(5)), "1x1"
    yield _case(_channels_last(x), _channels_last(w), b, padding=1), "channels last"
    yield _case(rand(2, 4, 6, 18)[..., ::2], w, padding=1), "strided input"
    yield _case(x.bfloat16(), w.bfloat16(), b.bfloat16(), padding=1), "bf16"
    yield _case(x.double(), w.double(), padding=1), "double"
    yield _case(rand(2, 3, 17), rand(4, 3, 5, seed=1), rand(4), stride=2, padding=2), "1-d"
    yield _case(rand(1, 2, 5, 6, 4), rand(3, 2, 3, 2, 3, seed=1), rand(3), padding=1, stride=[1, 2, 1]), "3-d"
    yield _case(rand(0, 4, 5, 5), w, b), "no images"
    yield _case(x, rand(4, 3, 3, 3, seed=1), rand(3), transposed=True), "transposed"
    yield _case(x, rand(4, 3, 3, 2, seed=1), rand(3), 2, 1, 1, True, [1, 0]), "transposed, strided"
    yield _case(x, rand(4, 3, 3, 3, seed=1), rand(6), 3, 1, 2, True, 1, 2), "transposed, groups, dilated"
    yield _case(rand(2, 4, 7), rand(4, 2, 4, seed=1), rand(2), 2, 1, 1, True), "transposed 1-d"


@operator("aten.convolution.default", samples=lambda: [Sample(c, name=n) for c, n in _cases()])
def convolution(
    ctx: Lowering, x: Ref, w: Ref, bias: Ref | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Ref:  # fmt: skip
    """A convolution with its bias; transposed: the data gradient of one, then the bias."""
    spatial = len(w.shape) - 2
    s, p, d = (_every(v, spatial) for v in (stride, padding, dilation))
    dst = ctx.result()
    if not transposed:
        product(ctx, "forward", x, w, dst, s, p, d, groups, bias)
        return dst
    product(ctx, "backward_data", dst, w, x, s, p, d, groups)
    return dst if bias is None else scaled_sum(ctx, dst, _per_channel(bias, dst), 1, 1)


def _gradients() -> Iterable[Sample]:
    for case, name in _cases():
        x, w, bias, *rest = case
        y = torch.ops.aten.convolution(x, w, bias, *rest)
        grad = rand(*y.shape, dtype=x.dtype, seed=3)
        grad = _channels_last(grad) if name == "channels last" else grad
        sizes = None if bias is None else list(bias.shape)
        yield Sample((grad, x, w, sizes, *rest, [True, True, bias is not None]), name=name)
    x, w = rand(2, 4, 9, 8), rand(6, 4, 3, 3, seed=1)
    for mask in ([False, True, False], [True, False, False]):  # eager adds the weight gradient to a bias gradient
        yield Sample((rand(2, 6, 7, 6), x, w, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask), name=f"only {mask}")


@operator("aten.convolution_backward.default", samples=_gradients)
def convolution_backward(
    ctx: Lowering, grad: Ref, x: Ref, w: Ref, bias_sizes: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Ref | None, ...]:  # fmt: skip
    """Gradients of input, weight and bias, those that are asked for."""
    spatial = len(w.shape) - 2
    s, p, d = (_every(v, spatial) for v in (stride, padding, dilation))
    # A transposed convolution is a data gradient: its input plays y, its result plays x.
    data, result = ("forward", "backward_weight") if transposed else ("backward_data", "backward_weight")
    grads: list[Ref | None] = [ctx.result(i) if wanted and ctx.outs[i] is not None else None
                               for i, wanted in enumerate(output_mask)]  # fmt: skip
    if grads[0] is not None:
        ends = (grad, grads[0]) if transposed else (grads[0], grad)
        product(ctx, data, ends[0], w, ends[1], s, p, d, groups)
    if grads[1] is not None:
        ends = (grad, x) if transposed else (x, grad)
        product(ctx, result, ends[0], grads[1], ends[1], s, p, d, groups)
    if grads[2] is not None:
        _sum_channels(ctx, grad, grads[2])
    return tuple(grads)


def _sum_channels(ctx: Lowering, grad: Ref, dst: Ref) -> None:
    """The bias gradient: the sum over everything but channels."""
    batch, channels, *sizes = grad.shape
    k = ctx.kernel((channels,), (batch, *sizes))
    v = k.load(grad, (grad.strides[1], grad.strides[0], *grad.strides[2:]), dtype=compute_type(grad.dtype))
    k.store(dst, k.body.reduce("sum", v))
    k.done()


@operator("aten.conv_tbc.default", samples=lambda: [
    Sample((rand(9, 2, 4), rand(3, 4, 5, seed=1), rand(5, seed=2), 1)),
    Sample((rand(9, 2, 4), rand(3, 4, 5, seed=1), rand(5, seed=2)), name="no padding"),
])  # fmt: skip
def conv_tbc(ctx: Lowering, x: Ref, w: Ref, bias: Ref, pad: int = 0) -> Ref:
    """A 1-D convolution of [time, batch, channel] by a weight [tap, in, out]: other strides, nothing else."""
    dst = ctx.result()
    product(
        ctx, "forward", _permuted(x, (1, 2, 0)), _permuted(w, (2, 1, 0)), _permuted(dst, (1, 2, 0)),
        (1,), (pad,), (1,), 1, bias,
    )  # fmt: skip
    return dst


def _permuted(x: Ref, order: Sequence[int]) -> Ref:
    return replace(x, shape=tuple(x.shape[d] for d in order), strides=tuple(x.strides[d] for d in order))
