"""Which programs a file needs for every combination of sizes within bounds where one graph is for many, or why there are none.

A trace may be for sizes from 2 up, and a network for less than was asked for: what is left has programs of its own, with one size less
that moves.

    b = 1..16, s = 1..64   -->   one for b = 2..16, s = 2..64; one for b = 1, s = 2..64; one for b = 2..16, s = 1; one for b = s = 1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import Dim

from dcir.driver.ahead.artefact import Compiled, closed
from dcir.driver.ahead.build import build_moving
from dcir.driver.ahead.compile import compile_exported, named_as_compiled
from dcir.driver.ahead.sized_call import SizedCall
from dcir.driver.session import Session
from dcir.errors import DcirError, InvalidGraph, Unsupported
from dcir.frontends.torch.context import GraphContext, TooFewValues
from dcir.frontends.torch.export import Exported, export_for_sizes, export_inference
from dcir.frontends.torch.shapes.given_sizes import divisions, places, symbols
from dcir.ir.refusal import Refusal
from dcir.ir.sizes import Bounds
from dcir.ops.analysis.size_axes import Axis
from dcir.ops.analysis.size_ladders import Ladder
from dcir.runtime.moving_manifest import MovingAxis
from dcir.runtime.sized_manifest import Dimension

_SMALL = 4
"""Of sizes below this a part may be empty, or of one element: what a network takes off an end, or looks at on the way."""
_FEW = 4
"""So many combinations of sizes are better known to kernels."""
_REACH = 14
"""So far above the lower ends there are samples. Memory is planned for the upper ends."""
_FURTHER = (28, 56)
"""So far above, where those of several dimensions, none of which a constant extent has, find no room."""
_LOWER = 32
"""So far below the lower ends sizes that are divided are looked at: images shrink 32 times."""

Box = tuple[Bounds, ...]
"""Bounds of every dimension; of one that does not move, twice its size."""


@dataclass(frozen=True)
class SizedProgram:
    """A program of a file for sizes within bounds.

    Attributes:
        sizes: of the dimensions, the greatest where it is for several.
        compiled: its code.
        axes: the dimensions that it has several sizes of.
    """

    sizes: tuple[int, ...]
    compiled: Compiled
    axes: tuple[MovingAxis, ...] = ()


@dataclass(frozen=True)
class Names:
    """Names of a call's inputs and results; None are those of the captured graph."""

    inputs: Sequence[str] | None = None
    outputs: Sequence[str] = ()


def programs_for_all_sizes(call: SizedCall, session: Session, names: Names) -> list[SizedProgram] | Refusal:
    """Programs that are for every combination of sizes within the bounds of a call's dimensions, each of which has two ends.

    At the most there are as many as the option ``shape_limit`` says, and less than there are combinations.
    """
    before = len(session.graphs)
    cover = _Cover(call, session, names)
    box = tuple(Bounds(d.least, d.most or d.least) for d in call.dimensions)
    refusal = cover.add(box)
    if refusal is None and not any(p.axes for p in cover.programs):
        refusal = Refusal("the sizes are too few")
    if refusal is not None:
        del session.graphs[before:]  # of programs that are in no file
        return refusal
    return cover.programs


class _Cover:
    """Programs for more and more combinations of sizes."""

    def __init__(self, call: SizedCall, session: Session, names: Names) -> None:
        self._call, self._session, self._names = call, session, names
        self._limit = session.options.shape_limit
        self.programs: list[SizedProgram] = []

    def add(self, box: Box) -> Refusal | None:
        """Add programs for all combinations in a box; the reason if there cannot be."""
        if math.prod(high - low + 1 for low, high in box) <= _FEW:
            return self._add_each(box, "")
        found = self._moving(box)
        if isinstance(found, Refusal):
            return self._add_each(box, found.reason)
        self.programs.append(found)
        reach = {axis.dimension: (axis.least, axis.most) for axis in found.axes}
        for d, (low, high) in enumerate(box):
            least, most = reach.get(d, (found.sizes[d],) * 2)
            most = min(most, high)
            rest = [*range(low, least), *range(most + 1, high + 1)]
            if len(self.programs) + len(rest) > self._limit:
                return Refusal(f"one program is for {least} to {most} of {self._call.dimensions[d].name}")
            for size in rest:
                refusal = self.add((*box[:d], Bounds(size, size), *box[d + 1 :]))
                if refusal is not None:
                    return refusal
            # Other dimensions' rests are wanted for what is not yet there.
            box = (*box[:d], Bounds(least, most), *box[d + 1 :])
        return None

    def _add_each(self, box: Box, reason: str) -> Refusal | None:
        """A program for every combination in a box, or for every size of a dimension that has few, and all of the others."""
        counts = [high - low + 1 for low, high in box]
        room = self._limit - len(self.programs)
        if math.prod(counts) > room:
            few = min((d for d, count in enumerate(counts) if count > 1), key=counts.__getitem__)
            if counts[few] > room or counts[few] == math.prod(counts):
                return Refusal(reason)
            fixed = ((*box[:few], Bounds(s, s), *box[few + 1 :]) for s in range(box[few].low, box[few].high + 1))
            return next((refusal for part in fixed if (refusal := self.add(part)) is not None), None)
        for sizes in itertools.product(*(range(low, high + 1) for low, high in box)):
            try:
                exported = export_inference(self._call.module, *self._call.like(sizes))
            except Unsupported as error:
                return Refusal(error.message)
            remark = f"no program for all sizes: {reason}" if reason else "few sizes, beside a program for many"
            context = GraphContext(sizes=self._named(sizes), remark=remark)
            self.programs.append(
                SizedProgram(sizes, compile_exported(
                    exported, closed(exported), self._session, inputs=self._names.inputs, outputs=self._names.outputs,
                    context=context,
                ))
            )  # fmt: skip
        return None

    def _named(self, sizes: Sequence[int]) -> tuple[tuple[str, int], ...]:
        return tuple((d.name, s) for d, s in zip(self._call.dimensions, sizes, strict=True))

    def _moving(self, box: Box) -> SizedProgram | Refusal:
        """One program for as much of a box as can be."""
        traced = self._exported(box)
        if isinstance(traced, Refusal):
            return traced
        bounds, exported = traced
        graph = closed(exported)
        refusal = Refusal("")
        # A network is looked at beyond the ends, since those of samples are primes, those of sizes that are divided are what leaves no
        # remainder, and few sizes have too few samples. There may be something else, as after the last row of a table.
        divided = any(divisions(graph).values())
        wider, *further = (tuple(_wider(b, r, divided=divided) for b in bounds) for r in (_REACH, *_FURTHER))
        crowded = False
        for ends in dict.fromkeys((wider, bounds, _within(bounds), *further)):
            if not crowded and any(end.high > near.high for end, near in zip(ends, wider, strict=True)):
                break
            numbers = [self._dimension(place) for place in places(graph).values()]
            context = GraphContext(
                bounds=tuple(ends[d] for d in numbers),
                bound_names=tuple(self._call.dimensions[d].name for d in numbers),
            )
            try:
                network, library = build_moving(self._session, graph, context)
            except (Unsupported, InvalidGraph) as error:
                refusal = Refusal(error.message.removesuffix(" is not supported"))
                crowded = crowded or isinstance(error, TooFewValues)
                continue
            found = dict(zip(symbols(graph), network.bounds, strict=True))
            steps = dict(zip(network.symbols, network.axes or (None,) * len(network.symbols), strict=True))
            axes = [
                _axis(d, _reach(found[s], bounds[d]), steps[s]) for s, d in zip(symbols(graph), numbers, strict=True)
            ]
            if None in axes:
                return Refusal("divisions of sizes do not leave every remainder")
            made = tuple(a for a in axes if a is not None)
            sizes = tuple({a.dimension: a.most for a in made}.get(d, high) for d, (_, high) in enumerate(ends))
            compiled = named_as_compiled(
                exported, network.widest, library, self._session, inputs=self._names.inputs, outputs=self._names.outputs,
                moving=network.network,
            )  # fmt: skip
            return SizedProgram(sizes, compiled, made)
        return refusal

    def _exported(self, box: Box) -> tuple[Box, Exported] | Refusal:
        """A trace for a box, or for what of it is not 1, or no other small size."""
        refusal = Refusal("")
        for bounds in dict.fromkeys((box, _from(box, 2), _from(box, _SMALL))):
            sizes = [low if low == high else max(2, min(low + 3 + 2 * d, high)) for d, (low, high) in enumerate(bounds)]
            dims = {d: Dim(f"d{d}", min=low, max=high) for d, (low, high) in enumerate(bounds) if low < high}
            if not dims:
                return Refusal("the sizes are too few")
            where = {place: made for d, dim in dims.items() for place, made in _stated(self._call.dimensions[d], dim)}
            try:
                args, kwargs = self._call.like(sizes)
                return bounds, export_for_sizes(self._call.module, args, kwargs, where, ones=bounds != _from(bounds, 2))
            except DcirError as error:
                refusal = Refusal(error.message)
        return refusal

    def _dimension(self, place: tuple[int, int | None]) -> int:
        return next(d for d, dimension in enumerate(self._call.dimensions) if place in dimension.places)


def _stated(dimension: Dimension, dim: Any) -> list[tuple[tuple[int, int], Any]]:
    """What torch is told of every place where a dimension stands."""
    related = [
        ((i, d), factor * dim + summand if summand else factor * dim) for i, d, factor, summand in dimension.related
    ]
    return [*((place, dim) for place in dimension.places), *related]


def _axis(dimension: int, reach: Bounds, axis: Axis | None) -> MovingAxis | None:
    """A dimension as the manifest says it; None for one that lacks sizes between its ends."""
    if axis is None:
        return MovingAxis(dimension, *reach, ())
    ladder: Ladder = axis.ladder
    if any(b != Bounds(0, d - 1) for b, (d, _) in zip(axis.bounds[1:], reversed(ladder.steps), strict=True)):
        return None
    return MovingAxis(dimension, *reach, ladder.steps)


def _from(box: Box, least: int) -> Box:
    """A box without sizes below ``least``, where there are others."""
    return tuple(Bounds(min(max(least, b.low), b.high), b.high) for b in box)


def _reach(found: Bounds, asked: Bounds) -> Bounds:
    """For which sizes a program is: not for less than its trace."""
    return Bounds(max(found.low, asked.low), found.high)


def _wider(bounds: Bounds, reach: int, *, divided: bool) -> Bounds:
    """Bounds with room for samples."""
    low, high = bounds
    if low == high:
        return bounds
    return Bounds(min(low, max(2, low - _LOWER)) if divided else low, max(high, low + reach))


def _within(bounds: Box) -> Box:
    """Bounds whose upper ends are primes, as those of samples are, and no greater than before."""
    return tuple(b if b.low == b.high else Bounds(b.low, max(b.low, _prime_to(b.high))) for b in bounds)


def _prime_to(most: int) -> int:
    return next((p for p in range(most, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1))), most)
