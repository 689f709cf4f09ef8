"""Memlets of operators' operands: the box of a container that is touched and how many elements, found out when somebody asks."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Any

import dace
from dace.subsets import Range
from sympy import Integer

from dcir.ir.element_sets import ElementSet, box
from dcir.ir.operator import Operator
from dcir.ir.touched import touched
from dcir.ir.types import itemsize

_PATTERN = dace.Memlet(data="x", subset=Range([(0, 0, 1)]), volume=1)
_FOUND = ("_subset", "_volume", "_dynamic")


class OperandMemlet(dace.Memlet):  # type: ignore[misc]
    """What moves between a container and one operand of an operator.

    The subset is the box in which the elements lie, with a step in each dimension. The volume is the number of distinct elements; it is
    the most there can be, and the memlet dynamic, where data decide. Passes make many memlets that nobody looks at, so DaCe's properties
    are computed from the operator when they are first read.
    """

    _spec: Operator
    _operand: tuple[bool, int]
    _place: tuple[int, tuple[int, ...], tuple[int, ...], str]

    def __deepcopy__(self, memo: dict[int, Any]) -> OperandMemlet:
        """As DaCe copies memlets: without references to the graph."""
        made = _made(self._data, self._spec, self._operand, self._place)
        for name in _FOUND:
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name]
        if "_subset" in made.__dict__:
            made.__dict__["_subset"] = Range(self._subset.ranges)
        return made

    def try_initialize(self, sdfg: Any, state: Any, edge: Any) -> None:
        """Note where the edge is; DaCe's own looks for a path, and at the subset."""
        self._sdfg, self._state, self._edge = sdfg, state, edge
        self._is_data_src = not self._operand[0]

    @functools.cached_property
    def _subset(self) -> Range:
        return _range(self._box())

    @functools.cached_property
    def _volume(self) -> Any:
        found = self._elements()
        # What an update leaves as it was is not moved: the operator knows how many elements that are, not which.
        if found is None or self._spec.updates_first_input:
            return Integer(self._most())
        return Integer(found.size)

    @functools.cached_property
    def _dynamic(self) -> bool:
        found = self._elements()
        return found is not None and not found.exact

    def _elements(self) -> ElementSet | None:
        writes, i = self._operand
        return touched(self._spec)[writes][i]

    def _most(self) -> int:
        writes, i = self._operand
        return self._spec.footprint()[writes][i] // itemsize(self._place[3])

    def _box(self) -> tuple[tuple[int, int, int], ...]:
        offset, shape, strides, _ = self._place
        found = self._elements()
        if 0 in shape or (found is not None and not found.starts):
            return tuple((0, 0, 1) for _ in shape) or ((0, 0, 1),)
        if found is None:
            return tuple((0, n - 1, 1) for n in shape) or ((0, 0, 1),)
        return box(found, offset, shape, strides) or ((0, 0, 1),)


def operand_memlet(
    data: str, spec: Operator, operand: tuple[bool, int], offset: int, shape: Sequence[int], strides: Sequence[int],
    dtype: str,
) -> OperandMemlet:  # fmt: skip
    """The memlet of one operand.

    Args:
        data: the container.
        spec: the operator.
        operand: whether it is a result, and its number.
        offset: its first element within the container.
        shape, strides, dtype: the container's.
    """
    return _made(data, spec, operand, (offset, tuple(shape), tuple(strides), dtype))


def _made(
    data: str, spec: Operator, operand: tuple[bool, int], place: tuple[int, tuple[int, ...], tuple[int, ...], str]
) -> OperandMemlet:
    memlet = object.__new__(OperandMemlet)
    memlet.__dict__.update(_SHARED)
    memlet.__dict__.update(_data=data, _guid=str(uuid.uuid4()), _spec=spec, _operand=operand, _place=place)
    return memlet


_SHARED = {name: value for name, value in _PATTERN.__dict__.items() if name not in _FOUND}


def _range(ranges: Sequence[tuple[int, int, int]]) -> Range:
    """What ``Range`` makes, whose constructor looks at each number several times."""
    made = object.__new__(Range)
    made.ranges = [(Integer(a), Integer(b), Integer(step)) for a, b, step in ranges]
    made.tile_sizes = [Integer(1)] * len(ranges)
    return made
