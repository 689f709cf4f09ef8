"""Operators that run networks: a loop of known length, a loop that goes on while a value says so, and a branch.

Operands are windows on whole containers of the body: as many elements as the container has, in its layout, from where the operand begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcir.ir.body import Body
from dcir.ir.control import Block, Choose, Repeat, RepeatWhile
from dcir.ir.interpret import interpret
from dcir.ir.network import Container, Network
from dcir.ir.operator import ArgumentWindow, Operator
from dcir.ir.serialize import register
from dcir.ir.types import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]


class Region(Operator, partial=True):
    """What operators that run networks have in common."""

    def operations(self) -> int:
        """Those of the bodies, as often as they run."""
        return self.in_all([sum(op.spec.operations() for op in body.network.ops()) for body in self.bodies()])

    def arguments(self) -> tuple[list[Container], list[Container]]:
        """Per input and per result of the operator, the container of a body that it is a window on."""
        raise NotImplementedError

    def unused(self, wanted: Sequence[bool]) -> tuple[list[int], list[int]]:
        """Inputs and results that may be left out, given whether each result is wanted."""
        raise NotImplementedError

    def without(self, ins: Sequence[int], outs: Sequence[int]) -> Region:
        """The same without some of its ``unused`` inputs and results."""
        raise NotImplementedError

    def with_fixed(self, bodies: Sequence[Body], count: int) -> Region:
        """The same over bodies that have ``count`` more inputs that do not change, behind all others."""
        raise NotImplementedError

    def argument_windows(self) -> tuple[list[ArgumentWindow], list[ArgumentWindow]]:
        """Whole containers of the bodies."""
        ins, outs = ([ArgumentWindow(c.dtype, c.size) for c in side] for side in self.arguments())
        return ins, outs

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of the windows."""
        ins, outs = self.arguments()
        return tuple(c.nbytes for c in ins), tuple(c.nbytes for c in outs)


def containers_of(net: Network) -> tuple[list[Container], list[Container]]:
    """A body's inputs and results."""
    return [net.containers[n] for n in net.inputs], [net.containers[r.data] for r in net.results]


def _block(body: Body) -> Block:
    net = body.network
    return Block(
        {name: (c.dtype, c.size) for name, c in net.containers.items()},
        tuple(net.inputs),
        tuple(r.data for r in net.results),
        tuple((op.spec, tuple(net.ins(op)), tuple(net.outs(op))) for op in net.ops()),
    )


def _lean(body: Body, ins: Sequence[int], outs: Sequence[int]) -> Body:
    """A body without inputs that nobody reads, and without results."""
    net = body.copy()
    gone = [net.inputs[i] for i in ins]
    for i in sorted(outs, reverse=True):
        net.containers[net.results[i].data].role = "transient"
        net.sdfg.arrays[net.results[i].data].transient = True
        del net.results[i]
    net.inputs = [n for n in net.inputs if n not in gone]
    net.static.difference_update(gone)
    for name in gone:
        net.remove_container(name)
    return Body.of(net)


def _unread(body: Body, i: int) -> bool:
    """Whether a body's operators do not read an input."""
    return not body.network.readers(body.network.inputs[i])


def _run(body: Body, ins: Sequence[Array]) -> list[Array]:
    """A body's results, by the references of its operators."""
    net = body.network
    found = interpret(net, dict(zip(net.inputs, ins, strict=True)), [r.data for r in net.results])
    return [found[r.data] for r in net.results]


def _part(buffer: Array, c: Container, start: int = 0) -> Array:
    """A container's elements in a buffer."""
    return np.asarray(buffer).view(to_numpy(c.dtype))[start : start + c.size]


@register
@dataclass(frozen=True)
class LoopSpec(Region):
    """Runs its body ``trips`` times, one after the other.

    The first ``carried`` inputs of the body are the values that one trip hands to the next: the operator's inputs before the first, the
    body's first results after each, the operator's first results after the last. The others are windows that move from trip to trip.

    Attributes:
        body: what is repeated.
        trips: how often, at least once.
        carried: how many values are handed on.
        in_steps, out_steps: elements between the windows of two trips, of each input and result that is not handed on; an input of 0 does
            not change.
    """

    body: Body
    trips: int
    carried: int
    in_steps: tuple[int, ...]
    out_steps: tuple[int, ...]

    kind = "loop"

    def bodies(self) -> tuple[Body, ...]:
        """The one."""
        return (self.body,)

    def runs(self) -> int:
        """Its trips."""
        return self.trips

    def with_bodies(self, bodies: tuple[Body, ...]) -> LoopSpec:
        """The same loop of another body."""
        return replace(self, body=bodies[0])

    def arguments(self) -> tuple[list[Container], list[Container]]:
        """Those of the body."""
        return containers_of(self.body.network)

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of what is handed on, of what does not change, and of all windows that do not lie on one another."""
        ins, outs = self.arguments()
        return (
            tuple(self._bytes(c, s) for c, s in zip(ins, (*(0,) * self.carried, *self.in_steps), strict=True)),
            tuple(self._bytes(c, s) for c, s in zip(outs, (*(0,) * self.carried, *self.out_steps), strict=True)),
        )

    def _bytes(self, c: Container, step: int) -> int:
        return c.nbytes + (self.trips - 1) * min(c.size, abs(step)) * (c.nbytes // c.size if c.size else 0)

    def argument_windows(self) -> tuple[list[ArgumentWindow], list[ArgumentWindow]]:
        """Those of the first trip, and how far they move to the last one."""
        (ins, outs), still = super().argument_windows(), (0,) * self.carried
        return (
            [w._replace(moves=(self.trips - 1) * step) for w, step in zip(ins, (*still, *self.in_steps), strict=True)],
            [
                w._replace(moves=(self.trips - 1) * step)
                for w, step in zip(outs, (*still, *self.out_steps), strict=True)
            ],
        )

    def fixed(self) -> list[int]:
        """Inputs whose windows do not move."""
        return [self.carried + i for i, step in enumerate(self.in_steps) if not step]

    def unused(self, wanted: Sequence[bool]) -> tuple[list[int], list[int]]:
        """What is not handed on."""
        return (
            [i for i in range(self.carried, self.carried + len(self.in_steps)) if _unread(self.body, i)],
            [i for i in range(self.carried, self.carried + len(self.out_steps)) if not wanted[i]],
        )

    def without(self, ins: Sequence[int], outs: Sequence[int]) -> LoopSpec:
        """Fewer windows."""
        n = self.carried
        return replace(
            self, body=_lean(self.body, ins, outs),
            in_steps=tuple(s for i, s in enumerate(self.in_steps) if n + i not in ins),
            out_steps=tuple(s for i, s in enumerate(self.out_steps) if n + i not in outs),
        )  # fmt: skip

    def with_fixed(self, bodies: Sequence[Body], count: int) -> LoopSpec:
        """More windows that do not move."""
        return replace(self, body=bodies[0], in_steps=(*self.in_steps, *(0,) * count))

    def reference_at(
        self, ins: Sequence[Any], outs: Sequence[Any], in_starts: Sequence[int], out_starts: Sequence[int]
    ) -> None:
        """Trip after trip; windows may move to smaller addresses."""
        a, o = self.arguments()
        n = self.carried
        values = [_part(x, c, start).copy() for x, c, start in zip(ins[:n], a, in_starts, strict=False)]
        for trip in range(self.trips):
            moving = [
                _part(x, c, start + trip * step)
                for x, c, start, step in zip(ins[n:], a[n:], in_starts[n:], self.in_steps, strict=True)
            ]
            found = _run(self.body, [*values, *moving])
            values = [v.copy() for v in found[:n]]
            for x, c, start, step, new in zip(outs[n:], o[n:], out_starts[n:], self.out_steps, found[n:], strict=True):
                _part(x, c, start + trip * step)[:] = new
        for x, c, start, new in zip(outs[:n], o, out_starts, values, strict=False):
            _part(x, c, start)[:] = new

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Where every window begins in front of all others."""
        self.reference_at(ins, outs, [0] * len(ins), [0] * len(outs))

    def control(self) -> Repeat:
        """The loop."""
        return Repeat(_block(self.body), self.trips, self.carried, self.in_steps, self.out_steps)

    def describe(self) -> str:
        """Trips and body."""
        return f"loop {self.trips} times over {_listed(self.body)}"


@register
@dataclass(frozen=True)
class WhileSpec(Region):
    """Runs its body as long as a condition holds of the values that it hands on; perhaps never.

    Attributes:
        condition: of the values and of what does not change, one bool.
        body: of the same, the values' next ones, all of them.
        carried: how many inputs are values; the others do not change.
    """

    condition: Body
    body: Body
    carried: int

    kind = "while"

    def bodies(self) -> tuple[Body, ...]:
        """Condition and body."""
        return self.condition, self.body

    def with_bodies(self, bodies: tuple[Body, ...]) -> WhileSpec:
        """The same loop of others."""
        return replace(self, condition=bodies[0], body=bodies[1])

    def arguments(self) -> tuple[list[Container], list[Container]]:
        """Those of the body."""
        return containers_of(self.body.network)

    def fixed(self) -> list[int]:
        """Inputs behind the values."""
        return list(range(self.carried, len(self.body.network.inputs)))

    def unused(self, wanted: Sequence[bool]) -> tuple[list[int], list[int]]:
        """Inputs that do not change, which neither body reads."""
        return [i for i in self.fixed() if all(_unread(body, i) for body in self.bodies())], []

    def without(self, ins: Sequence[int], outs: Sequence[int]) -> WhileSpec:
        """Fewer of them."""
        return replace(self, condition=_lean(self.condition, ins, ()), body=_lean(self.body, ins, ()))

    def with_fixed(self, bodies: Sequence[Body], count: int) -> WhileSpec:
        """More of them."""
        return replace(self, condition=bodies[0], body=bodies[1])

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Trip after trip."""
        a, o = self.arguments()
        values = [_part(x, c).copy() for x, c in zip(ins[: self.carried], a, strict=False)]
        fixed = [_part(x, c) for x, c in zip(ins[self.carried :], a[self.carried :], strict=True)]
        while _run(self.condition, [*values, *fixed])[0][0]:
            values = [v.copy() for v in _run(self.body, [*values, *fixed])]
        for x, c, new in zip(outs, o, values, strict=True):
            _part(x, c)[:] = new

    def control(self) -> RepeatWhile:
        """The loop."""
        return RepeatWhile(_block(self.condition), _block(self.body), self.carried)

    def describe(self) -> str:
        """Condition and body."""
        return f"while {_listed(self.condition)} over {_listed(self.body)}"


@register
@dataclass(frozen=True)
class BranchSpec(Region):
    """Runs one of two bodies: the first input is a bool, the others are those of both.

    Attributes:
        then, otherwise: where it is true, and where not.
    """

    then: Body
    otherwise: Body

    kind = "branch"

    def bodies(self) -> tuple[Body, ...]:
        """Both."""
        return self.then, self.otherwise

    def with_bodies(self, bodies: tuple[Body, ...]) -> BranchSpec:
        """The same branch of others."""
        return replace(self, then=bodies[0], otherwise=bodies[1])

    def arguments(self) -> tuple[list[Container], list[Container]]:
        """The bool, and those of the bodies."""
        ins, outs = containers_of(self.then.network)
        return [Container((), (), "bool", "input"), *ins], outs

    def unused(self, wanted: Sequence[bool]) -> tuple[list[int], list[int]]:
        """Inputs that neither body reads, and results that nobody does."""
        inputs = range(len(self.then.network.inputs))
        return (
            [1 + i for i in inputs if all(_unread(body, i) for body in self.bodies())],
            [i for i, read in enumerate(wanted) if not read],
        )

    def without(self, ins: Sequence[int], outs: Sequence[int]) -> BranchSpec:
        """Fewer of both."""
        places = [i - 1 for i in ins]
        return replace(self, then=_lean(self.then, places, outs), otherwise=_lean(self.otherwise, places, outs))

    def in_all(self, each: Sequence[int]) -> int:
        """One of them runs; the longer one is what is counted."""
        return max(each)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """The body that the bool says."""
        a, o = self.arguments()
        taken = self.then if _part(ins[0], a[0])[0] else self.otherwise
        found = _run(taken, [_part(x, c) for x, c in zip(ins[1:], a[1:], strict=True)])
        for x, c, new in zip(outs, o, found, strict=True):
            _part(x, c)[:] = new

    def control(self) -> Choose:
        """The branch."""
        return Choose(_block(self.then), _block(self.otherwise))

    def describe(self) -> str:
        """Both bodies."""
        return f"branch to {_listed(self.then)} or {_listed(self.otherwise)}"


def _listed(body: Body) -> str:
    """A body's operators, the first few."""
    kinds = [op.spec.kind for op in body.network.ops()]
    return f"[{', '.join(kinds[:4])}{', …' * (len(kinds) > 4)}]"
