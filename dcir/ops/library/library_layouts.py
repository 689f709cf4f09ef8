"""How images lie for a library's convolution: the layout that it runs in, and what it has to turn into that layout first.

    x[n, c, h, w] in float32, y the same      -->   as they are
    x[n, h, w, c], y[n, c, h, w]              -->   x is copied into y's layout, or y made with channels last and copied

A library runs in one layout for all of its images; an image in the other, or with gaps, is copied by torch or by the library itself,
which reads and writes it once more. No edge of a graph shows that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dcir.ir.types import itemsize
from dcir.ops.library.convolution import ConvolutionSpec


def channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool | None:
    """Whether an image over (n, channel, *space) has its channels innermost; None of one channel or place: both layouts are one."""
    if shape[1] == 1 or math.prod(shape[2:]) <= 1:
        return None
    return strides[1] == 1


def runs_channels_last(spec: ConvolutionSpec) -> bool:
    """Whether a library runs a convolution with channels last: as its result lies, or where that is of weights, the larger image."""
    (x, _, y), at = spec.shapes, (spec.x, spec.w, spec.y)
    of_x, of_y = (x, at[0]), (y, at[2])
    if spec.kind == "backward_weight":
        order = [of_x, of_y] if math.prod(x) >= math.prod(y) else [of_y, of_x]
    else:
        order = [of_y, of_x] if spec.kind == "forward" else [of_x, of_y]
    found = (channels_last(*image) for image in order)
    return next((last for last in found if last is not None), False)


def laid_out(t: torch.Tensor, *, last: bool) -> torch.Tensor:
    """An image in one of the layouts: itself, or a copy."""
    if channels_last(t.shape, t.stride()) in (None, last):
        return t
    return torch.empty_strided(t.shape, _dense(t.shape, last=last), dtype=t.dtype, device=t.device).copy_(t)


def turned_bytes(spec: ConvolutionSpec, *, last_alone: bool = False) -> int:
    """Bytes that a library's convolution reads and writes beyond its operands, to have all images in one layout without gaps.

    Args:
        spec: the convolution.
        last_alone: whether the library computes with channels last alone, and turns others around.
    """
    last = last_alone or runs_channels_last(spec)
    size = itemsize(spec.dtype)
    return sum(
        2 * size * math.prod(shape)
        for shape, strides in ((spec.shapes[0], spec.x), (spec.shapes[2], spec.y))
        if not _lies(shape, strides, last=last)
    )


def _lies(shape: Sequence[int], strides: Sequence[int], *, last: bool) -> bool:
    """Whether an image is dense in a layout; where both layouts are one, whether it is dense."""
    dense = _dense(shape, last=last)
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense, strict=True))


def _dense(shape: Sequence[int], *, last: bool) -> tuple[int, ...]:
    order = [0, *range(2, len(shape)), 1] if last else range(len(shape))
    strides, step = [1] * len(shape), 1
    for d in reversed(list(order)):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)
