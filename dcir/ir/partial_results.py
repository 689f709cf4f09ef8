"""A reduction in two steps: one loop nest that stores partial results of its parts, and one that combines them.

y[i] = f(sum_j g(x[i, j]))   -->   t[p, i] = sum_{j in part p} g(x[i, j]);  y[i] = f(sum_p t[p, i])
"""

from __future__ import annotations

from dataclasses import replace

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Load, Reduce, Statement, Store
from dcir.ir.types import compute_type

STORED = {"f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"}
"""Types of partial results that can be stored as they are."""


def partial_types(p: LoopNest) -> tuple[str, ...]:
    """The types of a loop nest's partial results, one for each reduce."""
    return tuple(s.dtype for s in p.body if isinstance(s, Reduce))


def unsplittable(p: LoopNest) -> Refusal | None:
    """Why the reductions of a loop nest cannot be made of partial results."""
    reduces = {i: s for i, s in enumerate(p.body) if isinstance(s, Reduce)}
    levels = p.levels()
    if any(s.is_place for s in reduces.values()):
        return Refusal("the first position of a largest value has to be found in order")
    if any(levels[i][0] > 1 for i in reduces) or any(stage and full for stage, full in levels):
        return Refusal("a later stage goes over the inner loops again")
    if any(s.dtype not in STORED for s in reduces.values()):
        return Refusal("partial results of this type cannot be stored")
    return None


def first_step(p: LoopNest, strides: tuple[int, ...]) -> LoopNest:
    """The first step: stores at inner points as they are, and partial results.

    Args:
        p: the loop nest with its parts among its outer loops.
        strides: of the partial results over the outer loops; they are the last outputs, one for each reduce.
    """
    first = _without_results(p)
    reduces = [i for i, s in enumerate(first.body) if isinstance(s, Reduce)]
    types, whole, n = partial_types(p), (*strides, *(0 for _ in first.inner)), len(first.outputs)
    stores = (Store(n + k, whole, types[k], (i,)) for k, i in enumerate(reduces))
    return simplify(replace(first, outputs=(*first.outputs, *types), body=(*first.body, *stores)))


def last_step(p: LoopNest, extents: tuple[int, ...], strides: tuple[int, ...]) -> LoopNest:
    """The reduces of ``p`` over partial results, and everything after them.

    Args:
        p: the loop nest as it was.
        extents: numbers of parts, which are its inner loops.
        strides: of the partial results over the outer loops of ``p`` and the parts; they are the last inputs, one for each reduce.
    """
    n_outer = len(p.outer)
    body: list[Statement] = []
    where: dict[int, int] = {}
    for i, (s, (stage, full)) in enumerate(zip(p.body, p.levels(), strict=True)):
        if full and not stage:
            continue  # only the first step needs it
        if isinstance(s, Reduce):
            operand = len(p.inputs) + sum(1 for t in p.body[:i] if isinstance(t, Reduce))
            body.append(Load(operand, strides, compute_type(s.dtype)))
            s = s.with_args((len(body) - 1,))
        else:
            s = s.renumbered(where)
            if isinstance(s, Access):
                s = s.with_strides((*s.strides[:n_outer], *(0 for _ in extents)))
        body.append(s)
        where[i] = len(body) - 1
    return simplify(replace(p, inner=extents, inputs=(*p.inputs, *partial_types(p)), body=tuple(body)))


def _without_results(p: LoopNest) -> LoopNest:
    """``p`` with its stores per inner point only, renumbered; the other outputs are written no more."""
    keep = [
        i for i, (s, (_, full)) in enumerate(zip(p.body, p.levels(), strict=True)) if not isinstance(s, Store) or full
    ]
    place = {old: new for new, old in enumerate(keep)}
    return replace(p, body=tuple(p.body[i].renumbered(place) for i in keep))
