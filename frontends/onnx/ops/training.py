"""Optimiser steps of the preview training domain."""

from __future__ import annotations

import torch
from torch import Tensor

from dcir.frontends.onnx.registry import Node, onnx_op

_DOMAIN = "ai.onnx.preview.training"


@onnx_op("Adagrad", domain=_DOMAIN)
def adagrad(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    n = len(tensors) // 3
    decayed = rate / (1 + step * node["decay_factor"])
    weights, squares = [], []
    for x, g, h in zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n :], strict=True):
        gradient = node["norm_coefficient"] * x + g
        square = h + gradient * gradient
        weights.append(x - decayed * gradient / (torch.sqrt(square) + node["epsilon"]))
        squares.append(square)
    return (*weights, *squares)


@onnx_op("Adam", domain=_DOMAIN)
def adam(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    n = len(tensors) // 4
    alpha, beta = node["alpha"], node["beta"]
    scaled = rate * torch.sqrt(1 - beta**step) / (1 - alpha**step)
    adjusted = torch.where(step > 0, scaled, rate)
    weights, firsts, seconds = [], [], []
    groups = (tensors[i * n : (i + 1) * n] for i in range(4))
    for x, g, v, h in zip(*groups, strict=True):
        gradient = node["norm_coefficient"] * x + g
        first = alpha * v + (1 - alpha) * gradient
        second = beta * h + (1 - beta) * gradient * gradient
        moved = x - adjusted * first / (torch.sqrt(second) + node["epsilon"])
        weights.append((1 - node["norm_coefficient_post"]) * moved)
        firsts.append(first)
        seconds.append(second)
    return (*weights, *firsts, *seconds)


@onnx_op("Momentum", domain=_DOMAIN)
def momentum(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    n = len(tensors) // 3
    weights, velocities = [], []
    for x, g, v in zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n :], strict=True):
        gradient = node["norm_coefficient"] * x + g
        beta = torch.where(step > 0, node["beta"], 1.0)
        velocity = node["alpha"] * v + beta * gradient
        push = velocity if node["mode"] == "standard" else gradient + node["alpha"] * velocity
        weights.append(x - rate * push)
        velocities.append(velocity)
    return (*weights, *velocities)
