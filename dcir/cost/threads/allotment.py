"""Teams of different sizes for tasks side by side: more threads for what is on the critical path, until that is no longer than the rest.

CPA, critical path and area (Radulescu and van Gemund 2001): no schedule of P threads is shorter than the critical path, nor than the area
sum(threads x seconds) / P. Threads for a task on the critical path shorten the one and enlarge the other, since no task scales perfectly.
Teams that are a little too large do not fit beside each other, so all steps on the way are given: who schedules them sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcir.cost.threads.schedule import tails_of
from dcir.cost.threads.task_graph import Region, TaskGraph

Seconds = Callable[[int, int], float]
"""The time of a task on so many threads."""
_EQUAL = 1 + 1e-9


def allotments(graph: TaskGraph, region: Region, seconds: Seconds, sizes: Sequence[int]) -> list[list[int]]:
    """Sizes of the teams of a region's tasks: the smallest for all of them, then one enlarged after the other.

    Args:
        graph: the tasks.
        region: those that share the threads; their number enters squared.
        seconds: of a task.
        sizes: that a team can have, the smallest first; the last is all threads.
    """
    tasks, places = range(region.begin, region.end), [0] * len(region)
    times = [seconds(task, sizes[0]) for task in tasks]
    found = [[sizes[0]] * len(region)]
    while True:
        tails = tails_of(graph, region, times)
        area = sum(sizes[k] * t for k, t in zip(places, times, strict=True)) / sizes[-1]
        if max(tails) <= area * _EQUAL:
            return found
        best, most = -1, 0.0
        for i in _critical(graph, region, tails):
            if places[i] + 1 < len(sizes):
                size, larger = sizes[places[i]], sizes[places[i] + 1]
                after = seconds(region.begin + i, larger)
                gain = times[i] / size - after / larger
                if gain > most and after < times[i]:
                    best, most = i, gain
        if best < 0:
            return found
        places[best] += 1
        times[best] = seconds(region.begin + best, sizes[places[best]])
        found.append([sizes[k] for k in places])


def _critical(graph: TaskGraph, region: Region, tails: Sequence[float]) -> list[int]:
    """The tasks of a longest way, by their places in the region."""
    starts = [t for t in range(region.begin, region.end) if all(a < region.begin for a in graph.tasks[t].after)]
    path = [max((t - region.begin for t in starts), key=tails.__getitem__)]
    while behind := [s - region.begin for s in graph.successors[region.begin + path[-1]] if s < region.end]:
        path.append(max(behind, key=tails.__getitem__))
    return path
