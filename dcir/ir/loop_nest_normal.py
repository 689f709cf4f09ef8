"""One form for loop nests that do the same: no loops of one point, no operand twice, sums in the type they are wanted in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Operand
from dcir.ir.statements import Access, Cast, Compute, Const, Index, Read, Reduce, Statement, Store, Strides
from dcir.ir.types import keeps_values

Operands = tuple[Operand, ...]


def normal(nest: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]) -> tuple[LoopNest, Operands, Operands]:
    """The nest in that form, with its operands, which stand in the order of their containers."""
    nest = simplify(_shared(_narrow_sums(_without_ones(nest)), ins))
    used = {s.operand for s in nest.body if isinstance(s, Read)}
    reads = sorted(used, key=lambda i: (ins[i], nest.inputs[i]))
    writes = sorted(range(len(outs)), key=lambda i: (outs[i], nest.outputs[i]))
    body = tuple(
        s.with_operand((writes if isinstance(s, Store) else reads).index(s.operand)) if isinstance(s, Access) else s
        for s in nest.body
    )
    done = replace(
        nest, inputs=tuple(nest.inputs[i] for i in reads), outputs=tuple(nest.outputs[i] for i in writes), body=body
    )
    return done, tuple(ins[i] for i in reads), tuple(outs[i] for i in writes)


def _without_ones(nest: LoopNest) -> LoopNest:
    """Loops of one point do nothing; an index over one is 0."""
    kept = [d for d, n in enumerate(nest.dims) if n != 1]
    if len(kept) == len(nest.dims) and nest.inner:
        return nest
    where = {d: i for i, d in enumerate(kept)}

    def strides(st: Strides) -> Strides:
        return tuple(st[d] for d in kept)

    body = [
        Const(0, "i64")
        if isinstance(s, Index) and s.dim not in where
        else s.over_loops(strides, lambda d: where.get(d, 0))
        for s in nest.body
    ]
    outer = tuple(n for n in nest.outer if n != 1)
    inner = tuple(n for n in nest.inner if n != 1)
    if not inner and any(isinstance(s, Reduce) for s in nest.body):
        body = _without_reduces(body)
    return replace(nest, outer=outer, inner=inner, body=tuple(body))


def _without_reduces(body: Sequence[Statement]) -> list[Statement]:
    """Over a single point a reduce is its value."""
    where: dict[int, int] = {}
    made: list[Statement] = []
    for i, s in enumerate(body):
        if isinstance(s, Reduce) and not s.is_place and s.kind not in ("any", "all"):
            where[i] = where[s.args[0]]
            continue
        where[i] = len(made)
        made.append(s.renumbered(where))
    return made


def _narrow_sums(nest: LoopNest) -> LoopNest:
    """A sum of float32 in float64 that is only wanted in float32 is a sum of float32, which is always accurate to its last digits."""
    body = list(nest.body)
    users: dict[int, list[Statement]] = {}
    for s in body:
        for a in s.args:
            users.setdefault(a, []).append(s)
    where: dict[int, int] = {}
    for i, s in enumerate(body):
        body[i] = s = s.renumbered({a: where.get(a, a) for a in s.args})
        if isinstance(s, Reduce) and s.kind == "sum" and s.dtype == "f64":
            wide = nest.body[s.args[0]]
            narrow = all(isinstance(u, Cast) and u.dtype == "f32" for u in users.get(i, []))
            if isinstance(wide, Cast) and nest.body[wide.args[0]].dtype == "f32" and narrow:
                body[i] = Reduce("sum", "f32", (where.get(wide.args[0], wide.args[0]),))
        elif isinstance(s, Cast) and s.dtype == body[s.args[0]].dtype:
            where[i] = s.args[0]
        elif isinstance(s, Cast) and (back := _there_and_back(body, s)) is not None:
            where[i] = back
        elif isinstance(s, Cast) and s.dtype == "bool" and isinstance(body[s.args[0]], Reduce):
            _truth(body, i, s)
    return replace(nest, body=tuple(body))


def _there_and_back(body: Sequence[Statement], s: Cast) -> int | None:
    """The value that is converted to a wider type and back."""
    wide = body[s.args[0]]
    if isinstance(wide, Cast) and body[wide.args[0]].dtype == s.dtype and keeps_values(s.dtype, wide.dtype):
        return wide.args[0]
    return None


def _truth(body: list[Statement], i: int, s: Cast) -> None:
    """Whether any, or all, of some truths hold, which tasklets ask of numbers 0 and 1."""
    reduce = body[s.args[0]]
    assert isinstance(reduce, Reduce)
    number = body[reduce.args[0]]
    if (
        reduce.kind in ("max", "min")
        and reduce.dtype == "i32"
        and isinstance(number, Cast)
        and body[number.args[0]].dtype == "bool"
    ):
        body[i] = Reduce("any" if reduce.kind == "max" else "all", "bool", number.args)


def _shared(nest: LoopNest, ins: Sequence[Operand]) -> LoopNest:
    """One operand for each place that is read."""
    first: dict[tuple[Operand, str], int] = {}
    where = {i: first.setdefault((o, t), i) for i, (o, t) in enumerate(zip(ins, nest.inputs, strict=True))}
    body = tuple(s.with_operand(where[s.operand]) if isinstance(s, Read) else s for s in nest.body)
    return replace(nest, body=body)


def computes(nest: LoopNest, known: dict[object, int]) -> object:
    """What a nest computes, in whatever order its statements stand.

    Args:
        nest: in its normal form.
        known: numbers of values, shared by all nests that are compared.
    """
    numbers: list[int] = []
    for s in nest.body:
        args = tuple(numbers[a] for a in s.args)
        if isinstance(s, Compute) and s.op in _EITHER_WAY:
            args = tuple(sorted(args))
        numbers.append(known.setdefault((s.with_args(()), args), len(known)))
    stores = frozenset(n for n, s in zip(numbers, nest.body, strict=True) if isinstance(s, Store))
    return nest.outer, nest.inner, nest.inputs, nest.outputs, stores


_EITHER_WAY = ("add", "mul", "max", "min", "eq", "ne", "and", "or", "xor")
"""Operators of two values in any order."""
