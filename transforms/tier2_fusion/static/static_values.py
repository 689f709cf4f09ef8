"""What of a loop nest is static: which values, the loops they walk, and a nest of them alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dcir.ir.fuse import Fused
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Operand, contiguous
from dcir.ir.statements import Const, Index, Load, Read, Store
from dcir.ops.library.product import VALUE


def static_values(p: LoopNest, ins: Sequence[Operand], static: set[str]) -> list[bool]:
    """Which values depend on nothing but static operands and the place."""
    flags: list[bool] = []
    for s in p.body:
        fixed = not isinstance(s, Store) and all(flags[a] for a in s.args)
        flags.append(fixed and (not isinstance(s, Read) or ins[s.operand].data in static))
    return flags


def walks_of(p: LoopNest) -> list[tuple[int, ...]]:
    """The loops that every value depends on."""
    result: list[tuple[int, ...]] = []
    for s in p.body:
        loops = {d for a in s.args for d in result[a]}
        if isinstance(s, Read):
            loops |= {d for d, (st, n) in enumerate(zip(s.strides, p.dims, strict=True)) if st and n > 1}
        elif isinstance(s, Index):
            loops.add(s.dim)
        result.append(tuple(sorted(loops)))
    return result


def roots(p: LoopNest, flags: Sequence[bool]) -> list[int]:
    """Static values that are computed, not just read, and that something else than a static value needs."""
    used = dict.fromkeys(a for i, s in enumerate(p.body) if not flags[i] for a in s.args if flags[a])
    return [
        a
        for a in used
        if not isinstance(p.body[a], (Const, Index)) and (not isinstance(p.body[a], Load) or p.body[a].args)
    ]


def needed(p: LoopNest, values: Iterable[int]) -> set[int]:
    """All values that these are made of, themselves included."""
    found, left = set[int](), list(values)
    while left:
        i = left.pop()
        if i not in found:
            found.add(i)
            left.extend(p.body[i].args)
    return found


def loads(p: LoopNest, value: int) -> bool:
    """Whether a value is made of anything that is read."""
    return any(isinstance(p.body[i], Read) for i in needed(p, [value]))


def alone(p: LoopNest, values: Sequence[int], loops: Sequence[int]) -> LoopNest:
    """A program over ``loops`` that stores these values, one after the other."""
    body = LoopNestBuilder([p.outer[d] for d in loops])
    body.inputs = list(p.inputs)
    where: dict[int, int] = {}
    for i in sorted(needed(p, values)):
        s = p.body[i].renumbered(where)
        where[i] = body.add(s.over_loops(lambda st: tuple(st[d] for d in loops), loops.index))
    for i in values:
        dtype = p.body[i].dtype
        body.store(body.output(dtype), contiguous(body.outer), Expr(body, where[i], dtype))
    return body.finish()


def numbered(f: Fused) -> Fused:
    """Inputs that are read only, in the order of their first use."""
    order = list(dict.fromkeys(s.operand for s in f.program.body if isinstance(s, Read)))
    order.sort(key=lambda i: f.ins[i] != VALUE)
    merged = list(dict.fromkeys(f.ins[i] for i in order))
    place = {i: merged.index(f.ins[i]) for i in order}
    types = {place[i]: f.program.inputs[i] for i in order}
    body = tuple(s.with_operand(place[s.operand]) if isinstance(s, Read) else s for s in f.program.body)
    program = replace(f.program, inputs=tuple(types[k] for k in range(len(merged))), body=body)
    return Fused(simplify(program), tuple(merged), f.outs)
