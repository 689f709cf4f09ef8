"""Notes of which compiled graphs run in this thread, and with what: for short ways past Dynamo, and to know whether any did."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcir.frontends.torch.arguments import write_out


@dataclass(frozen=True)
class Taped:
    """One run of a compiled graph: what ran, on what, with what results."""

    program: Any
    inputs: tuple[Any, ...]
    results: tuple[Any, ...]


class _Tape(threading.local):
    rows: list[Taped] | None = None
    run = 0


_TAPE = _Tape()


def programs_run() -> int:
    """How many compiled graphs ran in this thread so far."""
    return _TAPE.run


@contextlib.contextmanager
def taping() -> Iterator[list[Taped]]:
    """The runs of compiled graphs in this thread, while this context is open."""
    before, _TAPE.rows = _TAPE.rows, []
    try:
        yield _TAPE.rows
    finally:
        _TAPE.rows = before


def boxed(
    program: Callable[[list[Any]], list[Any]], lazy: Sequence[int], written: Sequence[int]
) -> Callable[[list[Any]], list[Any]]:
    """A compiled graph as AOTAutograd calls it, noted on the tape of its thread.

    Args:
        program: from a list of arguments to a list of results, those that replace inputs last.
        lazy: numbers of the arguments whose memory may hold other numbers than they show.
        written: numbers of the arguments that are replaced.
    """
    shown = -len(written) or None

    def call(args: list[Any]) -> list[Any]:
        write_out(args, lazy)
        results = program(args)[:shown]
        _TAPE.run += 1  # not of one that had no program for these sizes
        if written:
            torch.autograd.graph.increment_version([args[i] for i in written])
        if _TAPE.rows is not None:
            _TAPE.rows.append(Taped(program, tuple(args), tuple(results)))
        args.clear()  # saved activations end here, not when the caller's frame does
        return results

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def choosing(program: Callable[..., Any]) -> Callable[..., Any]:
    """What chooses among compiled graphs by the sizes of a call; the choice is part of what ran."""

    def call(*args: Any) -> Any:
        if _TAPE.rows is not None:
            _TAPE.rows.append(Taped(program, (), ()))
        return program(*args)

    return call
