"""Arrays inside of a scope: which values stand in their places, and which parts are copies of arrays outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from dcir.ir.dace.scope_loops import Loop, Point
from dcir.ir.dace.tasklet_values import Known


@dataclass
class LocalValue:
    """What stands in a place of an array of the scope."""

    point: Point
    value: Known
    loops: tuple[Loop, ...]


@dataclass
class Alias:
    """A part of an array of the scope that is a copy of a part of another."""

    first: Point
    source: str
    start: Point


def standing(entries: Sequence[LocalValue | Alias], point: Point) -> LocalValue | tuple[str, Point] | None:
    """What was put last where a place is: a value, or the place in an array outside of which there is a copy; None if nothing was."""
    for entry in reversed(entries):
        if isinstance(entry, Alias):
            return entry.source, _through(entry, point)
        if len(entry.point) == len(point) and all(
            sympy.expand(a - b) == 0 for a, b in zip(entry.point, point, strict=True)
        ):
            return entry
    return None


def _through(alias: Alias, point: Point) -> Point:
    """The place in the source that stands in a place of the copy: the dimensions of extent 1 left out on either side."""
    moved = [sympy.expand(p - f) for p, f in zip(point, alias.first, strict=True)]
    if len(moved) == len(alias.start):
        return tuple(a + m for a, m in zip(alias.start, moved, strict=True))
    live = [m for m in moved if m != 0]
    found = list(alias.start)
    for k, m in zip(range(len(found) - len(live), len(found)), live, strict=True):
        found[k] += m
    return tuple(found)
