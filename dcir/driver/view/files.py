"""Models and sessions that the command line names, opened to be looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dcir.driver.measure.advise import advise as measured_advice
from dcir.driver.measure.models import open_with_batch
from dcir.driver.optimize import compiled_with
from dcir.driver.session import Progress
from dcir.driver.view.capture import Captured, capture
from dcir.driver.view.comparison import SECONDS
from dcir.driver.view.subject import INFER, MODES, Subject
from dcir.driver.view.view import View
from dcir.driver.view.workshop import Workshop
from dcir.errors import OptionError
from dcir.options import Options
from dcir.report.advice import Advice
from dcir.report.session_file import is_session, read_session


def of_source(
    source: str,
    *,
    mode: str = INFER,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Subject:
    """What an ONNX file or ``file.py:function`` names (``measure.models.open_model``).

    Raises:
        OptionError: there is no such mode.
    """
    if mode not in MODES:
        raise OptionError(f"a mode is one of {', '.join(MODES)}", where=f"mode={mode!r}")

    def make(batch: int | None) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        opened = open_with_batch(source, shapes, batch)
        return opened.module, opened.inputs, {}

    file, colon, function = source.rpartition(":")
    python = bool(colon) and file.endswith(".py") and not os.path.exists(source)
    name = f"{os.path.basename(file)}:{function}" if python else os.path.basename(source)
    settings = "".join(f", {k}={v!r}" for k, v in (("shapes", shapes or None), ("batch", batch)) if v is not None)
    opening = (
        "from dcir.driver.measure.models import open_with_batch",
        "",
        f"opened = open_with_batch({source!r}{settings})",
        "model, inputs = opened.module, opened.inputs",
    )
    return Subject(name, "python" if python else "onnx", make, compiled_with, mode, batch=batch, opening=opening)


def view_files(
    sources: Sequence[str],
    *,
    mode: str = INFER,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    seconds: float | None = None,
    variant_seconds: float = SECONDS,
    advise: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> View:
    """Look at one model or session, or compare two.

    Args:
        sources: ONNX files, ``file.py:function``, or session files; one or two.
        mode: "infer", or "train" for forward and backward.
        batch, shapes: sizes of the inputs of models.
        seconds: how long to measure each model; None makes no code.
        variant_seconds: how long to measure a variant that is asked for.
        advise: whether to find out what to change of the calls of models, which takes some compilations and measures each.
        progress: hears of the steps.
        options: of the compilation, as in ``dcir.optimize``.

    Raises:
        OptionError: none or more than two sources.
        SessionInvalid: a session file is broken or hostile.
    """
    if not 1 <= len(sources) <= 2:
        raise OptionError("one or two models can be looked at", where=" ".join(sources), hint="dcir view A B")
    made = Options.make(**{"remarks": True, **options})
    first: Captured | None = None
    records: list[Mapping[str, Any]] = []
    for number, source in enumerate(sources):
        if os.path.isfile(source) and is_session(source):
            records.append(read_session(source))
            continue
        subject = of_source(source, mode=mode, batch=batch, shapes=shapes)
        captured = capture(subject, made, seconds=seconds, sources=number == 0, progress=progress)
        if advise:
            captured.advice = _advice(subject, source, made, seconds or SECONDS, progress)
        if number == 0:
            first = captured
        else:
            records.append(captured.record())
    workshop = None if first is None else Workshop(first, seconds=variant_seconds)
    return View(records, first, workshop)


def _advice(subject: Subject, source: str, options: Options, seconds: float, progress: Progress | None) -> Advice:
    return measured_advice(
        lambda batch: subject.make(subject.batch if batch is None else batch)[:2], mode=subject.mode, seconds=seconds,
        threads=() if options.threads is None else (options.threads,), levels=(options.level,), name=subject.name, source=source,
        progress=progress,
    )  # fmt: skip
