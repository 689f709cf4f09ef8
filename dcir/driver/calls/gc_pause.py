"""Python's garbage collector runs seldom while a call may compile: it finds nothing, and looks at all of torch to find it.

Tracing a network makes a hundred thousand objects that live until the end of the compilation; at the usual threshold of 700 the
collector walks the whole heap again and again, 12 % of the processor time of mobilenet_v2's first call.

What is left then lives as long as the program. To Python it is a heap that has grown by more than a quarter, which is when it walks all of
it: 0.4 s in one of the next calls, which look like compiled ones that have become slow. So it is put among the old objects by hand.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (5000, 100, 100)
# Objects that compilations may leave, garbage among them, before everything is looked at: about 100 MB.
MANY = 500_000
_lock = threading.Lock()
_inside = 0
_usual = (0, 0, 0)
_left, _full = 0, 0  # how many they left, and since which collection of everything


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
            ours = _inside == 0 and gc.get_threshold() == SELDOM  # else somebody has set them since
            if ours:
                gc.set_threshold(*_usual)
        if ours:
            _grow_old()


def _grow_old() -> None:
    """Put what a compilation left among the oldest objects, without it counting as growth; not in a heap that its owner has frozen."""
    global _left, _full
    young, middle, _ = gc.get_count()
    if (young < SELDOM[0] and middle < 4) or not gc.isenabled() or gc.get_freeze_count():
        return
    gc.collect(0)  # which is due, and finds most of the garbage
    left = len(gc.get_objects(generation=1))
    with _lock:
        full = gc.get_stats()[2]["collections"]
        _left = left + (_left if full == _full else 0)
        _full, many = full, _left > MANY
    if many:
        gc.collect()
    else:
        gc.freeze()
        gc.unfreeze()
