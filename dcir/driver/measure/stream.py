"""How long a model takes over a stream of calls of many sizes, next to other ways to run it: percentiles, totals, and the first pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.driver.ahead import compile as ahead
from dcir.driver.ahead.compile_sizes import compile_file_for_sizes
from dcir.driver.measure.baselines import check_names, not_measured, opened_runtime
from dcir.driver.measure.bench import note_threads
from dcir.driver.measure.models import open_stream
from dcir.driver.measure.sizes_file import read_sizes
from dcir.driver.measure.turns import relative_error
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress, Session
from dcir.driver.verify.compare import in_double
from dcir.errors import DcirError, InvalidInput
from dcir.frontends.onnx import OnnxModule
from dcir.frontends.torch.export import export_inference
from dcir.options import Options
from dcir.report.explain import Report
from dcir.runtime.artefact import load_artefact
from dcir.runtime.sized_model import LoadedSizes

Call = Callable[[int], Sequence[Any]]
"""Runs the call with this number; gives its flat results."""

_PERCENTILES = (50.0, 95.0, 99.0)
_COMPARED = 4
"""Calls whose results are compared with exact ones: the first, the smallest, the largest, and one in the middle."""


@dataclass
class StreamRow:
    """Times of one way to run a stream, in milliseconds.

    Attributes:
        first: the whole first pass, in which what has to be compiled is.
        total: a later pass, the median of them.
        percentiles: of the calls of all later passes.
        passes: how many later ones there were.
        gain: this total over dcir's.
        error: largest difference from the reference over the reference's largest value, of the worst result of some calls.
    """

    name: str
    first: float
    total: float = 0.0
    percentiles: dict[str, float] = field(default_factory=dict)
    passes: int = 0
    gain: float = 1.0
    error: float | None = None


@dataclass
class StreamMeasurement:
    """What `dcir bench --sizes` shows: dcir's row first.

    Attributes:
        calls, distinct: of the stream, and how many combinations of sizes are in it.
        reference: what errors are measured against, or "" where there is nothing.
        notes: what was asked for and could not be measured.
    """

    model: str
    threads: int
    calls: int
    distinct: int
    rows: list[StreamRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reference: str = ""

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return asdict(self)

    def to_text(self) -> str:
        """The rows for people; "dcir gains" is how much faster dcir is over a whole pass."""
        asked = list(self.rows[0].percentiles) if self.rows else []
        head = f"{self.model}, {self.threads} threads, {self.calls} calls of {self.distinct} sizes"
        lines = [head + (f"; error against {self.reference}" if self.reference else "")]
        lines.append(
            f"{'':<9} " + "".join(f"{f'p{p} ms':>10} " for p in asked)
            + f"{'total ms':>10} {'first ms':>10} {'passes':>6} {'dcir gains':>11} {'error':>8}"
        )  # fmt: skip
        for r in self.rows:
            error = "-" if r.error is None else f"{r.error:.1e}"
            gain = "-" if r.name == "dcir" else f"{r.gain:.2f} x"
            lines.append(
                f"{r.name:<9} " + "".join(f"{r.percentiles[p]:>10.4f} " for p in asked)
                + f"{r.total:>10.3f} {r.first:>10.3f} {r.passes:>6} {gain:>11} {error:>8}"
            )  # fmt: skip
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def bench_stream(
    source: str | os.PathLike[str],
    sizes: str | os.PathLike[str],
    baseline_names: Sequence[str],
    seconds: float,
    threads: int | None,
    *,
    level: int = 4,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    percentiles: Sequence[float] = (),
    progress: Progress | None = None,
) -> StreamMeasurement:
    """Measure inference of a model over a stream of sizes.

    Args:
        source: an ONNX file, which is compiled for all sizes between the least and the greatest of the stream; a .dcir file; or
            ``file.py:function``, whose function takes the sizes by name.
        sizes: a file that lists them (``sizes_file.py``).
        baseline_names: from ``baselines.BASELINES``; a .dcir file holds only dcir's code and is measured alone.
        seconds: time for each, beyond the first pass.
        threads, level, shapes, progress: as in ``bench_file``.
        percentiles: to tell besides 50, 95 and 99.

    Raises:
        OptionError: an unknown rival, or sizes for a function that takes none of the name.
        InvalidInput: no model or no list of sizes is there, or sizes lie outside the bounds of a .dcir file.
    """
    check_names(baseline_names)
    stream = read_sizes(sizes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    distinct = len({tuple(sorted(s.items())) for s in stream})
    done = StreamMeasurement(str(source), threads or before, len(stream), distinct)
    try:
        exact: dict[int, Sequence[Any]] = {}
        with torch.no_grad():
            if os.path.isfile(source) and ahead.is_artefact(source):
                runs = _of_artefact(source, stream, baseline_names, threads, done)
            else:
                runs, exact = _of_model(source, stream, baseline_names, level, shapes, done, progress)
            runs = _first_passes(runs, len(stream), done)
            _measure(runs, len(stream), seconds, exact, (*_PERCENTILES, *percentiles), done, progress)
        return done
    finally:
        torch.set_num_threads(before)


def _of_artefact(
    path: str | os.PathLike[str],
    stream: Sequence[Mapping[str, int]],
    names: Sequence[str],
    asked: int | None,
    done: StreamMeasurement,
) -> dict[str, Call]:
    model = load_artefact(path, identity=cpu_identity())
    note_threads(done, asked, model.dcir.manifest.threads)
    loaded = model.dcir
    if not isinstance(loaded, LoadedSizes):
        raise InvalidInput("the sizes of this .dcir file are fixed", where=str(path), hint="compile it with --bound")
    known = [d.name for d in loaded.dimensions]
    if set(stream[0]) != set(known):
        raise InvalidInput(
            f"the sizes of this file are named {', '.join(known)}, those of the list {', '.join(stream[0])}",
            where=str(path),
        )
    generator = torch.Generator().manual_seed(0)

    def inputs(sizes: Mapping[str, int]) -> list[torch.Tensor]:
        shapes = loaded.shapes([sizes[name] for name in known])
        pairs = zip(loaded.inputs, shapes, strict=True)
        return [ahead.random_tensor(shape, x.dtype, generator, 2) for x, shape in pairs]

    given = _once(stream, inputs)
    if names:
        done.notes.append("a .dcir file holds dcir's code only; dcir bench MODEL.onnx compares")
    return {"dcir": lambda i: pytree.tree_leaves(model(*given[i]))}


def _of_model(
    source: str | os.PathLike[str],
    stream: Sequence[Mapping[str, int]],
    names: Sequence[str],
    level: int,
    shapes: Mapping[str, Sequence[int | str]] | None,
    done: StreamMeasurement,
    progress: Progress | None,
) -> tuple[dict[str, Call], dict[int, Sequence[Any]]]:
    module, make, path = open_stream(source, stream[0], shapes)
    given = _once(stream, make)
    session = Session(Options.make(threads=done.threads, level=level), progress=progress)
    runs: dict[str, Call] = {"dcir": _calls(_ours(module, session, stream), given)}
    for name in dict.fromkeys(names):
        try:
            runs[name] = _rival(name, module, path, done.threads, given)
        except Exception as e:  # what a rival cannot do is no reason not to measure the others
            done.notes.append(not_measured(name, e))
    volume = [sum(v.numel() for v in _tensors(inputs)) for inputs in given]
    order = sorted(range(len(given)), key=volume.__getitem__)
    compared = dict.fromkeys((0, order[0], order[-1], order[len(order) // 2]))
    exact = {i: _exact(module, given[i], done) for i in list(compared)[:_COMPARED]}
    return runs, exact


def _once(
    stream: Sequence[Mapping[str, int]], make: Callable[[Mapping[str, int]], Sequence[Any]]
) -> list[Sequence[Any]]:
    """Inputs of every call; calls of the same sizes have the same."""
    known: dict[tuple[tuple[str, int], ...], Sequence[Any]] = {}
    for sizes in stream:
        key = tuple(sorted(sizes.items()))
        if key not in known:
            known[key] = make(sizes)
    return [known[tuple(sorted(sizes.items()))] for sizes in stream]


def _calls(module: Callable[..., Any], given: Sequence[Sequence[Any]]) -> Call:
    return lambda i: pytree.tree_leaves(module(*given[i]))


def _ours(module: Any, session: Session, stream: Sequence[Mapping[str, int]]) -> Callable[..., Any]:
    from dcir.driver.verify.check_model_file import opened

    if not isinstance(module, OnnxModule):
        compiled: Callable[..., Any] = compiled_with(module, session)
        return compiled
    bounds = {n: (min(s[n] for s in stream), max(s[n] for s in stream)) for n in stream[0]}
    sized = compile_file_for_sizes(module, session, bounds)
    with opened(sized, Report(session.graphs)) as fast:
        return fast


def _rival(name: str, module: Any, path: str | None, threads: int, given: Sequence[Sequence[Any]]) -> Call:
    if name == "eager":
        return _calls(module, given)
    if name == "inductor":
        return _calls(torch.compile(module), given)
    if path is None:
        raise InvalidInput("sizes that change are measured with ONNX files only")
    feeds = [[t.numpy() for t in _tensors(inputs)] for inputs in given]
    run = opened_runtime(name, path, threads)
    return lambda i: run(feeds[i])


def _tensors(inputs: Sequence[Any]) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(inputs) if isinstance(v, torch.Tensor)]


def _exact(module: Any, inputs: Sequence[Any], done: StreamMeasurement) -> Sequence[Any]:
    """The exact results of a call: in float64, or by eager PyTorch where it is no one graph."""
    if isinstance(module, torch.nn.Module) and done.reference != "eager":
        try:
            exported = export_inference(module, inputs)
            done.reference = "float64"
            return in_double(exported.graph, [*(s.tensor for s in exported.state), *_tensors(inputs)])
        except (DcirError, RuntimeError, TypeError):
            pass
    done.reference = "eager"
    return pytree.tree_leaves(module(*inputs))


def _first_passes(runs: Mapping[str, Call], calls: int, done: StreamMeasurement) -> dict[str, Call]:
    """Run each way once, for its row; of those that can, the calls."""
    able = {}
    for name, run in runs.items():
        try:
            done.rows.append(StreamRow(name, sum(_pass(run, calls))))
        except Exception as e:  # what a rival cannot do is no reason not to measure the others
            if name == "dcir":
                raise
            done.notes.append(not_measured(name, e))
        else:
            able[name] = run
    return able


def _measure(
    runs: Mapping[str, Call],
    calls: int,
    seconds: float,
    exact: Mapping[int, Sequence[Any]],
    percentiles: Sequence[float],
    done: StreamMeasurement,
    progress: Progress | None,
) -> None:
    """Complete the rows of several ways to run a stream, which take turns pass by pass."""
    rows = {row.name: row for row in done.rows}
    times: dict[str, list[list[float]]] = {name: [] for name in runs}
    start, whole = time.perf_counter(), seconds * len(runs)
    while not times["dcir"] or time.perf_counter() - start < whole:
        for name, run in runs.items():
            if progress is not None:
                progress("measuring", round(min(time.perf_counter() - start, whole)), round(whole))
            run(0)  # until it is over, the threads of another's pool may be spinning still
            times[name].append(_pass(run, calls))
    for name, row in rows.items():
        row.total, row.passes = float(np.median([sum(p) for p in times[name]])), len(times[name])
        every = [t for p in times[name] for t in p]
        row.percentiles = {f"{p:g}": float(np.percentile(every, p)) for p in dict.fromkeys(percentiles)}
        if exact:
            row.error = max(relative_error(runs[name](i), want) for i, want in exact.items())
    for row in rows.values():
        row.gain = row.total / rows["dcir"].total


def _pass(run: Call, calls: int) -> list[float]:
    """Milliseconds of every call of a stream."""
    times = []
    for i in range(calls):
        start = time.perf_counter()
        run(i)
        times.append((time.perf_counter() - start) * 1e3)
    return times
