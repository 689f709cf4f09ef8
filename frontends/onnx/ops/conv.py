"""Convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx.registry import Node, onnx_op

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def pick(table: dict[int, Any], rank: int) -> Any:
    if rank not in table:
        raise Unsupported(f"{rank} spatial dimensions are not supported")
    return table[rank]


def spatial(node: Node, name: str, rank: int) -> list[int]:
    """A per-axis attribute such as strides, with its default of ones."""
    given = node.get(name)
    values = [1] * rank if given is None else list(given)
    if len(values) != rank:
        message = f"attribute {name!r} is {values}, there are {rank} spatial dimensions"
        raise InvalidModel(message, hint=f"{rank} numbers, or none")
    return values


def paddings(
    node: Node, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial axis, from `auto_pad` or `pads`."""
    rank = len(sizes)
    auto = node.get("auto_pad", "NOTSET")
    given = explicit_pads(node, rank)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small = total // 2
            before.append(small if auto == "SAME_UPPER" else total - small)
            after.append(total - before[-1])
        return before, after
    if auto == "VALID":
        return [0] * rank, [0] * rank
    return given


def explicit_pads(node: Node, rank: int) -> tuple[list[int], list[int]]:
    """The attribute `pads`, before and after each spatial axis; by default zeros."""
    given = node.get("pads")
    pads = [0] * (2 * rank) if given is None else list(given)
    if len(pads) != 2 * rank:
        message = f"attribute 'pads' is {pads}, there are {rank} spatial dimensions"
        raise InvalidModel(message, hint=f"{2 * rank} numbers, or none")
    return pads[:rank], pads[rank:]


def flat_pads(before: list[int], after: list[int]) -> list[int]:
    """torch's order: last axis first, begin and end together."""
    return [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]


@onnx_op("Conv")
def conv(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    function = pick(_CONV, rank)
    kernel, strides, dilations = list(w.shape[2:]), spatial(node, "strides", rank), spatial(node, "dilations", rank)
    before, after = paddings(node, list(x.shape[2:]), kernel, strides, dilations)
    if before != after or any(p < 0 for p in before):
        x, before = F.pad(x, flat_pads(before, after)), [0] * rank
    result: Tensor = function(x, w, b, strides, before, dilations, node["group"])
    return result


@onnx_op("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    function = pick(_TRANSPOSED, rank)
    kernel, strides, dilations = list(w.shape[2:]), spatial(node, "strides", rank), spatial(node, "dilations", rank)
    extra = [0] * rank if node.get("output_padding") is None else list(node["output_padding"])
    if len(extra) != rank or any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=False)):
        message = f"attribute 'output_padding' is {extra}, strides are {strides}, dilations {dilations}"
        raise InvalidModel(message, hint=f"{rank} numbers, each less than its stride or dilation")
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations, strict=True)]
    auto, wanted = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    explicit_pads(node, rank)
    if wanted is not None and len(wanted) not in (rank, rank + 2):
        message = f"attribute 'output_shape' is {list(wanted)}, there are {rank} spatial dimensions"
        raise InvalidModel(message, hint=f"{rank} numbers")
    if wanted or auto in ("SAME_UPPER", "SAME_LOWER"):
        if not wanted:
            wanted = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        total = [f + e - n for f, e, n in zip(full, extra, wanted[-rank:], strict=True)]
        # The odd element goes to the end for SAME_UPPER, else to the beginning.
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        after = [t - p for t, p in zip(total, before, strict=True)]
    else:
        before, after = paddings(node, list(x.shape[2:]), kernel, strides, dilations)
    if before == after and all(p >= 0 for p in before):
        result: Tensor = function(x, w, b, strides, before, extra, node["group"], dilations)
        return result
    # Compute the whole product, then cut off (or add) what the paddings say.
    y: Tensor = function(x, w, None, strides, 0, 0, node["group"], dilations)
    y = F.pad(y, flat_pads([-p for p in before], [e - p for p, e in zip(after, extra, strict=True)]))
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


@onnx_op("CausalConvWithState", since=27)
def causal_conv_with_state(
    node: Node, x: Tensor, w: Tensor, b: Tensor | None = None, past: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    keep = w.shape[2] - 1
    before = past if past is not None else x.new_zeros(x.shape[0], x.shape[1], keep)
    whole = torch.cat((before, x), 2)
    y = F.conv1d(whole, w, b, groups=w.shape[0])
    if node["activation"] in ("silu", "swish"):
        y = F.silu(y)
    elif node["activation"] != "none":
        raise InvalidModel(f"activation {node['activation']!r} does not exist")
    return y, whole.narrow(2, whole.shape[2] - keep, keep)


@onnx_op("ConvInteger", since=10)
def conv_integer(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    return integer_conv(node, x, w, x_zero, w_zero)


def integer_conv(node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None) -> Tensor:
    """Exact: products of 8-bit numbers add up exactly in float64."""
    wide, kernel = x.to(torch.float64), w.to(torch.float64)
    if x_zero is not None:
        wide = wide - x_zero.to(torch.float64)
    if w_zero is not None:
        zero = w_zero.to(torch.float64)
        kernel = kernel - (zero.reshape(-1, *(1,) * (w.ndim - 1)) if zero.ndim == 1 else zero)
    return conv(node, wide, kernel).to(torch.int32)


@onnx_op("DeformConv", since=19)
def deform_conv(
    node: Node, x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Samples the input at shifted taps bilinearly, then multiplies like an ordinary convolution (Zhu et al. 2018)."""
    n, c, height, width = x.shape
    m, per_group, kh, kw = w.shape
    groups, parts = node["group"], node["offset_group"]
    strides, dilations = spatial(node, "strides", 2), spatial(node, "dilations", 2)
    before, _ = paddings(node, [height, width], [kh, kw], strides, dilations)
    oh, ow = offset.shape[2], offset.shape[3]
    shifts = offset.reshape(n, parts, kh * kw, 2, oh, ow)
    rows = torch.arange(oh, device=x.device) * strides[0] - before[0]
    columns = torch.arange(ow, device=x.device) * strides[1] - before[1]
    tap_rows = (torch.arange(kh, device=x.device) * dilations[0]).repeat_interleave(kw)
    tap_columns = (torch.arange(kw, device=x.device) * dilations[1]).repeat(kh)
    y = shifts[:, :, :, 0] + rows[:, None] + tap_rows[:, None, None]
    z = shifts[:, :, :, 1] + columns[None, :] + tap_columns[:, None, None]
    # Between the centres of the first and the last pixel, which rounds less, unless they are the same pixel.
    corners = min(height, width) > 1
    if corners:
        grid = torch.stack((z * 2 / (width - 1) - 1, y * 2 / (height - 1) - 1), -1)
    else:
        grid = torch.stack(((z * 2 + 1) / width - 1, (y * 2 + 1) / height - 1), -1)
    source = x.reshape(n * parts, c // parts, height, width)
    grid = grid.reshape(n * parts, kh * kw * oh, ow, 2).to(x.dtype)
    taps = F.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=corners)
    taps = taps.reshape(n, parts, c // parts, kh * kw, oh, ow)
    if mask is not None:
        taps = taps * mask.reshape(n, parts, 1, kh * kw, oh, ow)
    columns_ = taps.reshape(n, groups, per_group * kh * kw, oh * ow)
    result = torch.matmul(w.reshape(groups, m // groups, per_group * kh * kw), columns_).reshape(n, m, oh, ow)
    return result if b is None else result + b.reshape(-1, 1, 1)
