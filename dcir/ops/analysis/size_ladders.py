"""Sizes that follow from one another by division, as an image's do from stride to stride, over numbers that do not depend on each other.

    s, (s + 1) // 2, (s + 3) // 4   -->   with t = (s + 3) // 4 and remainders q, r of 0 or 1:  2*t - 1 + q ... s = 4*t - 3 + 2*q + r

A quotient that is rounded is no polynomial of the size, and a size and its half are not free of each other, so neither can stand in a
network's numbers beside the other. The smallest of them and what each division leaves over are: any values of these within their bounds
belong to one size, the sizes on all rungs are polynomials of them, and what holds in the box of their bounds holds for every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcir.ir.sizes import Number

Function = Callable[[int], int]

MOST_PERIOD = 1024
"""Sizes after which remainders repeat, at the most: a ladder is held against its functions over several periods."""
_PERIODS = 4
MOST_MULTIPLE = 64
"""The largest number that a size is rounded to a multiple of, where that is not written as a quotient."""
_FAR = 1 << 20
"""A size at which quotients are what they are of large ones."""


@dataclass(frozen=True)
class Ladder:
    """A size and what it becomes by division.

    Attributes:
        steps: (d, e) of each rung after the first, which is the size itself: x becomes (x + e) // d.
        beside: sums of the numbers that are no rung, and occur: coefficients of the top, the remainders from the last step to the first,
            and 1.
    """

    steps: tuple[tuple[int, int], ...] = ()
    beside: tuple[tuple[int, ...], ...] = ()

    @property
    def period(self) -> int:
        """The product of all divisors."""
        return math.prod(d for d, _ in self.steps)

    def rungs(self, value: int) -> list[int]:
        """The size and all that follow from it, rung by rung."""
        found = [value]
        for d, e in self.steps:
            found.append((found[-1] + e) // d)
        return found

    def parts(self, value: int) -> tuple[int, ...]:
        """The top rung and the remainders, from the last step to the first."""
        rungs = self.rungs(value)
        rest = [x + e - d * y for (d, e), x, y in zip(self.steps, rungs, rungs[1:], strict=False)]
        return (rungs[-1], *reversed(rest))

    def value(self, parts: Sequence[int]) -> int:
        """The size that has these."""
        found, rest = parts[0], list(parts[1:])
        for (d, e), r in zip(reversed(self.steps), rest, strict=True):
            found = d * found + r - e
        return found

    def levels(self, value: int) -> list[int]:
        """What numbers of a network are made of: the rungs, and what lies beside them."""
        parts = (*self.parts(value), 1)
        return self.rungs(value) + [sum(c * p for c, p in zip(row, parts, strict=True)) for row in self.beside]

    def remainders(self) -> list[int]:
        """Which of the levels are sums of remainders, such as how much a size is larger than its double half."""
        return [len(self.steps) + 1 + i for i, row in enumerate(self.beside) if row[0] == 0]

    def polynomials(self, parts: Sequence[Number]) -> list[Number]:
        """The ``levels`` over the parts."""
        rungs: list[Number] = [parts[0]]
        for (d, e), r in zip(reversed(self.steps), parts[1:], strict=True):
            rungs.append(d * rungs[-1] + r - e)
        beside = [_sum(row, parts) for row in self.beside]
        return [*reversed(rungs), *beside]


def ladder(functions: Sequence[Function], least: int) -> Ladder:
    """The ladder of a size on which functions of it lie, as far as they are quotients of each other; others are left out.

    Args:
        functions: of the size, that grow with it or fall, as ``-(-s // 4)`` has it.
        least: the first size that they are asked for.
    """
    found = Ladder()
    for f in sorted((_in_ones(_growing(f), least) for f in functions), key=lambda f: -f(_FAR)):
        if (row := _linear(found, f, least)) is not None:
            if not _is_level(found, f, least):
                found = Ladder(found.steps, (*found.beside, row))
        elif (step := _step(found, f, least)) is not None:
            # What lies beside the rungs keeps its numbers: the old top is d times the new one.
            d, e = step
            beside = tuple((d * row[0], row[0], *row[1:-1], row[-1] - e * row[0]) for row in found.beside)
            found = Ladder((*found.steps, step), beside)
    return found


def _growing(f: Function) -> Function:
    """A function, or its negative."""
    return f if f(_FAR) >= 0 else lambda size: -f(size)


def _in_ones(f: Function, least: int) -> Function:
    """A function that grows by the same number at a time, as a size that is rounded up to a multiple does, so that it grows by one."""
    values = [f(s) for s in range(least, least + MOST_MULTIPLE + 1)]
    step = math.gcd(*(v - values[0] for v in values))
    return f if step <= 1 else lambda size: (f(size) - values[0]) // step


def _sum(row: Sequence[int], parts: Sequence[Number]) -> Number:
    total: Number = row[-1]
    for c, part in zip(row, parts, strict=False):
        total += c * part
    return total


def _window(made: Ladder, least: int, more: int = 1) -> range:
    return range(least, least + _PERIODS * made.period * more)


def _is_level(made: Ladder, f: Function, least: int) -> bool:
    """Whether a function is a level but for a constant."""
    window = _window(made, least)
    return any(len({f(s) - levels[i] for s, levels in window_levels(made, window)}) == 1 for i in _level_numbers(made))


def window_levels(made: Ladder, window: range) -> list[tuple[int, list[int]]]:
    """Sizes with their levels."""
    return [(s, made.levels(s)) for s in window]


def _level_numbers(made: Ladder) -> range:
    return range(len(made.steps) + 1 + len(made.beside))


def _linear(made: Ladder, f: Function, least: int) -> tuple[int, ...] | None:
    """A function as a sum of the parts, if it is one."""
    top = made.parts(least + made.period)[0] + 1
    zeros = [0] * len(made.steps)
    base = f(made.value((top, *zeros)))
    row = [f(made.value((top + 1, *zeros))) - base]
    for k in range(len(zeros)):
        row.append(f(made.value((top, *(int(i == k) for i in range(len(zeros)))))) - base)
    row.append(base - row[0] * top)
    # From 8 on, four sizes in a row have the same s // 4: no constant, as sizes far from there show.
    for s in (*_window(made, least), *_window(made, _FAR)):
        if f(s) != sum(c * p for c, p in zip(row, (*made.parts(s), 1), strict=True)):
            return None
    return tuple(row)


def _step(made: Ladder, f: Function, least: int) -> tuple[int, int] | None:
    """The step from the top rung to a function, but for a constant."""
    rise = f(2 * _FAR) - f(_FAR)
    if rise <= 0:
        return None
    d = round(_FAR / made.period / rise)
    if d < 2 or d * made.period > MOST_PERIOD:
        return None
    window = _window(made, least, d)
    tops = [(f(s), made.parts(s)[0]) for s in window]
    return next(((d, e) for e in range(d) if len({y - (t + e) // d for y, t in tops}) == 1), None)
