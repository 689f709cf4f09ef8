"""Whether a graph is a sample of one for many sizes, and what must not be decided by the sizes at hand then.

    imported and rewritten at 16 x 34   -->   a pool's windows as they are at all sizes, not as 16 and 34 have them

A network for all sizes is made from networks for several (``ops/analysis/size_unification.py``), which are one only if they are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PoolWindows:
    """The pools of a graph whose sizes move.

    Attributes:
        unit: what the numbers of windows of its adaptive pools divide; sizes that move have a quotient by it.
        constant: (extent, windows) of the dimensions of pools that do not move.
    """

    unit: int = 1
    constant: frozenset[tuple[int, int]] = frozenset()


@dataclass
class ManySizes:
    """A sample of a graph for many sizes, and what was taken for granted there.

    Attributes:
        believing: whether ``never_less`` believes what holds at the sample.
        windows: of the graph's pools.
        margins: what it has believed to be 0 or more at all sizes.
        inside: what has to be 0 or more wherever a rewriting is right; sizes at which it is less are for other programs.
    """

    believing: bool
    windows: PoolWindows
    margins: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)


_MANY: ContextVar[ManySizes | None] = ContextVar("many_sizes", default=None)


def many_sizes() -> bool:
    """Whether a graph for many sizes is at hand: a form that is right at some of them alone must not be chosen."""
    return _MANY.get() is not None


def windows_between(extent: int, windows: int) -> int | None:
    """Where a dimension of a pool moves, what the windows of all adaptive pools divide; None where it does not."""
    many = _MANY.get()
    return None if many is None or (extent, windows) in many.windows.constant else many.windows.unit


def never_less(*margins: int) -> bool:
    """Whether numbers that follow from extents are 0 or more, at all sizes that the graph is for.

    Of a graph for one size they are what they are. Of one for many they are noted, and whoever looks at the samples has to show that they
    hold between them (``moving_graph.py``); or they are not believed, but for 0, which is 0 at all samples or makes other networks.
    """
    if any(m < 0 for m in margins):
        return False
    many = _MANY.get()
    if many is None:
        return True
    if not many.believing:
        return not any(margins)
    many.margins += margins
    return True


def holds_from(*margins: int) -> None:
    """Notes numbers that follow from extents and are 0 or more at hand: what is done next is right where they are."""
    if (many := _MANY.get()) is not None:
        many.inside += margins


@contextmanager
def for_many_sizes(*, believing: bool, windows: PoolWindows = PoolWindows()) -> Iterator[ManySizes]:
    """What is imported and rewritten inside is a sample of a graph for many sizes.

    Args:
        believing: whether ``never_less`` believes what holds at the sample.
        windows: of the graph's pools.
    """
    many = ManySizes(believing, windows)
    token = _MANY.set(many)
    try:
        yield many
    finally:
        _MANY.reset(token)
