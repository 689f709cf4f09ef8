"""Programs for all sizes that earlier processes made of a graph; where none is for the sizes of a call, it is traced after all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.convert_frame import compile_lock

from dcir.frontends.torch.shapes.moving_sizes import Moving, MovingSizes
from dcir.frontends.torch.shapes.programs import NoProgramForSizes, Span
from dcir.ir.refusal import Refusal


class KeptMoving(Moving):
    """A graph of Dynamo's through programs that are there already.

    Args:
        kept: of each earlier trace its programs, and what runs the graph through those.
        trace: traces the graph; gives its programs for further sizes, or why there are none.
    """

    own_first = 0

    def __init__(
        self, kept: Sequence[tuple[MovingSizes, Callable[..., Any]]], trace: Callable[[], Moving | Refusal]
    ) -> None:  # fmt: skip
        self._kept, self._trace = kept, trace
        self._new: Moving | Refusal | None = None
        self._hears: Callable[[], None] | None = None

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run it.

        Raises:
            NoProgramForSizes: there is no program for the sizes of the arguments, nor can one be made.
        """
        for _, whole in self._kept:
            with contextlib.suppress(NoProgramForSizes):  # which it says before anything has run
                return whole(*args)
        new = self._traced()
        if isinstance(new, Refusal):
            raise NoProgramForSizes(new.reason)
        return new(args)

    @property
    def programs(self) -> int:
        """How many there are so far."""
        return sum(len(sizes.made) for sizes, _ in self._kept) + (
            self._new.programs if isinstance(self._new, Moving) else 0
        )

    @property
    def spans(self) -> list[Span]:
        """What each of them is for."""
        new = self._new.spans if isinstance(self._new, Moving) else []
        return [*(span for sizes, _ in self._kept for span, _ in sizes.made), *new]

    @property
    def conditional(self) -> bool:
        """Whether there are conditions on sizes besides Dynamo's and those of ``spans``."""
        new = isinstance(self._new, Moving) and self._new.conditional
        return new or any(sizes.conditional for sizes, _ in self._kept)

    def when_made(self, hears: Callable[[], None]) -> None:
        """Have somebody hear of every further program."""
        self._hears = hears

    @property
    def reason(self) -> str:
        """Why there was no program when it was last looked for."""
        return "" if self._new is None else self._new.reason

    @property
    def hopeless(self) -> bool:
        """Whether there is no program, and nothing more is tried: there are some."""
        return False

    def _traced(self) -> Moving | Refusal:
        with compile_lock:
            if self._new is None:
                self._new = self._trace()
                if isinstance(self._new, Moving) and self._hears is not None:
                    self._new.when_made(self._hears)
            return self._new
