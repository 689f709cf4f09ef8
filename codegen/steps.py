"""The steps of a compiled network, whatever its target: calls of kernels and of torch, over operands that have places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where an operand lies: a slot of the table and a byte offset from what it points to, a ``Polynomial`` where sizes move; in a stream
    also the bytes between two images, and between two lanes."""

    slot: int
    offset: int
    image: int = 0
    lane: int = 0


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
