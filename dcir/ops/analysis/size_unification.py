"""Whether networks for several sizes are one network whose numbers move: equal in structure, every integer a polynomial of the sizes.

    m = 268, 524, 1028, 2036 at s0 = 67, 131, 257, 509   -->   m = 4*s0

Importer and passes see integers alone, so nothing in them knows of sizes. A polynomial has degree 2 at most and is fixed by fewer samples
than there are; the others must agree. Where all are linear in every size, a few samples do. Samples lie at both ends of the bounds and,
at primes that are no other extent of the graph, between them: what holds at all of them holds by no accident. Decisions of cost that
change between the ends show as another structure; the sizes are then two ranges. Why it is done so: ``docs/measurements/moving-sizes.md``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dcir.errors import InvalidInput
from dcir.ir.moving_network import MovingContainer, MovingNetwork, MovingOperator, MovingResult, digest
from dcir.ir.network import Network
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds, Monomial, Number, Quotient, Sizes, polynomial
from dcir.ir.statements import Const
from dcir.ir.types import TYPES

Values = Mapping[str, int]
Through = Callable[[tuple[int, ...]], Number | None]
"""From values at the samples to the number that has them, if there is one."""
Fractions = tuple[tuple[int, ...], tuple[int, ...]]
"""What is divided by what, at the samples."""
FLOAT_OF: Mapping[str, Callable[[float], float]] = {"f32": lambda v: float(np.float32(v)), "f64": float}
"""A float as an element of a type holds it."""

MOST_SIZES = 2
"""Sizes that may move in one network: samples grow with the square of their number."""
_DEGREE = 2
_MOST_OVER = 16
"""What is divided by a number that moves, where the graph itself does not say."""
# Which of a size's four values (the ends and two between them) are seen together.
_TOGETHER = {
    1: ((0,), (1,), (2,), (3,)),
    2: ((0, 0), (3, 0), (0, 3), (1, 2), (2, 1), (1, 1), (2, 3), (3, 3)),
}
# Of these, those that show what is linear in every size: one more than there are coefficients.
_FEW = {1: (0, 1, 3), 2: (0, 1, 2, 3, 7)}


def chosen_samples(
    sizes: Sizes, others: Collection[int] = (), holds: Callable[[str, int], bool] = lambda name, value: True
) -> tuple[Sizes, list[dict[str, int]]]:
    """Values at which to look at a graph.

    Args:
        sizes: the bounds that are asked for, at least one and at most ``MOST_SIZES``.
        others: extents in the graph that do not move.
        holds: whether the graph is right for a value of a size.

    Returns:
        Bounds, which may reach a little further than asked for, or end before, and the samples, of which the last is at the upper ends.

    Raises:
        InvalidInput: there are too many sizes, or too few values between the bounds.
    """
    if not 1 <= len(sizes) <= MOST_SIZES:
        raise InvalidInput(f"{len(sizes)} sizes are to move, and 1 to {MOST_SIZES} can")
    taken = set(others)
    bounds, values = {}, []
    for name, (low, high) in sizes.items():
        last = _prime(high, taken)
        if not holds(name, last):  # a table of 512 positions ends between two primes
            last = next((n for n in range(high, low, -1) if n % 4 and n not in taken and holds(name, n)), low)
        # Even, as the primes are not. No power of two: a division by one becomes a product, which only looks like another network.
        # None is 1, at which networks have a dimension less: what holds at the samples holds there, too.
        first = next(n for n in itertools.count(low) if n not in taken and n % 2 == 0 and n & (n - 1))
        between = [_prime(first + (high - first) * k // 7, taken | {first, last}) for k in (1, 3)]
        if low < 1 or not first < between[0] < between[1] < min(high, last):
            raise InvalidInput(f"{name} has {low} to {high} for bounds, which are too few values, or too small ones")
        bounds[name] = Bounds(low, last)
        values.append((first, *between, last))
        taken.update(values[-1])
    return bounds, [
        {name: values[i][k] for i, (name, k) in enumerate(zip(sizes, ks, strict=True))} for ks in _TOGETHER[len(sizes)]
    ]


def few(samples: Sequence[Values]) -> tuple[int, ...]:
    """The numbers of the samples that do for a network whose numbers are linear in every size, which most are."""
    return _FEW[len(samples[0])]


def unified(
    networks: Sequence[Network],
    samples: Sequence[Values],
    sizes: Sizes,
    fit: Through | None = None,
    fractions: Sequence[Fractions] = (),
    remainders: Collection[str] = (),
) -> MovingNetwork | Refusal:
    """The network of all sizes, or why there is none.

    Args:
        networks: one for each sample, from one graph, after the same passes. The last one's order of operators and plan of memory are
            those of the result.
        samples: from ``chosen_samples``, all or the ``few``; or any, for a fit.
        sizes: their bounds.
        fit: the number with certain values at the samples, where it is no polynomial of few sizes (``size_axes.py``).
        fractions: what is divided by what in the graph, at the samples.
        remainders: sizes that may be 0.
    """
    polynomials = _Polynomials(samples, fit, fractions)
    for net in networks:
        if net.memory.donated or net.memory.shared() or net.memory.aliases:
            return Refusal("values lie in memory of inputs or results, which moves")
        if net.streams:
            return Refusal("operators run image by image")
    try:
        polynomials.same("inputs, constants and updates", [_outside(net) for net in networks])
        operators = _operators(networks, polynomials)
        return MovingNetwork(
            dict(sizes),
            networks[-1],
            _containers(networks, polynomials),
            operators,
            tuple(
                MovingResult(*_joined(f"result {i}", [tuple(vars(r).values()) for r in results], polynomials))
                for i, results in enumerate(zip(*(net.results for net in networks), strict=True))
            ),
            tuple((tuple(sorted(s.items())), digest(net)) for s, net in zip(samples, networks, strict=True)),
            frozenset(remainders),
        )
    except _DifferError as e:
        return Refusal(str(e))


def unlike(networks: Sequence[Network], samples: Sequence[Values]) -> Refusal | None:
    """Why networks for these samples are no one network, as far as a glance shows: they have other operators."""
    tables = [{op.label for op in net.ops()} for net in networks]
    try:
        _same("the operators", tables, samples)
    except _DifferError as e:
        return Refusal(str(e))
    return None


def unified_rows(
    rows: Sequence[tuple[Any, ...]], samples: Sequence[Values], fit: Through | None = None
) -> tuple[Any, ...] | None:
    """Plain values at the samples as values with polynomials in them; None if they differ in more than integers."""
    try:
        found: tuple[Any, ...] = _joined("a value", rows, _Polynomials(samples, fit))
    except _DifferError:
        return None
    return found


class _DifferError(Exception):
    """What is not the same at all sizes."""


class _Polynomials:
    """The polynomials through values at samples."""

    def __init__(
        self, samples: Sequence[Values], fit: Through | None = None, fractions: Sequence[Fractions] = ()
    ) -> None:
        self._samples, names = samples, sorted(samples[0])
        self._fit, self._fractions = fit, fractions
        if fit is not None:
            return
        degree = 1 if len(samples) == len(_FEW[len(names)]) else _DEGREE
        powers = itertools.product(range(degree + 1), repeat=len(names))
        self._monomials: list[Monomial] = [
            tuple((name, p) for name, p in zip(names, ps, strict=True) if p) for ps in powers if sum(ps) <= _DEGREE
        ]
        self._rows = [[math.prod(s[name] ** p for name, p in m) for m in self._monomials] for s in samples]
        self._deciding, self._inverse = _inverse(self._rows)
        if len(samples) <= len(self._monomials):
            raise InvalidInput(f"{len(samples)} samples leave none to check {len(self._monomials)} coefficients with")
        self._known: dict[tuple[int, ...], Number | None] = {}

    def through(self, values: tuple[int, ...]) -> Number | None:
        """The polynomial with these values at the samples; None if there is none with integer coefficients."""
        if self._fit is not None:
            return values[0] if len(set(values)) == 1 else self._fit(values)
        if values not in self._known:
            self._known[values] = self._found(values)
        return self._known[values]

    def quotient(self, values: Sequence[float], dtype: str) -> Quotient | None:
        """The quotient with these values, as elements of a type, at the samples: one that the graph computes, or of a small number."""
        rounded = FLOAT_OF[dtype]
        for over, under in self._fractions:
            if all(v in (a / b, rounded(a / b)) for a, b, v in zip(over, under, values, strict=True)):
                a, b = self.through(over), self.through(under)
                if a is not None and b is not None:
                    return Quotient(a, b)
        # A mean's divisor that passes have joined with another constant, as 2 / (24 * n) of the gradient of a mean of squares.
        for whole in range(1, _MOST_OVER + 1):
            below = tuple(round(whole / v) if v else 0 for v in values)
            if all(n and v in (whole / n, rounded(whole / n)) for n, v in zip(below, values, strict=True)):
                divisor = self.through(below)
                if divisor is not None:
                    return Quotient(whole, divisor)
        return None

    def same(self, what: str, values: Sequence[object]) -> None:
        """Refuse what differs.

        Raises:
            _DifferError: with the first sample that is unlike the last.
        """
        _same(what, values, self._samples)

    def _found(self, values: tuple[int, ...]) -> Number | None:
        right = [values[i] for i in self._deciding]
        solved = [sum((a * b for a, b in zip(row, right, strict=True)), start=Fraction(0)) for row in self._inverse]
        if any(c.denominator != 1 for c in solved):
            return None
        whole = [int(c) for c in solved]
        if any(
            sum(a * b for a, b in zip(row, whole, strict=True)) != v for row, v in zip(self._rows, values, strict=True)
        ):
            return None
        return polynomial(zip(self._monomials, whole, strict=True))


def _same(what: str, values: Sequence[object], samples: Sequence[Values]) -> None:
    for sample, value in zip(samples, values, strict=True):
        if value != values[-1]:
            here, there = (", ".join(f"{n}={v}" for n, v in s.items()) for s in (sample, samples[-1]))
            raise _DifferError(f"{what} are others at {here} than at {there}")


def _containers(networks: Sequence[Network], polynomials: _Polynomials) -> dict[str, MovingContainer]:
    tables = [net.containers for net in networks]
    polynomials.same("the containers", [set(t) for t in tables])
    found = {}
    for name in tables[-1]:
        rows = [(c.shape, c.strides, c.dtype, c.role) for c in (t[name] for t in tables)]
        found[name] = MovingContainer(*_joined(f"container {name}", rows, polynomials))
        if found[name].role == "constant":
            polynomials.same(f"shape and strides of constant {name}", rows)
    return found


def _operators(networks: Sequence[Network], polynomials: _Polynomials) -> dict[str, MovingOperator]:
    tables = [{op.label: op for op in net.ops()} for net in networks]
    polynomials.same("the operators", [set(t) for t in tables])
    found = {}
    for label, op in tables[-1].items():
        ops = [t[label] for t in tables]
        where = f"{label} {op.origin}".rstrip()
        both = [(net.ins(o), net.outs(o)) for net, o in zip(networks, ops, strict=True)]
        polynomials.same(
            f"what {where} reads and writes", [tuple(tuple(o.data for o in side) for side in sides) for sides in both]
        )
        offsets = [tuple(tuple(o.offset for o in side) for side in sides) for sides in both]
        found[label] = MovingOperator(
            _joined(where, [o.spec for o in ops], polynomials),
            *_joined(where, offsets, polynomials),
        )
    return found


def _outside(net: Network) -> tuple[object, ...]:
    return net.inputs, net.constants, net.updates, net.static, net.free, net.names, net.target, len(net.results)


def _joined(where: str, values: Sequence[Any], polynomials: _Polynomials) -> Any:
    """What values at the samples are at any sizes.

    Raises:
        _DifferError: they differ in more than integers, or those are no polynomial.
    """
    like = values[-1]
    if all(type(v) is type(like) and v == like and repr(v) == repr(like) for v in values):
        return like
    if any(type(v) is not type(like) for v in values):
        raise _DifferError(f"{where} differs with the sizes")
    if type(like) is int:
        return _number(where, values, polynomials)
    if isinstance(like, Const) and TYPES[like.dtype].kind == "float":
        return _number_computed_with(where, values, polynomials)
    if isinstance(like, tuple):
        if any(len(v) != len(like) for v in values):
            raise _DifferError(f"{where} differs with the sizes")
        return tuple(_joined(where, column, polynomials) for column in zip(*values, strict=True))
    if not dataclasses.is_dataclass(like):
        raise _DifferError(f"{where} differs with the sizes")
    # What equality leaves out, a plan of memory, is that of the last one.
    fields = [f.name for f in dataclasses.fields(like) if f.compare]
    changed = {f: _joined(where, [getattr(v, f) for v in values], polynomials) for f in fields}
    return dataclasses.replace(like, **changed)  # type: ignore[type-var]


def _number(where: str, values: Sequence[int], polynomials: _Polynomials) -> Number:
    found = polynomials.through(tuple(values))
    if found is None:
        raise _DifferError(f"{where} has a number that is no polynomial of the sizes: {', '.join(map(str, values))}")
    return found


def _number_computed_with(where: str, values: Sequence[Const], polynomials: _Polynomials) -> Const:
    """A constant of a loop nest, which may be a count as a float."""
    numbers = [v.value for v in values]
    if any(v.dtype != values[0].dtype for v in values) or not all(map(math.isfinite, numbers)):
        raise _DifferError(f"{where} differs with the sizes")
    if any(v != int(v) for v in numbers):
        quotient = polynomials.quotient(numbers, values[0].dtype)
        if quotient is not None:
            return dataclasses.replace(values[0], value=quotient)  # type: ignore[arg-type]
        raise _DifferError(f"{where} computes with a fraction that moves: {', '.join(map(str, numbers))}")
    return dataclasses.replace(values[0], value=_number(where, [int(v) for v in numbers], polynomials))  # type: ignore[arg-type]


def _inverse(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[Fraction]]]:
    """The first rows that are independent, by number, and the inverse of their matrix.

    Raises:
        InvalidInput: there are too few.
    """
    count = len(rows[0])
    chosen: list[int] = []
    # Every kept row beside what it is made of; reduced to the unit matrix, the right half is the inverse.
    kept: list[list[Fraction]] = []
    places: list[int] = []
    for number, row in enumerate(rows):
        if len(chosen) == count:
            break
        new = [Fraction(v) for v in row] + [Fraction(i == len(chosen)) for i in range(count)]
        for other, place in zip(kept, places, strict=True):
            new = [a - new[place] * b for a, b in zip(new, other, strict=True)]
        place = next((i for i in range(count) if new[i]), count)
        if place == count:
            continue
        new = [v / new[place] for v in new]
        kept = [[a - other[place] * b for a, b in zip(other, new, strict=True)] for other in kept] + [new]
        places.append(place)
        chosen.append(number)
    if len(chosen) < count:
        raise InvalidInput(f"the samples fix {len(chosen)} of {count} coefficients")
    return chosen, [kept[places.index(i)][count:] for i in range(count)]


def _prime(least: int, taken: Collection[int]) -> int:
    """The next prime from ``least`` on that is not taken."""
    return next(
        n for n in itertools.count(max(least, 2)) if n not in taken and all(n % d for d in range(2, math.isqrt(n) + 1))
    )
