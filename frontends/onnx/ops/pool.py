"""Pooling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.conv import explicit_pads, flat_pads, paddings, pick, spatial
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import check_size, ints

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class _Window:
    """Kernel, strides, dilations, paddings and the output size of a pooling node."""

    def __init__(self, node: Node, x: Tensor) -> None:
        self.rank = x.ndim - 2
        self.kernel = list(node["kernel_shape"])
        if len(self.kernel) != self.rank:
            message = f"attribute 'kernel_shape' is {self.kernel}, there are {self.rank} spatial dimensions"
            raise InvalidModel(message, hint=f"{self.rank} numbers")
        self.strides = spatial(node, "strides", self.rank)
        self.dilations = spatial(node, "dilations", self.rank)
        sizes = list(x.shape[2:])
        self.before, self.after = paddings(node, sizes, self.kernel, self.strides, self.dilations)
        self.ceil = bool(node.get("ceil_mode", 0)) and node.get("auto_pad", "NOTSET") == "NOTSET"
        self.extra = [0] * self.rank
        self.sizes = []
        for i, size in enumerate(sizes):
            span = size + self.before[i] + self.after[i] - self.dilations[i] * (self.kernel[i] - 1) - 1
            if span < 0:
                message = f"attribute 'kernel_shape' is {self.kernel}, larger than the padded input"
                raise InvalidModel(message, hint=f"smaller kernels or dilations for shape {list(x.shape)}")
            count = span // self.strides[i] + 1
            if self.ceil:
                count = -(-span // self.strides[i]) + 1
                # A window that would start in the padding after the input does not count.
                if (count - 1) * self.strides[i] >= size + self.before[i]:
                    count -= 1
                needed = (count - 1) * self.strides[i] - span
                self.extra[i] = max(0, needed)
            self.sizes.append(count)

    def symmetric(self) -> bool:
        """Whether torch's own padding can express this window."""
        halves = all(2 * p <= k for p, k in zip(self.before, self.kernel, strict=True))
        return self.before == self.after and halves and all(p >= 0 for p in self.before)

    def pad(self, x: Tensor, value: float) -> Tensor:
        after = [a + e for a, e in zip(self.after, self.extra, strict=True)]
        if any(self.before) or any(after):
            return F.pad(x, flat_pads(self.before, after), value=value)
        return x


@onnx_op("MaxPool")
def max_pool(node: Node, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    w = _Window(node, x)
    pool = pick(_MAX, w.rank)
    if not x.is_floating_point():
        # 8-bit integers are exact in float32, and torch pools only floats everywhere.
        wide = max_pool(node, x.to(torch.float32 if x.dtype.itemsize == 1 else torch.float64))
        return wide.to(x.dtype) if isinstance(wide, Tensor) else (wide[0].to(x.dtype), wide[1])
    if node.used > 1:
        return _max_pool_indices(node, x, w)
    if w.symmetric():
        result: Tensor = pool(x, w.kernel, w.strides, w.before, w.dilations, w.ceil)
        return result
    padded: Tensor = pool(w.pad(x, -math.inf), w.kernel, w.strides, 0, w.dilations)
    return padded


def _max_pool_indices(node: Node, x: Tensor, w: _Window) -> tuple[Tensor, Tensor]:
    pool = pick({1: F.max_pool1d_with_indices, 2: F.max_pool2d_with_indices, 3: F.max_pool3d_with_indices}, w.rank)
    values, found = pool(w.pad(x, -math.inf), w.kernel, w.strides, 0, w.dilations)
    # torch counts within one padded plane; ONNX counts over the whole unpadded tensor.
    sizes = list(x.shape[2:])
    padded = [s + b + a + e for s, b, a, e in zip(sizes, w.before, w.after, w.extra, strict=True)]
    coordinates = []
    for size, before in reversed(list(zip(padded, w.before, strict=True))):
        coordinates.append(found % size - before)
        found = torch.div(found, size, rounding_mode="floor")
    coordinates.reverse()
    flat = torch.zeros_like(found)
    if node["storage_order"] == 1:
        coordinates.reverse()
        sizes = sizes[::-1]
    for size, coordinate in zip(sizes, coordinates, strict=True):
        flat = flat * size + coordinate
    plane = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(sizes)
    return values, flat + plane.reshape(x.shape[0], x.shape[1], *(1,) * w.rank)


@onnx_op("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    w = _Window(node, x)
    pool = pick(_AVERAGE, w.rank)
    count_pads = bool(node.get("count_include_pad", 0))
    plain = all(d == 1 for d in w.dilations)
    if plain and w.symmetric() and not any(w.extra):
        result: Tensor = pool(x, w.kernel, w.strides, w.before, False, count_pads)
        return result
    ones = torch.ones_like(x[:1, :1])
    if count_pads:
        # The declared padding counts, what ceil_mode adds beyond it does not.
        ones = F.pad(ones, flat_pads(w.before, w.after), value=1.0)
        ones = F.pad(ones, flat_pads([0] * w.rank, w.extra))
    else:
        ones = w.pad(ones, 0.0)
    return _window_sum(w, w.pad(x, 0.0)) / _window_sum(w, ones)


def _window_sum(w: _Window, x: Tensor) -> Tensor:
    """Sums over windows of an already padded tensor."""
    for i in range(w.rank):
        dim = 2 + i
        reach = w.dilations[i] * (w.kernel[i] - 1) + 1
        x = x.unfold(dim, reach, w.strides[i])[..., :: w.dilations[i]].sum(-1)
        x = x.narrow(dim, 0, w.sizes[i])
    return x


@onnx_op("LpPool")
def lp_pool(node: Node, x: Tensor) -> Tensor:
    w = _Window(node, x)
    p = float(node["p"])
    return _window_sum(w, w.pad(torch.abs(x) ** p, 0.0)) ** (1.0 / p)


@onnx_op("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    return torch.mean(x, tuple(range(2, x.ndim)), keepdim=True)


@onnx_op("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    return torch.amax(x, tuple(range(2, x.ndim)), keepdim=True)


@onnx_op("GlobalLpPool")
def global_lp_pool(node: Node, x: Tensor) -> Tensor:
    p = float(node["p"])
    return torch.sum(torch.abs(x) ** p, tuple(range(2, x.ndim)), keepdim=True) ** (1.0 / p)


@onnx_op("MaxUnpool", since=9, host=(2,))
def max_unpool(node: Node, x: Tensor, indices: Tensor, target: Operand | None = None) -> Tensor:
    rank = x.ndim - 2
    kernel, strides = list(node["kernel_shape"]), spatial(node, "strides", rank)
    if len(kernel) != rank:
        message = f"attribute 'kernel_shape' is {kernel}, there are {rank} spatial dimensions"
        raise InvalidModel(message, hint=f"{rank} numbers")
    pads = [p for part in explicit_pads(node, rank) for p in part]
    natural = [(x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i in range(rank)]
    small = [*x.shape[:2], *natural]
    check_size(small)
    flat = x.new_zeros(math.prod(small)).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(small)
    if target is None:
        return flat
    wanted = ints(target)
    if len(wanted) != x.ndim:
        raise InvalidModel(f"operand 'output_shape' is {wanted}, the rank is {x.ndim}", hint=f"{x.ndim} numbers")
    check_size(wanted)
    return F.pad(flat, [p for d in reversed(range(x.ndim)) for p in (0, wanted[d] - small[d])])
