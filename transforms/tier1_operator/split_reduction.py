"""A long reduction with few results in two steps: partial results of chunks, then their combination.

    y[i] = f(sum_j g(x[i, j]))   -->   t[c, i] = sum_{j in chunk c} g(x[i, j]);  y[i] = f(sum_c t[c, i])

A program runs its outer points in parallel and each inner sweep alone, so that a loss or the gradient of a bias keeps
one thread busy and all others waiting. Chunks are outer points of the first step. The order of a sum or product changes,
and its rounding error shrinks from the length of the sweep to that of a chunk; max, min, any and all stay exact. Moves a
few bytes more (the partial results); saves time in proportion to the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.cost.target import target_of
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact
from dcir.ir.loop_forms import collapse, drop_unit_loops, side_by_side
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Load, Reduce, Statement, Store
from dcir.ir.types import compute_type
from dcir.transforms.base import Pass, PassResult, Place

_STORED = {"f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"}


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
        outcome = PassResult()
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
                outcome.refuse(reserved)
                continue
            reason = self._split(net, op, collapse(drop_unit_loops(p)))
            if reason is None:
                outcome.changed += 1
            else:
                outcome.refuse(reason)
        return outcome

    def _split(self, net: Network, op: Op, p: LoopNest) -> Refusal | None:
        """Put two operators in the place of ``op``; the reason why not."""
        reduces = {i: s for i, s in enumerate(p.body) if isinstance(s, Reduce)}
        levels = p.levels()
        lanes = side_by_side(p)
        jobs = -(-math.prod(p.outer) // lanes)
        if jobs > (target_of(net).costs.busy_jobs if self.max_jobs is None else self.max_jobs):
            return Refusal("it has enough results for all threads")
        if any(s.is_place for s in reduces.values()):
            return Refusal("the first position of a largest value has to be found in order")
        if any(levels[i][0] > 1 for i in reduces) or any(stage and full for stage, full in levels):
            return Refusal("a later stage goes over the inner loops again")
        if any(s.dtype not in _STORED for s in reduces.values()):
            return Refusal("partial results of this type cannot be stored")
        wanted = min(math.prod(p.inner) * lanes // self.chunk, self.max_chunks)
        cut = _cut(p, wanted)
        if cut is None:
            return Refusal("the inner loops have no divisor near the chunk")
        self._replace(net, op, p, *cut)
        return None

    def _replace(self, net: Network, op: Op, p: LoopNest, first: LoopNest, chunks: int) -> None:
        """The first ``chunks`` outer loops of ``first`` count the chunks; then come the outer loops of ``p``."""
        extents, strides = first.outer[:chunks], contiguous(first.outer)
        ins, outs = net.ins(op), net.outs(op)
        first = _without_results(first)
        reduces = [i for i, s in enumerate(first.body) if isinstance(s, Reduce)]
        types = tuple(first.body[i].dtype for i in reduces)
        whole, n = (*strides, *(0 for _ in first.inner)), len(first.outputs)
        stores = (Store(n + k, whole, types[k], (i,)) for k, i in enumerate(reduces))
        first = simplify(replace(first, outputs=(*first.outputs, *types), body=(*first.body, *stores)))
        names = [net.add_container((*extents, *p.outer), t) for t in types]
        partial = compact(first, ins, [*outs, *map(Operand, names)])
        net.add_op(partial.program, partial.ins, partial.outs, origin=op.origin, made_by=self.name, before=op)
        final = _final(p, extents, [*strides[chunks:], *strides[:chunks]])
        last = compact(final, [*ins, *map(Operand, names)], outs)
        net.rewire(op, last.program, last.ins, last.outs, made_by=self.name)


def _without_results(p: LoopNest) -> LoopNest:
    """``p`` with its stores per inner point only, renumbered; the other outputs are written no more."""
    keep = [
        i for i, (s, (_, full)) in enumerate(zip(p.body, p.levels(), strict=True)) if not isinstance(s, Store) or full
    ]
    place = {old: new for new, old in enumerate(keep)}
    return replace(p, body=tuple(p.body[i].renumbered(place) for i in keep))


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


def _final(p: LoopNest, extents: tuple[int, ...], strides: list[int]) -> LoopNest:
    """The reduces of ``p`` over partial results, and everything after them."""
    n_outer = len(p.outer)
    types = [s.dtype for s in p.body if isinstance(s, Reduce)]
    body: list[Statement] = []
    where: dict[int, int] = {}
    for i, (s, (stage, full)) in enumerate(zip(p.body, p.levels(), strict=True)):
        if full and not stage:
            continue  # only the first step needs it
        if isinstance(s, Reduce):
            operand = len(p.inputs) + sum(1 for t in p.body[:i] if isinstance(t, Reduce))
            body.append(Load(operand, tuple(strides), compute_type(s.dtype)))
            s = s.with_args((len(body) - 1,))
        else:
            s = s.renumbered(where)
            if isinstance(s, Access):
                s = s.with_strides((*s.strides[:n_outer], *(0 for _ in extents)))
        body.append(s)
        where[i] = len(body) - 1
    return simplify(replace(p, inner=extents, inputs=(*p.inputs, *types), body=tuple(body)))
