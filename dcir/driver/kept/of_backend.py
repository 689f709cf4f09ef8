"""Traces of what ``torch.compile(backend="dcir")`` compiles: nobody is around its calls, so they are written as soon as they are complete.

    a graph, its program made with it                              -->  written when Dynamo has its code
    a graph for all sizes, or a backward, compiled when called     -->  written when a program is made

Nor can a call be made again there: a kept trace is used where its guards say of every call whether it has a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.types import GuardedCode

from dcir.driver.kept.keeper import TraceKeeper
from dcir.driver.session import Session
from dcir.frontends.torch.kept.frames import Frame, KeptFrame
from dcir.frontends.torch.kept.recording import Recording, recording
from dcir.options import Options

_HELD = "dcir_traces"
MakeOptions = Callable[[str | None, dict[str, Any]], Options]
"""From a mode and the options of ``torch.compile`` to those of dcir."""


class BackendTraces:
    """The traces of one ``torch.compile``.

    Args:
        options: of its compilations.
    """

    def __init__(self, options: Options) -> None:
        self.session = Session(options, name="a kept trace", next_step="dcir.sessions()")
        self._keeper = TraceKeeper(self.session, lambda frame: None, lambda graph: graph, repeats=False)
        self.session.on_late = self._keeper.settle

    def found(self, frame: Frame) -> GuardedCode | None:
        """A frame's code from an earlier trace; None if there is none for this call."""
        return self._keeper.found(frame)

    def traced(self, frame: Frame, kept: KeptFrame, notes: Recording) -> None:
        """Dynamo has traced a frame."""
        self._keeper.traced(frame, kept, notes)
        notes.when_made(self._keeper.settle)
        self._keeper.settle()


def traces_of(compile_call: Any, options: MakeOptions) -> BackendTraces | None:
    """Who keeps the traces of a ``torch.compile``; None where that is not asked for.

    Args:
        compile_call: what that makes of its arguments; it holds the answer as long as it lives.
        options: makes dcir's of its options.
    """
    known: BackendTraces | None = getattr(compile_call, _HELD, None)
    if known is None:
        given = getattr(compile_call, "kwargs", {})
        chosen = options(given.get("mode"), given.get("options") or {})
        if not chosen.keep_traces or compile_call is None:
            return None
        known = BackendTraces(chosen)
        setattr(compile_call, _HELD, known)
    return known


def session_of(options: Options) -> Session | None:
    """The session that a graph is to be compiled in whose trace may be kept; None if it is not kept."""
    keeper = recording().keeper
    if not isinstance(keeper, BackendTraces):
        return None
    if keeper.session.options != options:
        recording().refuse("the inputs ask for other options")
        return None
    return keeper.session
