"""How long a model takes next to other ways to run it: interleaved calls, medians, spread, and the error of each."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from dcir.codegen.build import cpu_identity
from dcir.driver import ahead
from dcir.driver.compile import Session
from dcir.errors import OptionError
from dcir.frontends import onnx as onnx_front_end
from dcir.options import Options
from dcir.report.explain import Report
from dcir.runtime.artefact import load_artefact

RIVALS = ("eager", "inductor", "ort")
_WARM_UP = 3
_LEAST = 5

Run = Callable[[], Sequence[Any]]


@dataclass
class Row:
    """Times of one way to run a model, in milliseconds; spread is the middle half's width over the median."""

    name: str
    median: float
    p95: float
    spread: float
    calls: int
    speed_up: float = 1.0
    error: float | None = None


@dataclass
class Measurement:
    """What `dcir bench` shows: dcir's row first; notes say what was asked for and could not be measured."""

    model: str
    threads: int
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return asdict(self)

    def to_text(self) -> str:
        """The rows for people; "dcir gains" is how much faster dcir is, and error is relative, next to dcir."""
        lines = [f"{self.model}, {self.threads} threads"]
        lines.append(
            f"{'':<9} {'median ms':>10} {'p95 ms':>10} {'spread':>7} {'calls':>6} {'dcir gains':>11} {'error':>8}"
        )
        for r in self.rows:
            error = "-" if r.error is None else f"{r.error:.1e}"
            gain = "-" if r.name == "dcir" else f"{r.speed_up:.2f} x"
            lines.append(
                f"{r.name:<9} {r.median:>10.4f} {r.p95:>10.4f} {r.spread:>6.0%} {r.calls:>6} {gain:>11} {error:>8}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def measure(runs: dict[str, Run], seconds: float) -> list[Row]:
    """Rows of several ways to compute the same, called in turn so that a busy machine slows all of them alike.

    Args:
        runs: "dcir" first; each call returns flat results.
        seconds: time for each.
    """
    results = {name: run() for name, run in runs.items()}
    for run in runs.values():
        for _ in range(_WARM_UP):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < stop or len(times["dcir"]) < _LEAST:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
    own = float(np.median(times["dcir"]))
    rows = []
    for name, taken in times.items():
        low, median, high, p95 = np.percentile(taken, [25, 50, 75, 95])
        error = None if name == "dcir" else relative_error(results["dcir"], results[name])
        rows.append(
            Row(name, float(median), float(p95), float((high - low) / median), len(taken), float(median / own), error)
        )
    return rows


def relative_error(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of any result over the largest value of that result."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        x, y = (
            np.asarray(v.detach().to(torch.float64) if isinstance(v, torch.Tensor) else v, np.float64) for v in (a, b)
        )
        if x.size:
            scale = float(np.nanmax(np.abs(y))) or 1.0
            worst = max(worst, float(np.nanmax(np.abs(x - y))) / scale)
    return worst


def bench_file(path: str | os.PathLike[str], rivals: Sequence[str], seconds: float, threads: int | None) -> Measurement:
    """Measure an ONNX or .dcir file on random inputs.

    Args:
        path: the file.
        rivals: names from ``RIVALS``; a .dcir file holds only dcir's code and is measured alone.
        seconds: time for each.
        threads: size of the thread team; None means as many as torch uses.

    Raises:
        OptionError: an unknown rival.
    """
    for name in rivals:
        if name not in RIVALS:
            raise OptionError(f"nothing known about {name!r}", where="--against", hint="one of " + ", ".join(RIVALS))
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        done = Measurement(str(path), threads or before)
        with torch.no_grad():
            runs = _of_artefact(path, rivals, done) if ahead.is_artefact(path) else _of_onnx(path, rivals, done)
            done.rows = measure(runs, seconds)
        return done
    finally:
        torch.set_num_threads(before)


def _of_artefact(path: str | os.PathLike[str], rivals: Sequence[str], done: Measurement) -> dict[str, Run]:
    model = load_artefact(path, identity=cpu_identity())
    generator = torch.Generator().manual_seed(0)
    inputs = [ahead.random_tensor(x.shape, x.dtype, generator, 2) for x in model.dcir.inputs]
    if rivals:
        done.notes.append("a .dcir file holds dcir's code only; dcir bench MODEL.onnx compares")
    return {"dcir": lambda: pytree.tree_leaves(model(*inputs))}


def _of_onnx(path: str | os.PathLike[str], rivals: Sequence[str], done: Measurement) -> dict[str, Run]:
    from dcir.driver.api import opened

    module = onnx_front_end.load(path).eval()
    inputs = ahead.example_inputs(module, seed=0)
    session = Session(Options.make(threads=done.threads))
    with opened(ahead.compile_onnx(module, session), Report(session.graphs)) as fast:
        runs: dict[str, Run] = {"dcir": lambda: pytree.tree_leaves(fast(*inputs))}
    if "eager" in rivals:
        runs["eager"] = lambda: pytree.tree_leaves(module(*inputs))
    if "inductor" in rivals:
        rival = torch.compile(module)
        runs["inductor"] = lambda: pytree.tree_leaves(rival(*inputs))
    if "ort" in rivals:
        session_run = _onnxruntime(Path(path), [spec.original for spec in module.input_specs], inputs, done)
        if session_run is not None:
            runs["ort"] = session_run
    return runs


def _onnxruntime(path: Path, names: list[str], inputs: list[torch.Tensor], done: Measurement) -> Run | None:
    try:
        # By name: what dcir does never stands on its rivals, and this way no checker has to make an exception.
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError:
        done.notes.append("onnxruntime is not installed; pip install onnxruntime")
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = done.threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}

    def run() -> Sequence[Any]:
        results: Sequence[Any] = session.run(None, feed)
        return results

    return run
