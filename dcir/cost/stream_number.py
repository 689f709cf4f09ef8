"""How many calls shall run at once for the most of them a second: the cost model behind ``hint="throughput"``.

    t(N) = sum over kernels of max(operations / peak(T), near bytes / rate + far bytes / memory's) + (T > 1) x kernels x barrier
    N calls of T = P / N threads take t(N), so N / t(N) of them end in a second; of the divisors N of P the one with the most is taken.

The weights, which all streams share, and N times the scratch memory are what a call comes back to. The part of it that the last cache
does not hold is the part of a kernel's bytes that is far: memory brings it, of whose bandwidth each stream has the N-th part. The others
come at the rate of the nearest cache that holds the kernel's bytes. Kernels that do not scale (a team's barrier, a bandwidth that one
thread uses up) speak for many streams, a cache that fewer fit into for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcir.cost.machine import MachineRates

# A number of streams has to promise more than this over a larger one, which shortens no kernel's way to its team.
_WORTH = 1.02


@dataclass(frozen=True)
class StreamNumber:
    """How calls share the processors.

    Attributes:
        streams: calls at a time.
        threads: of the team of each.
        reason: why so many.
    """

    streams: int
    threads: int
    reason: str

    def __str__(self) -> str:
        return f"{self.streams} streams of {self.threads} thread{'s' * (self.threads > 1)} each: {self.reason}"


def asked_for(streams: int, processors: int) -> StreamNumber:
    """What the user wants: the processors divided among so many streams."""
    return StreamNumber(streams, max(1, processors // streams), "asked for")


def chosen(
    work: Sequence[tuple[int, int]], weights: int, scratch: int, processors: int, rates: MachineRates
) -> StreamNumber:
    """As many streams as the model above says.

    Args:
        work: operations and distinct bytes of each kernel of a call.
        weights: bytes that all streams read.
        scratch: bytes that each stream has for itself.
        processors: that all streams have together.
        rates: of the machine.
    """
    numbers = [n for n in range(processors, 0, -1) if processors % n == 0]
    a_second = {n: n / seconds(work, weights, scratch, n, processors // n, rates) for n in numbers}
    best = numbers[0]
    for n in numbers[1:]:
        if a_second[n] > a_second[best] * _WORTH:
            best = n
    guess = "" if rates.measured else ", with rates that are guesses before `dcir machine`"
    told = ", ".join(f"{n}: {a_second[n]:.4g}" for n in sorted(numbers))
    fit = "do not fit" if _far(weights, scratch, best, rates) else "fit"
    reason = (
        f"predicted calls a second by number of streams are {told}{guess}; weights of {_mb(weights)} and {best} times"
        f" {_mb(scratch)} of scratch {fit} into {_mb(rates.caches[-1].bytes if rates.caches else 0)} of cache"
    )
    return StreamNumber(best, processors // best, reason)


def seconds(
    work: Sequence[tuple[int, int]], weights: int, scratch: int, streams: int, threads: int, rates: MachineRates
) -> float:
    """The predicted time of one call while so many run at once; see ``chosen``."""
    far, total = _far(weights, scratch, streams, rates), 0.0
    memory = min(rates.reads[-1].of(threads, rates.threads), rates.reads[-1].all / streams)
    for operations, moved in work:
        brought = moved * ((1 - far) / rates.read_rate(moved, threads) + far / memory)
        total += max(operations / rates.flops(threads), brought)
        total += rates.barrier_seconds if threads > 1 else 0.0
    return max(total, 1e-9)


def _far(weights: int, scratch: int, streams: int, rates: MachineRates) -> float:
    """The part of all that calls come back to which the last cache does not hold."""
    cache, touched = (rates.caches[-1].bytes if rates.caches else 0), weights + streams * scratch
    return max(0.0, 1 - cache / touched) if touched else 0.0


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
