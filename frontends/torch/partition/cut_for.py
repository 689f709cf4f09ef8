"""What a target wants of a cut: what its backward had better compute again, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class CutFor:
    """A target's part in a cut.

    Attributes:
        repeats_written: whether a backward computes again what its forward has written, where it reads what that is made of in any case.
        flops_per_byte: operations of products in the time that a byte takes.
    """

    repeats_written: bool = False
    flops_per_byte: float = 7.0


_ASKED: ContextVar[CutFor] = ContextVar("cut for", default=CutFor())  # noqa: B039  # frozen


def asked() -> CutFor:
    """What is wanted of the cuts of this thread."""
    return _ASKED.get()


@contextmanager
def cuts_for(target: CutFor) -> Iterator[None]:
    """Joint graphs are cut in here, in this thread, as a target wants it."""
    before = _ASKED.set(target)
    try:
        yield
    finally:
        _ASKED.reset(before)
