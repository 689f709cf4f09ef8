"""Edges and memlets of a mapped tasklet, written without DaCe's searches: places, scopes, and the paths through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dace


def symbol(d: int) -> Any:
    """The loop variable of dimension ``d``."""
    return dace.symbolic.symbol(f"i{d}", dace.int64)


def address(strides: Sequence[int], offset: Any) -> Any:
    """The place of an element, as a memlet's range, from strides over the loops and an offset, which may move with a loop around them."""
    at = sum((symbol(d) * s for d, s in enumerate(strides) if s), start=dace.symbolic.sympy.sympify(offset))
    return [(at, at, 1)]


def address_text(strides: Sequence[int], offset: Any) -> str:
    """The same place as tasklet code."""
    terms = [f"dace.int64(i{d}) * dace.int64({s})" for d, s in enumerate(strides) if s]
    return " + ".join([f"dace.int64({offset})", *terms])


def outer_place(outer: Sequence[int]) -> Any:
    """This point's place in an array over the outer loops."""
    return [(symbol(d), symbol(d), 1) for d in range(len(outer))] or [(0, 0, 1)]


def element(array: str, at: Any, wcr: str | None = None) -> Any:
    """A memlet of one element."""
    return dace.Memlet(data=array, subset=dace.subsets.Range(at), wcr=wcr, volume=1)


def add_map(state: Any, name: str, extents: Sequence[int], first: int, *, sequential: bool = False) -> Any:
    """A map over loops ``first``, ``first`` + 1, …; a loop of one where there are none."""
    ranges = {f"i{first + d}": dace.subsets.Range([(0, n - 1, 1)]) for d, n in enumerate(extents)}
    schedule = dace.ScheduleType.Sequential if sequential else dace.ScheduleType.CPU_Multicore
    return state.add_map(name, ranges or {"one": "0:1"}, schedule=schedule)


def enter(
    state: Any, source: Any, entries: Sequence[Any], tasklet: Any, connector: str, array: str, desc: Any, memlet: Any
) -> None:
    """Edges from an access node through map entries into a tasklet; one edge per array between scopes."""
    before, out = source, None
    for entry in entries:
        entry_in, entry_out = f"IN_{array}", f"OUT_{array}"
        if entry_in not in entry.in_connectors:
            entry.add_in_connector(entry_in)
            entry.add_out_connector(entry_out)
            state.add_edge(before, out, entry, entry_in, dace.Memlet.from_array(array, desc))
        before, out = entry, entry_out
    state.add_edge(before, out, tasklet, connector, memlet)


def leave_to(
    state: Any, tasklet: Any, connector: str, exits: Sequence[Any], array: str, at: Any, wcr: str | None = None,
    target: Any = None,
) -> None:  # fmt: skip
    """Edges from a tasklet through map exits to a new access node."""
    desc = state.sdfg.arrays[array]
    before, out, memlet = tasklet, connector, element(array, at, wcr)
    for leave in exits:
        into = f"IN_{array}_{tasklet.label}_{connector}"
        leave.add_in_connector(into)
        leave.add_out_connector("OUT" + into[2:])
        state.add_edge(before, out, leave, into, memlet)
        before, out = leave, "OUT" + into[2:]
        memlet = dace.Memlet.from_array(array, desc)
        memlet.wcr = wcr
    node = target(state, array) if target is not None else state.add_access(array)
    state.add_edge(before, out, node, None, memlet)
