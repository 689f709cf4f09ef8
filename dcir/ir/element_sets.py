"""Sets of elements of memory, as starts and strides: their exact number, their union, and the box of a container they lie in.

rows of 8 in a matrix 32 wide    {0} + 32·[0, 10) + 1·[0, 8)          80 elements
a window of 3 that slides by 2   2·[0, 5) + 1·[0, 3)  ==  1·[0, 11)   11 elements, not 15
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

Dims = tuple[tuple[int, int], ...]
"""(extent, stride) of each direction: strides fall, extents are above 1."""
Box = tuple[tuple[int, int, int], ...]
"""First, last and step in each dimension of a container."""

ENUMERATED = 1 << 18
"""Elements that are listed one by one where no rule tells how many are distinct."""


class ElementSet(NamedTuple):
    """Every sum of a start and a multiple of each stride.

    Attributes:
        starts: distinct, rising.
        dims: directions from each start.
        size: how many are distinct.
        exact: whether all of them are meant; else some of them are, ``size`` at most.
    """

    starts: tuple[int, ...]
    dims: Dims
    size: int
    exact: bool = True

    @property
    def last(self) -> int:
        """The last element of a set that is not empty."""
        return self.starts[-1] + sum((n - 1) * s for n, s in self.dims)

    def vaguely(self, most: int | None = None) -> ElementSet:
        """Some of them, ``most`` at most."""
        return self._replace(exact=False, size=self.size if most is None else min(self.size, most))

    def listed(self) -> Any:
        """All of them, rising."""
        found: Any = np.asarray(self.starts, np.int64)
        for n, s in self.dims:
            found = (found[:, None] + np.arange(n, dtype=np.int64) * s).reshape(-1)
        return distinct(found)


def distinct(numbers: Any) -> Any:
    """The numbers in an array, rising, each once; NumPy's own takes five times as long for few."""
    numbers = np.sort(numbers, axis=None)
    return numbers[np.concatenate(([True], numbers[1:] != numbers[:-1]))] if len(numbers) else numbers


EMPTY = ElementSet((), (), 0)


def strided(dims: Iterable[tuple[int, int]], starts: Sequence[int] = (0,)) -> ElementSet:
    """The sums of a start and, for each direction, its stride times a number below its extent; strides may be of any sign."""
    back, positive = 0, []
    for n, s in dims:
        if n == 0:
            return EMPTY
        if n > 1 and s:
            back += (n - 1) * s if s < 0 else 0
            positive.append((n, abs(s)))
    if not starts:
        return EMPTY
    starts = tuple(s + back for s in starts)
    merged = _merged(positive)
    whole = ElementSet(starts, merged, 0)
    if _apart(starts, merged):
        return whole._replace(size=_ways(whole))
    if _ways(whole) <= ENUMERATED:
        return of_numbers(whole.listed())
    # More than there are, at most what lies between the ends.
    return whole._replace(size=min(whole.last - starts[0] + 1, _ways(whole)), exact=False)


def of_numbers(numbers: Any) -> ElementSet:
    """A set from its elements, rising and distinct: as strides where they are regular."""
    count, dims = len(numbers), []
    while len(numbers) > 1:
        steps = np.diff(numbers)
        # The first run of equal steps is the innermost direction.
        other = np.flatnonzero(steps != steps[0])
        run = int(other[0]) + 1 if len(other) else len(numbers)
        if run < 2 or len(numbers) % run:
            break
        rows = numbers.reshape(-1, run)
        if not (rows - rows[:, :1] == rows[0] - rows[0, 0]).all():
            break
        dims.append((run, int(steps[0])))
        numbers = rows[:, 0]
    return ElementSet(tuple(numbers.tolist()), tuple(reversed(dims)), count)


def sum_of(sets: Sequence[ElementSet]) -> ElementSet:
    """The sums of an element of each."""
    if any(not s.starts for s in sets):
        return EMPTY
    first, starts = sum(s.starts[0] for s in sets), [0]
    for s in sets:
        if len(s.starts) > 1:
            starts = distinct(np.add.outer(starts, np.asarray(s.starts, np.int64) - s.starts[0])).tolist()
    made = strided([d for s in sets for d in s.dims], [n + first for n in starts])
    if all(s.exact for s in sets):
        return made
    return made.vaguely(math.prod(s.size for s in sets))


def union(sets: Sequence[ElementSet]) -> ElementSet:
    """What lies in any of them."""
    most = sum(s.size for s in sets)
    sets = list(dict.fromkeys(s for s in sets if s.size))
    if not sets:
        return EMPTY
    exact = all(s.exact for s in sets)
    if len(sets) == 1:
        # Elements that are not known may be others each time.
        return sets[0] if exact else sets[0]._replace(size=min(most, _ways(sets[0])))
    common, rest = _common(sets)
    if common:  # (A + C) and (B + C) together are (A and B together) + C
        whole = sum_of([union(rest), strided(common)])
    elif sum(map(_ways, sets)) <= ENUMERATED:
        whole = of_numbers(distinct(np.concatenate([s.listed() for s in sets])))
    else:
        first, last = min(s.starts[0] for s in sets), max(s.last for s in sets)
        whole, exact = strided([(last - first + 1, 1)], (first,)), False
    return whole if exact else whole.vaguely(most)


def box(found: ElementSet, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Box:
    """The part of a container in which elements lie: exactly theirs where they are one, else what surrounds them.

    Args:
        found: not empty.
        offset: where in the container the elements are counted from.
        shape, strides: the container's; no extent is 0.
    """
    whole = tuple((0, n - 1, 1) for n in shape)
    order = sorted((d for d, n in enumerate(shape) if n > 1), key=lambda d: -strides[d])
    rows = [(shape[d], strides[d]) for d in order]
    if any(s < (m - 1) * t + 1 for (_, s), (m, t) in pairwise(rows)) or any(not s for _, s in rows):
        return whole
    first, last = _digits(found.starts[0] + offset, rows), _digits(found.last + offset, rows)
    if first is None or last is None:
        return whole
    digits = _placed(found, first, rows) or _around(first, last, rows)
    places = dict(zip(order, digits, strict=True))
    return tuple(places.get(d, (0, 0, 1)) for d in range(len(shape)))


def _ways(found: ElementSet) -> int:
    """Sums of a start and multiples of the strides, the same ones counted as often as they come."""
    return len(found.starts) * math.prod(n for n, _ in found.dims)


def _merged(dims: list[tuple[int, int]]) -> Dims:
    """The same sums in fewer directions: a stride that the next smaller direction reaches goes on where that ends."""
    todo, done = sorted(dims, key=lambda d: d[1]), []
    while todo:
        n, s = todo.pop(0)
        for i, (m, t) in enumerate(todo):
            if t % s == 0 and t // s <= n:
                todo[i] = ((m - 1) * (t // s) + n, s)
                todo.sort(key=lambda d: d[1])
                break
        else:
            done.append((n, s))
    return tuple(reversed(done))


def _apart(starts: Sequence[int], dims: Dims) -> bool:
    """Whether no two sums are the same: each stride, and the starts between them, are further apart than all that is smaller spans."""
    span, gaps = 0, [b - a for a, b in pairwise(starts)]
    todo = [*reversed(dims)]
    while todo or gaps:
        if todo and not (gaps and min(gaps) < todo[0][1]):
            n, s = todo.pop(0)
            if s <= span:
                return False
            span += (n - 1) * s
        else:
            if min(gaps) <= span:
                return False
            span += sum(gaps)
            gaps = []
    return True


def _common(sets: Sequence[ElementSet]) -> tuple[Dims, list[ElementSet]]:
    """Directions that all sets have, and what the sets are without them."""
    common: list[tuple[int, int]] = []
    rests = [s.dims for s in sets]
    for direction in dict.fromkeys(d for s in sets for d in s.dims):
        without = [_without(dims, direction) for dims in rests]
        if all(dims is not None for dims in without):
            common.append(direction)
            rests = [dims for dims in without if dims is not None]
    return tuple(common), [strided(dims, s.starts) for dims, s in zip(rests, sets, strict=True)] if common else []


def _without(dims: Dims, direction: tuple[int, int]) -> Dims | None:
    """What is left without a direction, which may be the last part of a longer one; None where it is none of them."""
    m, t = direction
    for i, (n, s) in enumerate(dims):
        if (n, s) == direction:
            return dims[:i] + dims[i + 1 :]
        if t % s == 0 and n == m * (t // s):
            return (*dims[:i], (t // s, s), *dims[i + 1 :])
    return None


def _digits(element: int, rows: Sequence[tuple[int, int]]) -> list[int] | None:
    """An element's place in each dimension of a container, None if it has none."""
    digits = []
    for n, s in rows:
        digit = min(element // s, n - 1)
        digits.append(digit)
        element -= digit * s
    return digits if element == 0 and min(digits, default=0) >= 0 else None


def _placed(
    found: ElementSet, first: Sequence[int], rows: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]] | None:
    """A range for each dimension, if every direction runs along dimensions from one start."""
    if len(found.starts) > 1:
        return None
    ranges: list[tuple[int, int] | None] = [None] * len(rows)  # extent and step
    todo = list(found.dims)
    while todo:
        n, s = todo.pop()
        d = next((d for d, (_, t) in enumerate(rows) if s % t == 0), None)
        if d is None:
            return None
        (extent, t), step = rows[d], s // rows[d][1]
        if first[d] + (n - 1) * step >= extent:  # it goes on in the next larger dimension
            inside = extent // step
            if d == 0 or extent % step or first[d] >= step or n % inside or rows[d - 1][1] != extent * t:
                return None
            todo.append((n // inside, extent * t))
            n = inside
        if n > 1 and ranges[d] is not None:
            return None
        ranges[d] = ranges[d] if n == 1 else (n, step)
    return [(a, a, 1) if r is None else (a, a + (r[0] - 1) * r[1], r[1]) for a, r in zip(first, ranges, strict=True)]


def _around(first: Sequence[int], last: Sequence[int], rows: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """From the first element to the last: what they share, a range of what they do not, and all within that."""
    found: list[tuple[int, int, int]] = []
    for a, b, (n, _) in zip(first, last, rows, strict=True):
        split = any(low != high for low, high, _ in found)
        found.append((0, n - 1, 1) if split else (a, b, 1))
    return found
