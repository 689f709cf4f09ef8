"""The steps of a compiled network, whatever its target: calls of kernels and of torch, loops and branches, over operands with places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dcir.ir.sizes import Number


@dataclass(frozen=True)
class Place:
    """Where an operand lies: a slot of the table and a byte offset from what it points to, a ``Polynomial`` where sizes move; in a stream
    also the bytes between two images, and between two lanes. In a loop or a branch ``pointer`` may name what it is an offset from, one of
    the step's own pointers, in place of the slot."""

    slot: int
    offset: int
    image: int = 0
    lane: int = 0
    pointer: str = ""


@dataclass(frozen=True)
class Numbers:
    """An operand that is a table of numbers, known when the driver is written."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One step of the driver.

    Attributes:
        kernel: name of the kernel, or None for a call into torch.
        number: the operator's number, for errors and call backs.
        operands: inputs, then outputs, then scratch.
        parallel: whether more than one thread has work in it.
        checked: whether it may report a bad index.
        stream: number of the stream it belongs to, -1 for none.
    """

    kernel: str | None
    number: int
    operands: tuple[Place | Numbers, ...]
    parallel: bool
    checked: bool
    stream: int = -1


@dataclass(frozen=True)
class Flow:
    """A stream of images: how many there are, and how many may be under way at once."""

    images: int
    lanes: int


@dataclass(frozen=True)
class Carried:
    """A value that one trip of a loop hands to the next.

    Attributes:
        read, written: names of the pointers that the steps inside have for it.
        first: where the first trip reads it.
        last: where it is after the loop.
        other: a second place: trips write into one and read from the other.
        nbytes: its size.
    """

    read: str
    written: str
    first: Place
    last: Place
    other: Place
    nbytes: Number


@dataclass(frozen=True)
class Window:
    """A pointer of a loop or branch that begins at a place, and after every trip moves by some bytes."""

    name: str
    first: Place
    step: Number = 0


@dataclass(frozen=True)
class Loop:
    """Steps that run again and again: ``trips`` times, or while ``flag`` is true after the steps of ``condition``.

    Attributes:
        number: the operator's number, for errors.
        name: tells its names from those of others.
        carried, windows: its pointers.
        steps: of one trip.
        trips: how many, a ``Polynomial`` where sizes move; None where a condition decides.
        condition, flag: what comes before each trip, and the bool that it leaves.
    """

    number: int
    name: str
    carried: tuple[Carried, ...]
    windows: tuple[Window, ...]
    steps: tuple[AnyStep, ...]
    trips: Number | None
    condition: tuple[AnyStep, ...] = ()
    flag: Place | None = None


@dataclass(frozen=True)
class Branch:
    """Steps of which one or the other run, as a bool says.

    Attributes:
        number: the operator's number, for errors.
        name: tells its names from those of others.
        windows: its pointers.
        flag: where the bool is.
        then, otherwise: the steps.
    """

    number: int
    name: str
    windows: tuple[Window, ...]
    flag: Place
    then: tuple[AnyStep, ...]
    otherwise: tuple[AnyStep, ...]


AnyStep = Call | Loop | Branch


def calls_in(steps: Sequence[AnyStep]) -> Iterator[Call]:
    """All calls, those in loops and branches too, each once."""
    for step in steps:
        if isinstance(step, Call):
            yield step
        elif isinstance(step, Loop):
            yield from calls_in((*step.condition, *step.steps))
        else:
            yield from calls_in((*step.then, *step.otherwise))
