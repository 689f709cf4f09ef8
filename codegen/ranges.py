"""Which whole numbers of a loop nest fit 32 bits, and between which bounds they lie."""

from __future__ import annotations

import operator
from collections.abc import Callable

from dcir.codegen.symbolic import Symbolic, most
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Const, Index

_ON_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": lambda x, y: min(x, y),
    "max": lambda x, y: max(x, y),
}
_BY_A_NUMBER: dict[str, Callable[[int, int], int]] = {"shr": operator.rshift, "idiv_floor": operator.floordiv}
"""Monotonous in the first operand where the second is one positive number."""
_NUMBERS = {"shr": range(1, 32), "idiv_floor": range(1, 2**31)}


def short_values(p: LoopNest) -> dict[int, tuple[int, int]]:
    """Values of type i64 made from loop indices and constants that fit 32 bits, least and largest."""
    ranges: dict[int, tuple[int, int]] = {}
    for i, s in enumerate(p.body):
        chosen = s.args[1:] if s.op == "where" else s.args
        if s.dtype != "i64" or any(a not in ranges for a in chosen):
            continue
        if isinstance(s, Index):
            found = [0, max(most(p.dims[s.dim]) - 1, 0)]
        elif isinstance(s, Const):
            found = [s.value.low, s.value.high] if isinstance(s.value, Symbolic) else [int(s.value)]
        elif s.op == "where":
            found = [x for a in chosen for x in ranges[a]]
        elif s.op == "mod" and ranges[s.args[1]][0] > 0:
            found = [0, ranges[s.args[1]][1] - 1]
        elif s.op in _ON_INTEGERS:
            first, second = (ranges[a] for a in s.args)
            fn = _ON_INTEGERS[s.op]
            found = [fn(x, y) for x in first for y in second]
        elif s.op in _BY_A_NUMBER and ranges[s.args[1]][0] == ranges[s.args[1]][1] in _NUMBERS[s.op]:
            first, (by, _) = (ranges[a] for a in s.args)
            found = [_BY_A_NUMBER[s.op](x, by) for x in first]
        else:
            continue
        if min(found) >= -(2**31) and max(found) < 2**31:
            ranges[i] = min(found), max(found)
    return ranges
