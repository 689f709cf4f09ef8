"""Numbers that move: exact polynomials over named sizes, the bounds of those, and what holds everywhere within them."""

from __future__ import annotations

import itertools
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dcir.errors import InvalidGraph, InvalidInput

Monomial = tuple[tuple[str, int], ...]
"""Names with their powers, in the order of the names; () is 1."""

_NAME = re.compile(r"s[0-9]+")
# A number is looked at in so many boxes before nothing is said of it.
_MOST_BOXES = 4096
_MOST_IN_CORNERS = 3
# Of a size in a polynomial that is read from a file.
_MOST_POWER = 64


class Bounds(NamedTuple):
    """The values that a size may take.

    Attributes:
        low, high: the least and the greatest, both included.
    """

    low: int
    high: int


Sizes = Mapping[str, Bounds]
"""The sizes of a network, by name."""


@dataclass(frozen=True)
class Polynomial:
    """A polynomial with integer coefficients that is no constant. Immutable and hashable: equal polynomials are equal objects.

    It is no integer, and cannot be taken for one: what asks whether it is 0, or less than another number, raises ``TypeError``.

    Attributes:
        terms: (monomial, coefficient), the coefficients not 0, in the order of the monomials; made by ``polynomial``.
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Number) -> Number:
        return polynomial((*self.terms, *_terms(other)))

    __radd__ = __add__

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Number) -> Number:
        return self + -other

    def __rsub__(self, other: int) -> Number:
        return -self + other

    def __mul__(self, other: Number) -> Number:
        return polynomial((_product(m, n), c * d) for m, c in self.terms for n, d in _terms(other))

    __rmul__ = __mul__

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is 0 depends on the sizes")

    def __str__(self) -> str:
        text = ""
        for monomial, c in sorted(self.terms, key=lambda t: (-sum(p for _, p in t[0]), t[0])):
            factors = [name if power == 1 else f"{name}^{power}" for name, power in monomial]
            factors = [str(abs(c)), *factors] if abs(c) != 1 or not factors else factors
            sign = ("-" if c < 0 else "") if not text else " - " if c < 0 else " + "
            text += sign + "*".join(factors)
        return text

    __repr__ = __str__

    def names(self) -> set[str]:
        """The sizes that it depends on."""
        return {name for monomial, _ in self.terms for name, _ in monomial}

    def at(self, values: Mapping[str, int]) -> int:
        """Its value; ``values`` holds one for each of its sizes."""
        return sum(c * math.prod(values[name] ** power for name, power in monomial) for monomial, c in self.terms)

    def to_json(self) -> list[list[object]]:
        """Itself as lists of plain values."""
        return [[[list(power) for power in monomial], c] for monomial, c in self.terms]


Number = int | Polynomial
"""A number of a network: a constant, or one that moves with the sizes."""


@dataclass(frozen=True)
class Quotient:
    """A float that moves with the sizes: one number divided by another, both whole and less than 2^53, as a float64.

    Attributes:
        over, under: the numbers; where ``under`` is 0, as behind the deviation of one element, it is what C++ has: an infinity, or NaN.
    """

    over: Number
    under: Number

    def __str__(self) -> str:
        return f"({self.over}) / ({self.under})"

    def at(self, values: Mapping[str, int]) -> float:
        """Its value; ``values`` holds one for each size."""
        return divided(value_at(self.over, values), value_at(self.under, values))


def divided(over: int, under: int) -> float:
    """Two whole numbers, one divided by the other as generated code does it."""
    if under:
        return over / under
    return math.copysign(math.inf, over) if over else math.nan


def size(name: str) -> Polynomial:
    """A size as a number.

    Raises:
        InvalidGraph: it is not called s0, s1, … Names become names in generated text.
    """
    if not _NAME.fullmatch(name):
        raise InvalidGraph(f"{name!r} is no name of a size", hint="sizes are called s0, s1, …")
    return Polynomial(((((name, 1),), 1),))


def polynomial(terms: Iterable[tuple[Monomial, int]]) -> Number:
    """The sum of terms; an integer where nothing moves."""
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    kept = tuple(sorted((m, c) for m, c in total.items() if c))
    if not kept or kept[-1][0] == ():
        return kept[0][1] if kept else 0
    return Polynomial(kept)


def from_json(data: Sequence[Sequence[object]]) -> Number:
    """The inverse of ``Polynomial.to_json``.

    Raises:
        InvalidGraph: malformed data.
    """
    result: Number = 0
    try:
        for powers, c in data:
            if (
                not isinstance(powers, list)
                or type(c) is not int
                or any(type(p) is not int or not 1 <= p <= _MOST_POWER for _, p in powers)
            ):
                raise InvalidGraph("a malformed polynomial in a saved graph")
            result += math.prod((size(str(name)) for name, power in powers for _ in range(power)), start=c)
    except (TypeError, ValueError) as e:
        raise InvalidGraph("a malformed polynomial in a saved graph") from e
    return result


def value_at(number: Number, values: Mapping[str, int]) -> int:
    """A number for values of the sizes."""
    return number.at(values) if isinstance(number, Polynomial) else number


def whole(number: Any) -> int:
    """An integer of any kind as Python's; a number that is known when a kernel runs as it is."""
    found: int = int(number) if isinstance(number, numbers.Integral) else number
    return found


def check_values(sizes: Sizes, values: Mapping[str, int]) -> None:
    """Whether there is a value for every size, and no other, within the bounds.

    Raises:
        InvalidInput: there is not.
    """
    if values.keys() != sizes.keys():
        raise InvalidInput(f"values for {', '.join(sorted(values)) or 'no size'}, sizes are {', '.join(sorted(sizes))}")
    for name, (low, high) in sizes.items():
        if not low <= values[name] <= high:
            raise InvalidInput(f"{name} is {values[name]}, and may be {low} to {high}")


def never_negative(number: Number, sizes: Sizes) -> bool:
    """Whether a number is at least 0 for all sizes within the bounds; False too if that takes too long to see.

    A polynomial is no less than its value at the low corner of a box, less what its falling terms can take off on the way to the high
    one. Where that does not answer, the box is halved; a box of one point has no way.
    """
    if isinstance(number, int):
        return number >= 0
    names = sorted(number.names())
    boxes = [tuple(sizes[name] for name in names)]
    for _ in range(_MOST_BOXES):
        if not boxes:
            return True
        box = boxes.pop()
        moved = from_corner(number, dict(zip(names, box, strict=True)))
        spans = {name: b.high - b.low for name, b in zip(names, box, strict=True)}
        corner = value_at(moved, dict.fromkeys(names, 0))
        if corner < 0:
            return False
        falls = ((m, c) for m, c in _terms(moved) if c < 0 and m)
        if corner + sum(c * math.prod(spans[name] ** p for name, p in m) for m, c in falls) >= 0:
            continue
        widest = max(range(len(box)), key=lambda i: box[i].high - box[i].low)
        low, high = box[widest]
        for half in (Bounds(low, (low + high) // 2), Bounds((low + high) // 2 + 1, high)):
            boxes.append((*box[:widest], half, *box[widest + 1 :]))
    return False


def corners(sizes: Sizes) -> list[dict[str, int]]:
    """The values at all ends of the bounds, the least first and the greatest last; of many sizes these two alone."""
    if len(sizes) > _MOST_IN_CORNERS:
        return [{name: b[end] for name, b in sizes.items()} for end in (0, 1)]
    return [dict(zip(sizes, ends, strict=True)) for ends in itertools.product(*sizes.values())]


def bounds_of(total: Polynomial, box: Sizes) -> Bounds:
    """The least and the greatest value of a sum of sizes, none of which is subtracted."""
    low, high = (total.at({name: b[end] for name, b in box.items()}) for end in (0, 1))
    return Bounds(low, high)


def from_corner(number: Polynomial, box: Sizes) -> Number:
    """The polynomial of the distances from the low corner of a box."""
    terms: list[tuple[Monomial, int]] = []
    for monomial, c in number.terms:
        product: list[tuple[Monomial, int]] = [((), c)]
        for name, power in monomial:
            for _ in range(power):
                low = box[name].low
                product = [(_product(m, ((name, 1),)), k) for m, k in product] + [
                    (m, k * low) for m, k in product if low
                ]
        terms += product
    return polynomial(terms)


def _terms(number: Number) -> tuple[tuple[Monomial, int], ...]:
    return number.terms if isinstance(number, Polynomial) else (((), number),)


def _product(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(powers.items()))
