"""How many calls a second a model has when several run at the same time: dcir's streams next to other ways, in turn."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from dcir.cost.stream_number import StreamNumber
from dcir.driver.ahead import compile as ahead
from dcir.driver.measure.baselines import check_names
from dcir.driver.measure.models import BenchModel, open_model
from dcir.driver.measure.rival_streams import Burst, bursts
from dcir.driver.measure.turns import reference_of, relative_error
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput
from dcir.options import Options

__all__ = ["Throughput", "ThroughputRow", "bench_throughput"]

_LEAST = 5
_TURN_SECONDS = 0.3


@dataclass
class ThroughputRow:
    """One way to run a model.

    Attributes:
        at_once: calls that run at the same time; 1 is one after the other, with all threads.
        median, best: calls a second, of a turn.
        spread: the middle half's width over the median.
        gain: dcir's median over this one.
        error: largest difference from the reference over the reference's largest value, of the worst result.
    """

    name: str
    at_once: int
    median: float
    best: float
    spread: float
    calls: int
    gain: float
    error: float


@dataclass
class Throughput:
    """What ``dcir bench --hint throughput`` shows: dcir's streams first, then dcir with one call at a time, then rivals.

    Attributes:
        why: the number of streams, and for what reason.
        reference: what errors are measured against: "float64" or "eager".
        notes: what was asked for and could not be measured.
    """

    model: str
    threads: int
    why: str
    reference: str
    rows: list[ThroughputRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return asdict(self)

    def to_text(self) -> str:
        """The rows for people."""
        lines = [
            f"{self.model}, {self.threads} threads in all; {self.why}; error against {self.reference}",
            f"{'':<18} {'at once':>7} {'calls/s':>10} {'best':>10} {'spread':>7} {'calls':>7} {'dcir gains':>11} {'error':>8}",
        ]
        for i, r in enumerate(self.rows):
            gain = f"{r.gain:.2f} x" if i else "-"
            lines.append(
                f"{r.name:<18} {r.at_once:>7} {r.median:>10.2f} {r.best:>10.2f} {r.spread:>6.0%} {r.calls:>7} {gain:>11} {r.error:>8.1e}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def bench_throughput(
    source: str | os.PathLike[str],
    baseline_names: Sequence[str],
    seconds: float,
    threads: int | None,
    *,
    streams: int | None = None,
    level: int = 4,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Throughput:
    """Measure how many calls a second a model has in inference, on random inputs or those that a Python function gives.

    Args:
        source: an ONNX file, or ``file.py:function`` (see ``models.open_model``).
        baseline_names: from ``baselines.BASELINES``.
        seconds: time for each.
        threads: that all calls have together; None means as many as torch uses.
        streams: of dcir; None leaves the number to it.
        level: of dcir's optimisation.
        shapes, batch: sizes of the inputs.
        progress: told of the steps of dcir's compilation, and of measuring.

    Raises:
        OptionError: an unknown rival, more streams than processors, or sizes for a model that takes none.
        InvalidInput: no model is there, or it is a .dcir file.
    """
    check_names(baseline_names)
    if os.path.isfile(source) and ahead.is_artefact(source):
        raise InvalidInput(
            "a .dcir file has one team of threads and no streams", where=str(source), hint="dcir bench MODEL.onnx"
        )
    before = torch.get_num_threads()
    whole = threads or before
    torch.set_num_threads(whole)
    try:
        with tempfile.TemporaryDirectory(prefix="dcir-") as folder, torch.no_grad():
            model = open_model(source, shapes, batch)
            session = Session(
                Options.make(threads=whole, level=level, hint="throughput", streams=streams), progress=progress
            )
            streamed = _streams(model, session)
            streamed(whole)  # before it, how many streams there are is not known
            number = cast(StreamNumber, session.streams)
            one = compiled_with(model.module, Session(Options.make(threads=whole, level=level), progress=progress))
            runs = {"dcir": (streamed, number.streams), "dcir, one by one": (_one_by_one(one, model.inputs), 1)}
            others, notes = bursts(model, baseline_names, whole, Path(folder))
            reference, exact = reference_of(model)
            done = Throughput(str(source), whole, str(number), reference, notes=notes)
            done.rows = measure_bursts(runs | others, seconds, exact, progress)
        return done
    finally:
        torch.set_num_threads(before)


def measure_bursts(
    runs: Mapping[str, tuple[Burst, int]], seconds: float, reference: Sequence[Any], progress: Progress | None = None
) -> list[ThroughputRow]:
    """Rows of bursts, the first of which the others are compared with, and which take turns.

    Args:
        runs: bursts, and how many of their calls run at once.
        seconds: time for each.
        reference: the exact results of a call.
        progress: told of the seconds that have passed, between two turns.
    """
    turn = min(_TURN_SECONDS, seconds / _LEAST)
    errors, counts = {}, {}
    for name, (burst, at_once) in runs.items():
        errors[name] = relative_error(burst(at_once), reference)
        start, trial = time.perf_counter(), 3 * at_once
        burst(trial)
        # Of five calls on two teams the last would run alone, on half of the machine.
        counts[name] = at_once * max(1, round(trial / at_once * turn / (time.perf_counter() - start)))
    rates: dict[str, list[float]] = {name: [] for name in runs}
    start_of_all, whole = time.perf_counter(), seconds * len(runs)
    while time.perf_counter() < start_of_all + whole or len(rates[next(iter(runs))]) < _LEAST:
        for name, (burst, at_once) in runs.items():
            if progress is not None:
                progress("measuring", round(min(time.perf_counter() - start_of_all, whole)), round(whole))
            burst(at_once)  # until it is over, the threads of another's pool may be spinning still
            start = time.perf_counter()
            burst(counts[name])
            rates[name].append(counts[name] / (time.perf_counter() - start))
    rows = []
    first = float(np.median(next(iter(rates.values()))))
    for name, taken in rates.items():
        low, median, high = (float(v) for v in np.percentile(taken, [25, 50, 75]))
        spread, calls = (high - low) / median, counts[name] * len(taken)
        rows.append(ThroughputRow(name, runs[name][1], median, max(taken), spread, calls, first / median, errors[name]))
    return rows


def _streams(model: BenchModel, session: Session) -> Burst:
    handle = compiled_with(model.module, session).dcir

    def burst(calls: int) -> Sequence[Any]:
        result = None
        for result in handle.map(*([value] * calls for value in model.inputs)):  # noqa: B007 - the last one is used
            pass
        return pytree.tree_leaves(result)

    return burst


def _one_by_one(fast: Any, inputs: Sequence[Any]) -> Burst:
    def burst(calls: int) -> Sequence[Any]:
        for _ in range(calls):
            result = fast(*inputs)
        return pytree.tree_leaves(result)

    return burst
