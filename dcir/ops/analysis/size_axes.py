"""Samples for sizes that others follow from by division, and the numbers that take certain values at them.

    a batch, heights h and (h + 1) // 2, widths w and (w + 1) // 2, ten samples: 3 * n * ((h + 1) // 2) * w is found, as a polynomial of
    n and of the parts that the ladders of h and w have

A number is a product sum of one level of each size: of one height, one width and the batch. Which levels these are is tried; each choice
has a few coefficients, fewer than there are samples, so a choice that fits all of them is no accident, and two that fit and differ are
refused. Numbers of several heights at once do not occur but for sums over a pyramid, and are refused.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dcir.errors import InvalidInput
from dcir.ir.sizes import Bounds, Number, Polynomial, size
from dcir.ops.analysis.size_ladders import Ladder

Values = Mapping[str, int]
Powers = tuple[int, ...]

MOST_AXES = 3
_CHECKS = 2
"""Samples more than a number has coefficients, where few are looked at."""
_HANDFUL = 5
_MORE = 6
"""The same, where many are."""
_TRIES = 64
_WIDER = 16  # tries after which a value may lie further from the lower end
_FURTHER = 8  # tops that are tried for the upper end
_FEWEST = 4
# Powers of the levels of one, two and three sizes in a number. One size may be both sides of an image.
_POWERS: dict[int, tuple[Powers, ...]] = {
    1: ((0,), (1,), (2,)),
    2: ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 1), (1, 2)),
    3: tuple(itertools.product((0, 1), repeat=3)),
}
# Those of two lengths and a batch besides: attention scores of a text within itself.
_SQUARES = tuple(p for p in itertools.product((0, 1, 2), repeat=3) if 2 in p and sum(p) <= 3)


@dataclass(frozen=True)
class Axis:
    """A size of the graph.

    Attributes:
        ladder: what it becomes.
        names: of its parts among the sizes of a network; "" for one that does not move.
        bounds: of each part, of which samples are taken.
        one: whether it is for 1 as well, of which there is no sample: networks have a dimension less there.
    """

    ladder: Ladder
    names: tuple[str, ...]
    bounds: tuple[Bounds, ...]
    one: bool = False

    @property
    def sizes(self) -> dict[str, Bounds]:
        """The bounds of the parts that move, by name."""
        return {
            name: Bounds(1, b.high) if self.one else b for name, b in zip(self.names, self.bounds, strict=True) if name
        }

    def levels(self) -> list[Number]:
        """The levels over the names of the parts."""
        parts = [size(n) if n else b.low for n, b in zip(self.names, self.bounds, strict=True)]
        return self.ladder.polynomials(parts)

    def parts(self, value: int) -> dict[str, int]:
        """What the network has of a value, by name."""
        return {name: p for name, p in zip(self.names, self.ladder.parts(value), strict=True) if name}

    @property
    def reach(self) -> Bounds:
        """The least and the greatest size."""
        low, high = (self.ladder.value([b[end] for b in self.bounds]) for end in (0, 1))
        return Bounds(1 if self.one else low, high)

    def has(self, value: int) -> bool:
        """Whether it may have this value."""
        return (self.one and 1 <= value <= self.bounds[0].high) or all(
            b.low <= p <= b.high for b, p in zip(self.bounds, self.ladder.parts(value), strict=True)
        )


def axis(
    ladder: Ladder, asked: Bounds, first: int, holds: Callable[[int], bool], taken: Collection[int] = ()
) -> Axis | str:
    """The size within its bounds and a graph's conditions on it, or why there is no box of its parts.

    Args:
        ladder: what it becomes.
        asked: the bounds that are asked for; the greatest size may be a little more.
        first: number of the first of its parts among the sizes of the network.
        holds: whether the graph is right for a size.
        taken: extents that the greatest size and what it becomes should not be.
    """
    far = max(asked.low, asked.high // 2)
    seen = [ladder.parts(s) for s in range(far, far + 2 * ladder.period) if holds(s)]
    rests = [sorted({parts[k] for parts in seen}) for k in range(1, len(ladder.steps) + 1)]
    if not seen or any(r != list(range(r[0], r[-1] + 1)) for r in rests):
        return "what a division may leave over has gaps"
    # Of the window's ends not all remainders are seen.
    whole = math.prod(map(len, rests))
    if not any(sum(parts[0] == top for parts in seen) == whole for top in {parts[0] for parts in seen}):
        return "what divisions may leave over depends on each other"
    rest = [Bounds(r[0], r[-1]) for r in rests]
    ends = list(itertools.product(*rest))
    lowest, highest = tuple(b.low for b in rest), tuple(b.high for b in rest)

    def right(top: int) -> bool:
        return all(holds(ladder.value((top, *r))) for r in ends)

    def alone(top: int) -> bool:
        levels = ladder.rungs(ladder.value((top, *highest)))
        return not set(levels) & set(taken) and all(n & (n - 1) for n in levels)

    end = ladder.parts(asked.high)[0]
    tops = [*range(end, end + _FURTHER), *range(end - 1, max(0, end - _FURTHER), -1)]
    tops = [top for top in tops if right(top)]
    last = next((top for top in tops if alone(top)), tops[0] if tops else 0)
    low = next((t for t in range(1, last) if ladder.value((t, *lowest)) >= max(asked.low, 2) and right(t)), last)
    if last - low < _FEWEST:
        return f"{asked.low} to {asked.high} are too few values"
    moving = [0, *(k for k, b in enumerate(rest, 1) if b.low < b.high)]
    names = tuple(f"s{first + moving.index(k)}" if k in moving else "" for k in range(len(rest) + 1))
    # What nothing is divided from is the same at 1 as elsewhere.
    return Axis(ladder, names, (Bounds(low, last), *rest), one=asked.low == 1 and not rest and holds(1))


class Axes:
    """The sizes of a graph, at samples of them.

    Args:
        axes: at least one and at most ``MOST_AXES``.
        others: extents in the graph that do not move.
        holds: whether the graph is right for a combination of sizes.

    Attributes:
        sizes: the bounds of all parts, by name.
        samples: values of the sizes themselves, of which the last are the upper ends.

    Raises:
        InvalidInput: no samples were found.
    """

    def __init__(self, axes: Sequence[Axis], others: Collection[int], holds: Callable[[Sequence[int]], bool]) -> None:
        self.axes = tuple(axes)
        self._powers = _POWERS[len(axes)]
        # Of images of any two sides nothing is a square.
        squares = len(axes) == 3 and all(len(a.levels()) == 1 for a in axes)
        self._all = (*self._powers, *_SQUARES) if squares else self._powers
        self.sizes = {name: b for a in axes for name, b in a.sizes.items()}
        for seed in range(1, _TRIES):
            apart = set(others) if seed < _TRIES // 2 else None
            self.samples = _samples(self.axes, len(self._all) + _MORE, apart, holds, seed)
            if self.samples and all(self._fixed(self.numbers(few=few)) for few in (True, False)):
                return
        raise InvalidInput("no samples of the sizes fix what depends on them")

    @property
    def turns(self) -> tuple[list[int], ...]:
        """Numbers of the samples to look at: a handful, which shows what is one product of levels and a constant; few, and more."""
        last = len(self.samples) - 1
        return [*range(_HANDFUL - 1), last], self.numbers(few=True), self.numbers(few=False)

    def numbers(self, *, few: bool) -> list[int]:
        """Numbers of samples that fix all coefficients."""
        count = len(self._powers) + _CHECKS
        return [*range(count - 1), len(self.samples) - 1] if few else list(range(len(self.samples)))

    def parts(self, values: Sequence[int]) -> dict[str, int]:
        """The sizes of the network for those of the graph."""
        return {name: p for a, v in zip(self.axes, values, strict=True) for name, p in a.parts(v).items()}

    def fit(self, numbers: Sequence[int]) -> Fit:
        """Numbers by their values at these samples."""
        if len(numbers) <= len(self._powers):
            return _Simple(self, numbers, self._all)
        return Fit(self, numbers, self._all if len(numbers) > len(self._all) else self._powers)

    def _fixed(self, numbers: Sequence[int]) -> bool:
        fit = self.fit(numbers)
        return all(choice.rank == len(choice.monomials) for choice in (*fit.choices, *fit.remainders))


class Fit:
    """Numbers by their values at samples.

    Args:
        axes, numbers: of the samples.
        powers: of the levels in a product.

    Attributes:
        choices: of a level for each size.
        remainders: those of a remainder alone.
    """

    def __init__(self, axes: Axes, numbers: Sequence[int], powers: Sequence[Powers]) -> None:
        samples = [axes.samples[i] for i in numbers]
        levels = [[a.ladder.levels(s[k]) for s in samples] for k, a in enumerate(axes.axes)]
        named = [a.levels() for a in axes.axes]
        alone = [set(a.ladder.remainders()) for a in axes.axes]
        self.choices = [
            _Choice(
                [[math.prod(levels[k][i][level] ** p for k, (level, p) in enumerate(zip(chosen, ps, strict=True)))
                  for ps in powers] for i in range(len(samples))],
                [_product([named[k][level] for k, level in enumerate(chosen)], ps) for ps in powers],
            )
            for chosen in itertools.product(*([i for i in range(len(n)) if i not in a] for n, a in zip(named, alone, strict=True)))
        ]  # fmt: skip
        # A remainder is in no product: of few values, its powers are no further numbers.
        self.remainders = [
            _Choice([[1, levels[k][i][level]] for i in range(len(samples))], [1, named[k][level]])
            for k, numbers_of in enumerate(alone)
            for level in numbers_of
        ]
        self._known: dict[tuple[int, ...], Number | None] = {}

    def through(self, values: tuple[int, ...]) -> Number | None:
        """The number with these values at the samples; None if there is none, or more than one."""
        if values not in self._known:
            found = self._found(values)
            self._known[values] = found.pop() if len(found) == 1 else None
        return self._known[values]

    def _found(self, values: tuple[int, ...]) -> set[Number]:
        fitting = (choice.through(values) for choice in (*self.choices, *self.remainders))
        return {n for n in fitting if n is not None}


class _Simple(Fit):
    """Numbers that are one product of levels times a coefficient, and a constant, which most are.

    Not remainders: a handful of zeros and ones may be another one's.
    """

    def __init__(self, axes: Axes, numbers: Sequence[int], powers: Sequence[Powers]) -> None:
        super().__init__(axes, numbers, powers)
        self._products = {
            monomial: tuple(row[k] for row in choice.rows)
            for choice in self.choices
            for k, monomial in enumerate(choice.monomials)
            if isinstance(monomial, Polynomial)
        }

    def _found(self, values: tuple[int, ...]) -> set[Number]:
        found = set()
        for monomial, seen in self._products.items():
            over, under = values[-1] - values[0], seen[-1] - seen[0]
            if under == 0 or over % under:
                continue
            c = over // under
            d = values[0] - c * seen[0]
            if all(c * m + d == v for m, v in zip(seen, values, strict=True)):
                found.add(c * monomial + d)
        return found


class _Choice:
    """One level of each size: what is made of these by coefficients.

    Attributes:
        rows: products of the levels, by sample.
        monomials: the same as numbers.
    """

    def __init__(self, rows: list[list[int]], monomials: list[Number]) -> None:
        self.rows, self.monomials = rows, monomials

    @functools.cached_property
    def _solved(self) -> tuple[list[int], list[list[int]], int]:
        return _whole_inverse(self.rows)

    @property
    def rank(self) -> int:
        """How many coefficients the samples fix."""
        return len(self._solved[0])

    def through(self, values: tuple[int, ...]) -> Number | None:
        """The number with integer coefficients, if there is one."""
        deciding, inverse, scale = self._solved
        right = [values[i] for i in deciding]
        found = []
        for row in inverse:
            c, rest = divmod(sum(a * b for a, b in zip(row, right, strict=True)), scale)
            if rest:
                return None
            found.append(c)
        for row, v in zip(self.rows, values, strict=True):
            if sum(a * b for a, b in zip(row, found, strict=True)) != v:
                return None
        total: Number = 0
        for c, m in zip(found, self.monomials, strict=True):
            total += c * m
        return total


def _product(levels: Sequence[Number], powers: Powers) -> Number:
    total: Number = 1
    for level, p in zip(levels, powers, strict=True):
        for _ in range(p):
            total = level * total if isinstance(level, Polynomial) else total * level
    return total


def _whole_inverse(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]], int]:
    """The first rows that are independent, by number, and the inverse of their matrix as integers over one divisor."""
    count = len(rows[0])
    kept: list[tuple[int, list[Fraction]]] = []  # the column that a row was solved for, the row and what it is made of
    chosen: list[int] = []
    for number, row in enumerate(rows):
        if len(chosen) == count:
            break
        new = [Fraction(v) for v in row] + [Fraction(i == len(chosen)) for i in range(count)]
        for place, other in kept:
            if new[place]:
                new = [a - new[place] * b for a, b in zip(new, other, strict=True)]
        place = next((i for i in range(count) if new[i]), count)
        if place == count:
            continue
        new = [v / new[place] for v in new]
        kept = [(p, [a - o[place] * b for a, b in zip(o, new, strict=True)] if o[place] else o) for p, o in kept]
        kept.append((place, new))
        chosen.append(number)
    if len(chosen) < count:
        return chosen, [], 1
    inverse = [dict(kept)[i][count:] for i in range(count)]
    scale = math.lcm(*(v.denominator for row in inverse for v in row))
    return chosen, [[int(v * scale) for v in row] for row in inverse], scale


def _samples(
    axes: Sequence[Axis], count: int, others: set[int] | None, holds: Callable[[Sequence[int]], bool], seed: int
) -> list[tuple[int, ...]]:
    """So many combinations of values, the least first and the greatest last; none if a graph's conditions leave too few."""
    draw = _draws(seed)
    found: list[tuple[int, ...]] = []
    for number in range(count):
        for attempt in range(_TRIES):
            values = tuple(_value(a, number, count, draw, 1 + attempt // _WIDER) for a in axes)
            if _apart(axes, values, others) and values not in found and holds(values):
                found.append(values)
                break
            if number == count - 1:
                # The upper ends are what they are.
                if not holds(values):
                    return []
                found.append(values)
                break
        else:
            return []
    return found


def _draws(seed: int) -> Callable[[int], int]:
    """Numbers below a limit, the same in every process."""
    state = seed * 7919

    def draw(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % limit

    return draw


def _value(a: Axis, number: int, count: int, draw: Callable[[int], int], wider: int) -> int:
    """A value of a size for the sample of this number, not much above its lower end where it is to lie there."""
    top, rest = a.bounds[0], a.bounds[1:]
    if number == count - 1:
        return a.reach.high
    span = top.high - top.low
    # Near the lower end, then anywhere: many small ones, as divisions leave over more of them.
    room = max(8, span // 16) if number == 0 else max(8, span // (1 + number % 3))
    t = top.low + draw(min(room * wider, span) + 1)
    # At the upper ends remainders are the greatest; where they are not always those, no level is a multiple of the next one.
    return a.ladder.value((t, *(b.low + (draw(b.high - b.low + 1) if number else 0) for b in rest)))


def _apart(axes: Sequence[Axis], values: Sequence[int], others: set[int] | None) -> bool:
    """Whether no extent is another one, or a power of two: a division by one becomes a product, which only looks like another network.

    Nor may it be one more or less than another size's: the last index of an extent is a number, too, and is merged with an equal one.
    Without ``others`` there is little to choose from, and this alone counts.
    """
    seen: set[int] = set()
    for a, value in zip(axes, values, strict=True):
        rungs = a.ladder.rungs(value)
        if seen.intersection(rungs):
            return False
        if others is not None and (others.intersection(rungs) or any(n & (n - 1) == 0 for n in rungs)):
            return False
        seen |= near(rungs)
    return True


def near(extents: Collection[int]) -> set[int]:
    """Extents, and those beside them."""
    return {n + d for n in extents for d in (-1, 0, 1)}
