"""Which elements of its operands an operator touches: read off its loop nests, statement by statement.

Masks and indices that are functions of the loops are evaluated, in groups of loops that have nothing to do with each other, so that a
padded convolution reads just what its taps meet. What depends on data is bounded: the set is not exact then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dcir.ir.element_sets import EMPTY, ENUMERATED, ElementSet, distinct, of_numbers, strided, sum_of, union
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import OperandWindow, Operator
from dcir.ir.scalars import reference
from dcir.ir.statements import Access, Cast, Compute, Const, Gather, Index, Narrow, Read
from dcir.ir.types import to_numpy


class Touched(NamedTuple):
    """The elements of each input and each output, counted from where the operand begins; None where nothing says which."""

    reads: tuple[ElementSet | None, ...]
    writes: tuple[ElementSet | None, ...]


@functools.lru_cache(maxsize=8192)
def touched(spec: Operator) -> Touched:
    """What one run of an operator touches."""
    if isinstance(spec, LoopNest):
        return of_nest(spec)
    found = spec.steps()
    reads, writes = spec.footprint()
    if found is None:
        windows = spec.windows() or ([], [])
        return Touched(_of_windows(windows[0], len(reads)), _of_windows(windows[1], len(writes)))
    sets: dict[str, list[ElementSet]] = {}
    for nest, ins, outs in found[1]:
        assert isinstance(nest, LoopNest)
        of_step = of_nest(nest)
        # What one step reads of the results of another stays inside of the operator.
        for name, elements in (*zip(ins, of_step.reads, strict=True), *zip(outs, of_step.writes, strict=True)):
            if elements is not None and (name[0] != "o" or name in outs):
                sets.setdefault(name, []).append(elements)
    return Touched(
        tuple(union(sets.get(f"a{i}", [])) for i in range(len(reads))),
        tuple(union(sets.get(f"o{i}", [])) for i in range(len(writes))),
    )


@functools.lru_cache(maxsize=8192)
def of_nest(nest: LoopNest) -> Touched:
    """What one run of a loop nest touches."""
    reads: list[list[ElementSet]] = [[] for _ in nest.inputs]
    writes: list[list[ElementSet]] = [[] for _ in nest.outputs]
    loops = _Loops(nest)
    for s, (_, full) in dict(zip(nest.body, nest.levels(), strict=True)).items():  # the same access touches the same
        if isinstance(s, Access):
            (reads if isinstance(s, Read) else writes)[s.operand].append(loops.elements(s, full))
    return Touched(tuple(map(union, reads)), tuple(map(union, writes)))


def _of_windows(windows: Sequence[OperandWindow | None], count: int) -> tuple[ElementSet | None, ...]:
    found = [None if w is None else strided(zip(w.shape, w.strides, strict=True)) for w in windows[:count]]
    return (*found, *(None for _ in range(count - len(found))))


class _Term(NamedTuple):
    """A value that moves an address by ``step``; where it is the whole index, what it has to lie below."""

    value: int
    step: int
    extent: int | None


class _Group:
    """Loops that masks or indices bring together, and those."""

    def __init__(self, dims: Iterable[int], masks: Sequence[int] = (), terms: Sequence[_Term] = ()) -> None:
        self.dims, self.masks, self.terms = set(dims), [*masks], [*terms]


class _Loops:
    """What is asked of one nest."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest

    @functools.cached_property
    def loops_of(self) -> list[frozenset[int] | None]:
        """The loops that each value depends on, None if on data."""
        found: list[frozenset[int] | None] = []
        for s in self.nest.body:
            of_args = [found[a] for a in s.args]
            if isinstance(s, Index):
                found.append(frozenset((s.dim,)))
            elif None in of_args or not isinstance(s, Const | Compute | Cast | Narrow):
                found.append(None)
            else:
                found.append(frozenset[int]().union(*(x or () for x in of_args)))
        return found

    def elements(self, s: Access, full: bool) -> ElementSet:
        """Those of one statement, over all points of the nest, or of its outer loops."""
        dims = self.nest.dims
        if 0 in self.nest.outer:
            return EMPTY
        if not isinstance(s, Read) or not s.args:
            return strided((n, t) for n, t in zip(dims, s.strides, strict=True) if t)
        masks = [i for i in self._masks(s) if self.loops_of[i] is not None]
        rows = list(zip(s.indices, s.extents, s.steps, strict=True)) if isinstance(s, Gather) else []
        known = [row for row in rows if self.loops_of[row[0]] is not None]
        groups = self._groups(masks, [t for row in known for t in self._terms(*row)])
        grouped = {d for g in groups for d in g.dims}
        parts = [strided((dims[d], t) for d, t in enumerate(s.strides) if d not in grouped and t)]
        parts += [self._of_group(s, g) for g in groups]
        parts.append(strided((extent, step) for i, extent, step in rows if self.loops_of[i] is None))
        found = sum_of(parts)
        if not found.size or (len(known) == len(rows) and len(masks) == len(self._masks(s))):
            return found
        return found.vaguely(math.prod(dims if full else self.nest.outer))

    def _masks(self, s: Access) -> list[int]:
        """The values that must all be true."""
        masks: list[int] = []
        todo = list(s.guard[:1]) if isinstance(s, Read) else []
        while todo:
            i = todo.pop()
            v = self.nest.body[i]
            if isinstance(v, Compute) and v.op == "and":
                todo.extend(v.args)
            else:
                masks.append(i)
        return list(dict.fromkeys(masks))

    def _terms(self, index: int, extent: int, step: int) -> list[_Term]:
        """An index as the sum of what depends on different loops, if it cannot lie outside of its extent."""
        found, constant = self._summands(index, 1)
        low = high = constant
        for i, factor in found:
            values = self._over(i)
            if values is None:
                return [_Term(index, step, extent)]
            ends = sorted((int(values.min()) * factor, int(values.max()) * factor))
            low, high = low + ends[0], high + ends[1]
        if low < 0 or high >= extent or constant:
            return [_Term(index, step, extent)]
        return [_Term(i, factor * step, None) for i, factor in found]

    def _summands(self, i: int, factor: int) -> tuple[list[tuple[int, int]], int]:
        """A value as a sum of values times numbers, and a number."""
        s = self.nest.body[i]
        if isinstance(s, Const):
            return [], int(s.value) * factor
        if isinstance(s, Compute) and s.op in ("add", "sub"):
            one, a = self._summands(s.args[0], factor)
            other, b = self._summands(s.args[1], factor if s.op == "add" else -factor)
            return one + other, a + b
        if isinstance(s, Compute) and s.op == "mul":
            for a, b in (s.args, s.args[::-1]):
                number = self.nest.body[b]
                if isinstance(number, Const):
                    return self._summands(a, factor * int(number.value))
        return [(i, factor)], 0

    def _groups(self, masks: Sequence[int], terms: Sequence[_Term]) -> list[_Group]:
        made = [_Group(self.loops_of[i] or (), masks=[i]) for i in masks]
        made += [_Group(self.loops_of[t.value] or (), terms=[t]) for t in terms]
        groups: list[_Group] = []
        for new in made:
            for g in [g for g in groups if g.dims & new.dims]:
                groups.remove(g)
                new = _Group(g.dims | new.dims, g.masks + new.masks, g.terms + new.terms)
            groups.append(new)
        return groups

    def _of_group(self, s: Access, group: _Group) -> ElementSet:
        """What the loops of a group add to the address where its masks are true."""
        dims = self.nest.dims
        if math.prod(dims[d] for d in group.dims) > ENUMERATED:
            reach = [(dims[d], s.strides[d]) for d in group.dims]
            spans = [(t.extent or self._span(t.value), t.step) for t in group.terms]
            return strided(reach + spans).vaguely()
        grids = self._grids(group.dims)
        values: dict[int, Any] = {}
        good: Any = np.ones([dims[d] if d in group.dims else 1 for d in range(len(dims))], bool)
        at: Any = np.zeros(good.shape, np.int64)
        for i in group.masks:
            good = good & self._value(i, grids, values)
        for d, grid in grids.items():
            at = at + grid * s.strides[d]
        for i, step, extent in group.terms:
            index = self._value(i, grids, values)
            if extent is not None:
                good = good & (index >= 0) & (index < extent)
            at = at + index * step
        return of_numbers(distinct(at[good]))

    def _grids(self, dims: Iterable[int]) -> dict[int, Any]:
        rank = len(self.nest.dims)
        return {d: np.arange(self.nest.dims[d]).reshape([-1 if k == d else 1 for k in range(rank)]) for d in dims}

    def _over(self, i: int) -> Any:
        """A value at all points of its loops, None where those are many or none."""
        loops = self.loops_of[i] or frozenset()
        if not 0 < math.prod(self.nest.dims[d] for d in loops) <= ENUMERATED:
            return None
        return self._value(i, self._grids(loops), {})

    def _span(self, i: int) -> int:
        values = self._over(i)
        return 1 if values is None else int(values.max()) + 1

    def _value(self, i: int, grids: dict[int, Any], values: dict[int, Any]) -> Any:
        """A value that depends on loops alone, at all points of some of them."""
        if i in values:
            return values[i]
        s = self.nest.body[i]
        args = [self._value(a, grids, values) for a in s.args]
        if isinstance(s, Const):
            found: Any = np.full([1] * len(self.nest.dims), s.value, to_numpy(s.dtype))
        elif isinstance(s, Index):
            found = grids[s.dim]
        elif isinstance(s, Compute | Cast):
            name = s.op if isinstance(s, Compute) else "cast:" + s.dtype
            with np.errstate(all="ignore"):
                found = np.asarray(reference(name)(*args)).astype(to_numpy(s.dtype))
        else:
            found = args[0]
        values[i] = found
        return found
