"""Runs every way to share this machine's cores between calls of a model, in turns, next to what was predicted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dcir.cost.machine import MachineRates
from dcir.cost.stream_number import seconds as side_by_side
from dcir.cost.threads.planner import Planner
from dcir.driver.measure.machine import share_of_others
from dcir.driver.measure.turns import measure
from dcir.driver.session import Progress
from dcir.errors import InvalidInput, OptionError
from dcir.report.plan_sweep import PlanSweep, SweptWay, Way, ways_of

CALLS_OF_A_STREAM = 2

Calls = Callable[[], Sequence[Any]]
"""Makes as many calls as a way has at a time, ``CALLS_OF_A_STREAM`` times; one where that is one."""


def sweep(
    cores: int, make: Callable[[Way], Calls], predicted: Callable[[Way], float], seconds: float, *, hinted: Way | None = None,
    guideline: Way | None = None, at_once: bool = True, notes: list[str] | None = None, progress: Progress | None = None,
) -> PlanSweep:  # fmt: skip
    """Run all ways.

    Args:
        cores: that calls share.
        make: gives the calls of a way; an error of options or inputs leaves a way of several calls out, with a note.
        predicted: milliseconds of an item; the least of one call at a time is the planned way, fewer threads among equals.
        seconds: how long to measure each.
        hinted, guideline: ways that others choose, run as well.
        at_once: whether calls can run at the same time.
        notes: gets what was left out, and why.
        progress: told of the seconds that have passed.
    """
    besides = [way for way in (hinted, guideline) if way is not None]
    ways = ways_of(cores, at_once=at_once, besides=besides)
    expected = {way: predicted(way) for way in ways}
    planned = min((way for way in ways if way.streams == 1), key=lambda way: (expected[way], way.threads))
    runs: dict[Way, Calls] = {}
    for number, way in enumerate(ways):
        if progress is not None:
            progress("ways", number, len(ways))
        try:
            run = make(way)
            run()
        except (InvalidInput, OptionError) as e:
            if way.streams == 1:
                raise
            if notes is not None:
                notes.append(f"{way} is not run: {e.message}")
            continue
        runs[way] = run
    rows: list[SweptWay] = []
    # What is first is called dcir, whose turns decide when there are enough.
    names = {"dcir" if number == 0 else str(way): way for number, way in enumerate(runs)}

    def work() -> None:
        for row in measure({name: runs[way] for name, way in names.items()}, seconds, progress=progress):
            way = names[row.name]
            n = calls_of(way)
            rows.append(SweptWay(way, expected[way], row.median / n, row.least / n, row.spread, row.calls))

    others = share_of_others(cores, work)
    return PlanSweep(cores, tuple(rows), planned, hinted, guideline, others)


def calls_of(way: Way) -> int:
    """How many calls the ``Calls`` of a way make."""
    return 1 if way.streams == 1 else CALLS_OF_A_STREAM * way.streams


@dataclass(frozen=True)
class Predicted:
    """Predicts milliseconds of an item: one call by plans of its graphs, several at a time by how much longer they take side by side.

    Attributes:
        planners: of the graphs of a call.
        work: operations and distinct bytes of each kernel of a call.
        weights, scratch: bytes that all calls share, and that each has for itself.
        rates: of the machine.
    """

    planners: Sequence[Planner]
    work: Sequence[tuple[int, int]]
    weights: int
    scratch: int
    rates: MachineRates

    def __call__(self, way: Way) -> float:
        """Of a way."""
        one = sum(planner.pools(1, way.threads).seconds for planner in self.planners) * 1e3
        alone, among = (
            side_by_side(self.work, self.weights, self.scratch, n, way.threads, self.rates) for n in (1, way.streams)
        )
        return one * max(1.0, among / alone) / way.streams
