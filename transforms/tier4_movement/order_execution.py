"""Operators run in the order that keeps the fewest bytes alive.

    a = f(x); b = f(y); p = g(a); q = g(b)   -->   a = f(x); p = g(a); b = f(y); q = g(b)     a is gone before b comes

List scheduling: of all operators whose inputs are there, the one that adds the fewest bytes runs next (outputs that come
alive, less containers whose last reader it is); among equals the earliest in the old order. A greedy order can be worse
than the old one, which then stays. Operators with effects keep their order among each other, and what writes in place of an input comes
after what may fail. In a backward what the forward
kept is alive until its last reader and a gradient from its first writer on, as ``reuse_saved_tensors.py`` makes it be; elsewhere inputs
and results are their owners' throughout. Saves peak memory: an optimiser step next to its gradient, a small result before the
next large one, the gradient of a large table when everything else is gone.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network
from dcir.ir.updates import checks_first
from dcir.transforms.base import Pass, PassResult
from dcir.transforms.tier4_movement.memory.lifetimes import Lifetime, lifetimes, most_alive


@dataclass(frozen=True)
class OrderExecution(Pass):
    """Reorder operators.

    Attributes:
        least_gain: share of the peak that a new order must save; for less, the frontend's order has the better locality.
    """

    tier: ClassVar[int] = 4
    final: ClassVar[bool] = True
    least_gain: float = 0.02

    def apply(self, net: Network) -> PassResult:
        """Schedule, and keep the better of both orders."""
        outcome = PassResult.of(net)
        old = net.ops()
        before = alive_bytes(net)
        new = _Schedule(net, old).order()
        if new == old:
            return outcome
        net.set_order(new)
        after = alive_bytes(net)
        if after > before * (1 - self.least_gain) or not before:
            net.set_order(old)
            outcome.missed(
                "the greedy order needs about as much memory as the one there is", peak_before=before, peak_after=after
            )
            return outcome
        moved = sum(a is not b for a, b in zip(old, new, strict=True))
        outcome.passed(count=moved, peak_before=before, peak_after=after)
        return outcome


def alive_bytes(net: Network) -> int:
    """The most bytes alive at one time: transients, and in a backward kept values and gradients too."""
    live = lifetimes(net)
    if not net.memory.donated:
        return most_alive(live)
    position = net.positions()
    end, shown = len(position), net.result_containers()
    buffers: dict[int, Lifetime] = {}
    for name, part in net.memory.donated.items():
        last = end if name in shown else max((position[r] for r in net.readers(name)), default=0)
        before = buffers.get(part.buffer)
        last = max(last, before.last) if before is not None else last
        buffers[part.buffer] = Lifetime(name, 0, last, part.nbytes)
    live += buffers.values()
    for name in _born_results(net):
        live.append(Lifetime(name, min(position[w] for w in net.writers(name)), end, net.containers[name].nbytes))
    return most_alive(live)


def _born_results(net: Network) -> list[str]:
    """Results with memory of their own, and a writer."""
    return [n for n, c in net.containers.items() if c.role == "result" and n not in net.updates and net.writers(n)]


class _Schedule:
    def __init__(self, net: Network, ops: list[Op]) -> None:
        self.ops = ops
        position = {op: i for i, op in enumerate(ops)}
        self.reads: list[list[str]] = []
        self.writes: list[list[str]] = []
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        self.unwritten: dict[str, int] = {}  # writers that are still to run
        self.unread: dict[str, int] = {}  # readers that are still to run
        self.size: dict[str, int] = {}  # bytes that come alive with the first writer
        self.freed: dict[str, int] = {}  # bytes that are gone with the last reader
        self.alive: set[str] = set()
        for op in ops:
            self.reads.append(list(dict.fromkeys(o.data for o in net.ins(op))))
            self.writes.append(list(dict.fromkeys(o.data for o in net.outs(op))))
        for name, c in net.containers.items():
            self.size[name] = self.freed[name] = c.nbytes if c.role == "transient" else 0
            self.readers[name] = [position[r] for r in net.readers(name)]
            self.unread[name] = len(self.readers[name])
            self.writers[name] = [position[w] for w in net.writers(name)]
            self.unwritten[name] = len(self.writers[name])
        donated = net.memory.donated
        if donated:
            for name in _born_results(net):
                self.size[name] = net.containers[name].nbytes
            parts = Counter(part.buffer for part in donated.values())
            for name in donated.keys() - net.result_containers():
                part = donated[name]
                self.freed[name] = part.nbytes // parts[part.buffer]
        effects = [i for i, op in enumerate(ops) if op.spec.has_effects]
        self.next_effect = dict(itertools.pairwise(effects))
        self.waits = [sum(1 for name in names if self.unwritten[name]) for names in self.reads]
        for i in effects[1:]:
            self.waits[i] += 1
        # What replaces an input waits for everything that reads the input.
        self.overwrites: dict[int, list[int]] = {}
        for name, source in net.updates.items():
            for w in self.writers[name]:
                for r in set(self.readers[source]).difference(self.writers[name]):
                    self.overwrites.setdefault(r, []).append(w)
                    self.waits[w] += 1
        for op, writers in checks_first(net):
            for w in writers:
                self.overwrites.setdefault(position[op], []).append(position[w])
                self.waits[position[w]] += 1

    def order(self) -> list[Op]:
        """The greedy order. An entry of the heap is stale once its operator's cost has changed."""
        heap: list[tuple[int, int]] = []
        done = [False] * len(self.ops)
        result: list[Op] = []

        def push(i: int) -> None:
            if not self.waits[i] and not done[i]:
                heapq.heappush(heap, (self._cost(i), i))

        for i in range(len(self.ops)):
            push(i)
        while heap:
            cost, i = heapq.heappop(heap)
            if done[i] or cost != self._cost(i):
                continue
            done[i] = True
            result.append(self.ops[i])
            for changed in self._run(i):
                push(changed)
        return result

    def _cost(self, i: int) -> int:
        born = sum(self.size[name] for name in self.writes[i] if name not in self.alive)
        return born - sum(self.freed[name] for name in self.reads[i] if self.unread[name] == 1)

    def _run(self, i: int) -> list[int]:
        """Account for operator ``i``; the operators that may run now, or whose cost is another."""
        touched: list[int] = []
        for name in self.writes[i]:
            if name not in self.alive:
                self.alive.add(name)
                touched += self.writers[name]
            self.unwritten[name] -= 1
            if not self.unwritten[name]:
                for r in self.readers[name]:
                    self.waits[r] -= 1
                touched += self.readers[name]
        for name in self.reads[i]:
            self.unread[name] -= 1
            if self.unread[name] == 1:
                touched += self.readers[name]
        followers = self.overwrites.get(i, [])
        for follower in (*followers, *([self.next_effect[i]] if i in self.next_effect else [])):
            self.waits[follower] -= 1
            touched.append(follower)
        return touched
