"""Losses."""

from __future__ import annotations

import torch
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op


def _nll(node: Node, log_probability: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    ignore = node.get("ignore_index")
    places = target.to(torch.int64)
    valid = torch.ones_like(places, dtype=torch.bool) if ignore is None else places != ignore
    safe = places if ignore is None else torch.where(valid, places, 0)
    loss = -torch.gather(log_probability, 1, safe.unsqueeze(1)).squeeze(1)
    if ignore is not None or weight is not None:
        factor = torch.ones_like(loss) if weight is None else weight[safe]
        factor = factor if ignore is None else torch.where(valid, factor, 0)
        loss = torch.where(valid, loss * factor, 0)
    else:
        factor = torch.ones_like(loss)
    if node["reduction"] == "none":
        return loss
    total = torch.sum(loss)
    return total if node["reduction"] == "sum" else total / torch.sum(factor)


@onnx_op("NegativeLogLikelihoodLoss", since=12)
def nll_loss(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _nll(node, x, target, weight)


@onnx_op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    log_probability = torch.log_softmax(x, 1)
    return _nll(node, log_probability, target, weight), log_probability
