"""Addresses of loop nests as places in the dimensions of a container, which DaCe's transformations compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """A place that moves with the loops, one entry for each dimension of a container.

    Attributes:
        starts: where it is when all loops begin.
        steps: of each dimension, how far each loop moves it.
    """

    starts: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


def place_of(
    offset: int, strides: Sequence[int], extents: Sequence[int], shape: Sequence[int], array: Sequence[int], *,
    inside: bool = True,
) -> Place | None:  # fmt: skip
    """The place of the element at ``offset`` plus the loops times ``strides``.

    Args:
        offset, strides: the address, in elements.
        extents: of the loops.
        shape, array: the container's extents and its strides.
        inside: whether it must lie within the extents for every point of the loops.

    Returns:
        None where no sum of whole steps along the container's dimensions has this address.
    """
    wide = [k for k, n in enumerate(shape) if n > 1]
    order = sorted(wide, key=lambda k: -array[k])
    parts = [_digits(offset, array, order)]
    parts += [_digits(s if n > 1 else 0, array, order) for s, n in zip(strides, extents, strict=True)]
    if any(p is None for p in parts):
        return None
    starts = tuple(parts[0].get(k, 0) for k in range(len(shape)))  # type: ignore[union-attr]
    steps = tuple(tuple(p.get(k, 0) for p in parts[1:]) for k in range(len(shape)))  # type: ignore[union-attr]
    if inside and not all(
        a + _least(along, extents) >= 0 and a + _most(along, extents) < max(n, 1)
        for a, along, n in zip(starts, steps, shape, strict=True)
    ):
        return None
    return Place(starts, steps)


def split_of(
    strides: Sequence[int], extents: Sequence[int], shape: Sequence[int], array: Sequence[int]
) -> tuple[int, int] | None:
    """A loop that runs through one dimension into the next, and after how many steps it does; None if there is none."""
    for d, (step, extent) in enumerate(zip(strides, extents, strict=True)):
        for n, along in zip(shape, array, strict=True):
            times = abs(step) // along if along > 0 and step and abs(step) % along == 0 else 0
            steps = n // times if times and n % times == 0 else 0
            if 1 < steps < extent and extent % steps == 0 and any(a == along * n for a in array):
                return d, steps
    return None


def _digits(number: int, array: Sequence[int], order: Sequence[int]) -> dict[int, int] | None:
    """How often each dimension's stride is in a number, the widest first."""
    sign, rest, found = (-1 if number < 0 else 1), abs(number), {}
    for k in order:
        if array[k] > 0 and (times := rest // array[k]):
            found[k] = sign * times
            rest -= times * array[k]
    return found if rest == 0 else None


def _least(steps: Sequence[int], extents: Sequence[int]) -> int:
    return sum(s * (n - 1) for s, n in zip(steps, extents, strict=True) if s < 0)


def _most(steps: Sequence[int], extents: Sequence[int]) -> int:
    return sum(s * (n - 1) for s, n in zip(steps, extents, strict=True) if s > 0)
