"""Numbers of a kernel that are known when it runs: what they are in C, within which bounds they lie, and what they usually are.

    extent  4*s0          -->   "(4LL * size0) * 1" in text, 8 <= it <= 2048, usually 512
    extent // 16          -->   "((4LL * size0) / 16LL) * 1"
    extent < 4096         -->   True: it is so within the bounds
    extent < 64           -->   Undecided: who has to know cannot; who asks for the sake of speed asks about ``usual(extent)``

Emitters compute with integers; where a size moves they are given these in their place, and what they write holds for all sizes. A decision
that the bounds do not settle is no accident of the sizes at hand: it raises, and the network is compiled for each size instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcir.ir.sizes import Monomial, Number, Polynomial, Sizes, polynomial

_SHORT = 2  # terms of a number that is written out


class Undecided(Exception):
    """An emitter asks about a number what depends on the sizes."""


@dataclass(frozen=True)
class _Atom:
    low: int
    high: int
    usual: int


@dataclass
class Names:
    """The names in the numbers of one kernel: the sizes, and quotients and remainders of them.

    Attributes:
        sizes: the names of the sizes in C, in the order in which a kernel's table holds them.
    """

    sizes: tuple[str, ...]
    _atoms: dict[str, _Atom] = field(default_factory=dict)
    _defined: dict[str, str] = field(default_factory=dict)
    _local: set[str] = field(default_factory=set)
    _known: dict[Polynomial, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def of(sizes: Sizes, usual: Mapping[str, int]) -> Names:
        """The sizes with their bounds, and the values that costs are counted at."""
        atoms = {c_name(name): _Atom(b.low, b.high, usual[name]) for name, b in sizes.items()}
        return Names(tuple(atoms), atoms)

    def given(self, value: Number) -> Any:
        """A number of a network as one of a kernel."""
        return self.number(in_c(value))

    def number(self, value: Number) -> Any:
        """A number over names in C."""
        return Symbolic(value, self) if isinstance(value, Polynomial) else value

    def atom(self, text: str, low: int, high: int, usual: int) -> Any:
        """A number that is no polynomial of the others, as a name of its own: its text."""
        if low == high:
            return low
        if any(local in text for local in self._local):
            return self.local(text, low, high, usual)
        name = self._called(text)
        self._atoms.setdefault(name, _Atom(low, high, usual))
        return Symbolic(Polynomial(((((name, 1),), 1),)), self)

    def local(self, text: str, low: int, high: int, usual: int) -> Any:
        """As ``atom``, of a number that is another one in each turn of a loop: its text stands where it is used."""
        text = f"({text})"
        self._local.add(text)
        self._atoms.setdefault(text, _Atom(low, high, usual))
        return Symbolic(Polynomial(((((text, 1),), 1),)), self)

    def text(self, value: Polynomial) -> str:
        """A number in C: what is long is computed once in a kernel, and has a name like a size."""
        text = c_text(value)
        local = any(name in self._local for monomial, _ in value.terms for name, _ in monomial)
        return f"({text})" if local or len(value.terms) <= _SHORT else self._called(text)

    def definitions(self, text: str) -> list[tuple[str, str]]:
        """The names in a text that are not sizes, and what each is: by sizes, and by names that come before it."""
        used: set[str] = set()
        found = set(sizes_in(text))
        while found:
            used |= found
            found = {n for name in found for n in sizes_in(self._defined.get(name, ""))} - used
        return [(name, what) for name, what in self._defined.items() if name in used]

    def by_sizes(self, text: str) -> str:
        """A text with what they are in the place of names that are not sizes."""
        for name, what in reversed(self.definitions(text)):
            text = re.sub(rf"\b{name}\b", f"({what})", text)
        return text

    def _called(self, text: str) -> str:
        # By its content, so that a kernel's text does not depend on what other kernels there are.
        name = f"size{(1 << 40) + int(hashlib.sha256(text.encode()).hexdigest()[:9], 16)}"
        assert self._defined.setdefault(name, text) == text
        return name

    def bounds(self, value: Polynomial) -> tuple[int, int]:
        """What it is at least and at most; its atoms are no less than 0."""
        if value not in self._known:
            self._known[value] = self._bounds(value)
        return self._known[value]

    def _bounds(self, value: Polynomial) -> tuple[int, int]:
        given = {name: (self._atoms[name].low, self._atoms[name].high) for m, _ in value.terms for name, _ in m}
        low, high = _term_by_term(value.terms, given)
        if len({c > 0 for m, c in value.terms if m}) > 1:
            # s0*s1 - s0 is (s1 - 1)*s0: counted from the least sizes on, what is taken off is seen to be no more than what is there.
            terms = _terms_from(value, {name: ends[0] for name, ends in given.items()})
            nearer = _term_by_term(terms, {name: (0, ends[1] - ends[0]) for name, ends in given.items()})
            low, high = max(low, nearer[0]), min(high, nearer[1])
        return low, high

    def usual(self, value: Polynomial) -> int:
        """What it is at the sizes that costs are counted at."""
        return value.at({name: atom.usual for name, atom in self._atoms.items()})


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A number of a kernel that moves with the sizes.

    Attributes:
        value: a polynomial of names.
        names: what those are.
    """

    value: Polynomial
    names: Names

    @property
    def low(self) -> int:
        """No size makes it less."""
        return self.names.bounds(self.value)[0]

    @property
    def high(self) -> int:
        """No size makes it more."""
        return self.names.bounds(self.value)[1]

    @property
    def text(self) -> str:
        """In C: an expression of ``long long`` in parentheses."""
        return self.names.text(self.value)

    def __str__(self) -> str:
        # What is put behind a number in a text, as the LL of a long one, is put behind the 1.
        return f"{self.text} * 1"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        """Whether they are equal at all sizes. What is not may be equal at some: general code is right there as well."""
        return isinstance(other, Symbolic) and self.value == other.value

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int | Symbolic):
            return NotImplemented
        return self.names.number(self.value + _plain(other))

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self.names.number(-self.value)

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, int | Symbolic):
            return NotImplemented
        return self.names.number(self.value - _plain(other))

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | Symbolic):
            return NotImplemented
        return self.names.number(self.value * _plain(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rfloordiv__(self, other: int) -> Any:
        return _quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return _remainder(self, other)

    def __rmod__(self, other: int) -> Any:
        return _remainder(other, self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __index__(self) -> int:
        raise Undecided(f"a constant in the place of {c_text(self.value)}")

    def __float__(self) -> float:
        raise Undecided(f"a constant in the place of {c_text(self.value)}")

    def __truediv__(self, other: Any) -> float:
        raise Undecided(f"a share of {c_text(self.value)}")

    def __rtruediv__(self, other: Any) -> float:
        raise Undecided(f"a share by {c_text(self.value)}")

    def __pow__(self, other: Any) -> Any:
        raise Undecided(f"a power of {c_text(self.value)}")

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __lt__(self, other: Any) -> bool:
        return _below(self - other)

    def __ge__(self, other: Any) -> bool:
        return not _below(self - other)

    def __gt__(self, other: Any) -> bool:
        return _below(other - self)

    def __le__(self, other: Any) -> bool:
        return not _below(other - self)

    def __bool__(self) -> bool:
        if self.low > 0 or self.high < 0:
            return True
        raise Undecided(f"whether {c_text(self.value)} is 0")


def usual(number: int) -> int:
    """What a number, which may be a ``Symbolic``, usually is: for costs."""
    return number.names.usual(number.value) if isinstance(number, Symbolic) else number


def usually(value: Any) -> Any:
    """A spec, or what is in one, at the usual sizes."""
    if isinstance(value, Symbolic):
        return usual(value)  # type: ignore[arg-type]
    if type(value) is tuple:
        return tuple(map(usually, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: usually(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        )
    return value


def least(number: int) -> int:
    """What it is at least: for what holds everywhere."""
    return number.low if isinstance(number, Symbolic) else number


def most(number: int) -> int:
    """What it is at most: for room."""
    return number.high if isinstance(number, Symbolic) else number


def moves(*numbers: int) -> bool:
    """Whether one of some numbers is a ``Symbolic``."""
    return any(isinstance(n, Symbolic) for n in numbers)


def turns(number: int, loop: str) -> bool:
    """Whether a number is another one in each turn of a loop, given its name (``Names.local``)."""
    return isinstance(number, Symbolic) and re.search(rf"\b{loop}\b", number.text) is not None


def c_name(size: str) -> str:
    """What a size is called in C: size0, size1, … No template has such names."""
    return f"size{size[1:]}"


def in_c(number: Number) -> Number:
    """A number of a network over the names that sizes have in C."""
    if not isinstance(number, Polynomial):
        return number
    return polynomial((tuple((c_name(name), power) for name, power in m), c) for m, c in number.terms)


def c_text(number: Number) -> str:
    """A number over names in C as an expression."""
    if not isinstance(number, Polynomial):
        return str(number)
    text = ""
    for monomial, c in sorted(number.terms, key=lambda t: (-sum(p for _, p in t[0]), t[0])):
        factors = [name for name, power in monomial for _ in range(power)]
        if abs(c) != 1 or not factors:
            factors.insert(0, f"{abs(c)}LL")
        sign = ("-" if c < 0 else "") if not text else " - " if c < 0 else " + "
        text += sign + " * ".join(factors)
    return text


_SIZE = re.compile(r"\bsize[0-9]+\b")


def sizes_in(text: str) -> list[str]:
    """The sizes that a text in C computes with."""
    return sorted(set(_SIZE.findall(text)))


def sizes_from(number: int, names: tuple[str, ...], table: str) -> str:
    """A number, which may be a ``Symbolic``, in C with entries of a table in the place of sizes."""
    text = number.names.by_sizes(str(number)) if isinstance(number, Symbolic) else str(number)
    return _SIZE.sub(lambda found: f"{table}[{names.index(found[0])}]", text)


def smaller(a: int, b: int) -> int:
    """The smaller one of two numbers, of which any may move."""
    found: int = _one_of(a, b, "<", min)
    return found


def larger(a: int, b: int) -> int:
    """The larger one of two numbers, of which any may move."""
    found: int = _one_of(a, b, ">", max)
    return found


def _one_of(a: Any, b: Any, sign: str, taken: Callable[[int, int], int]) -> Any:
    low, high = _ends(b - a)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (taken is min) else b
    names = (a if isinstance(a, Symbolic) else b).names
    (a_low, a_high), (b_low, b_high) = _ends(a), _ends(b)
    if min(a_low, b_low) < 0:
        raise Undecided(f"which one of {_shown(a)} and {_shown(b)} is {'smaller' if taken is min else 'larger'}")
    text = f"({_text(a)} {sign} {_text(b)} ? {_text(a)} : {_text(b)})"
    return names.atom(text, taken(a_low, b_low), taken(a_high, b_high), taken(usual(a), usual(b)))


def _term_by_term(terms: Iterable[tuple[Monomial, int]], ends: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The sum of what every term is at least, and of what it is at most, of names that are no less than 0."""
    low = high = 0
    for monomial, c in terms:
        a, b = (c * math.prod(ends[name][i] ** power for name, power in monomial) for i in (0, 1))
        low, high = low + min(a, b), high + max(a, b)
    return low, high


def _terms_from(value: Polynomial, least: Mapping[str, int]) -> tuple[tuple[Monomial, int], ...]:
    """The terms of a polynomial of the same names, each counted from its least value on."""
    total: Number = 0
    for monomial, c in value.terms:
        term: Number = c
        for name, power in monomial:
            for _ in range(power):
                term = (Polynomial(((((name, 1),), 1),)) + least[name]) * term
        total = term + total
    return total.terms if isinstance(total, Polynomial) else (((), total),)


def _plain(number: Any) -> Number:
    value: Number = number.value if isinstance(number, Symbolic) else number
    return value


def _below(difference: Any) -> bool:
    """Whether a difference is less than 0."""
    if not isinstance(difference, Symbolic):
        return bool(difference < 0)
    low, high = difference.low, difference.high
    if high < 0 or low >= 0:
        return high < 0
    raise Undecided(f"whether {c_text(difference.value)} is less than 0")


def _quotient(a: Any, b: Any) -> Any:
    """``a // b``, as Python rounds."""
    names = (a if isinstance(a, Symbolic) else b).names
    (a_low, a_high), (b_low, b_high) = _ends(a), _ends(b)
    if b_low <= 0:
        raise Undecided(f"a quotient by {_shown(b)}")
    if a_high <= 0 and a_low < 0:  # minus a quotient that is rounded up
        return -_quotient(-a + (b - 1), b)
    if a_low < 0:
        raise Undecided(f"a quotient of {_shown(a)}, which may be negative")
    if isinstance(a, Symbolic) and isinstance(b, Symbolic):
        exact = _divided(a.value, b.value)
        if exact is not None:
            return names.number(exact)
    if isinstance(a, Symbolic) and isinstance(b, int):
        whole = [(m, c // b) for m, c in a.value.terms if c % b == 0]
        rest = polynomial((m, c) for m, c in a.value.terms if c % b)
        if whole and _ends(names.number(rest))[0] >= 0:
            return names.number(polynomial(whole)) + names.number(rest) // b
    text = f"{_text(a)} / {_text(b)}"
    return names.atom(text, a_low // b_high, a_high // b_low, usual(a) // usual(b))


def _divided(a: Polynomial, b: Polynomial) -> Number | None:
    """A quotient that comes out even at all sizes, by one term; None if there is none."""
    if len(b.terms) != 1:
        return None
    ((divisor, factor),) = b.terms
    terms = []
    for monomial, c in a.terms:
        left = dict(monomial)
        for name, power in divisor:
            left[name] = left.get(name, 0) - power
        if c % factor or min(left.values()) < 0:
            return None
        terms.append((tuple((name, power) for name, power in left.items() if power), c // factor))
    return polynomial(terms)


def _remainder(a: Any, b: Any) -> Any:
    """``a % b``, as Python rounds."""
    names = (a if isinstance(a, Symbolic) else b).names
    if isinstance(a, Symbolic) and isinstance(b, int) and b > 0:
        a = names.number(polynomial((m, c % b) for m, c in a.value.terms))  # whole multiples of b say nothing
        if isinstance(a, int):
            return a % b
    (a_low, a_high), (b_low, b_high) = _ends(a), _ends(b)
    if a_low < 0 or b_low <= 0:
        raise Undecided(f"a remainder of {_shown(a)} by {_shown(b)}")
    if a_high < b_low:
        return a
    return names.atom(f"{_text(a)} % {_text(b)}", 0, b_high - 1, usual(a) % usual(b))


def _ends(number: Any) -> tuple[int, int]:
    return (number.low, number.high) if isinstance(number, Symbolic) else (number, number)


def _text(number: Any) -> str:
    return number.text if isinstance(number, Symbolic) else f"{number}LL"


def _shown(number: Any) -> str:
    return c_text(_plain(number))
