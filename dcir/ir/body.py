"""A network inside an operator, as plain data: what a loop repeats, or a branch may run.

Equal bodies are equal values, and a spec that holds one is saved like every other; where sizes move, polynomials stand in the place of
numbers in it, too. A body has inputs and results alone: constants are inputs, every result is a whole container of its own, and what does
not change from one run to the next stands among ``static``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dcir.errors import InvalidGraph
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers, Origins, union
from dcir.ir.schedule import Schedule
from dcir.ir.serialize import encode, register

if TYPE_CHECKING:
    from dcir.ir.network import Network

Operands = tuple[tuple[str, int], ...]
"""Containers and the first element in each."""


@register
@dataclass(frozen=True)
class BodyContainer:
    """A container as ``network.Container`` has it."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    role: str


@register
@dataclass(frozen=True)
class BodyOperator:
    """An operator: label, what it computes, where its operands begin, place in the user's model, the pass that made it, schedule, and the
    imported operators that it came from, which are no part of what is computed.
    """

    label: str
    spec: Operator
    ins: Operands
    outs: Operands
    origin: str
    made_by: str
    schedule: Schedule | None = None
    came_from: Numbers = field(default=(), compare=False, repr=False)


@register
@dataclass(frozen=True)
class Body:
    """A network that is not changed any more.

    Attributes:
        containers, operators: of it; operators in their order.
        inputs, results, static: names of containers.
        count: of the names that were given.
        memory: the plan of its memory as JSON, no part of what it computes.
    """

    containers: tuple[BodyContainer, ...]
    operators: tuple[BodyOperator, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    static: tuple[str, ...]
    count: int
    memory: str = field(compare=False)

    @staticmethod
    def of(net: Network) -> Body:
        """What a network is at this moment.

        Raises:
            InvalidGraph: it has constants, or results that are not whole containers of their own.
        """
        names, of = [r.data for r in net.results], net.containers
        whole = len(set(names)) == len(names) and all(
            (of[r.data].role, of[r.data].shape, of[r.data].strides, 0) == ("result", r.shape, r.strides, r.offset)
            for r in net.results
        )
        if net.constants or net.updates or not whole:
            raise InvalidGraph("a body takes constants as inputs, and every result of it is a container of its own")
        side = net.side_tables()
        return Body(
            tuple(BodyContainer(n, c.shape, c.strides, c.dtype, c.role) for n, c in net.containers.items()),
            tuple(
                BodyOperator(
                    op.label, op.spec, tuple(net.ins(op)), tuple(net.outs(op)), op.origin, op.made_by, op.own_schedule,
                    op.came_from,
                )
                for op in net.ops()
            ),
            tuple(net.inputs), tuple(names), tuple(side["static"]), side["count"], json.dumps(side["memory"]),
        )  # fmt: skip

    @functools.cached_property
    def network(self) -> Network:
        """The network, of a body in which nothing moves; it belongs to all who ask, and nobody may change it."""
        return self.copy()

    @functools.cached_property
    def came_from(self) -> Numbers:
        """The imported operators that its operators came from, at every depth."""
        return union(n for o in self.operators for n in (o.came_from, *(b.came_from for b in o.spec.bodies())))

    def copy(self, origins: Origins | None = None) -> Network:
        """The network once more, to be changed; ``origins`` are those of the network around it."""
        from dcir.ir.network import Network

        of = {c.name: c for c in self.containers}
        side: dict[str, Any] = {
            "inputs": self.inputs, "constants": (), "names": {}, "memory": json.loads(self.memory), "free": (), "updates": {},
            "results": [(n, of[n].shape, of[n].strides, 0, of[n].dtype) for n in self.results],
            "containers": {c.name: (c.shape, c.strides, c.dtype, c.role) for c in self.containers},
            "static": self.static, "streams": (), "order": [op.label for op in self.operators], "count": self.count,
        }  # fmt: skip
        return Network.rebuilt(
            side,
            [(o.label, o.spec, o.ins, o.outs, o.origin, o.made_by, o.schedule, o.came_from) for o in self.operators],
            origins,
        )

    def unplanned(self) -> Body:
        """The same without plans of memory and numbers of imported operators, at every depth: what is computed."""
        operators = tuple(replace(o, spec=unplanned(o.spec), came_from=()) for o in self.operators)
        return replace(self, memory="", operators=operators)

    def __deepcopy__(self, memo: dict[int, Any]) -> Body:
        """Itself: nobody changes it, and the network that it may have made is large."""
        return self

    def __repr__(self) -> str:
        """Its size, and a digest in place of all that is in it: different bodies have different ones."""
        return f"<body of {len(self.operators)} operators {self._digest}>"

    @functools.cached_property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(encode(self.unplanned())).encode()).hexdigest()[:32]


def unplanned(spec: Operator) -> Operator:
    """A spec without plans of memory in its bodies."""
    bodies = spec.bodies()
    return spec.with_bodies(tuple(body.unplanned() for body in bodies)) if bodies else spec
