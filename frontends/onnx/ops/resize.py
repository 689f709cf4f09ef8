"""Resize and its predecessor Upsample.

Interpolation is separable: each axis is a small sum over taps, y[i] = sum_k c[i, k] * x[index[i, k]]. The forms that
torch has as one operator go there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import axes_of_list, check_size, floats, ints, rounded


@onnx_op("Upsample")
def upsample_attribute(node: Node, x: Tensor) -> Tensor:
    scales = node.get("scales")
    if scales is None:
        scales = (1.0, 1.0, node["height_scale"], node["width_scale"])
    return _resize(x, list(range(x.ndim)), list(scales), None, _legacy(node), None)


@onnx_op("Upsample", since=9, host=(1,))
def upsample(node: Node, x: Tensor, scales: Operand) -> Tensor:
    return _resize(x, list(range(x.ndim)), floats(scales), None, _legacy(node), None)


@onnx_op("Resize", since=10, host=(1,))
def resize_10(node: Node, x: Tensor, scales: Operand) -> Tensor:
    return _resize(x, list(range(x.ndim)), floats(scales), None, _legacy(node), None)


def _legacy(node: Node) -> dict[str, Any]:
    mode = {"bilinear": "linear", "trilinear": "linear"}.get(node["mode"], node["mode"])
    return {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


@onnx_op("Resize", since=11, host=(1, 2, 3))
def resize(
    node: Node, x: Tensor, roi: Operand | None = None, scales: Operand | None = None, sizes: Operand | None = None
) -> Tensor:
    axes = node.get("axes")
    dims = list(range(x.ndim)) if axes is None else axes_of_list(axes, x.ndim)
    box = floats(roi) or None
    factors = floats(scales)
    wanted = ints(sizes) if sizes is not None else []
    if bool(factors) == bool(wanted):
        raise InvalidModel(
            "a resize needs either scales or sizes", hint="one of the two operands, with a number for each axis"
        )
    if not wanted:
        return _resize(x, dims, factors, None, node.attributes, box)
    if len(wanted) != len(dims):
        raise InvalidModel(f"operand 'sizes' is {wanted}, there are {len(dims)} axes", hint="a size for each axis")
    if any(x.shape[d] == 0 for d in dims):
        raise TypeMismatch(f"a tensor of shape {list(x.shape)} cannot be resized", hint="no dimension of 0")
    factors = [w / x.shape[d] for w, d in zip(wanted, dims, strict=True)]
    if box is not None and len(box) != 2 * len(dims):
        raise InvalidModel(f"operand 'roi' has {len(box)} numbers for {len(dims)} axes", hint="two for each axis")
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(factors) if policy == "not_larger" else max(factors)
        factors = [scale] * len(dims)
        wanted = [int(scale * x.shape[d] + 0.5) for d in dims]
    return _resize(x, dims, factors, wanted, node.attributes, box)


def _resize(
    x: Tensor, dims: list[int], scales: list[float], sizes: list[int] | None, options: dict[str, Any], roi: Any
) -> Tensor:
    if len(scales) != len(dims):
        raise InvalidModel(
            f"operand or attribute 'scales' is {scales}, there are {len(dims)} axes", hint="one for each axis"
        )
    if sizes is None:
        if any(s <= 0 for s in scales):
            raise InvalidModel(f"operand or attribute 'scales' is {scales}", hint="positive numbers")
        sizes = [int(_scaled(x.shape[d], s)) if s != 1 else x.shape[d] for d, s in zip(dims, scales, strict=True)]
    full = list(x.shape)
    for d, size in zip(dims, sizes, strict=True):
        full[d] = size
    check_size(full)
    mode = options.get("coordinate_transformation_mode", "half_pixel")
    work = [i for i, d in enumerate(dims) if scales[i] != 1 or sizes[i] != x.shape[d] or mode == "tf_crop_and_resize"]
    if not work:
        return x
    fast = _fast(x, dims, scales, sizes, options, work)
    if fast is not None:
        return fast
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    for i in work:
        box = (roi[i], roi[i + len(dims)]) if roi else None
        wide = _axis(wide, dims[i], scales[i], sizes[i], options, box)
    if x.is_floating_point():
        return wide.to(x.dtype)
    return torch.round(wide).clamp(torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max).to(x.dtype)


def _scaled(size: int, scale: float) -> Any:
    """The product in float32, as scales are: 10 times 0.7 is 7. One that is symbolic is not rounded."""
    return rounded(size * scale, torch.float32)


def _fast(
    x: Tensor, dims: list[int], scales: list[float], sizes: list[int], options: dict[str, Any], work: list[int]
) -> Tensor | None:
    """torch's own interpolation, where it has the same meaning."""
    spatial = sorted(dims[i] for i in work)
    rank = x.ndim - 2
    if not 1 <= rank <= 3 or spatial[0] < 2 or not x.is_floating_point():
        return None
    if options.get("antialias") or options.get("exclude_outside"):
        return None
    target, exact, whole = list(x.shape[2:]), True, True
    for i in work:
        target[dims[i] - 2] = sizes[i]
        exact = exact and _scaled(x.shape[dims[i]], scales[i]) == sizes[i]
        whole = whole and float(scales[i]).is_integer()
    if not exact:
        return None
    mode, coordinates = options["mode"], options.get("coordinate_transformation_mode", "half_pixel")
    nearest = options.get("nearest_mode", "round_prefer_floor")
    half = coordinates in ("half_pixel", "half_pixel_symmetric") or (
        coordinates == "pytorch_half_pixel" and all(s > 1 for s in sizes)
    )
    if mode == "nearest" and coordinates == "asymmetric" and nearest == "floor":
        return F.interpolate(x, target, mode="nearest")
    if mode == "nearest" and half and whole and nearest.startswith("round"):
        return F.interpolate(x, target, mode="nearest-exact")
    corners = coordinates == "align_corners" and all(s > 1 for s in sizes) and len(work) == rank
    if mode == "linear" and (half or corners):
        return F.interpolate(x, target, mode=("linear", "bilinear", "trilinear")[rank - 1], align_corners=corners)
    cubic = float(options.get("cubic_coeff_a", -0.75)) == -0.75
    if mode == "cubic" and cubic and rank == 2 and (half or corners) and len(work) == 2:
        return F.interpolate(x, target, mode="bicubic", align_corners=corners)
    return None


def _source(size: int, length: int, scale: float, mode: str, roi: Any, device: torch.device) -> Any:
    """For every output position its coordinate in the input."""
    y = torch.arange(size, dtype=torch.float64, device=device)
    scaled = scale * length
    if mode == "asymmetric":
        return y / scale
    if mode == "align_corners":
        return torch.zeros_like(y) if scaled == 1 else y * (length - 1) / (scaled - 1)
    if mode == "tf_crop_and_resize":
        if roi is None:
            raise InvalidModel("tf_crop_and_resize needs a region of interest")
        span = (roi[1] - roi[0]) * (length - 1)
        inner = torch.full_like(y, span / 2) if scaled == 1 else y * span / (scaled - 1)
        return inner + roi[0] * (length - 1)
    if mode == "pytorch_half_pixel" and size == 1:
        return torch.zeros_like(y)
    if mode == "tf_half_pixel_for_nn":
        return (y + 0.5) / scale
    centred = (y + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + length / 2 * (1 - size / scaled)
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise InvalidModel(f"coordinate transformation {mode!r} does not exist")
    return centred


def _axis(x: Tensor, dim: int, scale: float, size: int, options: dict[str, Any], roi: Any) -> Tensor:
    length = x.shape[dim]
    coordinates = options.get("coordinate_transformation_mode", "half_pixel")
    at = _source(size, length, scale, coordinates, roi, x.device)
    index, weight = _taps(at, scale, options)
    if options.get("exclude_outside"):
        weight = torch.where((index < 0) | (index >= length), 0.0, weight)
        total = weight.sum(1, keepdim=True)
        weight = weight / torch.where(total == 0, 1.0, total)
    index = index.clamp(0, length - 1)
    shape = [1] * x.ndim
    shape[dim] = size
    result = None
    for k in range(index.shape[1]):
        part = torch.index_select(x, dim, index[:, k])
        if index.shape[1] > 1:
            part = part * weight[:, k].to(x.dtype).reshape(shape)
        result = part if result is None else result + part
    assert result is not None
    if coordinates == "tf_crop_and_resize":
        outside = ((at < 0) | (at > length - 1)).reshape(shape)
        result = torch.where(outside, options.get("extrapolation_value", 0.0), result)
    return result


def _taps(at: Tensor, scale: float, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Indices and coefficients, both [output size, taps]."""
    mode = options["mode"]
    if mode == "nearest":
        rounding = options.get("nearest_mode", "round_prefer_floor")
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "round_prefer_floor": lambda t: torch.ceil(t - 0.5),
            "round_prefer_ceil": lambda t: torch.floor(t + 0.5),
            "floor": torch.floor,
            "ceil": torch.ceil,
        }
        if rounding not in functions:
            raise InvalidModel(f"nearest mode {rounding!r} does not exist")
        chosen = functions[rounding](at).to(torch.int64).unsqueeze(1)
        return chosen, torch.ones_like(chosen, dtype=at.dtype)
    base = torch.ceil(at) - 1
    ratio = (at - base).unsqueeze(1)
    shrink = min(scale, 1.0) if options.get("antialias") else 1.0
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    offsets = torch.arange(first, 2 - first, device=at.device)
    distance = ((offsets - ratio) * shrink).abs()
    if mode == "linear":
        weight = (1 - distance).clamp(0, 1)
    elif mode == "cubic":
        a = options.get("cubic_coeff_a", -0.75)
        near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
        weight = torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))
    else:
        raise InvalidModel(f"resize mode {mode!r} does not exist")
    if shrink != 1:
        weight = weight / weight.sum(1, keepdim=True)
    return (base.unsqueeze(1) + offsets).to(torch.int64), weight
