"""Sizes that are sums of others as far as a trace allows: a mask that is one longer than the cache it is for.

    cache + 1 <= mask   at a cache of 11, a mask of 12   -->   mask = cache + 1

Such a size has no bounds beside the others as they are: one of the two could not move by itself. Whether it is that sum in another call is
asked of that call, so a condition that has no room left by accident makes one program more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import Max, Min

from dcir.ir.sizes import Number, Polynomial, polynomial


def sums(conditions: Iterable[Any], values: Mapping[str, int]) -> dict[str, Polynomial]:
    """Of each size that has no room beside the others, what it is of those: sums in which nothing is subtracted.

    Args:
        conditions: that all hold.
        values: of the sizes at which there is no room, by name; conditions on others as well are left alone.
    """
    found: dict[str, Polynomial] = {}
    for condition in conditions:
        _solve(_room(condition, values), values, found)
    return found


def _room(condition: Any, values: Mapping[str, int]) -> Number:
    """What a condition says is no less than 0, if it is a sum of several sizes; else 0."""
    if not isinstance(condition, sympy.core.relational.Relational) or isinstance(condition, sympy.Ne):
        return 0
    if not {str(s) for s in condition.free_symbols} <= values.keys():
        return 0
    given = {s: sympy.Integer(values[str(s)]) for s in condition.free_symbols}
    less = isinstance(condition, sympy.LessThan | sympy.StrictLessThan)
    strict = isinstance(condition, sympy.StrictGreaterThan | sympy.StrictLessThan)
    more = condition.rhs - condition.lhs if less else condition.lhs - condition.rhs
    for least, kinds in ((True, (Min, sympy.Min)), (False, (Max, sympy.Max))):
        for part in more.atoms(*kinds):
            more = more.xreplace({part: (min if least else max)(part.args, key=lambda a: a.xreplace(given))})
    parts = sympy.expand(more).as_coefficients_dict()
    constant = parts.pop(sympy.S.One, sympy.S.Zero)
    if (
        len(parts) < 2
        or not all(s.is_symbol for s in parts)
        or not all(c.is_integer for c in (*parts.values(), constant))
    ):
        return 0
    return polynomial([*((((str(s), 1),), int(c)) for s, c in parts.items()), ((), int(constant) - strict)])


def _solve(room: Number, values: Mapping[str, int], found: dict[str, Polynomial]) -> None:
    """Note which size a condition makes a sum of the others, if it has no room."""
    room = _put(room, found)
    if isinstance(room, int) or room.at(values):
        return
    for name in sorted(room.names()):
        (c,) = (c for monomial, c in room.terms if monomial == ((name, 1),))
        rest = (room if c < 0 else -room) + _size(name)
        if abs(c) == 1 and isinstance(rest, Polynomial) and all(k > 0 for monomial, k in rest.terms if monomial):
            found |= {other: _polynomial(_put(was, {name: rest})) for other, was in found.items()}
            found[name] = rest
            return


def _put(total: Number, known: Mapping[str, Polynomial]) -> Number:
    """A sum with others in the place of some sizes."""
    result: Number = 0
    for monomial, c in total.terms if isinstance(total, Polynomial) else (((), total),):
        term = c if not monomial else c * known.get(monomial[0][0], _size(monomial[0][0]))
        result = result + term
    return result


def _size(name: str) -> Polynomial:
    return Polynomial(((((name, 1),), 1),))


def _polynomial(total: Number) -> Polynomial:
    assert isinstance(total, Polynomial), "nothing is subtracted, so nothing goes away"
    return total
