"""A plan of threads as data: for each graph of a call how many threads each kernel gets, which ones, and when they are expected to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dcir.cost.threads.schedule import Slot
from dcir.cost.threads.topology import Cores
from dcir.errors import InvalidInput

_FORMAT = 1


@dataclass(frozen=True)
class GraphPlan:
    """The plan of one graph.

    Attributes:
        graph: what it is: "inference", "forward", "backward".
        setting: what the plan is called.
        seconds: that a call is predicted to take, with the opening of its teams.
        slots: of all kernels, in their order.
    """

    graph: str
    setting: str
    seconds: float
    slots: tuple[Slot, ...] = ()

    @property
    def team(self) -> int:
        """Threads that it takes."""
        return max((slot.first + slot.threads for slot in self.slots), default=1)

    @property
    def most_beside(self) -> int:
        """The most kernels that run at once."""
        ends = sorted([(slot.start, 1) for slot in self.slots] + [(slot.end, -1) for slot in self.slots])
        running = most = 0
        for _, change in ends:
            running += change
            most = max(most, running)
        return most

    def sizes(self) -> dict[int, int]:
        """How many kernels have a team of each size."""
        found: dict[int, int] = {}
        for slot in self.slots:
            found[slot.threads] = found.get(slot.threads, 0) + 1
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class ThreadPlan:
    """The plan of a call.

    Attributes:
        cores: that it was made for.
        graphs: one for each graph of the call.
    """

    cores: Cores
    graphs: tuple[GraphPlan, ...]

    @property
    def seconds(self) -> float:
        """All graphs together."""
        return sum(graph.seconds for graph in self.graphs)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {"format": _FORMAT, **asdict(self), "graphs": [asdict(graph) for graph in self.graphs]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ThreadPlan:
        """What ``to_json`` wrote.

        Raises:
            InvalidInput: the data is something else, or gives a thread to two kernels at once or one that is not there.
        """
        try:
            if data["format"] != _FORMAT:
                raise InvalidInput(
                    f"a plan of format {data['format']!r}, and {_FORMAT} is known", hint="dcir plan again"
                )
            plan = ThreadPlan(
                Cores(**data["cores"]),
                tuple(
                    GraphPlan(g["graph"], g["setting"], float(g["seconds"]), tuple(Slot(**s) for s in g["slots"]))
                    for g in data["graphs"]
                ),
            )
            for graph in plan.graphs:
                check(graph, plan.cores.total)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            if isinstance(e, InvalidInput):
                raise
            raise InvalidInput(f"this is no plan of threads: {type(e).__name__}: {e}", hint="dcir plan --json") from e
        return plan


def check(plan: GraphPlan, threads: int) -> None:
    """Refuse a plan that gives a thread to two kernels at once, or one that is not there.

    Raises:
        InvalidInput: it does.
    """
    free = [0.0] * threads
    for slot in sorted(plan.slots, key=lambda s: (s.start, s.end)):
        if slot.threads < 1 or slot.first < 0 or slot.first + slot.threads > threads or slot.end < slot.start:
            raise InvalidInput(
                f"kernel {slot.task} is given threads {slot.first} to {slot.first + slot.threads - 1} of {threads}",
                where=plan.graph,
            )
        for thread in range(slot.first, slot.first + slot.threads):
            if free[thread] > slot.start:
                raise InvalidInput(f"thread {thread} is given to kernel {slot.task} and another one", where=plan.graph)
            free[thread] = slot.end
