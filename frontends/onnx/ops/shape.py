"""Shapes: reshape, transpose, slice, split, concatenate, pad, cast."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import Host, axes_of_list, axis_of, check_size, host_scalar, host_vector, ints, scalar


@onnx_op("Identity")
def identity(node: Node, x: Any) -> Any:
    return x


@onnx_op("Shape")
def shape(node: Node, x: Tensor) -> Host:
    return host_vector(tuple(x.shape)[shape_range(node, x.ndim)])


def shape_range(node: Node, rank: int) -> slice:
    """Opset 15's start and end, clamped to the rank."""
    start, end = node.get("start", 0), node.get("end", rank)
    start = min(max(start + rank if start < 0 else start, 0), rank)
    end = min(max(end + rank if end < 0 else end, 0), rank)
    return slice(start, max(start, end))


@onnx_op("Size")
def size(node: Node, x: Tensor) -> Host:
    return host_scalar(x.numel())


def new_shape(node: Node, old: tuple[int, ...], wanted: list[int]) -> list[int]:
    """Reshape's target: 0 copies the old dimension (unless allowzero), one -1 is inferred."""
    result = []
    for i, d in enumerate(wanted):
        if isinstance(d, int) and d == 0 and not node.get("allowzero", 0):
            if i >= len(old):
                message = (
                    f"operand or attribute 'shape' is {wanted}: 0 copies dimension {i} of a tensor of rank {len(old)}"
                )
                raise InvalidModel(message, hint="allowzero = 1 for a dimension of 0")
            d = old[i]
        result.append(d)
    check_size([d for d in result if type(d) is int and d != -1])  # a symbolic one would be bound by it
    return result


@onnx_op("Reshape")
def reshape_attribute(node: Node, x: Tensor) -> Tensor:
    return x.reshape(new_shape(node, tuple(x.shape), list(node["shape"])))


@onnx_op("Reshape", since=5, host=(1,))
def reshape(node: Node, x: Tensor, target: Operand) -> Tensor:
    return x.reshape(new_shape(node, tuple(x.shape), ints(target)))


@onnx_op("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = flat_axis(node, x.ndim)
    if axis == 1 and x.ndim > 1 and x.numel() != 0:
        return torch.flatten(x, 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def flat_axis(node: Node, rank: int) -> int:
    """Flatten's axis, which may lie behind the last dimension."""
    axis: int = node["axis"]
    if not -rank <= axis <= rank:
        raise InvalidModel(f"attribute 'axis' is {axis}, the rank is {rank}", hint=f"from {-rank} to {rank}")
    return axis + rank if axis < 0 else axis


@onnx_op("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(permutation(node, x.ndim))


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Where each dimension comes from; by default they are reversed."""
    perm = node.get("perm")
    if perm is None:
        return tuple(range(rank))[::-1]
    if sorted(perm) != list(range(rank)):
        raise InvalidModel(
            f"attribute 'perm' is {list(perm)}, the rank is {rank}", hint=f"0 to {rank - 1}, in any order"
        )
    return tuple(perm)


@onnx_op("Squeeze")
def squeeze_attribute(node: Node, x: Tensor) -> Tensor:
    return _squeeze(x, node.get("axes"))


@onnx_op("Squeeze", since=13, host=(1,))
def squeeze(node: Node, x: Tensor, axes: Operand | None = None) -> Tensor:
    return _squeeze(x, None if axes is None else ints(axes))


def _squeeze(x: Tensor, axes: Any) -> Tensor:
    if axes is None:
        return torch.squeeze(x)
    dims = axes_of_list(axes, x.ndim)
    for d in dims:
        if x.shape[d] != 1:
            raise InvalidModel(f"axis {d} (attribute or operand 'axes') of shape {list(x.shape)} cannot be squeezed")
    return torch.squeeze(x, tuple(dims)) if dims else x


@onnx_op("Unsqueeze")
def unsqueeze_attribute(node: Node, x: Tensor) -> Tensor:
    return _unsqueeze(x, node["axes"])


@onnx_op("Unsqueeze", since=13, host=(1,))
def unsqueeze(node: Node, x: Tensor, axes: Operand) -> Tensor:
    return _unsqueeze(x, ints(axes))


def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    for axis in sorted(axes_of_list(axes, x.ndim + len(axes))):
        x = torch.unsqueeze(x, axis)
    return x


@onnx_op("Expand", since=8, host=(1,))
def expand(node: Node, x: Tensor, target: Operand) -> Tensor:
    wanted = ints(target)
    check_size(wanted)
    rank = max(len(wanted), x.ndim)
    have = [1] * (rank - x.ndim) + list(x.shape)
    want = [1] * (rank - len(wanted)) + wanted
    return x.expand([h if isinstance(w, int) and w == 1 else w for h, w in zip(have, want, strict=True)])


@onnx_op("Tile")
def tile_attributes(node: Node, x: Tensor, tiles: Operand, axis: Operand) -> Tensor:
    repeats = [1] * x.ndim
    repeats[axis_of(scalar(axis), x.ndim)] = int(scalar(tiles))
    return x.repeat(repeats)


@onnx_op("Tile", since=6, host=(1,))
def tile(node: Node, x: Tensor, repeats: Operand) -> Tensor:
    counts = ints(repeats)
    if len(counts) != x.ndim:
        raise TypeMismatch(f"operand 'repeats' is {counts}, the rank is {x.ndim}", hint="a number for each dimension")
    check_size([d * c for d, c in zip(x.shape, counts, strict=True)])
    return x.repeat(counts)


@onnx_op("Concat")
def concat(node: Node, *operands: Tensor) -> Tensor:
    axis = axis_of(node.get("axis", 1), operands[0].ndim)
    return torch.cat(operands, axis) if len(operands) > 1 else operands[0]


@onnx_op("Split")
def split_attribute(node: Node, x: Tensor, lengths: Operand | None = None) -> tuple[Tensor, ...]:
    return _split(node, x, node.get("split") if lengths is None else ints(lengths))


@onnx_op("Split", since=13, host=(1,))
def split(node: Node, x: Tensor, lengths: Operand | None = None) -> tuple[Tensor, ...]:
    return _split(node, x, None if lengths is None else ints(lengths))


def _split(node: Node, x: Tensor, lengths: Any) -> tuple[Tensor, ...]:
    axis = axis_of(node.get("axis", 0), x.ndim)
    if lengths is None and node.version >= 18 and node.get("num_outputs") is None:
        raise InvalidModel("neither operand 'split' nor attribute 'num_outputs' is given", hint="one of them")
    if lengths is None:
        count = node.get("num_outputs", node.outputs)
        if count < 1:
            raise InvalidModel(f"cannot split into {count} parts", hint="attribute 'num_outputs' from 1")
        part = -(-x.shape[axis] // count)
        lengths = [part] * (count - 1)
        lengths.append(x.shape[axis] - part * (count - 1))
    if sum(lengths) != x.shape[axis] or any(n < 0 for n in lengths) or len(lengths) < node.outputs:
        message = f"lengths {list(lengths)} (attribute or operand 'split') do not divide axis {axis} of {list(x.shape)}"
        raise InvalidModel(message, hint=f"{node.outputs} numbers from 0 whose sum is {x.shape[axis]}")
    return torch.split(x, list(lengths), axis)


@onnx_op("Slice")
def slice_attributes(node: Node, x: Tensor) -> Tensor:
    return _slice(x, list(node["starts"]), list(node["ends"]), node.get("axes"), None)


@onnx_op("Slice", since=10, host=(1, 2, 3, 4))
def slice_(
    node: Node, x: Tensor, starts: Operand, ends: Operand, axes: Operand | None = None, steps: Operand | None = None
) -> Tensor:
    return _slice(
        x, ints(starts), ints(ends), ints(axes) if axes is not None else None, None if steps is None else ints(steps)
    )


def _slice(x: Tensor, starts: list[int], ends: list[int], axes: Any, steps: list[int] | None) -> Tensor:
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    check_slice(starts, ends, axes, steps)
    for start, end, dim, step in zip(starts, ends, axes_of_list(axes, x.ndim), steps, strict=True):
        x = _slice_one(x, dim, start, end, step)
    return x


def check_slice(starts: Any, ends: Any, axes: Any, steps: Any) -> None:
    """Raise `InvalidModel` where the lists of a slice do not go together."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        message = f"starts, ends, axes and steps have {len(starts)}, {len(ends)}, {len(axes)} and {len(steps)} numbers"
        raise InvalidModel(message, hint="equally many of each")
    if any(isinstance(step, int) and step == 0 for step in steps):
        raise InvalidModel(f"a step of a slice is 0: {list(steps)}", hint="a step forwards or backwards")


def _slice_one(x: Tensor, dim: int, start: int, end: int, step: int) -> Any:
    if step > 0:
        if start == 0 and end >= 2**31 - 1 and step == 1:
            return x
        return torch.ops.aten.slice.Tensor(x, dim, start, min(end, 2**63 - 1), step)
    # torch has no negative steps: take the same elements upwards, then turn them round.
    length = x.shape[dim]
    start = start + length if start < 0 else start
    start = min(max(start, 0), length - 1)
    end = end + length if end < 0 else end
    end = min(max(end, -1), length - 1)
    count = -((start - end) // step) if start > end else 0
    first = start + (count - 1) * step if count else 0
    stop = start + 1 if count else 0
    return torch.flip(torch.ops.aten.slice.Tensor(x, dim, first, stop, -step), (dim,))


@onnx_op("Pad")
def pad_attributes(node: Node, x: Tensor) -> Tensor:
    pads = node["paddings"] if node.get("pads") is None else node["pads"]
    return pad_by(x, list(pads), node["mode"], node["value"])


@onnx_op("Pad", since=11, host=(1, 2, 3))
def pad(node: Node, x: Tensor, pads: Operand, value: Operand | None = None, axes: Operand | None = None) -> Tensor:
    amounts = ints(pads)
    if axes is not None:
        dims = axes_of_list(ints(axes), x.ndim)
        full = [0] * (2 * x.ndim)
        if len(amounts) != 2 * len(dims):
            raise InvalidModel(
                f"operand 'pads' has {len(amounts)} numbers for {len(dims)} axes", hint="two for each axis"
            )
        for i, dim in enumerate(dims):
            full[dim], full[dim + x.ndim] = amounts[i], amounts[i + len(dims)]
        amounts = full
    fill = 0 if value is None or value.dtype.is_complex else scalar(value)
    return pad_by(x, amounts, node["mode"], fill)


def pad_by(x: Tensor, pads: list[int], mode: str, value: Any) -> Tensor:
    """Pad by ONNX's list (all begins, then all ends); negative amounts crop."""
    if len(pads) != 2 * x.ndim:
        message = f"attribute or operand 'pads' is {pads}, the rank is {x.ndim}"
        raise InvalidModel(message, hint=f"{2 * x.ndim} numbers: before each dimension, then after each")
    sizes = [x.shape[i] + pads[i] + pads[i + x.ndim] for i in range(x.ndim)]
    if any(size < 0 for size in sizes):
        message = f"attribute or operand 'pads' is {pads}, which cuts off more than shape {list(x.shape)} has"
        raise InvalidModel(message, hint="less negative numbers")
    check_size(sizes)
    if mode == "constant":
        flat: list[int] = []
        for dim in reversed(range(x.ndim)):
            flat += [pads[dim], pads[dim + x.ndim]]
        while len(flat) > 2 and flat[-1] == 0 and flat[-2] == 0:
            flat = flat[:-2]
        if x.dtype == torch.bool:
            return F.pad(x.to(torch.uint8), flat, value=int(value)).to(torch.bool)
        if not x.is_floating_point() and not x.is_complex():  # F.pad takes a float
            exact: Tensor = torch.ops.aten.constant_pad_nd(x, flat, int(value))
            return exact
        return F.pad(x, flat, value=value)
    for dim in range(x.ndim):
        before, after = pads[dim], pads[dim + x.ndim]
        if before == 0 and after == 0:
            continue
        length = x.shape[dim]
        index = torch.arange(-before, length + after, device=x.device)
        if mode == "edge":
            index = index.clamp(0, length - 1)
        elif mode == "wrap":
            index = torch.remainder(index, length)
        elif mode == "reflect":
            period = max(2 * (length - 1), 1)
            index = torch.remainder(index, period)
            index = torch.where(index >= length, period - index, index)
        else:
            raise InvalidModel(f"padding mode {mode!r} does not exist")
        x = torch.index_select(x, dim, index)
    return x


@onnx_op("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    s = node["blocksize"]
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, s)
    y = x.reshape(b, s, s, c // (s * s), h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(b, c // (s * s), h * s, w * s)


@onnx_op("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    s = node["blocksize"]
    if node.get("mode", "DCR") == "CRD":
        return F.pixel_unshuffle(x, s)
    y = x.reshape(b, c, h // s, s, w // s, s).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(b, c * s * s, h // s, w // s)


@onnx_op("CenterCropPad", since=18, host=(1,))
def center_crop_pad(node: Node, x: Tensor, target: Operand) -> Tensor:
    wanted = ints(target)
    check_size(wanted)
    axes = node.get("axes")
    dims = list(range(x.ndim)) if axes is None else axes_of_list(axes, x.ndim)
    if len(wanted) != len(dims):
        raise InvalidModel(f"{len(wanted)} sizes are given for {len(dims)} axes", hint="a size for each axis")
    pads = [0] * (2 * x.ndim)
    for dim, size_ in zip(dims, wanted, strict=True):
        extra = size_ - x.shape[dim]
        # Cropping rounds its start down, padding puts the odd element at the end.
        pads[dim] = extra // 2 if extra > 0 else -((-extra) // 2)
        pads[dim + x.ndim] = extra - pads[dim]
    return pad_by(x, pads, "constant", 0)


@onnx_op("Trilu", since=14, host=(1,))
def trilu(node: Node, x: Tensor, diagonal: Operand | None = None) -> Tensor:
    k = 0 if diagonal is None else scalar(diagonal)
    # Beyond the matrix all diagonals are alike; torch takes no huge numbers here.
    k = max(-(x.shape[-2] + 1), min(k, x.shape[-1] + 1)) if isinstance(k, int) else k
    return torch.triu(x, k) if node["upper"] else torch.tril(x, k)
