"""Work counted instead of timed: the lines of Python that a call runs, whatever else the machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(work: Callable[[], object]) -> int:
    """Lines of Python run by ``work()``, those of what it calls among them (one thread; C counts as nothing)."""
    count = 0

    def each(frame: FrameType, event: str, what: Any) -> Any:
        nonlocal count
        count += event == "line"
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(make: Callable[[int], Callable[[], object]], few: int, times: int) -> float:
    """How many times the lines of ``make(few)`` those of ``make(few * times)`` are, over ``times``: 1 where work is linear."""
    return lines(make(few * times)) / lines(make(few)) / times
