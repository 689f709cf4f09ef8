"""How wide a graph is: how many heavy tasks lie side by side, on average and level by level, and how much of the work does.

    chain      a - b - c - d            4 heavy tasks, depth 4, average width 1
    branches   a - (b, c, d) - e        5 heavy tasks, depth 3, average width 1.67; levels 1 3 1

The average width is heavy tasks over depth, the guideline's number of pools (Wang et al., "Exploiting Parallelism Opportunities with Deep
Learning Frameworks", TACO 18(1), 2021). It counts tasks: work over critical path says how much faster side by side could be if each task
ran on any number of threads just as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dcir.cost.threads.task_graph import Region, TaskGraph, levels

_HEAVY_SHARE = 0.95


@dataclass(frozen=True)
class Width:
    """The width of a graph.

    Attributes:
        heavy: tasks that count.
        levels: how many of them have 0, 1, 2, ... others before them on the longest way.
        work: the weight of all tasks.
        critical_path: the largest weight of tasks that wait for each other.
    """

    heavy: int
    levels: tuple[int, ...]
    work: float
    critical_path: float

    @property
    def depth(self) -> int:
        """Heavy tasks on the longest way."""
        return len(self.levels)

    @property
    def average(self) -> float:
        """Heavy tasks per level."""
        return self.heavy / self.depth if self.levels else 1.0

    @property
    def widest(self) -> int:
        """Heavy tasks of the widest level."""
        return max(self.levels, default=1)

    @property
    def parallelism(self) -> float:
        """Work over critical path."""
        return self.work / self.critical_path if self.critical_path else 1.0

    @property
    def pools(self) -> int:
        """The guideline's number of pools: the average width, rounded half up."""
        return max(1, int(self.average + 0.5))

    def to_json(self) -> dict[str, Any]:
        """All figures as plain data."""
        more = {"depth": self.depth, "average": self.average, "widest": self.widest, "parallelism": self.parallelism}
        return {**asdict(self), **more}

    def profile(self) -> str:
        """The levels in a row, equal ones counted: ``1 x5, 4, 3``."""
        runs: list[list[int]] = []
        for width in self.levels:
            if runs and runs[-1][0] == width:
                runs[-1][1] += 1
            else:
                runs.append([width, 1])
        return ", ".join(f"{width} x{times}" if times > 1 else str(width) for width, times in runs)


def width_of(graph: TaskGraph, weights: Sequence[float], heavy: Sequence[bool]) -> Width:
    """The width of a graph, in time linear in its tasks and edges.

    Args:
        graph: the tasks.
        weights: of each task: its operations, or its time.
        heavy: whether each task counts.
    """
    depth = levels(graph, Region(0, len(graph)), heavy)
    counts = Counter(level for level, counts in zip(depth, heavy, strict=True) if counts)
    paths: list[float] = []
    for task, weight in zip(graph.tasks, weights, strict=True):
        paths.append(weight + max((paths[a] for a in task.after), default=0.0))
    profile = tuple(counts[level] for level in range(1, max(counts, default=0) + 1))
    return Width(sum(heavy), profile, float(sum(weights)), max(paths, default=0.0))


def heaviest(weights: Sequence[float], share: float = _HEAVY_SHARE) -> list[bool]:
    """The fewest tasks that have ``share`` of all weight together: what is heavy by its cost and not by its name."""
    missing = sum(weights) * share
    found = [False] * len(weights)
    for number in sorted(range(len(weights)), key=lambda n: -weights[n]):
        if missing <= 0:
            break
        found[number] = True
        missing -= weights[number]
    return found
