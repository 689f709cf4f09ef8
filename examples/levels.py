"""One network at every level of the compiler, in inference and in training: what a call moves, how long it takes, how far it is off."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dcir

TIERS = ("lowering only", "inside operators", "fusion", "layout", "global data movement")
Loss = Callable[[Tensor], Tensor]


@dataclass
class Level:
    """One level of one network: figures of its compiled graphs (in training forward and backward), and times in milliseconds."""

    level: int
    tier: str
    kernels: int
    calls: int
    bytes_moved: int
    scratch_bytes: int
    saved_bytes: int
    median_ms: float
    least_ms: float
    error: float
    floor_ms: float | None


@dataclass
class Measured:
    """All levels of one network, and PyTorch's eager mode: its median, and its distance from float64."""

    title: str
    eager_ms: float
    eager_error: float
    levels: list[Level]


def inference(title: str, model: nn.Module, inputs: Tensor, seconds: float) -> Measured:
    """Calls without gradients; the error is the largest difference from float64 over the largest value."""
    model.eval()
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(_wide(inputs))
        modules = [model, *(dcir.optimize(model, level=level) for level in range(len(TIERS)))]
        errors = [float((module(inputs) - exact).abs().max() / exact.abs().max()) for module in modules]
        times = interleaved([lambda m=m: m(inputs) for m in modules], seconds)
    return _measured(title, modules, errors, times)


def training(title: str, model: nn.Module, inputs: Tensor, loss: Loss, seconds: float) -> Measured:
    """Steps of forward, loss and backward, without an optimiser.

    The error is that of all gradients as one vector: the length of the difference from float64 over the length.
    """
    model.train()
    twin = copy.deepcopy(model).double()
    step(twin, _wide(inputs), loss)
    exact = [p.grad for p in twin.parameters()]
    modules = [model, *(dcir.optimize(model, level=level) for level in range(len(TIERS)))]
    errors = []
    for module in modules:
        step(module, inputs, loss)
        errors.append(_distance([p.grad for p in model.parameters()], exact))
    times = interleaved([lambda m=m: step(m, inputs, loss) for m in modules], seconds)
    return _measured(title, modules, errors, times)


def step(module: nn.Module, inputs: Tensor, loss: Loss) -> None:
    """Forward, loss and backward into fresh gradients."""
    module.zero_grad()
    loss(module(inputs)).backward()


def interleaved(runs: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Times in milliseconds of calls that take turns, at least five of each."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    stop = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < stop or len(times[0]) < 5:
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
    return times


def _measured(title: str, modules: list[Any], errors: list[float], times: list[list[float]]) -> Measured:
    """What ran, eager mode first and then the levels."""
    levels = [
        _level(number, *found) for number, found in enumerate(zip(modules[1:], errors[1:], times[1:], strict=True))
    ]
    return Measured(title, statistics.median(times[0]), errors[0], levels)


def _level(number: int, module: Any, error: float, times: list[float]) -> Level:
    graphs = module.dcir.explain().to_json()["graphs"]
    floors = [graph["floor_seconds"] for graph in graphs]
    return Level(
        number,
        TIERS[number],
        sum(graph["kernels"] for graph in graphs),
        sum(graph["calls"] for graph in graphs),
        sum(graph["bytes_moved"] for graph in graphs),
        max(graph["arena_bytes"] for graph in graphs),  # forward and backward use the same memory in turn
        sum(graph["saved_bytes"] for graph in graphs),
        statistics.median(times),
        min(times),
        error,
        None if None in floors else sum(floors) * 1e3,
    )


def _wide(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


def _distance(gradients: list[Tensor], exact: list[Tensor]) -> float:
    """The length of the difference of two lists of tensors over the length of the second."""
    squares = [
        (((g.double() - e) ** 2).sum().item(), (e**2).sum().item()) for g, e in zip(gradients, exact, strict=True)
    ]
    off, whole = (math.fsum(column) for column in zip(*squares, strict=True))
    return math.sqrt(off / whole)
