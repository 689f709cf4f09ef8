"""Times of the steps of a call on a GPU: events between them, which the driver's text records (``codegen/cuda/print_driver.py``)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


class StepClock:
    """The events of a library that measures its steps, on one device.

    Args:
        library: the loaded library.
        record: the address of the driver's function that records an event on a stream.
        steps: how many it has.
    """

    def __init__(self, library: Any, record: ctypes.c_void_p, steps: int) -> None:
        self._library = library
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        for event in self._events:
            event.record()  # before that there is no event of the driver's
        self._handles = (ctypes.c_void_p * (steps + 1))(*(event.cuda_event for event in self._events))
        self._record = record

    def chosen(self) -> StepClock:
        """This clock, which the next call has."""
        ctypes.c_void_p.in_dll(self._library, "dcir_events").value = ctypes.addressof(self._handles)
        ctypes.c_void_p.in_dll(self._library, "dcir_mark").value = self._record.value
        return self

    def ticks(self) -> list[int]:
        """Nanoseconds of each step of the last call, and 0 for teams of threads; waits until it is over."""
        self._events[-1].synchronize()
        laps = zip(self._events, self._events[1:], strict=False)
        return [*(round(a.elapsed_time(b) * 1e6) for a, b in laps), 0]


def steps_of(library: Any) -> int:
    """How many steps a library measures; 0 of one that was not built to.

    Its ticks are one word a step and two more, of which the linker knows the size and ctypes does not: the number stands beside them.
    """
    try:
        return ctypes.c_int.in_dll(library, "dcir_steps").value
    except ValueError:
        return 0
