"""Lanes of a graph: a row for every operator in order of execution, a lane for every value that is on its way to a row near by.

    row 0  conv   lane 0   o
    row 1  relu   lane 0   o          takes the lane of what it reads last
    row 2  conv   lane 1   | o        what row 1 has made is still wanted
    row 3  add    lane 0   o-'

Reads from far above would keep lanes through everything between: they are stubs, drawn as names beside the row. In O(N log N + E).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

FAR = 40
"""Rows between what writes and what reads, from which on a read is a stub."""


@dataclass(frozen=True)
class Lanes:
    """Where rows are drawn.

    Attributes:
        of: lane of every row.
        stubs: numbers of the operands of every row that are drawn as stubs.
        count: lanes.
    """

    of: tuple[int, ...]
    stubs: tuple[tuple[int, ...], ...]
    count: int


def lanes(reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]) -> Lanes:
    """Lanes of rows that read and write containers; of several that write one, the last one above counts."""
    writer = dict[str, int]()
    sources: list[list[int | None]] = []
    for row, (read, written) in enumerate(zip(reads, writes, strict=True)):
        sources.append([_near(writer.get(name), row) for name in read])
        writer.update(dict.fromkeys(written, row))
    last = list(range(len(reads)))
    for row, found in enumerate(sources):
        for source in found:
            if source is not None:
                last[source] = row
    return _placed(sources, last)


def _near(source: int | None, row: int) -> int | None:
    return None if source is None or row - source > FAR else source


def _placed(sources: Sequence[Sequence[int | None]], last: Sequence[int]) -> Lanes:
    free, count = list[int](), 0
    of, ending = list[int](), dict[int, list[int]]()
    for row, found in enumerate(sources):
        ended = ending.pop(row, [])
        nearest = max((s for s in found if s is not None and last[s] == row), default=None)
        for source in ended:
            if source != nearest:
                heapq.heappush(free, of[source])
        if nearest is not None:
            of.append(of[nearest])
        elif free:
            of.append(heapq.heappop(free))
        else:
            of.append(count)
            count += 1
        # A value that nobody near reads has its lane for one row.
        ending.setdefault(max(last[row], row + 1), []).append(row)
    stubs = tuple(tuple(n for n, source in enumerate(found) if source is None) for found in sources)
    return Lanes(tuple(of), stubs, count)
