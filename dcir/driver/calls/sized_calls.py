"""The short way of calls whose sizes move: which program a call runs follows from the shapes of its arguments.

sizes of the arguments --> program of those sizes, of the network that was run before --> what stays as it was, for it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dcir.driver.moving_program import MOST_KEPT, MovingProgram
from dcir.frontends.torch.late_graph import LateGraph
from dcir.frontends.torch.shapes.moving_sizes import MovingSizes
from dcir.frontends.torch.tape import Taped
from dcir.runtime.program import Fixed, Program

Where = int | str
"""The number of a positional argument, or a name."""
Check = Callable[[tuple[Any, ...], Mapping[str, Any]], None]
"""Called with the arguments of sizes that were not seen before; it may refuse them."""


class SizedRun:
    """One run of a graph by a program for all sizes, as it stands on the tape.

    Attributes:
        program: that of the sizes of the call.
    """

    def __init__(self, sizes: MovingSizes, moving: MovingProgram, taped: Taped) -> None:
        self._sizes, self._moving, self._inputs = sizes, moving, taped.inputs
        self._places = sizes.tensor_places
        self._key = moving.key(taped.inputs)
        self.program = moving.at(self._key)

    @staticmethod
    def of(tape: Sequence[Taped]) -> SizedRun | None:
        """The run, if it is what happened: a graph was chosen by the sizes, and one was run."""
        if len(tape) != 2 or tape[0].inputs or not isinstance(tape[1].program, LateGraph):
            return None
        sizes = tape[1].program.program
        if not isinstance(sizes, MovingSizes) or not all(isinstance(t, torch.Tensor) for t in tape[1].results):
            return None
        run = sizes.ready(sizes.values(tape[1].inputs))
        return SizedRun(sizes, run, tape[1]) if isinstance(run, MovingProgram) else None

    def numbers(self) -> set[int]:
        """The inputs that are no tensors; each is a size of a tensor."""
        return {i for i, value in enumerate(self._inputs) if type(value) is int}

    def calls(self, given: Mapping[int, Where], fixed: Fixed, check: Check) -> SizedCalls | None:
        """What finds the program of other sizes; None where they are not sizes of the arguments.

        Args:
            given: which inputs of the graph are arguments of the call, and which.
            fixed: what stays as it was, for the program of this call.
            check: hears of sizes that are new.
        """
        places: dict[str, tuple[Where, int]] = {}
        for name in self._sizes.places:
            found = next(((given[i], d) for i, d in self._places.get(name, ()) if i in given), None)
            if found is None:
                return None
            places[name] = found
        only = self._key if self._moving.own(self._key) is self.program else None
        return SizedCalls(self._sizes, self._moving, places, fixed, check, only)


class SizedCalls:
    """The programs of calls that are like one before but for their sizes.

    Args:
        sizes: chooses among programs.
        moving: the program that is meant here; sizes of others are left to whoever knows those.
        places: where each symbol of the graph is found in a call.
        fixed: as in ``SizedRun.calls``.
        check: as there.
        only: the sizes that it is for, if those have a program of their own: ``fixed`` belongs to its library.
    """

    def __init__(
        self, sizes: MovingSizes, moving: MovingProgram, places: Mapping[str, tuple[Where, int]], fixed: Fixed, check: Check,
        only: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self._sizes, self._moving, self._fixed, self._check = sizes, moving, fixed, check
        self._names, self._places = list(places), list(places.values())
        self._kept: dict[tuple[int, ...], tuple[Program, Fixed]] = {}
        self._order = [self._names.index(name) for name in moving.graph.places]
        self._often, self._only = moving.often, only
        moving.shortcuts.add(self)

    def at(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Program, Fixed] | None:
        """Program, and what stays as it was for it, of a call; None if it is not among those of this network.

        Raises:
            InvalidInput: these sizes are not allowed.
        """
        key = tuple([(args[w] if isinstance(w, int) else kwargs[w]).shape[d] for w, d in self._places])
        if self._often is not None:
            self._often.called(self._of_program(key))
        return self._kept.get(key) or self._new(key, args, kwargs)

    def forget(self, key: tuple[int, ...]) -> None:
        """There is another program for these sizes, in the program's order."""
        for known in [k for k in list(self._kept) if self._of_program(k) == key]:
            self._kept.pop(known, None)

    def _of_program(self, key: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([key[i] for i in self._order])

    def _new(
        self, key: tuple[int, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Program, Fixed] | None:
        values = dict(zip(self._names, key, strict=True))
        if self._sizes.ready(values) is not self._moving:
            return None
        own = self._moving.own(self._of_program(key))
        if (own is None) != (self._only is None) or self._only not in (None, self._of_program(key)):
            return None
        self._check(args, kwargs)
        program = own or self._moving.at(self._of_program(key))
        found = program, self._fixed if own is not None else program.like(self._fixed)
        # As many as are kept there: those that go are the ones that came first.
        while len(self._kept) >= MOST_KEPT:
            self._kept.pop(next(iter(self._kept), key), None)
        self._kept[key] = found
        return found
