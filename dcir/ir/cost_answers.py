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
