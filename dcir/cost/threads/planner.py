"""Chooses how a graph's kernels share threads: predicts named settings and plans of its own; takes the fastest, the simpler of equals.

    all threads     each kernel on all of them, one after the other: what dcir runs
    capped          each kernel on as many as make it fastest, one after the other
    q pools         q kernels side by side, each on at most P / q threads; q up to the graph's width
    allotted        teams of any size side by side (``allotment.py``)

A plan of its own takes one of these for each region between two kernels beside which nothing can run, so a network that is wide in one
place only has pools there and nowhere else. Which one is best may depend on the team that the region before ended with: a few of the best
ways are followed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dcir.cost.threads.allotment import allotments
from dcir.cost.threads.curves import Curve, team_sizes
from dcir.cost.threads.schedule import Slot, Units, list_schedule
from dcir.cost.threads.task_graph import Region, TaskGraph, levels
from dcir.cost.threads.thread_plan import GraphPlan
from dcir.cost.threads.topology import Cores

CHOSEN = "planned"
ALL = "all threads"
CAPPED = "capped"
ONE = "one thread"
GUIDELINE = "guideline"
TENSORFLOW = "TensorFlow's guide"
LATENCY, THROUGHPUT = "run_cpu, latency mode", "run_cpu, throughput mode"

_FOLLOWED = 2
_ALLOTTED = 64
"""Kernels of a region up to which teams of any size are tried: that takes time with their square."""
_STEPS = 6
_HOPELESS = 1.2
"""Times as slow as the best plan: teams that are smaller still are not tried."""
_LATENCY_CORES = 4
"""Cores of an instance in the latency mode of ``torch.backends.xeon.run_cpu``."""
_EQUAL = 1 + 1e-9


class TeamCosts(Protocol):
    """What teams cost on a machine (``team_rates.TeamRates``)."""

    @property
    def cores(self) -> Cores: ...

    @property
    def handoff(self) -> float: ...

    def opening(self, threads: int) -> float: ...


@dataclass(frozen=True)
class Choice:
    """Predictions for one graph.

    Attributes:
        plan: the one to take, called "planned"; what it is made of is ``made_of``.
        settings: of all that was compared, by name, the simplest first.
        made_of: how many regions have each way of sharing threads.
    """

    plan: GraphPlan
    settings: dict[str, GraphPlan]
    made_of: dict[str, int]


@dataclass(frozen=True)
class _Way:
    """The last region of some, how it shares the threads, and the ways before it."""

    kind: str
    slots: tuple[Slot, ...]
    before: _Way | None

    @property
    def end(self) -> float:
        return max(slot.end for slot in self.slots)

    def all(self) -> list[_Way]:
        """Those of all regions, in order."""
        found: list[_Way] = []
        way: _Way | None = self
        while way is not None:
            found.append(way)
            way = way.before
        return found[::-1]


class Planner:
    """Plans one graph for one machine.

    Args:
        graph: its kernels.
        curves: of each of them; equal ones are asked once.
        costs: of the machine's teams.
        openings: how often a call opens a team.
        kind: of the graph, for its plans.

    Attributes:
        asked: how often a curve was.
    """

    def __init__(
        self, graph: TaskGraph, curves: Sequence[Curve], costs: TeamCosts, openings: int = 1, kind: str = "inference"
    ) -> None:
        assert len(curves) == len(graph)
        self.graph, self.costs, self.openings, self.kind = graph, costs, openings, kind
        self.threads = costs.cores.total
        self.asked = 0
        numbers: dict[Curve, int] = {}
        self._curves = curves
        self._number = [numbers.setdefault(curve, len(numbers)) for curve in curves]
        self._seconds: dict[tuple[int, int, int], float] = {}
        self._best: dict[tuple[int, int, int], int] = {}
        self._widths: dict[Region, int] = {}

    def chosen(self, average_width: float) -> Choice:
        """The best of all settings and plans.

        Args:
            average_width: for the guideline (``width.Width``).
        """
        settings = self.settings(average_width)
        plan, kinds = self._planned()
        best = min(settings.values(), key=lambda setting: setting.seconds)
        if best.seconds <= plan.seconds * _EQUAL:
            name = next(n for n, setting in settings.items() if setting.seconds <= best.seconds * _EQUAL)
            plan, kinds = settings[name], [name] * len(self.graph.regions)
        made_of = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        return Choice(GraphPlan(self.kind, CHOSEN, plan.seconds, plan.slots), settings, made_of)

    def settings(self, average_width: float) -> dict[str, GraphPlan]:
        """The settings that people give a whole call, by name."""
        total, cores = self.threads, self.costs.cores
        pools = min(total, max(1, int(average_width + 0.5)))
        wanted = {
            ALL: (1, total),
            ONE: (1, 1),
            GUIDELINE: (pools, total // pools),
            TENSORFLOW: (cores.sockets, total // cores.sockets),
            LATENCY: (1, min(_LATENCY_CORES, total)),
            THROUGHPUT: (1, min(cores.per_socket, total)),
        }
        return {name: self.pools(count, width, name) for name, (count, width) in wanted.items()}

    def pools(self, count: int, width: int, name: str = "") -> GraphPlan:
        """All kernels on ``count`` pools of ``width`` threads, each on all threads of one."""
        whole = Region(0, len(self.graph))
        teams = [width] * len(whole)
        slots = self._scheduled(whole, teams, Units(count, width), {}, count)
        return self._plan(name or f"{count} pools of {width}", slots)

    def _plan(self, name: str, slots: Sequence[Slot]) -> GraphPlan:
        plan = GraphPlan(self.kind, name, 0.0, tuple(slots))
        end = max((slot.end for slot in slots), default=0.0)
        return GraphPlan(self.kind, name, end + self.openings * self.costs.opening(plan.team), plan.slots)

    def _planned(self) -> tuple[GraphPlan, list[str]]:
        """The fastest plan of its own, and how each region shares threads: of all of them, or a smaller team, which opens sooner."""
        best = self._of_team(self.threads)
        for total in (self.threads >> k for k in range(1, self.threads.bit_length())):
            smaller = self._of_team(total)
            if smaller[0].seconds > _HOPELESS * best[0].seconds:
                break
            best = min(best, smaller, key=lambda found: found[0].seconds)
        return best

    def _of_team(self, total: int) -> tuple[GraphPlan, list[str]]:
        """The fastest plan of so many threads, region by region."""
        ways: list[_Way | None] = [None]
        for region in self.graph.regions:
            tried = [_Way(kind, tuple(slots), way) for way in ways for kind, slots in self._tried(region, way, total)]
            kept: dict[object, _Way] = {}
            for way in sorted(tried, key=lambda way: way.end):  # of equals the simpler one stays first
                # What follows sees of a region that is one kernel its team alone.
                kept.setdefault(way.slots[0].team if len(region) == 1 else len(kept), way)
            ways = [*list(kept.values())[:_FOLLOWED]]
        regions = ways[0].all() if ways[0] is not None else []
        return self._plan(CHOSEN, [slot for way in regions for slot in way.slots]), [way.kind for way in regions]

    def _tried(self, region: Region, way: _Way | None, total: int) -> list[tuple[str, list[Slot]]]:
        """Ways to run a region, the simplest first."""
        if len(region) == 1:
            sizes = dict.fromkeys((total, self._size(region.begin, total)))
            return [
                (kind, [self._next(region.begin, size, way)]) for kind, size in zip((ALL, CAPPED), sizes, strict=False)
            ]
        tasks = range(region.begin, region.end)
        before = {} if way is None else {slot.task: slot for slot in way.slots}
        one = Units(1, total)
        tried = [(ALL, self._scheduled(region, [total] * len(region), one, before, 1))]
        tried.append((CAPPED, self._scheduled(region, [self._size(t, total) for t in tasks], one, before, 1)))
        widest = self._width_of(region)
        if total < 2:
            return tried
        for count in _counts(total, widest):
            width = total // count
            # Fewer threads for kernels that are faster so: being handed over may cost more, and it changes the order of others.
            whole, best = [width] * len(region), [self._size(t, width, count) for t in tasks]
            for teams in (whole, best) if best != whole else (whole,):
                slots = self._scheduled(region, teams, Units(count, width), before, count)
                tried.append((f"{count} pools", slots))
        if len(region) <= _ALLOTTED:
            beside = min(widest, total)
            steps = allotments(self.graph, region, lambda t, size: self._of(t, size, beside), team_sizes(total))
            for teams in steps[-_STEPS:]:
                tried.append(("allotted", self._scheduled(region, teams, Units(total, 1), before, beside)))
        return tried

    def _next(self, task: int, size: int, way: _Way | None) -> Slot:
        """A slot for a task behind all of the region before."""
        slots = () if way is None else way.slots
        start = max((s.end + (0.0 if s.team == (0, size) else self.costs.handoff) for s in slots), default=0.0)
        return Slot(task, 0, size, start, start + self._of(task, size, 1))

    def _width_of(self, region: Region) -> int:
        if region not in self._widths:
            self._widths[region] = _widest(self.graph, region)
        return self._widths[region]

    def _scheduled(
        self, region: Region, teams: Sequence[int], units: Units, before: Mapping[int, Slot], beside: int
    ) -> list[Slot]:
        times = [self._of(region.begin + i, size, beside) for i, size in enumerate(teams)]
        return list_schedule(self.graph, region, teams, times, units, self.costs.handoff, before)

    def _of(self, task: int, threads: int, beside: int) -> float:
        key = self._number[task], threads, beside
        if key not in self._seconds:
            self.asked += 1
            self._seconds[key] = self._curves[task].seconds(threads, beside)
        return self._seconds[key]

    def _size(self, task: int, most: int, beside: int = 1) -> int:
        """The team that is fastest for a task."""
        key = self._number[task], most, beside
        if key not in self._best:
            self._best[key] = min(team_sizes(most), key=lambda size: (self._of(task, size, beside), size))
        return self._best[key]


def _widest(graph: TaskGraph, region: Region) -> int:
    """The most tasks of a region that could be due at one level: each may be put off until what waits for it makes the region longer.

    The widest level is less: a backward has the weights' gradients of all layers, which nothing waits for, at its last one.
    """
    first = levels(graph, region)
    last = [max(first)] * len(region)
    for i in reversed(range(len(region))):
        behind = (last[s - region.begin] - 1 for s in graph.successors[region.begin + i] if s < region.end)
        last[i] = min(behind, default=last[i])
    changes = [0] * (max(first) + 2)
    for begin, end in zip(first, last, strict=True):
        changes[begin] += 1
        changes[end + 1] -= 1
    return max(itertools.accumulate(changes))


def _counts(threads: int, widest: int) -> list[int]:
    """Numbers of pools: of those that leave each as many threads the largest, and the width itself."""
    most = min(threads, widest)
    return sorted({most} | {count for width in range(1, threads + 1) if 2 <= (count := threads // width) <= most})
