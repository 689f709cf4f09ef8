"""A long reduction with few results in two steps: partial results of chunks, then their combination.

    y[i] = f(sum_j g(x[i, j]))   -->   t[c, i] = sum_{j in chunk c} g(x[i, j]);  y[i] = f(sum_c t[c, i])

A program runs its outer points in parallel and each inner sweep alone, so that a loss or the gradient of a bias keeps
one thread busy and all others waiting. Chunks are outer points of the first step. The order of a sum or product changes,
and its rounding error shrinks from the length of the sweep to that of a chunk; max, min, any and all stay exact. Moves a
few bytes more (the partial results); saves time in proportion to the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_forms import collapse, drop_unit_loops, side_by_side
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.partial_results import first_step, last_step, partial_types, unsplittable
from dcir.ir.refusal import SWITCHED_OFF, Refusal
from dcir.ir.statements import Reduce
from dcir.transforms.base import Pass, PassResult, Place


@dataclass(frozen=True)
class SplitReduction(Pass):
    """Split the inner loops of reductions, but for those that a later pass of the pipeline reserves.

    Attributes:
        min_inner: least number of inner points per result.
        min_rows: the same where neighbouring results lie side by side in memory: chunks read it in order.
        min_points: least number of points of the whole program; below it a second kernel costs more than it brings.
        max_jobs: most jobs that a program may have already; None: those that keep the target busy.
        chunk: points per job of the first step, about.
        max_chunks: most partial results per result.
    """

    tier: ClassVar[int] = 1
    min_inner: int = 2048
    min_rows: int = 384
    min_points: int = 131072
    max_jobs: int | None = None
    chunk: int = 16384
    max_chunks: int = 1024

    def apply(self, net: Network) -> PassResult:
        """Visit every program with inner loops."""
        return self.apply_at(net, Place())

    def apply_at(self, net: Network, place: Place) -> PassResult:
        """The same, but for what is reserved."""
        outcome = PassResult.of(net)
        for op in net.ops():
            p = op.spec
            if not isinstance(p, LoopNest) or p.points() < self.min_points:
                continue
            if math.prod(p.inner) < (self.min_rows if side_by_side(p) > 1 else self.min_inner):
                continue
            if not any(isinstance(s, Reduce) for s in p.body):
                continue
            reserved = place.reserved(net, op)
            if reserved is not None:
                outcome.missed(reserved, (op,))
                continue
            reason = self._split(net, op, collapse(drop_unit_loops(p)))
            if reason is None:
                outcome.passed((op,))
            else:
                outcome.missed(reason, (op,))
        return outcome

    def _split(self, net: Network, op: Op, p: LoopNest) -> Refusal | None:
        """Put two operators in the place of ``op``; the reason why not."""
        lanes = side_by_side(p)
        jobs = -(-math.prod(p.outer) // lanes)
        if jobs > (target_of(net).costs.busy_jobs if self.max_jobs is None else self.max_jobs):
            return Refusal("it has enough results for all threads")
        refusal = unsplittable(p)
        if refusal is not None:
            return refusal
        wanted = min(math.prod(p.inner) * lanes // self.chunk, self.max_chunks)
        cut = _cut(p, wanted)
        if cut is None:
            return Refusal("the inner loops have no divisor near the chunk")
        if not net.allows(self, op):
            return SWITCHED_OFF
        self._replace(net, op, p, *cut)
        return None

    def _replace(self, net: Network, op: Op, p: LoopNest, first: LoopNest, chunks: int) -> None:
        """The first ``chunks`` outer loops of ``first`` count the chunks; then come the outer loops of ``p``."""
        extents, strides = first.outer[:chunks], contiguous(first.outer)
        ins, outs = net.ins(op), net.outs(op)
        types, first = partial_types(p), first_step(first, strides)
        names = [net.add_container((*extents, *p.outer), t) for t in types]
        partial = compact(first, ins, [*outs, *map(Operand, names)])
        net.add_op(partial.program, partial.ins, partial.outs, came_from=(op,), made_by=self.name, before=op)
        final = last_step(p, extents, (*strides[chunks:], *strides[:chunks]))
        last = compact(final, [*ins, *map(Operand, names)], outs)
        net.rewire(op, last.program, last.ins, last.outs, made_by=self.name)


def _cut(p: LoopNest, wanted: int) -> tuple[LoopNest, int] | None:
    """About ``wanted`` chunks: the first inner loops, whole or in part, as first outer loops; and how many loops."""
    count, loops, n_outer = 1, 0, len(p.outer)
    for d in range(n_outer, len(p.dims)):
        extent = p.dims[d]
        if count * extent <= wanted and d + 1 < len(p.dims):
            count, loops = count * extent, loops + 1
            continue
        part = max((k for k in range(1, extent) if extent % k == 0 and count * k <= wanted), default=1)
        if part > 1:
            p = p.split(d, extent // part)
            count, loops = count * part, loops + 1
        break
    if count < 2:
        return None
    order = [*range(n_outer, n_outer + loops), *range(n_outer)]
    return p.reorder(order, range(n_outer + loops, len(p.dims))), loops
