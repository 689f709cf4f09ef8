"""Graphs of tasks and curves for the tests of plans: forms that networks have, random ones, and a second opinion on schedules."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from dcir.cost.threads.curves import Curve, Measured
from dcir.cost.threads.schedule import Slot
from dcir.cost.threads.task_graph import Task, TaskGraph
from dcir.cost.threads.topology import Cores


def graph_of(*after: Sequence[int]) -> TaskGraph:
    """Tasks that wait for these."""
    return TaskGraph(tuple(Task(f"k{n}", tuple(a)) for n, a in enumerate(after)))


def chain(length: int) -> TaskGraph:
    """One after the other."""
    return graph_of(*([n - 1] if n else [] for n in range(length)))


def branches(blocks: int, widths: Sequence[int]) -> TaskGraph:
    """Blocks of branches of these lengths, each between two tasks: an Inception network."""
    after: list[list[int]] = [[]]
    for _ in range(blocks):
        fork, ends = len(after) - 1, []
        for length in widths:
            before = fork
            for _ in range(length):
                after.append([before])
                before = len(after) - 1
            ends.append(before)
        after.append(ends)
    return graph_of(*after)


def tables(count: int) -> TaskGraph:
    """Look-ups in so many tables and a layer, then three more layers: a recommender."""
    return graph_of(*([] for _ in range(count + 1)), range(count + 1), [count + 1], [count + 2])


def training(length: int) -> TaskGraph:
    """The backward of a chain: of each layer the gradient of what it reads, and of its weights, which nothing waits for."""
    after: list[list[int]] = [[]]
    last = 0
    for _ in range(length):
        after += [[last], [last]]
        last = len(after) - 2
    return graph_of(*after)


def dense(length: int) -> TaskGraph:
    """Each reads all before it."""
    return graph_of(*(range(n) for n in range(length)))


def random_graph(seed: int, size: int, most: int = 3) -> TaskGraph:
    """Each task waits for a few near it, or none."""
    draw = random.Random(seed)
    return graph_of(*(sorted(draw.sample(range(max(0, n - 6), n), min(n, draw.randint(0, most)))) for n in range(size)))


@dataclass(frozen=True)
class Costs:
    """What teams cost on a machine with a barrier that takes as long as the team is large."""

    cores: Cores
    handoff: float = 1e-6
    open: float = 5e-6

    def opening(self, threads: int) -> float:
        """A team's beginning and end."""
        return self.open if threads > 1 else 0.0


def amdahl(seconds: float, serial: float, jobs: int, saturates: int, barrier: float = 2e-7) -> Measured:
    """A curve as it would be measured at 1, 2, 4, ... threads: a part that does not scale, pieces of work, a memory that is used up."""
    points = {}
    for k in range(9):
        threads = 1 << k
        at_work = min(jobs / math.ceil(jobs / min(threads, jobs)), saturates)
        points[threads] = seconds * (serial + (1 - serial) / at_work) + barrier * (threads - 1)
    return Measured.of(points)


def random_curves(seed: int, count: int) -> list[Curve]:
    """Curves of all kinds: long and short, that scale and that do not."""
    draw = random.Random(seed)
    return [
        amdahl(
            10 ** draw.uniform(-5.5, -2.5), draw.choice((0.0, 0.02, 0.1, 0.5, 1.0)), draw.choice((1, 3, 7, 28, 112, 1024)),
            draw.choice((2, 6, 1024)),
        )
        for _ in range(count)
    ]  # fmt: skip


def replayed(graph: TaskGraph, slots: Sequence[Slot], handoff: float, threads: int) -> float:
    """When the last of the slots ends. Holds each against what it waits for and against the others of its threads, knowing no scheduler."""
    by_task = {slot.task: slot for slot in slots}
    assert sorted(by_task) == list(range(len(graph)))
    for number, task in enumerate(graph.tasks):
        slot = by_task[number]
        for before in task.after:
            other = by_task[before]
            ready = other.end + (handoff if other.team != slot.team else 0.0)
            assert slot.start >= ready - 1e-12, (number, before)
    for thread in range(threads):
        mine = sorted((s.start, s.end) for s in slots if s.first <= thread < s.first + s.threads)
        assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(mine)), thread
    assert all(s.first >= 0 and s.first + s.threads <= threads for s in slots)
    return max((slot.end for slot in slots), default=0.0)
