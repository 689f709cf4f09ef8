"""Compilation behind the calls: a thread of the lowest priority makes programs, and torch runs their graphs until then.

It is for inference. A forward decides what it keeps for its backward when it is compiled, so both are compiled before they run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from dcir.frontends.torch.late_graph import in_torch
from dcir.runtime.program import Program

Call = Callable[[list[Any]], list[Any]]

_LEAST = 19
"""What the thread is to others, and the compilers that it starts: the lowest priority."""
_TURN = 1e-4
"""Seconds after which it hands the interpreter to a call: torch asks for that once an operator, and would wait 5 ms each time."""
_END = 60.0
"""Seconds that the end of the process waits for what is under way."""
_ALL: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Work that is done one after the other, by a thread that is there while there is some."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        _ALL.add(self)

    def start(self, work: Callable[[], object]) -> None:
        """Have something done. It has to keep its own errors for whoever asks for its result."""
        with self._changed:
            if self._process != os.getpid():  # a fork has no thread
                self._process, self._thread = os.getpid(), None
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dcir compiles", daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do, at most ``timeout`` seconds; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None or self._process != os.getpid(), timeout)

    def stop(self) -> None:
        """Wait for what is under way, and leave what has not begun."""
        with self._changed:
            self._waiting.clear()
        self.wait(_END)

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # where threads have no priorities of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST)
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            with _SHORT_TURNS():
                work()
            del work  # it may hold a model


@atexit.register
def _stop() -> None:
    # The interpreter's end would stop it anywhere.
    for background in list(_ALL):
        background.stop()


class _ShortTurns:
    """Has threads hand over the interpreter soon, for as long as any background works."""

    def __init__(self) -> None:
        self._lock, self._open, self._before = threading.Lock(), 0, 0.0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._open:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN, self._before))
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    sys.setswitchinterval(self._before)


_SHORT_TURNS = _ShortTurns()


class InTorchAtFirst:
    """A graph that torch runs until its program is there.

    Attributes:
        calls: how many calls torch ran.

    Args:
        graph: the ATen graph.
        make: compiles it.
        start: has that done behind the calls.
    """

    def __init__(
        self, graph: fx.GraphModule, make: Callable[[], Call], start: Callable[[Callable[[], object]], None]
    ) -> None:
        self._graph: fx.GraphModule | None = graph
        self._program: Call | None = None
        self._error: BaseException | None = None
        self.calls = 0
        start(lambda: self._made(make))

    @property
    def watched(self) -> Program | None:
        """The program, once it is there."""
        return self._program if isinstance(self._program, Program) else None

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph.

        Raises:
            DcirError: what its compilation ended with.
        """
        graph = self._graph
        if self._program is not None:
            return self._program(args)
        if self._error is not None:
            raise self._error
        assert graph is not None, "it goes when the program is there"
        self.calls += 1
        return in_torch(graph, args)

    def _made(self, make: Callable[[], Call]) -> None:
        try:
            self._program = make()
        except BaseException as error:
            self._error = error
        self._graph = None
