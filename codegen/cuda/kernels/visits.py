"""The points that a thread visits in a sweep: how many pieces, where each begins, and under which conditions it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Visits:
    """Pieces of points that a thread visits.

    Attributes:
        times: how many pieces.
        loops: the loops that a piece's number stands for.
        element: C++ of a piece's first point, in row-major order over these, from its number ``u``.
        guard: the condition under which the piece is there; "" if all are.
        count: C++ of how many of its points are there; "" if all are.
        before: lines of a piece before its statements.
        begin: lines of a piece before its loop variables.
        variables: loop variables that follow from ``e`` in a way of their own, and C++ of each.
    """

    times: int
    loops: Sequence[int]
    element: str
    guard: str = ""
    count: str = ""
    variables: Sequence[tuple[int, str]] = ()
    before: Sequence[str] = ()
    begin: Sequence[str] = ()
