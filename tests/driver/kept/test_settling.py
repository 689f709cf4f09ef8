"""What is to be kept is written by one of the threads whose calls end at once, and raises nothing in the others."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dcir.driver.kept import graph_keeper, keeper
from dcir.driver.kept.graph_keeper import GraphsKeeper
from dcir.driver.kept.keeper import TraceKeeper
from dcir.driver.session import Session
from dcir.options import Options


def graphs() -> tuple[Any, Any]:
    """A keeper, and a graph that it is to keep: all programs are there, and more are not awaited."""
    notes = SimpleNamespace(programs=1, known=0, ends=True, graphs={})
    return GraphsKeeper(Session(Options.make())), graph_keeper._Pending("0" * 40, notes)  # type: ignore[arg-type]


def traces() -> tuple[Any, Any]:
    """The same of a trace."""
    notes: Any = SimpleNamespace(programs=1, moves=False, trains=False)
    made = TraceKeeper(Session(Options.make()), lambda frame: None, lambda graph: graph)
    return made, keeper._Pending("0" * 40, None, notes)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [graphs, traces])
def test_two_threads_at_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, pending = make()
    kept.pending.append(pending)
    written = []

    def write(what: Any) -> None:
        written.append(what)
        if len(written) == 1:  # another thread's call ends while this one writes
            other = threading.Thread(target=kept.settle)
            other.start()
            other.join()

    monkeypatch.setattr(kept, "_write", write)
    kept.settle()
    assert written == [pending] and kept.pending == []


@pytest.mark.parametrize("make", [graphs, traces])
def test_what_is_not_done_stays(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, pending = make()
    pending.notes.ends, pending.notes.moves = False, True
    kept.pending.append(pending)
    written: list[Any] = []
    monkeypatch.setattr(kept, "_write", written.append)
    for programs in (1, 1, 2):
        pending.notes.programs = programs
        kept.settle()
    assert written == [pending] * 2 and kept.pending == [pending]
