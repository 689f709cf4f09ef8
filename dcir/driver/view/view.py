"""What `dcir view` and ``fast.dcir.view()`` show: one or two sessions, saved as a file or served."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dcir.driver.session import Progress, Session
from dcir.driver.view.capture import Captured, capture
from dcir.driver.view.comparison import SECONDS
from dcir.driver.view.subject import INFER, Call, Subject, mean_squares, of_module, of_source
from dcir.driver.view.workshop import FORMATS, Workshop, export
from dcir.errors import OptionError
from dcir.options import Options
from dcir.report.session_file import SUFFIX, is_session, read_session, write_session

if TYPE_CHECKING:
    from dcir.report.advice import Advice
    from dcir.view.server import Server

KINDS = (".html", SUFFIX)


class View:
    """Sessions to look at.

    Attributes:
        captured: what the first was made of; None where it was read from a file.
        workshop: makes variants of the first, where that is possible.

    Args:
        sessions: records of the others, behind the first; all of them where nothing is captured.
        captured, workshop: of the first.
    """

    def __init__(
        self,
        sessions: Sequence[Mapping[str, Any]] = (),
        captured: Captured | None = None,
        workshop: Workshop | None = None,
    ) -> None:
        self._others, self.captured, self.workshop = list(sessions), captured, workshop

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The records (``report/session_record.py``), as plain data."""
        first: list[dict[str, Any]] = []
        if self.workshop is not None:
            first = [self.workshop.session()]
        elif self.captured is not None:
            first = [self.captured.record()]
        return [*first, *map(dict, self._others)]

    def __repr__(self) -> str:
        return f"<dcir view of {', '.join(s['model']['name'] for s in self.sessions)}>"

    def to_json(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The record, or a list of two."""
        found = self.sessions
        return found if len(found) > 1 else found[0]

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write a file.

        Args:
            path: name.html is a page that needs nothing else; name.dcirsession can be viewed and compared later.
            form: one of "model-explorer", "chrome-trace", "sdfg", "json", instead of what the name says.

        Raises:
            OptionError: another kind of file, or the session has nothing for this format.
        """
        if form is not None:
            data = self._exported(form)
            Path(path).write_bytes(data)
            return
        check_name(path)
        found = self.sessions
        if Path(path).suffix.lower() == SUFFIX:
            if len(found) > 1:
                raise OptionError("a file holds one session", where=os.fspath(path), hint="name.html holds two")
            write_session(found[0], path)
            return
        from dcir.view.one_file import one_file

        title = f"{' and '.join(s['model']['name'] for s in found)} - dcir view"
        text = json.dumps(found if len(found) > 1 else found[0], separators=(",", ":"), allow_nan=False)
        Path(path).write_text(one_file(text, title), encoding="utf-8")

    def server(self) -> Server:
        """A server of the sessions, not started yet.

        Raises:
            Unsupported: the packages of the extra "view" are not installed.
        """
        from dcir.view.server import Server

        return Server(self.sessions, self.workshop)

    def serve(self) -> Server:
        """Serve the sessions beside what this process does; its ``address`` is what to open, ``close()`` ends it."""
        return self.server().start()

    def _exported(self, form: str) -> bytes:
        if form not in FORMATS:
            raise OptionError(f"a format is one of {', '.join(FORMATS)}", where=f"form={form!r}")
        data = None
        if self.workshop is not None:
            data = self.workshop.export(form)
        elif self.captured is not None:
            data = export(self.captured, form)
        elif form == "json":
            data = (json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False) + "\n").encode()
        if data is None:
            hint = (
                "a trace is of a profile: --seconds 2"
                if form == "chrome-trace"
                else "dcir view MODEL, not a session file"
            )
            raise OptionError(f"this session has nothing for {form}", hint=hint)
        return data


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse a name that says no kind of file.

    Raises:
        OptionError: it ends in neither .html nor .dcirsession.
    """
    if Path(path).suffix.lower() not in KINDS:
        raise OptionError(
            f"a view is written as {' or '.join(KINDS)}", where=os.fspath(path),
            hint=f"-o {Path(path).with_suffix('.html').name}, or --format with any name",
        )  # fmt: skip


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
    from dcir.driver.measure.advise import advise

    return advise(
        lambda batch: subject.make(subject.batch if batch is None else batch)[:2], mode=subject.mode, seconds=seconds,
        threads=() if options.threads is None else (options.threads,), levels=(options.level,), name=subject.name, source=source,
        progress=progress,
    )  # fmt: skip


def view_module(
    name: str,
    plain: Callable[[], Any],
    compiled: Callable[[Any, Session], Callable[..., Any]],
    options: Options,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    seconds: float | None = None,
) -> View:
    """Look at what lives in this process, by a call of a twin of it (``Handle.view``)."""
    subject = of_module(name, plain, compiled, inputs, named, loss=loss)
    changed = replace(options, remarks=True)
    captured = capture(subject, changed, seconds=seconds, sources=True)
    return View((), captured, Workshop(captured))


def view_kept(name: str, session: Session) -> View:
    """Look at what a session has kept of its compilations (``history=True``)."""
    assert session.keeper is not None
    subject = Subject(name, "module", lambda batch: (None, (), {}), batches=False)
    call = Call(nn.Module(), (), {}, mean_squares, trains=False)
    return View((), Captured(subject, session.options, session.keeper.done(), session, call))
