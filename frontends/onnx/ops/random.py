"""Random tensors. A node's `seed` attribute is not followed: torch's own generator decides, as everywhere in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op
from dcir.frontends.onnx.values import check_size, torch_dtype


def _like_type(node: Node, x: Tensor) -> torch.dtype:
    return torch_dtype(node["dtype"]) if node.get("dtype") else x.dtype


@onnx_op("RandomNormal", random=True)
def random_normal(node: Node) -> Any:
    check_size(node["shape"])
    return torch.randn(node["shape"], dtype=torch_dtype(node["dtype"])) * node["scale"] + node["mean"]


@onnx_op("RandomNormalLike", random=True)
def random_normal_like(node: Node, x: Tensor) -> Any:
    return torch.randn(x.shape, dtype=_like_type(node, x), device=x.device) * node["scale"] + node["mean"]


@onnx_op("RandomUniform", random=True)
def random_uniform(node: Node) -> Any:
    check_size(node["shape"])
    span = node["high"] - node["low"]
    return torch.rand(node["shape"], dtype=torch_dtype(node["dtype"])) * span + node["low"]


@onnx_op("RandomUniformLike", random=True)
def random_uniform_like(node: Node, x: Tensor) -> Any:
    span = node["high"] - node["low"]
    return torch.rand(x.shape, dtype=_like_type(node, x), device=x.device) * span + node["low"]


@onnx_op("Bernoulli", since=15, random=True)
def bernoulli(node: Node, x: Tensor) -> Tensor:
    return torch.bernoulli(x).to(_like_type(node, x))


@onnx_op("Multinomial", since=7, random=True)
def multinomial(node: Node, x: Tensor) -> Tensor:
    # The operand holds logarithms of unnormalised probabilities.
    drawn = torch.multinomial(torch.softmax(x, -1), node["sample_size"], replacement=True)
    return drawn.to(torch_dtype(node["dtype"]))
