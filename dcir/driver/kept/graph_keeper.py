"""Keeps in dcir's cache what graphs of Dynamo's and of training steps become, for the same graphs in other processes.

What is kept is written once all of it is compiled: a backward is when it is first called, one program for all sizes when the sizes of a
call first want it, and again with every further one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable

from dcir.cache import Cache
from dcir.driver.kept.address import address_of_graph
from dcir.driver.kept.keeper import refusal, taken_in_turn
from dcir.driver.kept.pickles import from_bytes, is_complete, tell, to_bytes
from dcir.driver.kept.rows import Row, add_row, read_rows
from dcir.driver.session import Session
from dcir.frontends.torch.kept.descriptions import Unkept
from dcir.frontends.torch.kept.graphs import Found, GraphNotes, StepNotes

_LOG = logging.getLogger(__name__)
_KIND, _SUFFIX = "graphs", ".graph"
_MOST = 4
"""Traces for all sizes that are read: of further ones the sizes are traced anew."""
_VERDICT = "verdict"
"""Name of the row that says what was found out."""


class _Pending:
    """A graph that is to be kept.

    Attributes:
        written: how many programs it had when it was last written.
    """

    def __init__(self, address: str, notes: GraphNotes | StepNotes) -> None:
        self.address, self.notes = address, notes
        self.name, self.written = secrets.token_hex(8), notes.known


class GraphsKeeper:
    """What becomes of the graphs of one session.

    Attributes:
        pending: those that are to be written, or may be again.

    Args:
        session: of their compilation.
        at_once: whether each is written as soon as it is complete, since nobody is around the calls that compile.
    """

    def __init__(self, session: Session, *, at_once: bool = False) -> None:
        self.session, self._at_once = session, at_once
        self.pending: list[_Pending] = []
        self._broken: dict[str, set[str]] = {}

    def address(self, rows: Callable[[], Iterable[str]]) -> str | None:
        """Where what a graph becomes is kept; None: it is not."""
        reason = refusal(self.session) or _watched(self.session)
        if reason:
            _LOG.debug("graphs are not kept: %s", reason)
            return None
        try:
            return address_of_graph(rows(), self.session)
        except Unkept as e:
            _LOG.debug("a graph is not kept: %s", e)
        except Exception as e:  # whatever a graph has that nobody thought of; it can be compiled
            _LOG.debug("a graph cannot be kept: %s: %s", type(e).__name__, e)
        return None

    def found(self, address: str) -> list[Found]:
        """What is kept there, the latest first."""
        cache, found = Cache.default(), list[Found]()
        for row in read_rows(cache, _KIND, address, _SUFFIX):
            try:
                kept = from_bytes(row.body, self.session, cache)
                whole = kept.whole()
            except Exception as e:  # a library that is gone, or whatever bytes that nobody wrote are taken for
                _LOG.debug("a kept graph cannot be used: %s: %s", type(e).__name__, e)
                self._broken.setdefault(address, set()).add(row.name)
                continue
            tell(self.session, kept, self.session.add)
            _LOG.debug("a kept graph is used: %s", row.name)
            found.append(Found(kept, whole))
            if not row.moves or len(found) == _MOST:
                break
        return found

    def made(self, address: str, notes: GraphNotes | StepNotes) -> None:
        """A graph was compiled that is to be kept there."""
        if notes.reason:
            _LOG.debug("a graph is not kept: %s", notes.reason)
            return
        self.pending.append(_Pending(address, notes))
        if self._at_once:
            notes.when_made(self.settle)
            self.settle()

    def verdict(self, address: str) -> str | None:
        """What was found out about the graph of an address; None: nothing yet."""
        rows = read_rows(Cache.default(), _KIND, address, _SUFFIX)
        return next((row.body.decode(errors="replace") for row in rows if row.name == _VERDICT), None)

    def judge(self, address: str, found: str) -> None:
        """That was found out about the graph of an address."""
        try:
            add_row(Cache.default(), _KIND, address, _SUFFIX, Row(_VERDICT, False, b"", found.encode()))
        except Exception as e:  # the call has its results
            _LOG.debug("a verdict cannot be kept: %s: %s", type(e).__name__, e)

    def settle(self) -> None:
        """Write what is complete now, or has more programs than before."""
        for pending in taken_in_turn(self.pending):
            programs = pending.notes.programs
            if programs == pending.written or not is_complete(g.call for g in pending.notes.graphs.values()):
                self.pending.append(pending)
                continue
            try:
                self._write(pending)
                pending.written = programs
                done = pending.notes.ends
            except Exception as e:  # what cannot be written, or whatever else: the call has its results
                _LOG.debug("a graph is not kept: %s: %s", type(e).__name__, e)
                done = True
            if not done:
                self.pending.append(pending)

    def _write(self, pending: _Pending) -> None:
        cache = Cache.default()
        body = to_bytes(pending.notes.kept(), self.session, cache)
        row = Row(pending.name, pending.notes.moving is not None, b"", body)
        add_row(cache, _KIND, pending.address, _SUFFIX, row, self._broken.get(pending.address, ()))


def _watched(session: Session) -> str:
    """Why what becomes of graphs is not kept; empty if it is: what is asked for needs the networks."""
    options = session.options
    if not options.keep_graphs:
        return "keep_graphs=False"
    asked = session.keeper is not None or session.without_code or session.architectures
    return "networks are to be looked at" if asked or options.record_function else ""
