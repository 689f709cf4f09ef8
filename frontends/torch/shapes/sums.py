"""Sizes that are sums and products of others as far as a trace allows: a mask that is one longer than the cache it is for.

    cache + 1 <= mask             at a cache of 11, a mask of 12   -->   mask = cache + 1
    tokens // batch == length     where nothing is left over       -->   tokens = batch * length

Such a size has no bounds beside the others as they are: one of the two could not move by itself. Whether it is that sum in another call is
asked of that call, so a condition that has no room left by accident makes one program more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from dcir.ir.sizes import Monomial, Number, Polynomial, polynomial


def sums(conditions: Iterable[Any], values: Mapping[str, int]) -> dict[str, Polynomial]:
    """Of each size that has no room beside the others, what it is of those: sums in which nothing is subtracted.

    Args:
        conditions: that all hold.
        values: of the sizes at which there is no room, by name; conditions on others as well are left alone.
    """
    known = [*conditions]
    whole = {
        c.lhs.args[:2]
        for c in known
        if isinstance(c, sympy.Eq) and c.rhs == 0 and isinstance(c.lhs, Mod | PythonMod) and c.lhs.args[1].is_symbol
    }
    found: dict[str, Polynomial] = {}
    for condition in known:
        _solve(_room(condition, values, whole), values, found)
    return found


def _room(condition: Any, values: Mapping[str, int], whole: Collection[tuple[Any, Any]]) -> Number:
    """What a condition says is no less than 0, if it is a sum of several sizes, or says that one is a product of others; else 0.

    Args:
        whole: (a, b) where a is a multiple of b.
    """
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
    equal = isinstance(condition, sympy.Eq)
    for part in more.atoms(FloorDiv) if equal else ():
        if part.args in whole:
            more = more.xreplace({part: part.args[0] / part.args[1]}) * part.args[1]
    terms = [(_monomial(product), c) for product, c in sympy.expand(more).as_coefficients_dict().items()]
    if any(monomial is None or not c.is_integer for monomial, c in terms):
        return 0
    sizes = [monomial for monomial, _ in terms if monomial]
    if len(sizes) < 2 or (not equal and any(monomial[0][1:] != (1,) or len(monomial) > 1 for monomial in sizes)):
        return 0
    shared = math.gcd(*(int(c) for _, c in terms)) if equal else 1
    rows = [(monomial, int(c) // shared) for monomial, c in terms if monomial is not None]
    return polynomial([*rows, ((), -int(strict))])


def _monomial(product: Any) -> Monomial | None:
    """A product of sizes as polynomials have them; None if it is another function of sizes."""
    powers = product.as_powers_dict() if product != 1 else {}
    if not all(s.is_symbol and p.is_Integer and p > 0 for s, p in powers.items()):
        return None
    return tuple(sorted((str(s), int(p)) for s, p in powers.items()))


def _solve(room: Number, values: Mapping[str, int], found: dict[str, Polynomial]) -> None:
    """Note which size a condition makes a sum of the others, if it has no room."""
    room = _put(room, found)
    if isinstance(room, int) or room.at(values):
        return
    for name in sorted(room.names()):
        held = [(monomial, c) for monomial, c in room.terms if any(name == s for s, _ in monomial)]
        if len(held) != 1 or held[0][0] != ((name, 1),):
            continue
        c = held[0][1]
        rest = (room if c < 0 else -room) + _size(name)
        if abs(c) != 1 or not isinstance(rest, Polynomial):
            continue
        # A product with a sum may take something away that the sum does not.
        now = {name: rest} | {other: _put(was, {name: rest}) for other, was in found.items()}
        sums_of_others = {
            other: total for other, total in now.items() if isinstance(total, Polynomial) and _adds(total)
        }
        if len(sums_of_others) == len(now):
            found |= sums_of_others
            return


def _put(total: Number, known: Mapping[str, Polynomial]) -> Number:
    """A sum with others in the place of some sizes."""
    result: Number = 0
    for monomial, c in total.terms if isinstance(total, Polynomial) else (((), total),):
        term: Number = c
        for name, power in monomial:
            for _ in range(power):
                term = term * known.get(name, _size(name))
        result = result + term
    return result


def _size(name: str) -> Polynomial:
    return Polynomial(((((name, 1),), 1),))


def _adds(total: Polynomial) -> bool:
    """Whether no size or product is subtracted."""
    return all(c > 0 for monomial, c in total.terms if monomial)
