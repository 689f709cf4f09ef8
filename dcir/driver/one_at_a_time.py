"""One graph is compiled at a time, without collections of garbage; and programs that are compiled when they are first called."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dcir.driver.session import Call

# DaCe's configuration is per thread and its generator is not thread safe.
_COMPILING = threading.RLock()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """While a graph is compiled: no other is, and the cyclic garbage collector, which would walk all of torch and DaCe 0.2 s long and
    find nothing to free, does not run.
    """
    with _COMPILING:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


class Late:
    """A program that is made when it is first called.

    Args:
        make: makes it.
        hears: is called once it is made.

    Attributes:
        program: None as long as it was not.
    """

    def __init__(self, make: Callable[[], Call], hears: Callable[[], None] | None = None) -> None:
        self._make: Callable[[], Call] | None = make
        self._hears = hears
        self.program: Call | None = None

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        return (self.program or self._made())(args)

    def _made(self) -> Call:
        with one_at_a_time():
            if self._make is not None:
                self.program, self._make = self._make(), None
                if self._hears is not None:
                    self._hears()
            assert self.program is not None
            return self.program
