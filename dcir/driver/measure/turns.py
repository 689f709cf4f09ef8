"""Several ways to compute the same, measured in turns: times of each, and the error against exact results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from dcir.driver.measure.baselines import Run
from dcir.driver.measure.models import BenchModel
from dcir.driver.session import Progress
from dcir.driver.verify.compare import in_double
from dcir.errors import DcirError
from dcir.frontends.torch.export import export_inference

_WARM_UP = 3
_LEAST = 5
_TURN_SECONDS = 0.02


@dataclass
class BenchRow:
    """Times of one way to run a model, in milliseconds.

    Attributes:
        least, median, p95: of all calls; ``percentiles`` holds those that were asked for.
        spread: the middle half's width over the median.
        speed_up: this median over dcir's.
        error: largest difference from the reference over the reference's largest value, of the worst result.
    """

    name: str
    least: float
    median: float
    p95: float
    spread: float
    calls: int
    percentiles: dict[str, float] = field(default_factory=dict)
    speed_up: float = 1.0
    error: float | None = None


def measure(
    runs: dict[str, Run],
    seconds: float,
    reference: Sequence[Any] | None = None,
    percentiles: Sequence[float] = (),
    progress: Progress | None = None,
) -> list[BenchRow]:
    """Rows of several ways to compute the same, which take turns so that a busy machine slows all of them alike.

    A turn begins with a call that does not count: until it is over, the threads of another's pool may be spinning still.

    Args:
        runs: "dcir" first; each call returns flat results.
        seconds: time for each.
        reference: the exact results.
        percentiles: to tell besides median and 95.
        progress: told of the seconds that have passed, between two turns.
    """
    results = {name: run() for name, run in runs.items()}
    for run in runs.values():
        for _ in range(_WARM_UP):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    start_of_all, whole = time.perf_counter(), seconds * len(runs)
    stop = start_of_all + whole
    while time.perf_counter() < stop or len(times["dcir"]) < _LEAST:
        for name, run in runs.items():
            if progress is not None:
                progress("measuring", round(min(time.perf_counter() - start_of_all, whole)), round(whole))
            run()
            turn = time.perf_counter() + min(_TURN_SECONDS, seconds / _LEAST)
            while True:
                start = time.perf_counter()
                run()
                end = time.perf_counter()
                times[name].append((end - start) * 1e3)
                if end > turn:
                    break
    own = float(np.median(times["dcir"]))
    rows = []
    for name, taken in times.items():
        low, median, high, p95 = np.percentile(taken, [25, 50, 75, 95])
        asked = {f"{p:g}": float(np.percentile(taken, p)) for p in percentiles}
        row = BenchRow(name, min(taken), float(median), float(p95), float((high - low) / median), len(taken), asked)
        row.speed_up = float(median / own)
        row.error = None if reference is None else relative_error(results[name], reference)
        rows.append(row)
    return rows


def relative_error(ours: Sequence[Any], exact: Sequence[Any]) -> float:
    """The largest difference of any result over the largest value of that result, of those that are tensors or arrays.

    Infinite where shapes differ, or the places of NaN or infinities: then nothing is near the reference.
    """
    found, wanted = _tensors(ours), _tensors(exact)
    if len(found) != len(wanted):
        return float("inf")
    return max((_distance(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def _distance(ours: torch.Tensor, exact: torch.Tensor) -> float:
    x, y = _real(ours), _real(exact)
    if x.shape != y.shape or not torch.equal(x.isnan(), y.isnan()) or not torch.equal(x[y.isinf()], y[y.isinf()]):
        return float("inf")
    x, y = x[y.isfinite()], y[y.isfinite()]
    if not y.numel():
        return 0.0
    return float((x - y).abs().max()) / (float(y.abs().max()) or 1.0)


def _real(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).to(torch.float64)


def _tensors(results: Sequence[Any]) -> list[torch.Tensor]:
    """Of flat results those that are tensors or arrays of numbers, and those inside of dataclasses."""
    found = []
    for value in results:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            found.append(torch.as_tensor(value))
        elif is_dataclass(value) and not isinstance(value, type):
            found += _tensors(pytree.tree_leaves([getattr(value, f.name) for f in fields(value)]))
    return found


def reference_of(model: BenchModel) -> tuple[str, Sequence[Any]]:
    """The exact results and how they were made: in float64, or by eager PyTorch where the call is no one graph."""
    tensors = [v for v in pytree.tree_leaves(model.inputs) if isinstance(v, torch.Tensor)]
    if isinstance(model.module, nn.Module):
        try:
            exported = export_inference(model.module, model.inputs)
            return "float64", in_double(exported.graph, [*(s.tensor for s in exported.state), *tensors])
        except (DcirError, RuntimeError, TypeError):
            pass
    return "eager", pytree.tree_leaves(model.module(*model.inputs))
