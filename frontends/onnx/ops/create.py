"""Constants, fills, ranges, casts and windows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dcir.errors import InvalidModel
from dcir.frontends.onnx.ops.math import Operand
from dcir.frontends.onnx.quantize import cast_to
from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import (
    ONNX_TYPES,
    TEXT,
    Host,
    cast_host,
    check_size,
    ints,
    scalar,
    to_tensor,
    torch_dtype,
)

MAX_BINS, MAX_WEIGHTS = 1 << 14, 1 << 26
"""Of a matrix of mel weights: it is written down number by number."""


@onnx_op("Constant")
def constant(node: Node) -> Any:
    given = {k: v for k, v in node.attributes.items() if k.startswith(("value", "sparse_value")) and k != "value_type"}
    if len(given) != 1:
        raise InvalidModel("a constant must have exactly one value", where=node.label)
    name, value = next(iter(given.items()))
    if name in ("value", "sparse_value"):
        return value
    if name == "value_string":
        return Host((value,), (), TEXT)
    if name == "value_strings":
        return Host(value, (len(value),), TEXT)
    dtype = torch.float32 if "float" in name else torch.int64
    return torch.tensor(value, dtype=dtype)


@onnx_op("ConstantOfShape", since=9, host=(0,), numbers=("value",))
def constant_of_shape(node: Node, target: Operand) -> Tensor:
    dims = ints(target)
    check_size(dims)
    fill = node.get("value")
    if fill is None:
        return torch.zeros(dims, dtype=torch.float32)
    return torch.full(dims, scalar(fill), dtype=fill.dtype)


@onnx_op("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    to = node["to"]
    if isinstance(to, str):
        codes = {str(d).removeprefix("torch.").upper(): c for d, c in ONNX_TYPES.items()}
        codes |= {"FLOAT": 1, "DOUBLE": 11}
        to = codes.get(to, 0)
    return cast_to(x, to, bool(node.get("saturate", 1)), node.get("round_mode", "up"))


@onnx_op("CastLike", since=15, scalars=True)
def cast_like(node: Node, x: Operand, target: Operand) -> Any:
    if isinstance(x, Host):
        result = cast_host(x, target.dtype) if 1 not in node.narrow else NotImplemented
        if result is not NotImplemented:
            return result
    code = node.narrow.get(1, ONNX_TYPES[target.dtype])
    return cast_to(to_tensor(x), code, bool(node.get("saturate", 1)), node.get("round_mode", "up"))


@onnx_op("Range", since=11, host=(0, 1, 2))
def range_(node: Node, start: Operand, limit: Operand, delta: Operand) -> Any:
    a, b, c = scalar(start), scalar(limit), scalar(delta)
    if isinstance(c, (int, float)) and c == 0:
        raise InvalidModel("operand 'delta' is 0", hint="a step forwards or backwards")
    dtype = start.dtype
    if all(isinstance(v, (int, float)) for v in (a, b, c)):
        count = max(math.ceil((b - a) / c), 0)
        check_size([count])
        if dtype.is_floating_point:
            wide = dtype if dtype == torch.float64 else torch.float32
            return (torch.arange(count, dtype=wide) * c + a).to(dtype)
    return torch.arange(a, b, c, dtype=dtype)


@onnx_op("EyeLike", since=9)
def eye_like(node: Node, x: Tensor) -> Any:
    dtype = x.dtype if node.get("dtype") is None else torch_dtype(node["dtype"])
    rows, columns, k = x.shape[0], x.shape[1], node["k"]
    i = torch.arange(rows, device=x.device).unsqueeze(1)
    return (torch.arange(columns, device=x.device) - i == k).to(dtype)


def _window(node: Node, size: Operand, weights: tuple[float, ...]) -> Tensor:
    length = scalar(size)
    check_size([length])
    steps = torch.arange(length, dtype=torch.float32)
    period = length if node["periodic"] else length - 1
    angle = steps * (2 * math.pi / period if period else math.nan)
    value: Any = 0.0
    for i, weight in enumerate(weights):
        value = value + weight * torch.cos(i * angle)
    result: Tensor = value.to(torch_dtype(node["output_datatype"]))
    return result


@onnx_op("HannWindow", since=17, host=(0,))
def hann(node: Node, size: Operand) -> Tensor:
    return _window(node, size, (0.5, -0.5))


@onnx_op("HammingWindow", since=17, host=(0,))
def hamming(node: Node, size: Operand) -> Tensor:
    return _window(node, size, (25 / 46, -21 / 46))


@onnx_op("BlackmanWindow", since=17, host=(0,))
def blackman(node: Node, size: Operand) -> Tensor:
    return _window(node, size, (0.42, -0.5, 0.08))


@onnx_op("MelWeightMatrix", since=17, host=(0, 1, 2, 3, 4))
def mel_weight_matrix(node: Node, bins: Operand, length: Operand, rate: Operand, low: Operand, high: Operand) -> Tensor:
    count, size, rate_ = scalar(bins), scalar(length), scalar(rate)
    rows = size // 2 + 1
    if count < 1 or size < 1 or rate_ < 1 or count > MAX_BINS or rows * count > MAX_WEIGHTS:
        message = f"operands 'num_mel_bins', 'dft_length' and 'sample_rate' are {count}, {size} and {rate_}"
        raise InvalidModel(message, hint=f"numbers from 1, no more than {MAX_BINS} bins and {MAX_WEIGHTS} weights")
    low_mel, high_mel = (2595 * math.log10(1 + scalar(f) / 700) for f in (low, high))
    step = (high_mel - low_mel) / (count + 2)
    hertz = [700 * (10 ** ((i * step + low_mel) / 2595) - 1) for i in range(count + 2)]
    edges = [math.floor((size + 1) * h / rate_) for h in hertz]
    weights = [[0.0] * count for _ in range(rows)]
    for i in range(count):
        left, centre, right = edges[i], edges[i + 1], edges[i + 2]
        if left == centre:
            weights[centre][i] = 1.0
        for j in range(left, centre + 1):
            weights[j][i] = 1.0 if centre == left else (j - left) / (centre - left)
        for j in range(centre, right):
            weights[j][i] = (right - j) / (right - centre)
    return torch.tensor(weights, dtype=torch_dtype(node["output_datatype"]))
