"""Equivalent forms of a loop nest: unit loops and idle roundings dropped, loops in memory order, neighbouring loops collapsed."""

from __future__ import annotations

from dataclasses import replace

from dcir.ir.loop_nest import LoopNest, Stmt, simplify


def _addresses(p: LoopNest) -> list[Stmt]:
    return [s for s in p.body if s.op in ("load", "store", "gather")]


def drop_unit_loops(p: LoopNest) -> LoopNest:
    """Loops of extent 1 removed: their index is the constant 0, and a reduction over nothing else is its operand."""
    keep = [d for d, n in enumerate(p.dims) if n != 1]
    if len(keep) == len(p.dims) and (p.inner or not any(s.op == "reduce" for s in p.body)):
        return p
    place = {d: k for k, d in enumerate(keep)}
    n_outer = len(p.outer)
    inner = tuple(p.dims[d] for d in keep if d >= n_outer)
    body: list[Stmt] = []
    where: dict[int, int] = {}
    for i, s in enumerate(p.body):
        attr, args = s.attr, tuple(where[a] for a in s.args)
        if s.op in ("load", "store", "gather"):
            attr = (attr[0], tuple(attr[1][d] for d in keep), *attr[2:])
        elif s.op == "index":
            if attr[0] not in place:
                body.append(Stmt("const", (), "i64", (0,)))
                where[i] = len(body) - 1
                continue
            attr = (place[attr[0]],)
        elif s.op == "reduce" and not inner:
            if attr[0] in ("argmax", "argmin"):
                body.append(Stmt("const", (), "i64", (0,)))
                where[i] = len(body) - 1
            elif body[args[0]].dtype != s.dtype:  # any, all
                body.append(Stmt("cast", args, s.dtype))
                where[i] = len(body) - 1
            else:
                where[i] = args[0]
            continue
        body.append(s._replace(args=args, attr=attr))
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
        if s.op == "narrow" and s.attr:
            source = p.body[args[0]]
            if source.op == "load" and not source.args and p.inputs[source.attr[0]] == s.attr[0]:
                where[i] = args[0]
        body.append(s._replace(args=args))
    return simplify(replace(p, body=tuple(body))) if where else p


def order_loops(p: LoopNest) -> LoopNest:
    """Outer loops in the memory order of the widest store, inner ones in that of the widest load.

    Argument reductions keep their inner order, since the first position wins.
    """
    n_outer = len(p.outer)

    def weight(kinds: tuple[str, ...], d: int) -> tuple[int, ...]:
        best: tuple[int, ...] = ()
        score = -1
        for s in _addresses(p):
            if s.op in kinds:
                width = sum(1 for st in s.attr[1] if st)
                if width > score and any(s.attr[1]):
                    score, best = width, s.attr[1]
        return (abs(best[d]),) if best else (0,)

    outer_kinds = ("store",) if any(s.op == "store" and any(s.attr[1][:n_outer]) for s in p.body) else ("load",)
    outer = sorted(range(n_outer), key=lambda d: weight(outer_kinds, d), reverse=True)
    inner = list(range(n_outer, len(p.dims)))
    if not any(s.op == "reduce" and s.attr[0].startswith("arg") for s in p.body):
        inner.sort(key=lambda d: weight(("load", "gather"), d), reverse=True)
    if outer == list(range(n_outer)) and inner == list(range(n_outer, len(p.dims))):
        return p
    return p.reorder(outer, inner)


def collapse(p: LoopNest) -> LoopNest:
    """Neighbouring loops of one group merged wherever every address walks them as one."""
    changed = True
    while changed:
        changed = False
        n_outer = len(p.outer)
        used = {s.attr[0] for s in p.body if s.op == "index"}
        for d in range(len(p.dims) - 1):
            if d + 1 == n_outer or d in used or d + 1 in used:
                continue
            n = p.dims[d + 1]
            if all(s.attr[1][d] == s.attr[1][d + 1] * n for s in _addresses(p)):
                p = _merge(p, d)
                changed = True
                break
    return simplify(p)


def _merge(p: LoopNest, d: int) -> LoopNest:
    body = []
    for s in p.body:
        attr = s.attr
        if s.op in ("load", "store", "gather"):
            attr = (attr[0], (*attr[1][:d], *attr[1][d + 1 :]), *attr[2:])
        elif s.op == "index" and attr[0] > d:
            attr = (attr[0] - 1,)
        body.append(s._replace(attr=attr))
    dims = (*p.dims[:d], p.dims[d] * p.dims[d + 1], *p.dims[d + 2 :])
    n_outer = len(p.outer) - (1 if d < len(p.outer) else 0)
    return replace(p, outer=dims[:n_outer], inner=dims[n_outer:], body=tuple(body))


MOST_SIDE_BY_SIDE = 64
"""Neighbouring results that one job computes side by side where memory runs along them."""


def side_by_side(p: LoopNest) -> int:
    """Neighbouring results per job of a reduction: more than one where the widest load walks the last outer loop."""
    if not p.outer:
        return 1
    along = len(p.outer) - 1
    loads = [s.attr[1] for s in p.body if s.op == "load"]
    widest = max(loads, key=lambda st: sum(1 for v in st if v), default=None)
    return min(MOST_SIDE_BY_SIDE, p.outer[-1]) if widest is not None and widest[along] == 1 else 1
