"""Transients whose lifetimes do not meet share memory.

    t0: [0, 1]  t1: [1, 2]  t2: [2, 3]   -->   t0 and t2 at byte 0, t1 behind them

A container lives from its first writer to its last reader, both included: no operator finds an output in the place of
one of its inputs. Containers inside a stream need room for one image per lane.
Finding the smallest arena is bin packing with fixed times; the containers are placed in several
orders, each in the tightest gap among those that live at the same time, and the best plan wins. No plan can be smaller
than the most bytes alive at one time. Saves scratch memory, and cache lines: a new tensor is written where a dead one is
still in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dcir.ir.annotations import ImagePipeline
from dcir.ir.memory_plan import ALIGNMENT, ARENA, aligned
from dcir.ir.network import Network
from dcir.ir.types import itemsize
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.memory.lifetimes import Lifetime, lifetimes, most_alive

_ORDERS: tuple[Callable[[Lifetime], Any], ...] = (
    lambda t: (-t.nbytes, t.first),
    lambda t: (-t.nbytes * (t.last - t.first + 1), t.first),
    lambda t: (t.first - t.last, -t.nbytes, t.first),
    lambda t: (t.first, -t.nbytes),
)


@dataclass(frozen=True)
class PlanArena(Pass):
    """Offsets of all transients in one block of memory.

    Attributes:
        alignment: of every offset, in bytes; a cache line, so that no two containers share one.
    """

    tier: ClassVar[int] = 4
    after: ClassVar[tuple[str, ...]] = (
        "prepare-static",
        "order-execution",
        "run-per-image",
        "reuse-saved-tensors",
        "reuse-result-buffers",
    )
    final: ClassVar[bool] = True
    alignment: int = ALIGNMENT

    def apply(self, net: Network) -> PassResult:
        """Fill the arena; an older plan of it is thrown away."""
        outcome = PassResult.of(net)
        live = lifetimes(net, self.alignment)
        lanes = []
        for number, stream in enumerate(net.streams):
            live, lane = _lanes(net, stream, live, self.alignment, f"lanes of {number}")
            lanes.append(lane)
        best, size = _best(live)
        for number, stream in enumerate(net.streams):
            stream.at = best.pop(f"lanes of {number}", 0)
            stream.inside, stream.lane_bytes = lanes[number]
            best |= {name: stream.at + offset for name, offset in stream.inside.items()}
        planned = net.memory.with_block(ARENA, size, best)
        if planned != net.memory:
            outcome.passed(count=len(best), arena_bytes=size)
            net.memory = planned
        return outcome


def _best(live: list[Lifetime]) -> tuple[dict[str, int], int]:
    """The smallest of several plans: offsets and the size."""
    bound = most_alive(live)
    best: dict[str, int] = {}
    size = None
    for order in _ORDERS:
        offsets, total = _place(sorted(live, key=order))
        if size is None or total < size:
            best, size = offsets, total
        if size == bound:
            break
    return best, size or 0


def _lanes(
    net: Network, stream: ImagePipeline, live: list[Lifetime], alignment: int, name: str
) -> tuple[list[Lifetime], tuple[dict[str, int], int]]:
    """Lifetimes with one block for all lanes of a stream in place of what is inside, and the plan of one lane.

    Whatever else the stream touches lives through all of it: its last image begins when the first has long been finished.
    """
    position = {op.label: i for op, i in net.positions().items()}
    first, last = position[stream.ops[0]], position[stream.ops[-1]]
    inside: list[Lifetime] = []
    outside: list[Lifetime] = []
    for t in live:
        if t.name in stream.inside:
            one = stream.steps[t.name] * itemsize(net.containers[t.name].dtype)
            inside.append(t._replace(nbytes=aligned(one, alignment)))
        elif t.name in stream.steps:
            outside.append(t._replace(first=min(t.first, first), last=max(t.last, last)))
        else:
            outside.append(t)
    offsets, size = _best(inside)
    if size:
        outside.append(Lifetime(name, first, last, size * stream.lanes))
    return sorted(outside, key=lambda t: t.first), (offsets, size)


def _place(order: list[Lifetime]) -> tuple[dict[str, int], int]:
    """Each container in the tightest gap between the placed ones that live with it, or behind them."""
    count = len(order)
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    offsets: dict[str, int] = {}
    for k, t in enumerate(order):
        meets = (first[:k] <= t.last) & (last[:k] >= t.first)
        begins, ends = low[:k][meets], high[:k][meets]
        by_place = np.argsort(begins, kind="stable")
        taken = np.concatenate(([0], np.maximum.accumulate(ends[by_place])))  # everything below is taken, or lost
        gaps = begins[by_place] - taken[:-1]
        fitting = np.flatnonzero(gaps >= t.nbytes)
        at = int(taken[fitting[np.argmin(gaps[fitting])]] if fitting.size else taken[-1])
        first[k], last[k], low[k], high[k] = t.first, t.last, at, at + t.nbytes
        offsets[t.name] = at
    return offsets, int(high.max()) if count else 0
