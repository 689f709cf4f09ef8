"""The operators of a network as kernels are made for them: each with its types and team, in a stream as it is for one image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers
from dcir.ir.schedule import Schedule
from dcir.ops.analysis.batch_slices import one_image

Types = tuple[tuple[str, ...], tuple[str, ...]]
"""Element types of a kernel's inputs and outputs."""


@dataclass(slots=True)
class Invocation:
    """One operator, as code for it is made.

    Attributes:
        number: its place in the order.
        label: of the operator.
        spec: what it computes, in a stream for one image.
        ins, outs: its operands.
        types: of its operands.
        stream: number of the stream that it belongs to, -1 for none.
        team: how many threads run it.
        schedule: how its node asks it to run.
        origin: its place in the user's model.
        came_from: the imported operators that it came from.
    """

    number: int
    label: str
    spec: Operator
    ins: list[Operand]
    outs: list[Operand]
    types: Types
    stream: int
    team: int
    schedule: Schedule | None = None
    origin: str = ""
    came_from: Numbers = ()

    @property
    def calls_torch(self) -> bool:
        """Whether it has no kernel and runs through torch."""
        return bool(self.spec.calls_out)


def invocations(net: Network, threads: int) -> Iterator[Invocation]:
    """Every operator of a network in execution order, for a team of ``threads``.

    A stream's images run at once, so one thread has each of its operators.
    """
    streams = {label: i for i, s in enumerate(net.streams) for label in s.ops}
    for number, op in enumerate(net.ops()):
        spec, ins, outs, stream = op.spec, net.ins(op), net.outs(op), streams.get(op.label, -1)
        if stream >= 0:
            spec = one_image(spec, net.streams[stream], ins, outs)
        types = tuple(net.containers[o.data].dtype for o in ins), tuple(net.containers[o.data].dtype for o in outs)
        team = 1 if stream >= 0 else threads
        place = op.origin, op.came_from
        yield Invocation(number, op.label, spec, ins, outs, types, stream, team, op.own_schedule, *place)
