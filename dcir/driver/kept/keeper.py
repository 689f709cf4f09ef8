"""Keeps the traces of one optimised callable in dcir's cache, and has them used instead of new ones.

    first process    a frame is traced, compiled, called  -->  guards, bytecode, AOTAutograd's findings, programs: one file
    another          a frame without code  -->  guards that hold for the call?  -->  its bytecode and programs, no trace

What is kept is written once all of it is compiled: a backward is when it is first called, one program for all sizes when the sizes of a
call first want it. A kept trace that has no program for a call is forgotten, and the call traced as if there were none.
"""

from __future__ import annotations

import logging
import pickle
import secrets
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.types import GuardedCode

from dcir.cache import Cache
from dcir.driver.kept.address import address_of, foreign
from dcir.driver.kept.pickles import from_bytes, tell, to_bytes
from dcir.driver.session import Session
from dcir.frontends.torch.guards.quick import QuickGuards
from dcir.frontends.torch.kept import objects
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.frames import Frame, KeptFrame, again, forget, frame_again
from dcir.frontends.torch.kept.objects import Reader
from dcir.frontends.torch.kept.recording import KeptCall, Recording, TracesAgain
from dcir.frontends.torch.lifetime import BorrowedBackend
from dcir.targets import DEFAULT

_LOG = logging.getLogger(__name__)
_KIND, _SUFFIX = "traces", ".trace"
_MOST = 16
"""Traces of one callable, the last ones that came."""
_TRIES = 8
"""How often a trace is written, or looked at whether it can be: what is still not complete then is left."""


class _Entry:
    """A kept trace.

    Attributes:
        name: what it is known by.
        moves: whether it is for all sizes.
        blocked: whether it is not to be used again in this process.
        guards: Dynamo's, once it is in use.
    """

    def __init__(self, name: str, moves: bool, frame: bytes, body: bytes) -> None:
        self.name, self.moves, self._frame, self._body = name, moves, frame, body
        self.blocked = False
        self.guards: Any = None
        self._read: KeptFrame | None = None

    @property
    def frame(self) -> KeptFrame:
        if self._read is None:
            self._read = frame_again(self._frame)
        return self._read

    def body(self, session: Session, cache: Cache) -> KeptCall:
        return from_bytes(self._body, session, cache)


class _Pending:
    """A trace of this process that is to be kept.

    Attributes:
        address, name: where, and what it is known by there.
        frame, notes: what is known of it.
        written: how many programs it had when it was last written.
        tries: how often that was tried.
    """

    def __init__(self, address: str, frame: KeptFrame, notes: Recording) -> None:
        self.address, self.frame, self.notes = address, frame, notes
        self.name, self.written, self.tries = secrets.token_hex(8), 0, 0


class TraceKeeper:
    """The traces of one callable.

    Attributes:
        pending: those that are to be written, or may be again.

    Args:
        session: of its compilation.
        quick: its settings for guards.
        lender: lends compiled graphs to Dynamo.
    """

    def __init__(self, session: Session, quick: QuickGuards, lender: BorrowedBackend) -> None:
        self._session, self._quick, self._lender = session, quick, lender
        self._addresses: dict[CodeType, str] = {}
        self._entries: dict[str, list[_Entry]] = {}
        self._used: weakref.WeakSet[_Entry] = weakref.WeakSet()
        self.pending: list[_Pending] = []

    def found(self, frame: Frame) -> GuardedCode | None:
        """A frame's code from an earlier trace; None if there is none for this call."""
        self._addresses.pop(frame.code, None)
        if not _keeps(self._session):
            return None
        try:
            address = self._addresses[frame.code] = address_of(frame, self._session)
        except Unkept as e:
            _LOG.debug("traces are not kept: %s", e)
            return None
        for entry in self._at(address):
            if entry.blocked:
                continue
            self._quick.begin()
            try:
                code = again(entry.frame, frame, Descriptions(), lambda entry=entry: self._graph(entry))  # type: ignore[misc]
            except Unkept as e:
                _LOG.debug("a kept trace is not used: %s", e)
                continue
            except Exception as e:  # whatever its bytes, or Dynamo, make of objects that are others than they were
                _LOG.debug("a kept trace cannot be used: %s: %s", type(e).__name__, e)
                entry.blocked = True
                continue
            entry.guards = code.guard_manager
            _LOG.debug("a kept trace is used: %s", entry.name)
            return code
        return None

    def traced(self, frame: Frame, kept: KeptFrame, notes: Recording) -> None:
        """Dynamo has traced a frame."""
        address = self._addresses.get(frame.code)
        if address is not None and not notes.reason:
            self.pending.append(_Pending(address, kept, notes))

    def settle(self) -> None:
        """After a call: write what is complete now, or has more programs than before."""
        for pending in list(self.pending):
            programs = pending.notes.programs
            if programs == pending.written:
                continue
            pending.tries += 1
            try:
                self._write(pending)
                pending.written = programs
                done = not pending.notes.moves
            except Unkept as e:
                _LOG.debug("a trace is not kept: %s", e)
                done = not pending.notes.trains
            except Exception as e:  # the call has its results
                _LOG.debug("a trace cannot be kept: %s: %s", type(e).__name__, e)
                done = True
            if done or pending.tries == _TRIES:
                self.pending.remove(pending)

    def retried(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, again where a kept trace has no program for it, after which that is forgotten."""

        def run(*args: Any, **kwargs: Any) -> Any:
            missed: set[int] = set()
            while True:
                try:
                    return call(*args, **kwargs)
                except TracesAgain as e:
                    entry = e.trace
                    # Of another callable's traces that is its own matter; and Dynamo must not give us one that is forgotten.
                    if entry not in self._used or id(entry) in missed:
                        raise
                    _LOG.debug("a kept trace is forgotten: %s", e)
                    missed.add(id(entry))
                    entry.blocked = True
                    forget(entry.guards)

        return run

    def _graph(self, entry: _Entry) -> Callable[..., Any]:
        cache = Cache.default()
        try:
            kept = entry.body(self._session, cache)
        except Unkept:
            entry.blocked = True
            raise
        runs = kept.runs(entry)
        self._used.add(entry)
        tell(self._session, kept, self._session.add)
        return self._lender.lend(runs)

    def _at(self, address: str) -> list[_Entry]:
        if address not in self._entries:
            rows = _rows(Cache.default().read(_KIND, address, _SUFFIX))
            # Programs of constant sizes are faster, and Dynamo asks for those first as well.
            self._entries[address] = sorted((_Entry(*row) for row in rows), key=lambda entry: entry.moves)
        return self._entries[address]

    def _write(self, pending: _Pending) -> None:
        cache = Cache.default()
        body = to_bytes(pending.notes.kept(), self._session, cache)
        frame = objects.to_bytes(pending.frame)
        gone = {pending.name, *(e.name for e in self._entries.get(pending.address, ()) if e.blocked)}

        def changed(data: bytes | None) -> bytes:
            kept = [row for row in _rows(data) if row[0] not in gone]
            return pickle.dumps([(pending.name, pending.notes.moves, frame, body), *kept][:_MOST], protocol=5)

        cache.change(_KIND, pending.address, _SUFFIX, changed)
        _LOG.debug("a trace is kept: %s, %d bytes", pending.name, len(frame) + len(body))


def _rows(data: bytes | None) -> list[Any]:
    """The traces in a file: of each its name, whether it is for all sizes, its frame and its programs, as bytes."""
    try:
        rows = [] if data is None else Reader(data, frozenset()).load()
    except Exception as e:  # whatever bytes that nobody wrote are taken for
        _LOG.debug("kept traces cannot be read: %s: %s", type(e).__name__, e)
        return []
    form = (str, bool, bytes, bytes)
    return [row for row in rows if type(row) is tuple and tuple(map(type, row)) == form] if type(rows) is list else []


def _keeps(session: Session) -> bool:
    """Whether traces of a compilation are kept: nobody watches what only a new one would show, and there is one process."""
    options = session.options
    watched = (
        session.watch, session.on_import, session.on_rewritten, session.tuner, options.tune, options.debug_dir, options.until,
        options.pipeline, options.schedule, options.memory_limit,
    )  # fmt: skip
    if (
        any(w is not None for w in watched)
        or options.remarks
        or options.skip
        or options.background
        or options.verify != "off"
    ):
        return False
    if options.target != DEFAULT or config.compiled_autograd or Cache.default().temporary or foreign():
        return False
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())
