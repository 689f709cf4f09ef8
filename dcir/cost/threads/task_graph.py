"""Tasks and what each waits for: the form in which the kernels or operators of a graph are planned, and where all of it comes together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dcir.errors import InvalidGraph


@dataclass(frozen=True)
class Task:
    """One kernel or operator.

    Attributes:
        name: for reports.
        after: numbers of the tasks that it waits for, all smaller than its own.
        place: in the user's model.
    """

    name: str
    after: tuple[int, ...] = ()
    place: str = ""


@dataclass(frozen=True)
class Region:
    """Tasks ``begin`` to ``end``, the end left out: what is before has ended when they begin, and they have when the next region does."""

    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class TaskGraph:
    """Tasks in an order in which they can run.

    Raises:
        InvalidGraph: a task waits for itself or a later one.
    """

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        for number, task in enumerate(self.tasks):
            if any(not 0 <= before < number for before in task.after):
                raise InvalidGraph(
                    f"task {number} waits for {', '.join(map(str, task.after))}, and tasks wait for earlier ones only",
                    where=task.name,
                )

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each task the numbers of those that wait for it."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, task in enumerate(self.tasks):
            for before in task.after:
                found[before].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def separators(self) -> tuple[int, ...]:
        """The tasks beside which no other can run: each other one is before them or behind them, by way of any number of others.

        All tasks before one lead to it if it alone, of it and them, has no successor among them; and likewise behind it. So one count of
        open ends in either direction finds all, in time linear in tasks and edges.
        """
        size = len(self.tasks)
        ends, starts = [0] * (size + 1), [0] * (size + 1)
        for number, task in enumerate(self.tasks):
            ends[number] += 1
            ends[min(self.successors[number], default=size)] -= 1
            starts[max(task.after, default=-1) + 1] += 1
            starts[number + 1] -= 1
        found, open_ends, open_starts = [], 0, 0
        for number in range(size):
            open_ends += ends[number]
            open_starts += starts[number]
            if open_ends == open_starts == 1:
                found.append(number)
        return tuple(found)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """All tasks: each separator by itself, and what lies between two of them."""
        found, begin = [], 0
        for number in self.separators:
            if begin < number:
                found.append(Region(begin, number))
            found.append(Region(number, number + 1))
            begin = number + 1
        if begin < len(self.tasks):
            found.append(Region(begin, len(self.tasks)))
        return tuple(found)

    def with_separators(self, numbers: Collection[int]) -> TaskGraph:
        """The same where nothing runs beside these tasks."""
        tasks: list[Task] = []
        open_ends: set[int] = set()
        last: tuple[int, ...] = ()
        for number, task in enumerate(self.tasks):
            after = {*task.after, *last}
            if number in numbers:
                after |= open_ends
                last = (number,)
            open_ends -= after
            open_ends.add(number)
            tasks.append(replace(task, after=tuple(sorted(after))))
        return TaskGraph(tuple(tasks))


def levels(graph: TaskGraph, region: Region, counted: Sequence[bool] | None = None) -> list[int]:
    """For each task of a region how many of the ``counted`` ones (all unless given) lie on the longest way to it, itself included."""
    found: list[int] = []
    for number in range(region.begin, region.end):
        before = (found[a - region.begin] for a in graph.tasks[number].after if a >= region.begin)
        found.append(max(before, default=0) + (1 if counted is None else int(counted[number])))
    return found
