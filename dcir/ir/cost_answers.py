"""Decisions of cost that must not change with the sizes of a graph: taken at some sizes, and repeated at others.

    rewritten at the usual sizes   fits(64 rows): yes, shared(2 MB): no, …   -->   answers
    rewritten at other sizes       the same questions in the same order      -->   the same answers, whatever the sizes say

A network for all sizes is made from networks for several (``ops/analysis/size_unification.py``), which are one only if their passes decide
alike. A rewriting that does not pay at some size is right there all the same; so what is asked here is never whether something is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class CostAnswers:
    """What was asked, in order, and answered.

    Attributes:
        given: (question, answer).
    """

    given: list[tuple[str, bool]] = field(default_factory=list)


@dataclass
class _Asking:
    answers: CostAnswers
    repeats: bool
    at: int = 0


_CURRENT: ContextVar[_Asking | None] = ContextVar("cost_answers", default=None)


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
class _Many:
    believing: bool
    windows: PoolWindows
    margins: list[int] = field(default_factory=list)


_MANY: ContextVar[_Many | None] = ContextVar("many_sizes", default=None)


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


@contextmanager
def for_many_sizes(*, believing: bool, windows: PoolWindows = PoolWindows()) -> Iterator[list[int]]:
    """What is imported and rewritten inside is a sample of a graph for many sizes.

    Args:
        believing: whether ``never_less`` believes what holds at the sample.
        windows: of the graph's pools.

    Yields:
        what it has believed.
    """
    many = _Many(believing, windows)
    token = _MANY.set(many)
    try:
        yield many.margins
    finally:
        _MANY.reset(token)


def pays(question: str, answer: bool) -> bool:
    """Whether something pays: ``answer``, unless the question was answered at other sizes before.

    Args:
        question: what is asked, and about what, in words that do not depend on the sizes.
        answer: by these sizes.
    """
    asking = _CURRENT.get()
    if asking is None:
        return answer
    given = asking.answers.given
    if not asking.repeats:
        given.append((question, answer))
        return answer
    if asking.at < len(given) and given[asking.at][0] == question:
        asking.at += 1
        return given[asking.at - 1][1]
    # Another question than before: the graphs are no longer alike, and this one goes on by itself.
    asking.repeats, asking.answers = False, CostAnswers()
    return answer


@contextmanager
def taking(answers: CostAnswers) -> Iterator[None]:
    """Questions inside are answered by the sizes at hand, and noted."""
    yield from _asking(_Asking(answers, repeats=False))


@contextmanager
def repeating(answers: CostAnswers) -> Iterator[None]:
    """Questions inside get the answers that were noted, as long as they are the same questions."""
    yield from _asking(_Asking(answers, repeats=True))


def _asking(asking: _Asking) -> Iterator[None]:
    token = _CURRENT.set(asking)
    try:
        yield
    finally:
        _CURRENT.reset(token)
