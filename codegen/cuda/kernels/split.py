"""Reductions in several kernels: parts of rows that are joined afterwards, and sweeps that wait for each other as kernels of their own.

y[i] = f(sum_j g(x[i, j]))     -->   t[p, i] = sum_{j in part p} g(x[i, j]);   y[i] = f(sum_p t[p, i])
softmax of a long row          -->   m[i] = max_j x[i, j];   s[i] = sum_j exp(x[i, j] - m[i]);   y[i, j] = exp(x[i, j] - m[i]) / s[i]
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.statements import Load, Reduce, Statement, Store
from dcir.ir.types import compute_type


def row_major(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense array."""
    return tuple(math.prod(extents[d + 1 :]) for d in range(len(extents)))


def stage_nests(p: LoopNest) -> list[LoopNest]:
    """One nest for the reduces of every stage, and those that store.

    The k-th reduce's results are operand ``len(p.inputs) + k`` of the nests that read them, and ``len(p.outputs) + k`` of the one that
    makes them, dense over the outer loops.
    """
    levels = p.levels()
    reduces = [i for i, s in enumerate(p.body) if isinstance(s, Reduce)]
    whole = (*row_major(p.outer), *(0 for _ in p.inner))
    types = tuple(p.body[r].dtype for r in reduces)
    nests = []
    for stage in range(max(levels[r][0] for r in reduces)):
        own = [r for r in reduces if levels[r][0] == stage + 1]
        known = [r for r in reduces if levels[r][0] <= stage]
        body, where = _body(p, known, reduces, whole, drop_stores=True)
        body += [Store(len(p.outputs) + reduces.index(r), whole, p.body[r].dtype, (where[r],)) for r in own]
        nests.append(_with_results(p, body, types, p.outer, p.inner))
    for full in (True, False):
        stores = [i for i, s in enumerate(p.body) if isinstance(s, Store) and levels[i][1] == full]
        if not stores:
            continue
        body, _ = _body(p, reduces, reduces, whole, stores=stores)
        if full:
            nests.append(_with_results(p, body, types, p.dims, ()))
        else:
            only = [s.over_loops(lambda st: st[: len(p.outer)], lambda d: d) for s in body]
            nests.append(_with_results(p, only, types, p.outer, ()))
    return nests


def _with_results(
    p: LoopNest, body: list[Statement], types: tuple[str, ...], outer: tuple[int, ...], inner: tuple[int, ...]
) -> LoopNest:
    nest = replace(p, outer=outer, inner=inner, body=tuple(body))
    return simplify(replace(nest, inputs=(*p.inputs, *types), outputs=(*p.outputs, *types)))


def _body(
    p: LoopNest,
    known: list[int],
    reduces: list[int],
    strides: tuple[int, ...],
    *,
    drop_stores: bool = False,
    stores: list[int] | None = None,
) -> tuple[list[Statement], dict[int, int]]:
    """The statements of ``p`` with loads in place of known results, and where its values are."""
    body: list[Statement] = []
    where: dict[int, int] = {}
    wanted = p.needed_by(stores, known) if stores is not None else None
    for i, s in enumerate(p.body):
        if isinstance(s, Store) and (drop_stores or (stores is not None and i not in stores)):
            continue
        if isinstance(s, Reduce) and i in known:
            body.append(Load(len(p.inputs) + reduces.index(i), strides, compute_type(s.dtype)))
        elif wanted is not None and i not in wanted and not isinstance(s, Store):
            continue
        elif any(a not in where for a in s.args):
            continue  # waits for a reduce that is not known yet
        else:
            body.append(s.renumbered(where))
        where[i] = len(body) - 1
    return body, where
