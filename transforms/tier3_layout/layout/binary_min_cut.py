"""The cheapest choice between two labels for many variables whose neighbours cost less if they agree.

Every variable has a cost for each label, some pairs have a cost for each pair of labels, and for every pair
cost(0, 0) + cost(1, 1) <= cost(0, 1) + cost(1, 0). A variable with at most two neighbours is minimised out, which leaves such
costs between its neighbours; series and branches of a network vanish in this way. What remains is a minimum cut, so the
choice is exact for every graph.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import networkx

_Table = tuple[int, int, int, int]
"""Cost of the labels (0, 0), (0, 1), (1, 0), (1, 1)."""


class Agreement:
    """Costs, collected; and their minimum."""

    def __init__(self) -> None:
        self._own: list[list[int]] = []
        self._pairs: list[dict[int, _Table]] = []

    def variable(self) -> int:
        """A new variable."""
        self._own.append([0, 0])
        self._pairs.append({})
        return len(self._own) - 1

    def cost(self, a: int, zero: int, one: int) -> None:
        """Add costs of one variable's labels."""
        self._own[a][0] += zero
        self._own[a][1] += one

    def pair(self, a: int, b: int, table: Sequence[int]) -> None:
        """Add costs of two variables' labels (0, 0), (0, 1), (1, 0), (1, 1).

        Raises:
            ValueError: the labels would rather differ than agree.
        """
        t00, t01, t10, t11 = table
        if t00 + t11 > t01 + t10:
            raise ValueError(f"labels would rather differ: {tuple(table)}")
        old = self._pairs[a].get(b, (0, 0, 0, 0))
        new = (old[0] + t00, old[1] + t01, old[2] + t10, old[3] + t11)
        self._pairs[a][b] = new
        self._pairs[b][a] = (new[0], new[2], new[1], new[3])

    def solve(self) -> list[int]:
        """The labels of least cost; where both cost the same, 0."""
        own, pairs = [list(c) for c in self._own], [dict(p) for p in self._pairs]
        gone: list[tuple[int, list[int], dict[int, _Table]]] = []
        left = set(range(len(own)))
        queue = [(len(p), v) for v, p in enumerate(pairs)]
        heapq.heapify(queue)
        while queue:
            degree, v = heapq.heappop(queue)
            if v not in left or degree != len(pairs[v]):
                continue
            if degree > 2:
                break
            gone.append((v, own[v], pairs[v]))
            left.discard(v)
            near = list(pairs[v])
            for b in near:
                del pairs[b][v]
            self._without(v, near, own, pairs)
            for b in near:
                heapq.heappush(queue, (len(pairs[b]), b))
        labels = _cut(sorted(left), own, pairs)
        for v, cost, table in reversed(gone):
            zero = cost[0] + sum(t[labels[b]] for b, t in table.items())
            one = cost[1] + sum(t[2 + labels[b]] for b, t in table.items())
            labels[v] = int(one < zero)
        return [labels[v] for v in range(len(own))]

    @staticmethod
    def _without(v: int, near: list[int], own: list[list[int]], pairs: list[dict[int, _Table]]) -> None:
        """Minimise ``v`` out: costs of its neighbours instead."""
        cost = own[v]
        if len(near) == 1:
            (b,) = near
            table = pairs[v][b]
            for label in (0, 1):
                own[b][label] += min(cost[0] + table[label], cost[1] + table[2 + label])
        elif len(near) == 2:
            (a, b), (ta, tb) = near, (pairs[v][near[0]], pairs[v][near[1]])
            old = pairs[a].get(b, (0, 0, 0, 0))
            new = [
                old[2 * x + y] + min(cost[0] + ta[x] + tb[y], cost[1] + ta[2 + x] + tb[2 + y])
                for x, y in itertools.product((0, 1), repeat=2)
            ]
            pairs[a][b] = (new[0], new[1], new[2], new[3])
            pairs[b][a] = (new[0], new[2], new[1], new[3])


def _cut(left: Sequence[int], own: list[list[int]], pairs: list[dict[int, _Table]]) -> dict[int, int]:
    """Labels of the variables that are left: 0 on the side of the source of a minimum cut."""
    if not left:
        return {}
    lean = {v: own[v][1] - own[v][0] for v in left}
    graph = networkx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    for a in left:
        for b, (t00, t01, t10, t11) in pairs[a].items():
            if a < b:  # t00 + (t10 - t00) a + (t11 - t10) b + (t01 + t10 - t00 - t11) (1 - a) b
                lean[a] += t10 - t00
                lean[b] += t11 - t10
                graph.add_edge(a, b, capacity=t01 + t10 - t00 - t11)
    for v in left:
        if lean[v] >= 0:  # rather 0: cut off from the source it costs so much
            graph.add_edge("source", v, capacity=lean[v])
        else:
            graph.add_edge(v, "sink", capacity=-lean[v])
    _, (_, ones) = networkx.minimum_cut(graph, "source", "sink")
    return {v: int(v in ones) for v in left}
