"""Keeps the traces of one optimised callable in dcir's cache, and has them used instead of new ones.

    first process    a frame is traced, compiled, called  -->  guards, bytecode, AOTAutograd's findings, programs: one file
    another          a frame without code  -->  guards that hold for the call?  -->  its bytecode and programs, no trace

What is kept is written once all of it is compiled: a backward is when it is first called, one program for all sizes when the sizes of a
call first want it. A kept trace that has no program for a call is forgotten, and the call traced as if there were none.
"""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

import torch
from torch._dynamo import config
from torch._dynamo.types import GuardedCode

from dcir.cache import Cache
from dcir.driver.kept.address import address_of, foreign
from dcir.driver.kept.pickles import from_bytes, tell, to_bytes
from dcir.driver.kept.rows import Row, add_row, read_rows
from dcir.driver.session import Session
from dcir.frontends.torch.kept import objects
from dcir.frontends.torch.kept.descriptions import Descriptions, Unkept
from dcir.frontends.torch.kept.frames import Frame, KeptFrame, again, forget, frame_again
from dcir.frontends.torch.kept.recording import KeptCall, Recording, TracesAgain
from dcir.targets import DEFAULT

Graph = Callable[..., Any]
"""A compiled graph, as Dynamo calls it."""
_LOG = logging.getLogger(__name__)
_KIND, _SUFFIX = "traces", ".trace"
_T = TypeVar("_T")

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
    def readable(self) -> bool:
        """Whether there is a frame in its bytes; if not, it is not looked at again."""
        try:
            return bool(self.frame)
        except Exception as e:  # whatever bytes that nobody wrote are taken for
            _LOG.debug("a kept trace cannot be read: %s: %s", type(e).__name__, e)
            self.blocked = True
            return False

    @property
    def frame(self) -> KeptFrame:
        """What Dynamo made of its frame."""
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
        session: of its compilation.
        pending: those that are to be written, or may be again.

    Args:
        session: of its compilation.
        begin: is called before guards are built.
        lend: makes of a compiled graph what Dynamo is given.
        repeats: whether calls go through ``retried``; if not, no trace is used that there may be no program of for a call.
    """

    def __init__(
        self, session: Session, begin: Callable[[Frame], None], lend: Callable[[Graph], Graph], *, repeats: bool = True
    ) -> None:  # fmt: skip
        self.session, self._begin, self._lend, self._repeats = session, begin, lend, repeats
        self._addresses: dict[CodeType, str] = {}
        self._entries: dict[str, list[_Entry]] = {}
        self._used: weakref.WeakSet[_Entry] = weakref.WeakSet()
        self.pending: list[_Pending] = []

    def found(self, frame: Frame) -> GuardedCode | None:
        """A frame's code from an earlier trace; None if there is none for this call."""
        self._addresses.pop(frame.code, None)
        reason = refusal(self.session)
        if reason:
            _LOG.debug("traces are not kept: %s", reason)
            return None
        try:
            address = self._addresses[frame.code] = address_of(frame, self.session)
        except Unkept as e:
            _LOG.debug("traces are not kept: %s", e)
            return None
        except Exception as e:  # whatever somebody's objects make of being looked at; the call can be traced
            _LOG.debug("traces cannot be kept: %s: %s", type(e).__name__, e)
            return None
        for entry in self._at(address):
            if entry.blocked or not entry.readable:
                continue
            self._begin(frame)
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
        if notes.reason:
            _LOG.debug("a trace is not kept: %s", notes.reason)
        elif address is not None:
            self.pending.append(_Pending(address, kept, notes))

    def settle(self) -> None:
        """After a call: write what is complete now, or has more programs than before."""
        for pending in taken_in_turn(self.pending):
            programs = pending.notes.programs
            if programs == pending.written:
                self.pending.append(pending)
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
            if not done and pending.tries < _TRIES:
                self.pending.append(pending)

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
            kept = entry.body(self.session, cache)
            if not kept.certain and not self._repeats:
                raise Unkept("there may be no program of it for a call, which cannot be made again")
        except Unkept:
            entry.blocked = True
            raise
        runs = kept.runs(entry)
        self._used.add(entry)
        tell(self.session, kept, self.session.add)
        return self._lend(runs)

    def _at(self, address: str) -> list[_Entry]:
        if address not in self._entries:
            rows = read_rows(Cache.default(), _KIND, address, _SUFFIX)
            # Programs of constant sizes are faster, and Dynamo asks for those first as well.
            self._entries[address] = sorted((_Entry(*row) for row in rows), key=lambda entry: entry.moves)
        return self._entries[address]

    def _write(self, pending: _Pending) -> None:
        cache = Cache.default()
        body = to_bytes(pending.notes.kept(), self.session, cache)
        frame = objects.to_bytes(pending.frame.under(pending.notes.condition))
        gone = {e.name for e in self._entries.get(pending.address, ()) if e.blocked}
        add_row(cache, _KIND, pending.address, _SUFFIX, Row(pending.name, pending.notes.moves, frame, body), gone)


def taken_in_turn(pending: list[_T]) -> Iterator[_T]:
    """What is in a list now, each taken out by one of the threads that ask for it at once: after a call every thread does."""
    for _ in range(len(pending)):
        try:
            taken = pending.pop(0)
        except IndexError:
            return  # others have the rest
        yield taken


def refusal(session: Session) -> str:
    """Why no traces are kept; empty if they are: nobody watches what only a new one would show, and there is one process."""
    options = session.options
    watched = {
        "watch": session.watch, "on_import": session.on_import, "on_rewritten": session.on_rewritten, "tuner": session.tuner,
        "tune": options.tune, "debug_dir": options.debug_dir, "until": options.until, "pipeline": options.pipeline,
        "schedule": options.schedule, "memory_limit": options.memory_limit, "remarks": options.remarks or None,
        "skip": options.skip or None,
        "background": options.background or None, "verify": None if options.verify == "off" else options.verify,
    }  # fmt: skip
    asked = [name for name, value in watched.items() if value is not None]
    if asked:
        return f"{', '.join(asked)} is asked for"
    if options.target != DEFAULT:
        return f"the target is {options.target}"
    if config.compiled_autograd:
        return "autograd is compiled"
    if Cache.default().temporary:
        return "the cache ends with the process"
    if foreign():
        return "code of other packages has a part in what is compiled"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "there are several processes"
    return ""
