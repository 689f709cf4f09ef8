"""What a manifest says of a program for all sizes within bounds: its sizes, and the numbers that are polynomials of them.

The manifest of such a program in its folder is that at its greatest sizes. This is what else a call of other sizes needs: data, of which
every number is looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dcir.errors import InvalidGraph
from dcir.ir.moving_network import fixed, polynomials
from dcir.ir.serialize import decode, encode
from dcir.ir.sizes import Number, Polynomial, polynomial, value_at
from dcir.ops.analysis.size_ladders import MOST_PERIOD, Ladder
from dcir.runtime.manifest import (
    MAX_BYTES,
    Buffer,
    Input,
    Manifest,
    Output,
    Place,
    TorchEntry,
    broken,
    check_layouts,
)

_Row = TypeVar("_Row", Input, Buffer)

_MOST_TERMS = 256
_MOST_POWER = 8


@dataclass(frozen=True)
class MovingAxis:
    """A dimension of which a program has all sizes from ``least`` to ``most``.

    Attributes:
        dimension: its number among those of the file.
        steps: divisor and summand of every division on the way to the sizes that follow from it (``Ladder``). The program's own sizes are
            the last quotient and the remainders; without a division, the size itself.
    """

    dimension: int
    least: int
    most: int
    steps: tuple[Place, ...]

    def parts(self, value: int) -> tuple[int, ...]:
        """The program's sizes for one of the dimension."""
        return Ladder(self.steps).parts(value)


@dataclass(frozen=True)
class MovingLayout:
    """Shape and strides of an input or a buffer, in elements."""

    shape: tuple[Number, ...]
    strides: tuple[Number, ...]


@dataclass(frozen=True)
class MovingWindow:
    """Shape, strides and first element of a result within its memory."""

    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    offset: Number


@dataclass(frozen=True)
class MovingEntry:
    """A call into torch, as ``TorchEntry`` has it: polynomials in the encoded spec, and in the offsets."""

    spec: Any
    ins: tuple[tuple[int, Number], ...]
    outs: tuple[tuple[int, Number], ...]


@dataclass(frozen=True)
class Moving:
    """What moves of a program.

    Attributes:
        slot: of the table of its sizes, 64-bit integers named s0, s1, ... in polynomials.
        axes: the dimensions that it has all sizes of; their parts in this order are the sizes. The others are constant.
        inputs, buffers, calls: as in the manifest.
        outputs: the same; None for those that are literals or whole arguments.
    """

    slot: int
    axes: tuple[MovingAxis, ...]
    inputs: tuple[MovingLayout, ...]
    buffers: tuple[MovingLayout, ...]
    outputs: tuple[MovingWindow | None, ...]
    calls: tuple[MovingEntry, ...]

    @property
    def count(self) -> int:
        """How many sizes the program has."""
        return sum(1 + len(axis.steps) for axis in self.axes)

    def sizes(self, dimensions: Sequence[int]) -> tuple[int, ...]:
        """The program's sizes for those of all dimensions of the file."""
        return tuple(part for axis in self.axes for part in axis.parts(dimensions[axis.dimension]))

    def at(self, manifest: Manifest, dimensions: Sequence[int]) -> Manifest:
        """The manifest for some sizes of the dimensions.

        Raises:
            ArtefactInvalid: the numbers of the manifest do not fit each other there.
        """
        values = {f"s{i}": v for i, v in enumerate(self.sizes(dimensions))}
        made = replace(
            manifest,
            inputs=tuple(_laid_out(x, m, values) for x, m in zip(manifest.inputs, self.inputs, strict=True)),
            buffers=tuple(_laid_out(b, m, values) for b, m in zip(manifest.buffers, self.buffers, strict=True)),
            calls_into_torch=tuple(
                _entry(e, m, values) for e, m in zip(manifest.calls_into_torch, self.calls, strict=True)
            ),
        )
        pairs = zip(manifest.outputs, self.outputs, strict=True)
        made = replace(made, outputs=tuple(o if w is None else _window(made, o, w, values) for o, w in pairs))
        check_layouts(made)
        return made


def check_moving(moving: Moving, manifest: Manifest, dimensions: int) -> None:
    """Whether what moves is right in itself, and fits the manifest of the program at its greatest sizes.

    Args:
        dimensions: how many the file has.

    Raises:
        ArtefactInvalid: it is not.
    """
    used = [x.slot for x in manifest.inputs] + [b.slot for b in manifest.buffers]
    used += [slot for c in manifest.constants for slot in c.slots]
    if not 2 <= moving.slot < manifest.table_size or moving.slot in used:
        raise broken("moving.slot", "a free slot of the table")
    _check_axes(moving.axes, dimensions)
    for name in ("inputs", "buffers", "outputs"):
        if len(getattr(moving, name)) != len(getattr(manifest, name)):
            raise broken(f"moving.{name}", "as many as in the program")
    if len(moving.calls) != len(manifest.calls_into_torch):
        raise broken("moving.calls", "as many as in the program")
    for out, window in zip(manifest.outputs, moving.outputs, strict=True):
        if (window is None) != (out.source == "literal" or (out.source == "input" and out.shape is None)):
            raise broken("moving.outputs", "one for every window")
    numbers = [*polynomials((moving.inputs, moving.buffers, moving.outputs))]
    for entry in moving.calls:
        numbers += polynomials((_spec(entry), entry.ins, entry.outs))
    for number in dict.fromkeys(numbers):
        _check_number(number, moving.count)


def _check_axes(axes: Sequence[MovingAxis], dimensions: int) -> None:
    numbers = [axis.dimension for axis in axes]
    if not axes or len(set(numbers)) != len(numbers) or not all(0 <= n < dimensions for n in numbers):
        raise broken("moving.axes", "of dimensions of the file")
    for axis in axes:
        if not 1 <= axis.least < axis.most <= MAX_BYTES:
            raise broken("moving.axes", "with bounds from 1 up")
        if any(not 2 <= d <= MOST_PERIOD or not 0 <= e < d for d, e in axis.steps):
            raise broken("moving.axes.steps", "possible divisions")
        if math.prod(d for d, _ in axis.steps) > MOST_PERIOD:
            raise broken("moving.axes.steps", "possible divisions")


def _check_number(number: Polynomial, count: int) -> None:
    names = {f"s{i}" for i in range(count)}
    if len(number.terms) > _MOST_TERMS or not number.names() <= names:
        raise broken("a number that moves", "a polynomial of the program's sizes")
    if any(not 0 < power <= _MOST_POWER for monomial, _ in number.terms for _, power in monomial):
        raise broken("a number that moves", "a polynomial of the program's sizes")
    if any(abs(c) > MAX_BYTES for _, c in number.terms) or polynomial(number.terms) != number:
        raise broken("a number that moves", "a polynomial in order")


def _spec(entry: MovingEntry) -> Any:
    try:
        return decode(entry.spec, moving=True)
    except (InvalidGraph, KeyError, TypeError, ValueError, AttributeError) as e:
        raise broken("moving.calls.spec", "a call into torch") from e


def _laid_out(row: _Row, layout: MovingLayout, values: dict[str, int]) -> _Row:
    return replace(row, shape=fixed(layout.shape, values), strides=fixed(layout.strides, values))


def _window(made: Manifest, out: Output, window: MovingWindow, values: dict[str, int]) -> Output:
    shape, strides = fixed(window.shape, values), fixed(window.strides, values)
    offset = value_at(window.offset, values)
    base: Any = (made.buffers if out.source == "buffer" else made.inputs)[out.index]
    if out.source == "buffer" and offset == 0 and (base.shape, base.strides) == (shape, strides):
        return replace(out, shape=None, strides=(), offset=0)
    return replace(out, shape=shape, strides=strides, offset=offset)


def _entry(entry: TorchEntry, moving: MovingEntry, values: dict[str, int]) -> TorchEntry:
    ins, outs = (tuple((slot, value_at(offset, values)) for slot, offset in side) for side in (moving.ins, moving.outs))
    return replace(entry, spec=encode(fixed(_spec(moving), values)), ins=ins, outs=outs)
