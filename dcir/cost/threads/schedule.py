"""List scheduling: of the tasks that can begin soonest, the one with the longest way behind it first, on teams of given sizes.

Each team is neighbouring units of a row: single threads, or pools of several. No unit waits while there is a task for it, so tasks on one
thread each take less than the critical path and the area over the threads together (Graham 1966); the order is Hwang et al.'s (earliest
task first, 1989), with critical paths for ties.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcir.cost.threads.task_graph import Region, TaskGraph


@dataclass(frozen=True)
class Slot:
    """Where and when a task runs.

    Attributes:
        task: its number.
        first, threads: its team: so many threads from the first on.
        start, end: seconds from the beginning of the call.
    """

    task: int
    first: int
    threads: int
    start: float
    end: float

    @property
    def team(self) -> tuple[int, int]:
        """Its threads: the first, and how many."""
        return self.first, self.threads


@dataclass(frozen=True)
class Units:
    """What tasks are put on: ``count`` pools of ``width`` threads; a task has a whole number of them, and threads of those."""

    count: int
    width: int

    def needed(self, team: int) -> int:
        """Pools that a team takes."""
        return min(self.count, -(-team // self.width))


class _Queue:
    """Tasks that need as many units: those that could begin before a unit is free, the longest way first, and those that could not yet."""

    def __init__(self) -> None:
        self._early: list[tuple[float, int]] = []
        self._late: list[tuple[float, float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._early or self._late)

    def add(self, task: int, at: float, tail: float) -> None:
        """A task that could begin at a time."""
        heapq.heappush(self._late, (at, -tail, task))

    def soonest(self, free: float) -> tuple[float, float]:
        """When the next task begins if units are free from this time on, which is never before an earlier one; and its tail, negative."""
        while self._late and self._late[0][0] <= free:
            _, tail, task = heapq.heappop(self._late)
            heapq.heappush(self._early, (tail, task))
        return (free, self._early[0][0]) if self._early else self._late[0][:2]

    def pop(self) -> int:
        """That task."""
        return heapq.heappop(self._early)[1] if self._early else heapq.heappop(self._late)[2]


@dataclass(frozen=True)
class _Ready:
    """A task whose predecessors have slots: when any team may begin it, and when the teams may that ran them, by their first unit."""

    handed: float
    own: dict[int, float]


def list_schedule(
    graph: TaskGraph,
    region: Region,
    teams: Sequence[int],
    seconds: Sequence[float],
    units: Units,
    handoff: float,
    before: Mapping[int, Slot] | None = None,
) -> list[Slot]:
    """Slots of the tasks of a region.

    Args:
        graph: the tasks.
        region: those to schedule.
        teams, seconds: threads and time of each of them, in their order.
        units: what they are put on.
        handoff: seconds that a task waits longer for one that another team runs.
        before: slots of the tasks just before the region; what ran earlier has ended long ago.
    """
    begin, known = region.begin, dict(before or {})
    tails = tails_of(graph, region, seconds)
    waiting = [sum(a >= begin for a in graph.tasks[t].after) for t in range(begin, region.end)]
    free = [0.0] * units.count

    def ready_now(i: int) -> _Ready:
        after = [known[a] for a in graph.tasks[begin + i].after if a in known]
        ends: dict[tuple[int, int], float] = {}
        for slot in after:
            ends[slot.team] = max(slot.end, ends.get(slot.team, 0.0))
        latest = sorted(ends.values())[-2:]
        own = {}
        for (first, threads), end in ends.items():
            if threads == teams[i] and first % units.width == 0:
                others = latest[0] if end == latest[-1] else latest[-1]
                own[first // units.width] = max(end, others + handoff) if len(ends) > 1 else end
        return _Ready(latest[-1] + handoff if latest else 0.0, own)

    states: dict[int, _Ready] = {}
    queues = {need: _Queue() for need in {units.needed(team) for team in teams}}

    def push(i: int) -> None:
        states[i] = state = ready_now(i)
        queues[units.needed(teams[i])].add(i, min([state.handed, *state.own.values()]), tails[i])

    for i in range(len(region)):
        if not waiting[i]:
            push(i)
    for _ in range(len(region)):
        windows = {need: _windows(free, need) for need, queue in queues.items() if queue}
        # Of tasks that begin at the same time and have ways as long, the one with the larger team is harder to place.
        need = -min((queues[need].soonest(min(values)), -need) for need, values in windows.items())[1]
        i = queues[need].pop()
        state = states.pop(i)
        places = [
            (max(state.own.get(u, state.handed), free_at), -free_at, u) for u, free_at in enumerate(windows[need])
        ]
        at, _, unit = min(places)
        slot = known[begin + i] = Slot(begin + i, unit * units.width, teams[i], at, at + seconds[i])
        free[unit : unit + need] = [slot.end] * need
        for successor in graph.successors[begin + i]:
            if successor < region.end:
                waiting[successor - begin] -= 1
                if not waiting[successor - begin]:
                    push(successor - begin)
    return [known[task] for task in range(begin, region.end)]


def tails_of(graph: TaskGraph, region: Region, seconds: Sequence[float]) -> list[float]:
    """For each task of a region the longest time from its beginning to the end of all that waits for it there."""
    tails = list(seconds)
    for i in reversed(range(len(region))):
        behind = (tails[s - region.begin] for s in graph.successors[region.begin + i] if s < region.end)
        tails[i] += max(behind, default=0.0)
    return tails


def _windows(values: Sequence[float], size: int) -> list[float]:
    """The largest of each ``size`` neighbours."""
    if size == 1:
        return list(values)
    found: list[float] = []
    falling: deque[int] = deque()
    for i, value in enumerate(values):
        while falling and values[falling[-1]] <= value:
            falling.pop()
        falling.append(i)
        if falling[0] <= i - size:
            falling.popleft()
        if i >= size - 1:
            found.append(values[falling[0]])
    return found
