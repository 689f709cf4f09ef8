"""What every way to share a machine's cores between calls took, and how good the ways are that a plan, a hint and a guideline choose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

WANTED = 0.95
"""Part of the best way's items a second that a chosen one is to reach."""
_BUSY = 0.10
_EXHAUSTIVE = 16
"""Cores up to which every way is run; beyond, numbers of streams and threads double."""


@dataclass(frozen=True, order=True)
class Way:
    """So many calls at a time, each by a team of so many threads."""

    streams: int
    threads: int

    def __str__(self) -> str:
        return f"{self.streams} x {self.threads}"


@dataclass(frozen=True)
class SweptWay:
    """One way, run.

    Attributes:
        way: which.
        predicted_ms: of an item; None where nothing predicts it.
        median_ms, least_ms: of an item; of several calls at a time, the time of all over their number.
        spread: the middle half's width over the median.
        turns: how often it was timed.
    """

    way: Way
    predicted_ms: float | None
    median_ms: float
    least_ms: float
    spread: float
    turns: int


@dataclass(frozen=True)
class Chosen:
    """A way that somebody chooses, and what it is compared with.

    Attributes:
        who: chooses.
        way: that is chosen.
        median_ms: of an item.
        best: the fastest way of those it is one of.
        best_ms: of an item.
    """

    who: str
    way: Way
    median_ms: float
    best: Way
    best_ms: float

    @property
    def part(self) -> float:
        """Its items a second over the best way's."""
        return self.best_ms / self.median_ms


@dataclass(frozen=True)
class PlanSweep:
    """All ways that were run.

    Attributes:
        cores: that they share.
        rows: in the order of streams and threads.
        planned: for one call at a time, by its predictions.
        hinted: by ``hint="throughput"``; None where calls cannot run at once.
        guideline: pools of the average width, run as so many calls at once; None likewise.
        others: part of the processors' time that other processes took meanwhile.
    """

    cores: int
    rows: tuple[SweptWay, ...]
    planned: Way
    hinted: Way | None = None
    guideline: Way | None = None
    others: float = 0.0

    def choices(self) -> list[Chosen]:
        """The plan among calls one at a time; the hint and the guideline among all."""
        times = {row.way: row.median_ms for row in self.rows}
        singly = [way for way in times if way.streams == 1]
        found: list[tuple[str, Way | None, list[Way]]] = [
            ("planned, one call at a time", self.planned, singly), ('hint="throughput"', self.hinted, list(times)),
            ("the guideline's pools, as calls at once", self.guideline, list(times)),
        ]  # fmt: skip
        return [
            Chosen(who, way, times[way], best, times[best])
            for who, way, among in found if way is not None and way in times
            for best in [min(among, key=times.__getitem__)]
        ]  # fmt: skip

    @property
    def exhaustive(self) -> bool:
        """Whether no way was left out."""
        return self.cores <= _EXHAUSTIVE

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        choices = [{**asdict(c), "part": c.part, "holds": c.part >= WANTED} for c in self.choices()]
        return {**asdict(self), "exhaustive": self.exhaustive, "choices": choices}

    def to_text(self) -> str:
        """A row for every way, and a line for every choice."""
        best = min(row.median_ms for row in self.rows)
        kind = "every way" if self.exhaustive else "ways that double"
        lines = [
            f"{kind} to share {self.cores} core{'s' * (self.cores != 1)}, in turns; milliseconds of an item",
            f"{'calls x threads':<15} {'predicted':>10} {'median':>10} {'least':>10} {'spread':>6} {'turns':>6} {'of the best':>11}",
        ]
        for row in self.rows:
            predicted = "-" if row.predicted_ms is None else f"{row.predicted_ms:.4f}"
            lines.append(
                f"{row.way!s:<15} {predicted:>10} {row.median_ms:>10.4f} {row.least_ms:>10.4f} {row.spread:>6.0%} {row.turns:>6} "
                f"{best / row.median_ms:>11.2f}"
            )
        for c in self.choices():
            lines.append(
                f"{c.who}: {c.way}, {c.median_ms:.4f} ms; the best is {c.best}, {c.best_ms:.4f} ms: {c.part:.2f} of it"
                + ("" if c.part >= WANTED else f", less than {WANTED}")
            )
        if self.others > _BUSY:
            lines.append(f"note: {self.others:.0%} of the processors' time went to others meanwhile")
        return "\n".join(lines)


def ways_of(cores: int, *, at_once: bool, besides: Iterable[Way] = ()) -> list[Way]:
    """The ways to run on so many cores: teams of every size, and as many calls at a time as have cores of their own.

    Args:
        cores: that all calls share.
        at_once: whether calls can run at the same time.
        besides: to be among them, where there are enough cores.
    """
    sizes = range(1, cores + 1) if cores <= _EXHAUSTIVE else _doubling(cores)
    found = {Way(s, t) for s in sizes for t in sizes if s * t <= cores}
    if cores > _EXHAUSTIVE:
        found |= {Way(s, cores // s) for s in sizes}  # all cores
    found |= {way for way in besides if way.streams * way.threads <= cores}
    return sorted(way for way in found if at_once or way.streams == 1)


def _doubling(most: int) -> list[int]:
    return [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]
