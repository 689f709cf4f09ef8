"""Compiles a model so that all of it can be looked at, with or without code, and writes down the session record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dcir.driver.keeper import Keeper
from dcir.driver.measure.machine import rates
from dcir.driver.measure.profile import profile
from dcir.driver.session import Progress, Session
from dcir.driver.targets.host import host_target
from dcir.driver.view.subject import Call, Subject
from dcir.options import Options
from dcir.report.advice import Advice
from dcir.report.explain import Report
from dcir.report.kept_graph import KeptGraph
from dcir.report.profile import Profile
from dcir.report.roofline import Roofline
from dcir.report.roofline_points import Setting, run_of
from dcir.report.session_record import About, coverage_notes, session_record
from dcir.targets import target_class

_SCALARS = (bool, int, float, str)


@dataclass
class Captured:
    """A model that was compiled to be looked at.

    Attributes:
        subject: the model.
        options: of the compilation.
        graphs: what was kept.
        session: with the records.
        call: of which the inputs were.
        profile: if it was measured.
        advice: what to change of the call, and the roofline that it was found on, if they were asked for.
        written: the record, once it was asked for.
    """

    subject: Subject
    options: Options
    graphs: list[KeptGraph]
    session: Session
    call: Call
    profile: Profile | None = None
    advice: Advice | None = None
    written: dict[str, Any] | None = None

    def record(self, variants: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The session record (``report/session_record.py``)."""
        if self.written is None:
            self.written = self._record()
        return {**self.written, "variants": list(variants)}

    def _record(self) -> dict[str, Any]:
        machine, options = rates(), self.options
        coverage = self.session.coverage
        report = Report(
            self.session.graphs, coverage.breaks, machine, (), coverage.found, coverage.calls, skip=options.skip
        )
        subject = self.subject
        about = About(
            model={
                "name": subject.name, "source": subject.source, "mode": subject.mode, "batch": subject.batch,
                "inputs": self.call.rows(),
            },
            options=options_row(options),
            pipeline=pipeline_rows(options),
            profile=self.profile,
            roofline=self._roofline(),
            advice=self.advice,
            notes=coverage_notes(report),
        )  # fmt: skip
        return session_record(self.graphs, about, machine, torch.__version__)

    def _roofline(self) -> Roofline | None:
        if self.advice is not None:
            return self.advice.roofline
        if self.profile is None:
            return None
        machine, measured = rates(), self.profile
        setting = Setting(measured.threads, self.subject.batch, self.options.level)
        return Roofline(self.subject.name, self.subject.mode, machine, (run_of(measured, setting, machine),))


def capture(
    subject: Subject,
    options: Options,
    *,
    batch: int | None = None,
    seconds: float | None = None,
    sources: bool = False,
    progress: Progress | None = None,
) -> Captured:
    """Compile a model and keep what there is to look at.

    Args:
        subject: the model.
        options: of the compilation; sizes are constant.
        batch: instead of the subject's.
        seconds: how long to measure; None makes no code at all, and needs no compiler: the call runs in torch.
        sources: whether to keep the graphs that were imported, to import them once more.
        progress: hears of the steps.

    Raises:
        DcirError: whatever ``dcir.optimize`` raises of such a model.
    """
    call, keeper = subject.call(batch), Keeper(sources=sources)
    options = replace(options, dynamic=False)
    with threads_of(options), torch.set_grad_enabled(subject.trains):
        if seconds is not None and target_class(options.target).profiles:
            sessions: list[Session] = []
            measured = profile(
                call.model, _keeping(subject, keeper, sessions), options, call.inputs, call.named, seconds=seconds,
                loss=call.loss if subject.trains else None, progress=progress,
            )  # fmt: skip
            return Captured(subject, options, keeper.done(), sessions[0], call, measured)
        session = Session(options, progress=progress, keeper=keeper, without_code=True)
        call.run(subject.compiled(call.model, session))
    return Captured(subject, options, keeper.done(), session, call)


@contextmanager
def threads_of(options: Options) -> Iterator[None]:
    """Torch has the threads of some options while this lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def options_row(options: Options) -> dict[str, Any]:
    """Options as plain data; of a pipeline the names."""
    row: dict[str, Any] = {
        f.name: value
        for f in dataclasses.fields(options)
        if _is_plain(value := getattr(options, f.name)) or value is None
    }
    row["skip"] = list(options.skip)
    if options.pipeline is not None:
        row["pipeline"] = [p.name for p in options.pipeline]  # type: ignore[attr-defined]  # passes are above Options
    return row


def pipeline_rows(options: Options) -> list[dict[str, Any]]:
    """The passes that can be switched off: those of the options, or of the highest level."""
    passes: Any = options.pipeline or host_target(None, options.target).pipeline(4)
    return [
        {
            "name": p.name, "tier": p.tier, "summary": p.summary, "final": p.final,
            "fields": {
                f.name: value for f in dataclasses.fields(p) if _is_plain(value := getattr(p, f.name))
            },
        }
        for p in passes
    ]  # fmt: skip


def _is_plain(value: Any) -> bool:
    return isinstance(value, _SCALARS) and not (isinstance(value, float) and not math.isfinite(value))


def _keeping(
    subject: Subject, keeper: Keeper, sessions: list[Session]
) -> Callable[[nn.Module, Session], Callable[..., Any]]:
    """Compiles as the subject does, with sessions that keep."""

    def compiled(model: Any, session: Session) -> Callable[..., Any]:
        session.keeper = keeper
        sessions.append(session)
        return subject.compiled(model, session)

    return compiled
