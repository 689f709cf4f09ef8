"""The time of a kernel by the number of its threads: modelled, measured, or modelled and corrected by what was measured.

modelled   t(p) = max(operations / peak(q), bytes / bandwidth(q)) + phases x barrier(p)      q = jobs / ceil(jobs / p) threads at work
corrected  t(p) = t(1) (s + (1 - s) modelled(p) / modelled(1)) + phases x barrier(p), the part s that does not scale fitted to the
           measured sizes of teams; what is still amiss at these is a factor, which lies between them where sizes do
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from dcir.cost.threads.team_rates import TeamRates
from dcir.errors import InvalidInput

# Guesses, for which `dcir machine` has no measurement: a call through the driver's table, and one through Python into torch.
_CALL_SECONDS = 2e-7
_TORCH_SECONDS = 1e-5
_WORTH = 1.25


class Curve(Protocol):
    """The time of a kernel by its threads; hashable."""

    def seconds(self, threads: int, beside: int = 1) -> float:
        """Of a call on a team of so many threads, while ``beside`` such teams run, itself included."""
        ...


@dataclass(frozen=True)
class Work:
    """What a kernel does in a call.

    Attributes:
        flops, nbytes: its operations and the distinct bytes that it touches.
        jobs: independent pieces of each of its phases, which end in a barrier; none where nobody knows, which is as many as one likes.
        dtype: of the arithmetic, "f32" or "f64".
        torch: whether it runs through torch.
    """

    flops: int
    nbytes: int
    jobs: tuple[int, ...] = ()
    dtype: str = "f32"
    torch: bool = False

    def at_work(self, threads: int) -> float:
        """Threads of a team that have work all of the time: 8 jobs on 5 threads take as long as on 4."""
        jobs = max(self.jobs, default=0)
        if jobs <= 0:
            return float(threads)
        return jobs / math.ceil(jobs / min(threads, jobs))


@dataclass(frozen=True)
class Modelled:
    """A curve of what a kernel does on what a machine can do."""

    work: Work
    machine: TeamRates

    def seconds(self, threads: int, beside: int = 1) -> float:
        """See ``Curve``."""
        return self.body(threads, beside) + self.waits(threads)

    def body(self, threads: int, beside: int = 1) -> float:
        """Without what the threads wait for each other."""
        work, at_work = self.work, self.work.at_work(threads)
        used = max(1, math.ceil(at_work))
        flops = self.machine.flops(used, work.dtype) * at_work / used
        moving = work.nbytes / self.machine.read_rate(work.nbytes, used, beside) if work.nbytes else 0.0
        return max(work.flops / flops, moving) + (_TORCH_SECONDS if work.torch else _CALL_SECONDS)

    def waits(self, threads: int) -> float:
        """What the threads wait for each other."""
        return max(1, len(self.work.jobs)) * self.machine.barrier(threads)


@dataclass(frozen=True)
class Measured:
    """A curve through measured times, in seconds by threads; straight between two where both scales are logarithmic, level beyond.

    Raises:
        InvalidInput: no times, or some that are none.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        good = all(threads >= 1 and 0 < seconds < math.inf for threads, seconds in self.points)
        if not self.points or not good or list(self.points) != sorted(dict(self.points).items()):
            raise InvalidInput(
                "a scaling curve has a positive time for each of some numbers of threads", where=f"{self.points}"
            )

    @classmethod
    def of(cls, times: Mapping[int, float]) -> Measured:
        """The curve of times by threads."""
        return cls(tuple(sorted(times.items())))

    def seconds(self, threads: int, beside: int = 1) -> float:
        """See ``Curve``; what runs beside it was not measured."""
        return _between(self.points, threads)


@dataclass(frozen=True)
class Corrected:
    """A modelled curve that measured times, in seconds by threads, put right. They begin with one thread."""

    model: Modelled
    points: tuple[tuple[int, float], ...]

    def seconds(self, threads: int, beside: int = 1) -> float:
        """See ``Curve``."""
        factor = _between(self._factors, threads)
        crowd = self.model.body(threads, beside) / self.model.body(threads)
        return self._fitted(threads, crowd) * factor

    @cached_property
    def serial(self) -> float:
        """The part of one thread's time that does not become shorter, between 0 and 1."""
        first, alone = self.points[0]
        above = below = 0.0
        for threads, seconds in self.points[1:]:
            ratio = self.model.body(threads) / self.model.body(first)
            above += (1 - ratio) * ((seconds - self.model.waits(threads)) / alone - ratio)
            below += (1 - ratio) ** 2
        return min(1.0, max(0.0, above / below)) if below else 0.0

    @cached_property
    def _factors(self) -> tuple[tuple[int, float], ...]:
        return tuple((threads, seconds / self._fitted(threads, 1.0)) for threads, seconds in self.points)

    def _fitted(self, threads: int, crowd: float) -> float:
        first, alone = self.points[0]
        ratio = self.model.body(threads) / self.model.body(first) * crowd
        return alone * (self.serial + (1 - self.serial) * ratio) + self.model.waits(threads)


def curve_of(work: Work, machine: TeamRates, times: Mapping[int, float]) -> Curve:
    """The curve of a kernel: corrected by its times in seconds by threads, where one thread's is among them."""
    model = Modelled(work, machine)
    points = tuple(sorted((threads, seconds) for threads, seconds in times.items() if seconds > 0))
    return Corrected(model, points) if points and points[0][0] == 1 else model


def team_sizes(most: int) -> tuple[int, ...]:
    """Sizes of teams that are worth a look: 1, 2, 3, 4, 6, 8, 12, ... and the most."""
    found = {1, most}
    size = 2
    while size <= most:
        found |= {size, *([size * 3 // 2] if size * 3 // 2 <= most else [])}
        size *= 2
    return tuple(sorted(found))


def stops_at(curve: Curve, most: int) -> int | None:
    """The team of 1, 2, 4, ... threads of which twice as many gain less than a quarter; None where it scales up to ``most``."""
    size = 1
    while 2 * size <= most:
        if curve.seconds(size) < _WORTH * curve.seconds(2 * size):
            return size
        size *= 2
    return None


def _between(points: tuple[tuple[int, float], ...], threads: int) -> float:
    before = points[0]
    for point in points:
        if threads <= point[0]:
            if threads == point[0] or before is point:
                return point[1]
            way = math.log(threads / before[0]) / math.log(point[0] / before[0])
            return float(before[1] * (point[1] / before[1]) ** way)
        before = point
    return before[1]
