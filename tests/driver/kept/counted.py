"""Counts what AOTAutograd traces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dcir.frontends.torch import ahead_of_time


@contextlib.contextmanager
def counted_traces() -> Iterator[list[int]]:
    """While it lasts: one number for every graph that AOTAutograd traces."""
    known, ran = ahead_of_time.aot_module_simplified, list[int]()

    def counted(*args: Any, **named: Any) -> Any:
        ran.append(len(ran))
        return known(*args, **named)

    ahead_of_time.aot_module_simplified = counted
    try:
        yield ran
    finally:
        ahead_of_time.aot_module_simplified = known
