"""When the values of a network are alive, in positions of the execution order, and how many bytes live at one time."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from dcir.ir.memory_plan import ALIGNMENT, aligned
from dcir.ir.network import Network

BEFORE, AFTER = -1, 1 << 60
"""Positions before and after all operators."""


class Lifetime(NamedTuple):
    """When a transient is alive: positions in execution order, both included; and its bytes, aligned."""

    name: str
    first: int
    last: int
    nbytes: int


def lifetimes(net: Network, alignment: int = ALIGNMENT) -> list[Lifetime]:
    """Every transient that some operator uses and that ends with the call, in order of first use."""
    position = net.positions()
    result = []
    for name, c in net.containers.items():
        planned = c.role == "transient" and net.memory.belongs_in_arena(name)
        used = [position[op] for op in (*net.writers(name), *net.readers(name))] if planned else []
        if used and c.nbytes:
            result.append(Lifetime(name, min(used), max(used), aligned(c.nbytes, alignment)))
    return sorted(result, key=lambda t: t.first)


def live_bytes_lower_bound(net: Network, alignment: int = ALIGNMENT) -> int:
    """The most bytes of transients alive at one time: no arena can be smaller."""
    return most_alive(lifetimes(net, alignment))


def most_alive(live: list[Lifetime]) -> int:
    """The most bytes alive at one time."""
    change = np.zeros(max((t.last for t in live), default=0) + 2, np.int64)
    for t in live:
        change[t.first] += t.nbytes
        change[t.last + 1] -= t.nbytes
    return int(change.cumsum().max())


def large_results(net: Network, least: int) -> list[Lifetime]:
    """Results of at least so many bytes that are shown whole and once, from their first writer on, in that order."""
    shown = Counter(r.data for r in net.results)
    position = net.positions()
    begins = {label: position_of_stream(net, i)[0] for i, s in enumerate(net.streams) for label in s.ops}
    found = []
    for r in net.results:
        c = net.containers[r.data]
        whole = r.offset == 0 and r.shape == c.shape and r.strides == c.strides
        if c.role == "result" and whole and shown[r.data] == 1 and r.data not in net.updates and c.nbytes >= least:
            first = min((begins.get(w.label, position[w]) for w in net.writers(r.data)), default=BEFORE)
            found.append(Lifetime(r.data, first, AFTER, c.nbytes))
    return sorted(found, key=lambda t: (t.first, -t.nbytes))


def position_of_stream(net: Network, number: int) -> tuple[int, int]:
    """First and last position of a stream's operators."""
    position = {op.label: i for op, i in net.positions().items()}
    stream = net.streams[number]
    return position[stream.ops[0]], position[stream.ops[-1]]


def spans(net: Network, live: list[Lifetime]) -> list[Lifetime]:
    """Lifetimes of what lies outside of streams; what a stream touches lives through all of it."""
    spans = [(s, position_of_stream(net, i)) for i, s in enumerate(net.streams)]
    result = []
    for t in live:
        if any(t.name in s.inside for s, _ in spans):
            continue
        touched = [span for s, span in spans if t.name in s.steps]
        first = min([t.first, *(span[0] for span in touched)])
        last = max([t.last, *(span[1] for span in touched)])
        result.append(t._replace(first=first, last=last))
    return result
