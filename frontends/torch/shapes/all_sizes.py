"""Traces for all sizes at once: only sizes move, and each by itself.

Asked for sizes that move, Dynamo takes every float for one that moves too: the eps of a norm, the 6 of a ReLU6. Kernels then read them from
memory, and decompositions that ask what one is (``hardtanh`` does) make a trace one for a single value. And sizes that are equal in the
first call are one size, so that a square image makes a trace for squares.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch._dynamo import config
from torch._dynamo.utils import counters
from torch.fx.experimental import _config as shapes

_MOST = 4
"""Calls that traced something, of a program whose floats are constants: those of two modes, and of sizes of 1. Then floats move."""


class AllSizes:
    """How one callable is traced.

    Attributes:
        on: whether for all sizes at once; else Dynamo does it as it is.
        constants: whether floats are constants.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = self.constants = on
        self._traced, self._lock = 0, threading.Lock()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Around a call that may be traced."""
        if not self.on:
            yield
            return
        before = config.specialize_float, shapes.use_duck_shape
        frames = counters["frames"]["total"]
        config.specialize_float, shapes.use_duck_shape = self.constants or before[0], False
        try:
            yield
        finally:
            config.specialize_float, shapes.use_duck_shape = before
            if counters["frames"]["total"] != frames:
                with self._lock:
                    self._traced += 1
                    self.constants = self._traced < _MOST
