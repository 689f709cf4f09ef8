"""What a program needs besides its library: its pointer table, buffers, results, and calls into torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class BufferInfo:
    """A result container to allocate: its shape, strides and element type."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ConstantInfo(BufferInfo):
    """A constant that a user holds: how code reads it, whatever memory it is given later, and what the user knows it by."""

    name: str


@dataclass(frozen=True)
class ResultInfo:
    """One result: the window of a buffer, or of an argument.

    Attributes:
        source: "buffer", "input" or "literal".
        index: number of the buffer or argument.
        shape, strides, offset: window in elements; shape None where the result is the whole buffer or argument.
        literal: the value of a literal.
    """

    source: str
    index: int = 0
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    offset: int = 0
    literal: Any = None


@dataclass(frozen=True)
class ProgramInfo:
    """Everything a program needs besides its library.

    Attributes:
        table_size, arena_bytes: of the pointer table and the arena.
        updates: (slot, argument) of every result that is written in place of an argument.
        prepared_bytes: of the block of values that depend on static inputs alone; 0 if there are none.
        static_inputs, static_constants: arguments and constants that prepared values depend on.
        input_slots: table slot per argument (-1: not a tensor, or not used).
        constant_slots: table slot per constant.
        constants: how each of them is laid out; empty where no user can have one.
        buffers: result containers with their slots.
        buffer_slots: table slot per buffer.
        results: what the call returns.
        callbacks: per operator number, a function over the table that calls torch.
        origins: per operator number, its place in the user's model.
        kept: what calls into torch need to be there.
        sizes_slot, sizes: table slot of the values of the sizes that move (-1: none do), and these values.
        shared: (number of a result container, argument): it takes the memory that the argument lies in, from its beginning.
        parts: how many the library can be run in, one after the other (``part_by_part.py``).
        ready: with which of them each result is complete, -1 for those that are when a call begins; empty if there is one part.
        events: names of the events of its steps in torch's profiler, of a library that can tell of them; else empty.
    """

    table_size: int
    arena_bytes: int
    input_slots: tuple[int, ...]
    constant_slots: tuple[int, ...]
    buffers: tuple[BufferInfo, ...]
    buffer_slots: tuple[int, ...]
    results: tuple[ResultInfo, ...]
    callbacks: Mapping[int, Callable[[Any], None]]
    origins: tuple[str, ...]
    updates: tuple[tuple[int, int], ...] = ()
    prepared_bytes: int = 0
    static_inputs: tuple[int, ...] = ()
    static_constants: tuple[int, ...] = ()
    kept: tuple[Any, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()
    sizes_slot: int = -1
    sizes: tuple[int, ...] = ()
    parts: int = 1
    ready: tuple[int, ...] = ()
    events: tuple[str, ...] = ()
    constants: tuple[ConstantInfo, ...] = ()

    def with_buffers_as_results(self) -> ProgramInfo:
        """The same, with a buffer shaped like its one result where that has all of its elements.

        To make a view is a tenth of a millisecond after a call, when nothing that PyTorch does it with is in a cache.
        """
        uses = Counter(r.index for r in self.results if r.source == "buffer")
        buffers, results = list(self.buffers), list(self.results)
        for i, r in enumerate(results):
            if (
                r.source != "buffer"
                or r.shape is None
                or r.offset
                or uses[r.index] != 1
                or not _dense(r.shape, r.strides)
            ):
                continue
            buffer = buffers[r.index]
            if _dense(buffer.shape, buffer.strides) and math.prod(buffer.shape) == math.prod(r.shape):
                buffers[r.index] = replace(buffer, shape=r.shape, strides=r.strides)
                results[i] = replace(r, shape=None, strides=())
        return replace(self, buffers=tuple(buffers), results=tuple(results))


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every address from the first to the last is one element's."""
    step = 1
    for size, stride in sorted(((n, s) for n, s in zip(shape, strides, strict=True) if n != 1), key=lambda d: d[1]):
        if stride != step:
            return False
        step *= size
    return True
