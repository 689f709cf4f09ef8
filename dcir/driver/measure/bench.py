"""How long a model takes next to other ways to run it: interleaved calls, percentiles, and the error of each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dcir.codegen.cpp.toolchain import cpu_identity
from dcir.driver.ahead import compile as ahead
from dcir.driver.measure.baselines import Run, baselines, check_names
from dcir.driver.measure.models import BenchModel, open_model
from dcir.driver.measure.turns import BenchRow, measure, reference_of, relative_error
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress, Session
from dcir.errors import InvalidInput
from dcir.frontends.onnx import OnnxModule
from dcir.options import Options
from dcir.report.explain import Report
from dcir.runtime.artefact import load_artefact
from dcir.runtime.sized_model import LoadedSizes

__all__ = ["BenchRow", "Measurement", "bench_file", "measure", "reference_of", "relative_error"]


@dataclass
class Measurement:
    """What `dcir bench` shows: dcir's row first.

    Attributes:
        reference: what errors are measured against: "float64", "eager", or "" where there is nothing.
        notes: what was asked for and could not be measured.
    """

    model: str
    threads: int
    rows: list[BenchRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reference: str = ""

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return asdict(self)

    def to_text(self) -> str:
        """The rows for people; "dcir gains" is how much faster dcir is."""
        asked = list(self.rows[0].percentiles) if self.rows else []
        lines = [
            f"{self.model}, {self.threads} threads" + (f"; error against {self.reference}" if self.reference else "")
        ]
        lines.append(
            f"{'':<9} {'least ms':>10} {'median ms':>10} {'p95 ms':>10} "
            + "".join(f"{f'p{p} ms':>10} " for p in asked)
            + f"{'spread':>7} {'calls':>6} {'dcir gains':>11} {'error':>8}"
        )
        for r in self.rows:
            error = "-" if r.error is None else f"{r.error:.1e}"
            gain = "-" if r.name == "dcir" else f"{r.speed_up:.2f} x"
            lines.append(
                f"{r.name:<9} {r.least:>10.4f} {r.median:>10.4f} {r.p95:>10.4f} "
                + "".join(f"{r.percentiles[p]:>10.4f} " for p in asked)
                + f"{r.spread:>6.0%} {r.calls:>6} {gain:>11} {error:>8}"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def bench_file(
    source: str | os.PathLike[str],
    baseline_names: Sequence[str],
    seconds: float,
    threads: int | None,
    *,
    level: int = 4,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    batch: int | None = None,
    percentiles: Sequence[float] = (),
    progress: Progress | None = None,
) -> Measurement:
    """Measure inference of a model, on random inputs or those that a Python function gives.

    Args:
        source: an ONNX or .dcir file, or ``file.py:function`` (see ``models.open_model``).
        baseline_names: from ``baselines.BASELINES``; a .dcir file holds only dcir's code and is measured alone.
        seconds: time for each.
        threads: size of the thread team; None means as many as torch uses. A .dcir file has its own.
        level: of dcir's optimisation.
        shapes, batch: sizes of the inputs.
        percentiles: to tell besides median and 95.
        progress: told of the steps of dcir's compilation, and of measuring.

    Raises:
        OptionError: an unknown rival, or sizes for a model that takes none.
        InvalidInput: no model is there.
    """
    check_names(baseline_names)
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    done = Measurement(str(source), threads or before)
    try:
        with tempfile.TemporaryDirectory(prefix="dcir-") as folder, torch.no_grad():
            if os.path.isfile(source) and ahead.is_artefact(source):
                if shapes or batch:
                    raise InvalidInput("the sizes of a .dcir file are fixed", where=str(source))
                runs = _of_artefact(source, baseline_names, threads, done)
                done.rows = measure(runs, seconds, percentiles=percentiles, progress=progress)
                return done
            model = open_model(source, shapes, batch)
            runs = {"dcir": _ours(model, Options.make(threads=done.threads, level=level), progress)}
            others, notes = baselines(model, baseline_names, done.threads, Path(folder))
            done.notes += notes
            done.reference, exact = reference_of(model)
            done.rows = measure(runs | others, seconds, exact, percentiles, progress)
        return done
    finally:
        torch.set_num_threads(before)


def note_threads(done: Any, asked: int | None, made_for: int) -> None:
    """Have a measurement of a .dcir file name the threads that its code was made for, whatever is asked for."""
    if asked not in (None, made_for):
        done.notes.append(f"the code in a .dcir file runs on as many threads as it was made for, not on {asked}")
    done.threads = made_for


def _of_artefact(
    path: str | os.PathLike[str], names: Sequence[str], asked: int | None, done: Measurement
) -> dict[str, Run]:
    model = load_artefact(path, identity=cpu_identity())
    note_threads(done, asked, model.dcir.manifest.threads)
    generator = torch.Generator().manual_seed(0)
    loaded, shapes = model.dcir, [x.shape for x in model.dcir.inputs]
    if isinstance(loaded, LoadedSizes):
        sizes = [min(s, d.most or s) for s, d in zip(loaded.sizes.programs[0], loaded.dimensions, strict=True)]
        shapes = loaded.shapes(sizes)
        shown = ", ".join(f"{d.name}={s}" for s, d in zip(sizes, loaded.dimensions, strict=True))
        done.notes.append(f"measured at {shown}; --sizes FILE measures a stream of others")
    pairs = zip(loaded.inputs, shapes, strict=True)
    inputs = [ahead.random_tensor(shape, x.dtype, generator, 2) for x, shape in pairs]
    if names:
        done.notes.append("a .dcir file holds dcir's code only; dcir bench MODEL.onnx compares")
    return {"dcir": lambda: pytree.tree_leaves(model(*inputs))}


def _ours(model: BenchModel, options: Options, progress: Progress | None) -> Run:
    from dcir.driver.verify.check_model_file import opened

    session, inputs = Session(options, progress=progress), model.inputs
    if isinstance(model.module, OnnxModule):
        with opened(ahead.compile_onnx(model.module, session), Report(session.graphs)) as compiled:
            return lambda: pytree.tree_leaves(compiled(*inputs))
    fast = compiled_with(model.module, session)
    return lambda: pytree.tree_leaves(fast(*inputs))
