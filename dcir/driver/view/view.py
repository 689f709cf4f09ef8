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

from dcir.driver.session import Session
from dcir.driver.view.capture import Captured, capture
from dcir.driver.view.subject import Call, Subject, mean_squares, of_module
from dcir.driver.view.workshop import FORMATS, Workshop, export
from dcir.errors import OptionError
from dcir.options import Options
from dcir.report.session_file import SUFFIX, write_session

if TYPE_CHECKING:
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
    subject = Subject(name, "module", lambda batch: (None, (), {}), lambda model, session: model, batches=False)
    call = Call(nn.Module(), (), {}, mean_squares, trains=False)
    return View((), Captured(subject, session.options, session.keeper.done(), session, call))
