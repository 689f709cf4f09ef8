"""Equivalent forms of a loop nest: unit loops and idle roundings dropped, loops in memory order, neighbouring loops collapsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.statements import Access, Cast, Const, Gather, Index, Load, Narrow, Reduce, Statement, Store


def _addresses(p: LoopNest) -> list[Access]:
    return [s for s in p.body if isinstance(s, Access)]


def drop_unit_loops(p: LoopNest) -> LoopNest:
    """Loops of extent 1 removed: their index is the constant 0, and a reduction over nothing else is its operand."""
    keep = [d for d, n in enumerate(p.dims) if n != 1]
    if len(keep) == len(p.dims) and (p.inner or not any(isinstance(s, Reduce) for s in p.body)):
        return p
    place = {d: k for k, d in enumerate(keep)}
    n_outer = len(p.outer)
    inner = tuple(p.dims[d] for d in keep if d >= n_outer)
    body: list[Statement] = []
    where: dict[int, int] = {}
    for i, s in enumerate(p.body):
        new = s.renumbered(where)
        if isinstance(s, Index) and s.dim not in place:
            new = Const(0, "i64")
        elif isinstance(s, Reduce) and not inner:
            if s.is_place:
                new = Const(0, "i64")
            elif body[new.args[0]].dtype != s.dtype:  # any, all
                new = Cast(s.dtype, new.args)
            else:
                where[i] = new.args[0]
                continue
        else:
            new = new.over_loops(lambda st: tuple(st[d] for d in keep), place.__getitem__)
        body.append(new)
        where[i] = len(body) - 1
    return replace(p, outer=tuple(p.dims[d] for d in keep if d < n_outer), inner=inner, body=tuple(body))


def drop_roundings(p: LoopNest) -> LoopNest:
    """Values that are loaded from a half type not rounded to it again.

    Fusion wants the rounding: it is what remains of the half type if the load gives way to the value that was stored.
    """
    where: dict[int, int] = {}
    body = []
    for i, s in enumerate(p.body):
        args = tuple(where.get(a, a) for a in s.args)
        if isinstance(s, Narrow):
            source = p.body[args[0]]
            if isinstance(source, Load) and not source.args and p.inputs[source.operand] == s.storage:
                where[i] = args[0]
        body.append(s.with_args(args))
    return simplify(replace(p, body=tuple(body))) if where else p


def order_loops(p: LoopNest, usual: Callable[[int], int] = int) -> LoopNest:
    """Outer loops in the memory order of the widest store, inner ones in that of the widest load.

    Argument reductions keep their inner order, since the first position wins.

    Args:
        p: the program.
        usual: what a stride usually is; the order is one of speed.
    """
    n_outer = len(p.outer)

    def weight(kinds: tuple[type[Access], ...], d: int) -> tuple[int, ...]:
        best: tuple[int, ...] = ()
        score = -1
        for s in _addresses(p):
            if isinstance(s, kinds):
                width = sum(1 for st in s.strides if st)
                if width > score and any(s.strides):
                    score, best = width, s.strides
        return (abs(usual(best[d])),) if best else (0,)

    stored = any(isinstance(s, Store) and any(s.strides[:n_outer]) for s in p.body)
    outer = sorted(range(n_outer), key=lambda d: weight((Store,) if stored else (Load,), d), reverse=True)
    inner = list(range(n_outer, len(p.dims)))
    if not any(isinstance(s, Reduce) and s.is_place for s in p.body):
        inner.sort(key=lambda d: weight((Load, Gather), d), reverse=True)
    if outer == list(range(n_outer)) and inner == list(range(n_outer, len(p.dims))):
        return p
    return p.reorder(outer, inner)


def collapse(p: LoopNest) -> LoopNest:
    """Neighbouring loops of one group merged wherever every address walks them as one."""
    changed = True
    while changed:
        changed = False
        n_outer = len(p.outer)
        used = {s.dim for s in p.body if isinstance(s, Index)}
        for d in range(len(p.dims) - 1):
            if d + 1 == n_outer or d in used or d + 1 in used:
                continue
            n = p.dims[d + 1]
            if all(s.strides[d] == s.strides[d + 1] * n for s in _addresses(p)):
                p = _merge(p, d)
                changed = True
                break
    return simplify(p)


def _merge(p: LoopNest, d: int) -> LoopNest:
    body = tuple(s.over_loops(lambda st: (*st[:d], *st[d + 1 :]), lambda i: i - (i > d)) for s in p.body)
    dims = (*p.dims[:d], p.dims[d] * p.dims[d + 1], *p.dims[d + 2 :])
    n_outer = len(p.outer) - (1 if d < len(p.outer) else 0)
    return replace(p, outer=dims[:n_outer], inner=dims[n_outer:], body=body)


MOST_SIDE_BY_SIDE = 64
"""Neighbouring results that one job computes side by side where memory runs along them."""


def side_by_side(p: LoopNest) -> int:
    """Neighbouring results per job of a reduction: more than one where the widest load walks the last outer loop."""
    if not p.outer:
        return 1
    along = len(p.outer) - 1
    loads = [s.strides for s in p.body if isinstance(s, Load)]
    widest = max(loads, key=lambda st: sum(1 for v in st if v), default=None)
    return min(MOST_SIDE_BY_SIDE, p.outer[-1]) if widest is not None and widest[along] == 1 else 1
