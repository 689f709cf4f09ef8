"""Python's floats as constants in traces for all sizes, as in all others, until there are too many traces.

Asked for sizes that move, Dynamo takes every float for one that moves too: the eps of a norm, the 6 of a ReLU6. Kernels then read them from
memory, and decompositions that ask what one is (``hardtanh`` does) make a trace one for a single value, and so for single sizes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch._dynamo import config
from torch._dynamo.utils import counters

_MOST = 4
"""Calls that traced something, of a program whose floats are constants: those of two modes, and of sizes of 1."""


class ConstantFloats:
    """Whether the traces of one callable have floats as constants.

    Attributes:
        on: whether it is so.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._traced, self._lock = 0, threading.Lock()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Around a call that may be traced."""
        if not self.on:
            yield
            return
        before, frames = config.specialize_float, counters["frames"]["total"]
        config.specialize_float = True
        try:
            yield
        finally:
            config.specialize_float = before
            if counters["frames"]["total"] != frames:
                with self._lock:
                    self._traced += 1
                    self.on = self._traced < _MOST
