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

from torch._dynamo import config

SELDOM = (100_000, 100, 100)
# Objects that compilations may leave, garbage among them, before everything is looked at: about 100 MB.
MANY = 500_000
_lock = threading.Lock()
_inside = 0
_usual: tuple[int, int, int] | None = None  # those before ours, while ours hold
_left, _full = 0, 0  # how many they left, and since which collection of everything


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Raise the collector's thresholds until the last thread is out; leave a user's own higher ones, or none, alone."""
    global _inside, _usual
    with _lock:
        _inside += 1
        usual = gc.get_threshold()
        if _usual is None and 0 < usual[0] < SELDOM[0]:
            _usual = usual
            gc.set_threshold(*SELDOM)
    # Dynamo ends a compilation with a collection of its own, from which on what is left counts as growth.
    dynamos = config.run_gc_after_compile
    config.run_gc_after_compile = dynamos and _usual is None
    try:
        yield
    finally:
        config.run_gc_after_compile = dynamos
        with _lock:
            _inside -= 1
        if _ours():
            _grow_old()  # first, or what is due at the usual thresholds is looked at and counted
        with _lock:
            if _usual is not None and _ours():
                gc.set_threshold(*_usual)
            if _inside == 0:
                _usual = None


def _ours() -> bool:
    """Whether the last one out finds the thresholds that were raised here; else somebody has set them since."""
    return _usual is not None and _inside == 0 and gc.get_threshold() == SELDOM


def _grow_old() -> None:
    """Put what a compilation left among the oldest objects, without it counting as growth; not in a heap that its owner has frozen."""
    global _left, _full
    young, middle, _ = gc.get_count()
    if young < SELDOM[0] // 4 and not middle:
        return  # nothing was compiled
    if not gc.isenabled() or gc.get_freeze_count():
        gc.collect(1)  # as Dynamo does
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
