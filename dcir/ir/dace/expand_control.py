"""Operators with bodies as DaCe's loop and conditional regions, around the maps of the bodies' operators.

What is handed from trip to trip lies in two arrays: a trip reads one and writes the other, which is copied at its end. Windows that move
are places with the loop's variable in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import dace
from dace.sdfg.state import ConditionalBlock, ControlFlowRegion, LoopRegion

from dcir.ir.control import Block, Choose, Control, Repeat, RepeatWhile
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.operator import Operator


class Writer(Protocol):
    """What writes operators (``expand.Writer``)."""

    sdfg: Any

    def operator(self, spec: Operator, ins: Sequence[str], outs: Sequence[str]) -> None: ...

    def transient(self, dtype: str, size: int) -> str: ...

    def moved(self, name: str, by: Any) -> str: ...

    def block(self, new: Any, region: Any) -> None: ...

    def leave(self) -> None: ...

    def new_name(self, kind: str) -> str: ...


def write_control(writer: Writer, control: Control, ins: Sequence[str], outs: Sequence[str]) -> None:
    """A loop or a branch over operands of these names."""
    if isinstance(control, Repeat):
        _repeat(writer, control, ins, outs)
    elif isinstance(control, RepeatWhile):
        _repeat_while(writer, control, ins, outs)
    else:
        _choose(writer, control, ins, outs)


def _repeat(writer: Writer, loop: Repeat, ins: Sequence[str], outs: Sequence[str]) -> None:
    n, block = loop.carried, loop.block
    values = _values(writer, block, block.inputs[:n], ins)
    name = writer.new_name("trip")
    trip = dace.symbolic.symbol(name, dace.int64)
    region = LoopRegion(name, f"{name} < {loop.trips}", name, f"{name} = 0", f"{name} = {name} + 1")
    writer.block(region, region)
    moving, written = (
        [writer.moved(x, trip * step) for x, step in zip(side[n:], steps, strict=True)]
        for side, steps in ((ins, loop.in_steps), (outs, loop.out_steps))
    )
    given = _run(writer, block, [*values, *moving], [*[None] * n, *written])
    _copy_all(writer, block, block.inputs[:n], given[:n], values)
    writer.leave()
    _copy_all(writer, block, block.inputs[:n], values, outs[:n])


def _repeat_while(writer: Writer, loop: RepeatWhile, ins: Sequence[str], outs: Sequence[str]) -> None:
    n, block = loop.carried, loop.block
    values = _values(writer, block, block.inputs[:n], ins)
    fixed = list(ins[n:])
    (flag,) = _run(writer, loop.condition, [*values, *fixed], [None])
    name = writer.new_name("trip")
    region = LoopRegion(name, f"{flag}[0]")
    writer.block(region, region)
    given = _run(writer, block, [*values, *fixed], [None] * n)
    _copy_all(writer, block, block.inputs[:n], given, values)
    again = _run(writer, loop.condition, [*values, *fixed], [None])
    _copy_all(writer, loop.condition, loop.condition.results, again, [flag])
    writer.leave()
    _copy_all(writer, block, block.inputs[:n], values, outs)


def _choose(writer: Writer, branch: Choose, ins: Sequence[str], outs: Sequence[str]) -> None:
    flag = writer.transient("bool", 1)
    writer.operator(_copy("bool", 1), [ins[0]], [flag])
    both = ConditionalBlock(writer.new_name("branch"))
    for condition in (f"{flag}[0]", None):
        region = ControlFlowRegion(writer.new_name("side"), sdfg=writer.sdfg)
        both.add_branch(None if condition is None else dace.properties.CodeBlock(condition), region)
    for (_, region), block in zip(both.branches, (branch.then, branch.otherwise), strict=True):
        writer.block(both, region)
        _run(writer, block, ins[1:], outs)
        writer.leave()


def _run(writer: Writer, block: Block, ins: Sequence[str], outs: Sequence[str | None]) -> list[str]:
    """A block's operators; its results go where ``outs`` says, or into new arrays. Returns where they are."""
    places = dict(zip(block.inputs, ins, strict=True))
    for name, place in zip(block.results, outs, strict=True):
        places[name] = place if place is not None else writer.transient(*block.arrays[name])
    for name, (dtype, size) in block.arrays.items():
        if name not in places:
            places[name] = writer.transient(dtype, size)
    for spec, reads, writes in block.operators:
        a, o = (
            [writer.moved(places[name], offset) if offset else places[name] for name, offset in side]
            for side in (reads, writes)
        )
        writer.operator(spec, a, o)
    return [places[name] for name in block.results]


def _values(writer: Writer, block: Block, names: Sequence[str], ins: Sequence[str]) -> list[str]:
    """Arrays for what is handed on, with what the first trip is given."""
    values = [writer.transient(*block.arrays[name]) for name in names]
    _copy_all(writer, block, names, ins, values)
    return values


def _copy_all(
    writer: Writer, block: Block, names: Sequence[str], sources: Sequence[str], targets: Sequence[str]
) -> None:
    for name, source, target in zip(names, sources, targets, strict=False):
        writer.operator(_copy(*block.arrays[name]), [source], [target])


def _copy(dtype: str, size: int) -> Operator:
    nest = LoopNestBuilder((size,))
    nest.store(nest.output(dtype), (1,), nest.load(nest.input(dtype), (1,)))
    return nest.finish()
