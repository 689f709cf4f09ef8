"""Operators of vision: sampling grids, regions of interest, col2im, non-maximum suppression."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch, Unsupported
from dcir.frontends.onnx.ops.conv import explicit_pads, spatial
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import check_size, ints, scalar


@onnx_op("GridSample", since=16)
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node["mode"], node["mode"])
    if x.ndim == 5 and mode == "bicubic":
        raise Unsupported("cubic sampling of volumes is not supported")
    return F.grid_sample(x, grid, mode, node["padding_mode"], bool(node["align_corners"]))


@onnx_op("AffineGrid", since=20, host=(1,))
def affine_grid(node: Node, theta: Tensor, size: Operand) -> Tensor:
    dims = ints(size)
    check_size(dims)
    return F.affine_grid(theta, dims, bool(node["align_corners"]))


@onnx_op("Col2Im", since=18, host=(1, 2))
def col2im(node: Node, x: Tensor, image: Operand, block: Operand) -> Tensor:
    size, kernel = ints(image), ints(block)
    rank = len(size)
    check_size([x.shape[0], *size])
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    if len(kernel) != rank:
        raise InvalidModel(
            f"operand 'block_shape' is {kernel}, the image has {rank} dimensions", hint=f"{rank} numbers"
        )
    if x.shape[1] % max(math.prod(kernel), 1):
        raise TypeMismatch(
            f"{x.shape[1]} rows of columns are no blocks of {kernel}", hint="a multiple of the block's size"
        )
    pads = [p for part in explicit_pads(node, rank) for p in part]
    if rank == 2 and pads[:2] == pads[2:]:
        return F.fold(x, tuple(size), tuple(kernel), tuple(dilations), tuple(pads[:2]), tuple(strides))
    # Add every column element at its flat place in the padded image.
    padded = [s + pads[i] + pads[i + rank] for i, s in enumerate(size)]
    place = torch.zeros(1, 1, dtype=torch.int64, device=x.device)
    for i in range(rank):
        count = (padded[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        tap = torch.arange(kernel[i], device=x.device) * dilations[i]
        at = tap.unsqueeze(1) + torch.arange(count, device=x.device) * strides[i]
        place = place[:, None, :, None] * padded[i] + at[None, :, None, :]
        place = place.flatten(2).flatten(0, 1)
    channels = x.shape[1] // math.prod(kernel)
    columns = x.reshape(x.shape[0], channels, -1)
    target = place.reshape(1, 1, -1).expand(columns.shape)
    flat = x.new_zeros(x.shape[0], channels, math.prod(padded)).scatter_add(2, target, columns)
    result = flat.reshape(x.shape[0], channels, *padded)
    for i in range(rank):
        result = result.narrow(2 + i, pads[i], size[i])
    return result


@onnx_op("RoiAlign", since=10)
def roi_align(node: Node, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    height, width = x.shape[2:]
    rows, columns, ratio = node["output_height"], node["output_width"], node["sampling_ratio"]
    half = node.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    box = rois * node["spatial_scale"] - (0.5 if half else 0.0)
    extent = box[:, 2:] - box[:, :2]
    if not half:
        extent = extent.clamp(min=1.0)
    pooled = []
    for i in range(rois.shape[0]):
        grid_y = ratio or math.ceil(float(extent[i, 1]) / rows)
        grid_x = ratio or math.ceil(float(extent[i, 0]) / columns)
        if grid_y <= 0 or grid_x <= 0:  # without a sample, as onnxruntime and ONNX's reference have it
            pooled.append(x.new_zeros(x.shape[1], rows, columns))
            continue
        check_size([rows * grid_y, columns * grid_x, x.shape[1]])
        y = _points(box[i, 1], extent[i, 1], rows, grid_y)
        z = _points(box[i, 0], extent[i, 0], columns, grid_x)
        image = torch.index_select(x, 0, batch[i].reshape(1).to(torch.int64))[0]
        taps = _bilinear(image, y, z, height, width, node["mode"])
        taps = taps.reshape(x.shape[1], rows, grid_y, columns, grid_x).transpose(2, 3).flatten(3)
        pooled.append(torch.amax(taps, 3) if node["mode"] == "max" else torch.mean(taps, 3))
    if not pooled:
        return x.new_zeros(0, x.shape[1], rows, columns)
    return torch.stack(pooled)


def _points(start: Tensor, extent: Tensor, bins: int, grid: int) -> Tensor:
    steps = (torch.arange(bins * grid, device=start.device) + 0.5) / grid
    return start + steps * (extent / bins)


def _bilinear(image: Tensor, y: Tensor, x: Tensor, height: int, width: int, mode: str) -> Tensor:
    """Samples at all pairs (y, x); points more than one pixel outside give zero."""

    def parts(at: Tensor, size: int) -> tuple[Any, ...]:
        inside = (at >= -1) & (at <= size)
        at = at.clamp(min=0)
        low = at.floor().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        fraction = torch.where(low >= size - 1, 0.0, at - low)
        return low.to(torch.int64), high.to(torch.int64), fraction, inside

    y0, y1, fy, iny = parts(y, height)
    x0, x1, fx, inx = parts(x, width)
    total = None
    for rows, wy in ((y0, 1 - fy), (y1, fy)):
        for columns, wx in ((x0, 1 - fx), (x1, fx)):
            tap = image[:, rows][:, :, columns] * (wy[:, None] * wx)
            if total is None:
                total = tap
            else:
                total = torch.maximum(total, tap) if mode == "max" else total + tap
    assert total is not None
    return torch.where(iny[:, None] & inx, total, 0.0)


@onnx_op("MaxRoiPool", reads=True)
def max_roi_pool(node: Node, x: Tensor, rois: Tensor) -> Tensor:
    rows, columns = node["pooled_shape"]
    pooled = []
    for roi in rois.tolist():
        image = x[int(roi[0])]
        left, top, right, bottom = (_nearest(v * node["spatial_scale"]) for v in roi[1:])
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        cells = []
        for i in range(rows):
            for j in range(columns):
                y0, y1 = _span(i, height, rows, top, x.shape[2])
                x0, x1 = _span(j, width, columns, left, x.shape[3])
                empty = y1 <= y0 or x1 <= x0
                cells.append(x.new_zeros(x.shape[1]) if empty else torch.amax(image[:, y0:y1, x0:x1], (1, 2)))
        pooled.append(torch.stack(cells, 1).reshape(x.shape[1], rows, columns))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], rows, columns)


def _nearest(v: float) -> int:
    """The nearest integer; halves away from zero."""
    return math.floor(v + 0.5) if v >= 0 else math.ceil(v - 0.5)


def _span(i: int, extent: int, bins: int, start: int, size: int) -> tuple[int, int]:
    """Bin `i` of a region, cut off at the image."""
    first, last = i * extent // bins, -(-(i + 1) * extent // bins)
    return min(max(first + start, 0), size), min(max(last + start, 0), size)


@onnx_op("NonMaxSuppression", since=10, host=(2, 3, 4), reads=True)
def non_max_suppression(
    node: Node,
    boxes: Tensor,
    scores: Tensor,
    most: Operand | None = None,
    iou: Operand | None = None,
    threshold: Operand | None = None,
) -> Tensor:
    """Greedy suppression; rows are (batch, class, box). The number of rows depends on the data."""
    limit = 0 if most is None else int(scalar(most))
    bound = 0.0 if iou is None else scalar(iou)
    least = None if threshold is None else scalar(threshold)
    if node["center_point_box"] not in (0, 1):
        raise InvalidModel("center_point_box must be 0 or 1")
    if node["center_point_box"]:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        low, high = centre - half, centre + half
    else:
        low, high = torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
    area = torch.prod(high - low, -1)
    rows = []
    for b in range(scores.shape[0]):
        for c in range(scores.shape[1]):
            value = scores[b, c]
            order = torch.sort(value, descending=True, stable=True).indices
            if least is not None:
                order = order[value[order] > least]
            kept: list[Tensor] = []
            while order.numel() and len(kept) < limit:
                first, order = order[0], order[1:]
                kept.append(first)
                top = torch.maximum(low[b, first], low[b, order])
                bottom = torch.minimum(high[b, first], high[b, order])
                common = torch.prod((bottom - top).clamp(min=0), -1)
                union = area[b, first] + area[b, order] - common
                overlap = torch.where((common > 0) & (union > 0), common / union, 0.0)
                order = order[overlap <= bound]
            rows += [torch.stack((first.new_full((), b), first.new_full((), c), first)) for first in kept]
    return torch.stack(rows) if rows else torch.empty(0, 3, dtype=torch.int64, device=boxes.device)
