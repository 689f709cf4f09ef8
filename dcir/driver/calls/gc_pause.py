"""Python's garbage collector runs seldom while a call may compile: it finds nothing, and looks at all of torch to find it.

Tracing a network makes a hundred thousand objects that live until the end of the compilation; at the usual threshold of 700 the
collector walks the whole heap again and again, 12 % of the processor time of mobilenet_v2's first call.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (5000, 20, 100)
_lock = threading.Lock()
_inside = 0
_usual = (0, 0, 0)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Raise the collector's thresholds until the last thread is out; leave a user's own higher ones, or none, alone."""
    global _inside, _usual
    with _lock:
        _inside += 1
        if _inside == 1:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < SELDOM[0]:
                gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and gc.get_threshold() == SELDOM:  # else somebody has set them since
                gc.set_threshold(*_usual)
