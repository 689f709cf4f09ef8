"""Programs of a network whose sizes move: one library, and for the sizes of a call what calls it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dcir.codegen.compile import Library
from dcir.driver.assemble import calls_into_torch, program_info
from dcir.driver.calls.often import SizesThatComeOften
from dcir.driver.gated import run_through
from dcir.driver.moving_graph import MovingGraph
from dcir.driver.placement import buffer_numbers
from dcir.frontends.torch.gates import Gates
from dcir.frontends.torch.shapes.given_sizes import values_at
from dcir.ir.moving_network import fixed
from dcir.runtime.blocks import Arenas
from dcir.runtime.buffers import SizedBuffers
from dcir.runtime.program import Program
from dcir.runtime.program_info import BufferInfo, ProgramInfo, ResultInfo

MOST_KEPT = 64
"""Sizes whose programs are kept, the last ones that came: each holds a table of pointers. To make one anew takes some 0.2 ms."""


class Shortcut(Protocol):
    """Who keeps programs by sizes of its own accord."""

    def forget(self, key: tuple[int, ...]) -> None:
        """There is another program for these sizes."""


class MovingProgram:
    """The programs of one library, by sizes.

    Attributes:
        graph, library: the network and its code.
        often: has programs made for sizes that come often; None: nothing does.

    Args:
        first_saved: number of the first output that only the backward sees; None if there is none.
        gates: of a backward, what decides when its parts run.
        name: of calls in torch's profiler.
    """

    def __init__(
        self,
        graph: MovingGraph,
        library: Library,
        arenas: Arenas | None = None,
        *,
        prepare: str,
        first_saved: int | None = None,
        on_made: Callable[[Program], object] = id,
        gates: Gates | None = None,
        name: str = "dcir",
    ) -> None:
        self.graph, self.library, self._gates, self._name = graph, library, gates, name
        self._arenas, self._prepare, self._on_made = arenas, prepare, on_made
        self._places = list(graph.places.values())
        self._kept: dict[tuple[int, ...], Program] = {}
        self._own: dict[tuple[int, ...], Program] = {}
        self.shortcuts: weakref.WeakSet[Shortcut] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._info = program_info(graph.widest, library)
        net = graph.network
        self._containers = [net.containers[name] for name in buffer_numbers(net.widest)]
        self._unseen = _hidden(self._info, first_saved)
        self._buffers = SizedBuffers(self._unseen)
        self._first: Program | None = None
        self.often: SizesThatComeOften | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process can use: nothing that belongs to a call, nor memory."""
        gone: dict[str, Any] = {"_lock": None, "_buffers": None, "_first": None, "shortcuts": None, "often": None}
        return self.__dict__ | {"_kept": {}, "_own": {}} | gone

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._buffers = threading.Lock(), SizedBuffers(self._unseen)
        self.shortcuts = weakref.WeakSet()

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run a call of any sizes within the bounds."""
        key = self.key(args)
        found = self._kept.get(key)
        if found is None:
            found = self.at(key)
        if self.often is not None:
            self.often.called(key)
        return found(args) if self._gates is None else run_through(self._gates, found, args)

    def key(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The value of each symbol of the graph in a list of arguments."""
        return values_at(self._places, args)

    def covers(self, values: Sequence[int]) -> bool:
        """Whether it is for these values of the graph's symbols, each of which lies within its bounds."""
        return self.graph.sizes(values) is not None

    def at(self, key: tuple[int, ...]) -> Program:
        """What runs calls of these sizes.

        Args:
            key: a value of each symbol of the graph, within the bounds.
        """
        with self._lock:
            found = self._kept.get(key) or self._own.get(key)
            if found is None:
                sizes = self.graph.sizes(key)
                assert sizes is not None
                found = self._kept[key] = self._made(sizes)
                if len(self._kept) > MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
            return found

    def own(self, key: tuple[int, ...]) -> Program | None:
        """The program that these sizes alone have."""
        return self._own.get(key)

    def replace(self, key: tuple[int, ...], program: Program) -> None:
        """From now on calls of these sizes run a program of their own."""
        with self._lock:
            self._own[key] = program
            self._kept.pop(key, None)
        for calls in list(self.shortcuts):
            calls.forget(key)

    def _made(self, values: Mapping[str, int]) -> Program:
        constants = list(self.graph.constants.values())
        made = Program(
            self.library.path, self._info_at(values), constants, self._arenas, prepare=self._prepare, like=self._first,
            buffers=self._buffers,
        )  # fmt: skip
        made.name = self._name
        self._first = self._first or made
        self._on_made(made)
        return made

    def _info_at(self, values: Mapping[str, int]) -> ProgramInfo:
        net = self.graph.network
        buffers = tuple(BufferInfo(fixed(c.shape, values), fixed(c.strides, values), c.dtype) for c in self._containers)
        results = tuple(
            self._result(r, kind, value, buffers, values)
            for r, (kind, value) in zip(self._info.results, self.graph.outputs, strict=True)
        )
        return replace(
            self._info, buffers=buffers, results=results, sizes=tuple(values[n] for n in net.sizes),
            callbacks=calls_into_torch(self.library, values),
        )  # fmt: skip

    def _result(
        self, widest: ResultInfo, kind: str, value: object, buffers: tuple[BufferInfo, ...], values: Mapping[str, int]
    ) -> ResultInfo:
        if kind == "literal":
            return ResultInfo("literal", literal=fixed(value, values))
        if kind == "argument":
            return widest
        assert isinstance(value, int)
        r = fixed(tuple(self.graph.network.results[value]), values)
        _, shape, strides, offset, _ = r
        if widest.source == "buffer":
            buffer = buffers[widest.index]
            if offset == 0 and (buffer.shape, buffer.strides) == (shape, strides):
                return replace(widest, shape=None, strides=(), offset=0)
        elif widest.shape is None:
            return widest
        return replace(widest, shape=shape, strides=strides, offset=offset)


def _hidden(info: ProgramInfo, first_saved: int | None) -> set[int]:
    """Numbers of the buffers that only the backward sees."""
    if first_saved is None:
        return set()
    seen = {r.index for r in info.results[:first_saved] if r.source == "buffer"}
    return {r.index for r in info.results[first_saved:] if r.source == "buffer"} - seen
