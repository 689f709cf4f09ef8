"""Which forward values to keep for the backward and which to compute again there: an integer program over bytes and seconds.

    keep v            its bytes lie in memory from its computation to the end of the backward
    compute v again   its bytes lie in the backward's arena from the first need to the last; its operators run twice, and what
                      they read must itself be kept, or be computed again by then

One binary variable per value; when a value is there again follows from it step by step, in variables that are whole numbers by
themselves (each is bounded by the greatest of sums of binaries). Solved by HiGHS to within ``GAP`` of the optimum (``LEAST_GAP``
for the least peak), or to the best solution found within a number of nodes, so that equal problems have equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

GAP = 1e-3
LEAST_GAP = 5e-3
NODES = 200
SECONDS = 60.0


@dataclass(frozen=True)
class Value:
    """A forward value that the backward may need.

    Attributes:
        name: of its node.
        stored: bytes if it is kept; None if it cannot be.
        live: bytes in the backward's arena from when it is computed again to the last need; what only other values are
            computed from is there for a moment, which is not counted.
        written: bytes in the forward's arena if it is not kept.
        parents: numbers of the values it is computed from, each smaller than its own.
        store_seconds: what keeping it costs.
        again_seconds: what computing it again from its parents costs; infinite if that is not allowed.
        forced: whether it is kept in any case.
        forward: steps of the forward it is alive in; None if the forward does not compute it.
        needs: first and last step of the backward that reads it; None if only other values are computed from it.
    """

    name: str
    stored: int | None
    live: int = 0
    written: int = 0
    parents: tuple[int, ...] = ()
    store_seconds: float = 0.0
    again_seconds: float = math.inf
    forced: bool = False
    forward: tuple[int, int] | None = None
    needs: tuple[int, int] | None = None


@dataclass(frozen=True)
class PartitionProblem:
    """Values in an order of computation, and the bytes that are alive whatever is chosen, per step of forward and backward."""

    values: tuple[Value, ...]
    forward_base: tuple[int, ...]
    backward_base: tuple[int, ...]


@dataclass(frozen=True)
class PartitionChoice:
    """Which values are kept; predicted seconds for keeping and computing again; predicted peak in bytes.

    Attributes:
        again: values that are computed again.
        proven: whether nothing better by more than ``GAP`` exists.
    """

    stored: frozenset[int]
    again: frozenset[int]
    seconds: float
    peak: int
    proven: bool = False


def evaluate(problem: PartitionProblem, stored: Iterable[int]) -> PartitionChoice | None:
    """What keeping exactly ``stored`` and all forced values means; None if something needed could not be had."""
    values, steps = problem.values, len(problem.backward_base)
    kept = set(stored) | {i for i, v in enumerate(values) if v.forced}
    if any(values[i].stored is None for i in kept):
        return None
    there = [steps] * len(values)  # step from which a value is there again; ``steps``: never
    for i in reversed(range(len(values))):
        v = values[i]
        if i in kept:
            continue
        if v.needs is not None:
            there[i] = min(there[i], v.needs[0])
        if there[i] == steps:
            continue
        if math.isinf(v.again_seconds):
            return None
        for p in v.parents:
            there[p] = min(there[p], there[i]) if p not in kept else steps
    again = frozenset(i for i, t in enumerate(there) if t < steps)
    total = sum(values[i].stored or 0 for i in kept)
    forward = np.array(problem.forward_base, np.int64)
    backward = np.array(problem.backward_base, np.int64)
    for i, v in enumerate(values):
        if i not in kept and v.forward is not None:
            forward[v.forward[0] : v.forward[1] + 1] += v.written
        if i in again and v.needs is not None:
            backward[there[i] : v.needs[1] + 1] += v.live
    peak = total + int(max(forward.max(initial=0), backward.max(initial=0)))
    seconds = sum(values[i].store_seconds for i in kept) + sum(values[i].again_seconds for i in again)
    return PartitionChoice(frozenset(kept), again, seconds, peak)


def solve(problem: PartitionProblem, limit: int | None = None) -> PartitionChoice | None:
    """The quickest choice whose peak is within ``limit``; without one, the choice of the least peak.

    None if there is no such choice, or none was found.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # 0.2 s that only limits need

    program = _Program(problem)
    program.build(limit)
    matrix, low = program.constraints()
    result = milp(
        program.cost(limit),
        integrality=program.integrality(),
        bounds=Bounds(np.zeros(program.count), program.upper()),
        constraints=LinearConstraint(matrix, low, np.inf),
        options={"node_limit": NODES, "mip_rel_gap": LEAST_GAP if limit is None else GAP, "time_limit": SECONDS},
    )
    if result.x is None:
        return None
    found = evaluate(problem, (i for i, c in program.keep.items() if result.x[c] > 0.5))
    if found is None or (limit is not None and found.peak > limit):
        return None
    return PartitionChoice(found.stored, found.again, found.seconds, found.peak, bool(result.status == 0))


class _Program:
    """Columns and rows: ``keep`` is 1 for a kept value; ``again[v, t]`` is 1 if ``v`` has been computed again by step ``t``."""

    def __init__(self, problem: PartitionProblem) -> None:
        self.problem = problem
        self.values, self.steps = problem.values, len(problem.backward_base)
        self.keep: dict[int, int] = {}
        self.again: dict[tuple[int, int], int] = {}
        self.count = 1  # column 0 is the peak, in units of ``self.unit``
        self.rows: list[tuple[dict[int, float], float]] = []  # sum of coefficients times columns >= bound
        self.unit = float(max(1, max((v.stored or 0 for v in self.values), default=1)))

    def build(self, limit: int | None) -> None:
        early = [self.steps] * len(self.values)
        for i in reversed(range(len(self.values))):
            v = self.values[i]
            if v.forced:
                continue
            if v.needs is not None:
                early[i] = min(early[i], v.needs[0])
            for p in v.parents:
                early[p] = min(early[p], early[i])
        for i, v in enumerate(self.values):
            if v.forced:
                continue
            if v.stored is not None:
                self.keep[i] = self._column()
            if not math.isinf(v.again_seconds):
                until = v.needs[0] if v.needs is not None else self.steps
                for t in range(early[i], until):
                    self.again[i, t] = self._column()
        for i, v in enumerate(self.values):
            if not v.forced:
                self._order(i, v, early[i])
        self._memory(limit)

    def _column(self) -> int:
        self.count += 1
        return self.count - 1

    def _there(self, i: int, t: int) -> tuple[dict[int, float], float]:
        """Whether a value has been computed again by a step, as a linear form: coefficients and a constant."""
        v = self.values[i]
        if v.forced or (v.needs is None and (i, t) not in self.again):
            return {}, 0.0
        if v.needs is not None and t >= v.needs[0]:
            if math.isinf(v.again_seconds):
                return {}, 0.0
            return ({self.keep[i]: -1.0}, 1.0) if i in self.keep else ({}, 1.0)
        return ({self.again[i, t]: 1.0}, 0.0) if (i, t) in self.again else ({}, 0.0)

    def _order(self, i: int, v: Value, early: int) -> None:
        """A needed value is there, and stays; what it is computed from is there by then."""
        own = {self.keep[i]: 1.0} if i in self.keep else {}
        if v.needs is not None and math.isinf(v.again_seconds):
            self.rows.append((own, 1.0))
        for t in range(early, self.steps):
            here, constant = self._there(i, t)
            if not here and not constant:
                continue
            if t > early and not (v.needs is not None and t > v.needs[0]):
                before, less = self._there(i, t - 1)
                self._at_least(here, before, less - constant)
            for p in v.parents:
                if self.values[p].forced:
                    continue
                parent, more = self._there(p, t)
                if p in self.keep:
                    parent = dict(parent)
                    parent[self.keep[p]] = parent.get(self.keep[p], 0.0) + 1.0
                if any(parent.values()) or not more:
                    self._at_least(parent, here, constant - more)
            if v.needs is not None and t >= v.needs[0]:
                break  # from here on nothing changes, and parents stay

    def _at_least(self, left: dict[int, float], right: dict[int, float], bound: float) -> None:
        row = dict(left)
        for column, factor in right.items():
            row[column] = row.get(column, 0.0) - factor
        self.rows.append((row, bound))

    def _memory(self, limit: int | None) -> None:
        kept = {c: -(self.values[i].stored or 0) / self.unit for i, c in self.keep.items()}
        fixed = sum(v.stored or 0 for v in self.values if v.forced)
        forward: list[dict[int, float]] = [dict(kept) for _ in self.problem.forward_base]
        forward_bound = [(fixed + b) / self.unit for b in self.problem.forward_base]
        backward: list[dict[int, float]] = [dict(kept) for _ in self.problem.backward_base]
        backward_bound = [(fixed + b) / self.unit for b in self.problem.backward_base]
        for i, v in enumerate(self.values):
            if v.forced:
                continue
            if v.forward is not None and v.written:
                for t in range(v.forward[0], v.forward[1] + 1):
                    forward_bound[t] += v.written / self.unit
                    if i in self.keep:
                        forward[t][self.keep[i]] += v.written / self.unit
            for t in range(v.needs[1] + 1 if v.needs is not None and v.live else 0):
                here, constant = self._there(i, t)
                backward_bound[t] += constant * v.live / self.unit
                for column, factor in here.items():
                    backward[t][column] = backward[t].get(column, 0.0) - factor * v.live / self.unit
        for row, bound in zip((*forward, *backward), (*forward_bound, *backward_bound), strict=True):
            if limit is None:
                self.rows.append(({0: 1.0, **row}, bound))
            else:
                self.rows.append((row, bound - limit / self.unit))

    def cost(self, limit: int | None) -> np.ndarray[Any, Any]:
        """Seconds, as a part of the most there could be; for the least peak, that of the peak with seconds as a tie breaker."""
        c = np.zeros(self.count)
        for i, v in enumerate(self.values):
            if v.forced:
                continue
            if i in self.keep:
                c[self.keep[i]] += v.store_seconds
            if not math.isinf(v.again_seconds):
                for column, factor in self._there(i, self.steps - 1)[0].items():
                    c[column] += factor * v.again_seconds
        c /= max(float(np.abs(c).max()), 1e-12)
        if limit is None:
            c *= 1e-4
            c[0] = 1.0
        return c

    def integrality(self) -> np.ndarray[Any, Any]:
        """Which columns are whole numbers."""
        kinds = np.zeros(self.count)
        kinds[list(self.keep.values())] = 1
        return kinds

    def upper(self) -> np.ndarray[Any, Any]:
        """Upper bounds of the columns."""
        bounds = np.ones(self.count)
        bounds[0] = np.inf
        return bounds

    def constraints(self) -> tuple[Any, list[float]]:
        """All rows as a sparse matrix, and their lower bounds."""
        from scipy.sparse import csr_array

        data: list[float] = []
        columns: list[int] = []
        starts, low = [0], []
        for row, bound in self.rows:
            columns += list(row)
            data += list(row.values())
            starts.append(len(columns))
            low.append(bound)
        return csr_array((data, columns, starts), shape=(len(self.rows), self.count)), low
