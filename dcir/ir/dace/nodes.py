"""The library node of the network SDFG: one operator, its spec, and an expansion to plain maps for stock DaCe."""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar

import dace
import dace.library
from dace import properties
from dace.sdfg import nodes
from dace.transformation.transformation import ExpandTransformation

from dcir.ir.dace.objects import like
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers
from dcir.ir.schedule import Schedule
from dcir.ir.serialize import decode, encode

_Known = TypeVar("_Known", bound=Operator)


@dace.library.expansion
class ExpandPure(ExpandTransformation):  # type: ignore[misc]
    """Maps and tasklets with the operator's reference semantics, for stock DaCe."""

    environments: list[Any] = []  # noqa: RUF012

    @staticmethod
    def expansion(node: Op, state: Any, sdfg: Any) -> Any:
        """The nested SDFG that replaces ``node``."""
        from dcir.ir.dace.expand import expand_node

        return expand_node(node, state, sdfg)


@dace.library.node
class Op(nodes.LibraryNode):  # type: ignore[misc]
    """One operator of the network.

    Inputs arrive at connectors a0, a1, …, outputs leave at o0, o1, …; several may name the same container. ``spec``, an
    ``Operator`` (a ``LoopNest``, a ``ContractionSpec`` …), says everything about the computation except where its
    operands begin: ``in_offsets`` and ``out_offsets`` give each operand's first element within its container.

    ``own_schedule`` says how its loops are to run, as far as that is not the target's to decide (``schedule`` is DaCe's word for a device).
    ``came_from`` are the imported operators whose work, or part of it, it does; ``origin`` is the place of one of them.
    """

    implementations = {"pure": ExpandPure}  # noqa: RUF012
    default_implementation = "pure"

    spec_json = properties.Property(dtype=str, default="null", desc="the operator's spec as JSON")
    schedule_json = properties.Property(dtype=str, default="null", desc="how its loops are to run, as JSON")
    in_offsets = properties.ListProperty(element_type=int, default=[], desc="first element of each input operand")
    out_offsets = properties.ListProperty(element_type=int, default=[], desc="first element of each output operand")
    origin = properties.Property(dtype=str, default="", desc="place in the user's model")
    imported = properties.ListProperty(
        element_type=int, default=[], desc="numbers of the imported operators it came from"
    )
    made_by = properties.Property(dtype=str, default="frontend", desc="the pass that made this node")

    def __init__(
        self,
        name: str = "op",
        spec: Operator | None = None,
        n_in: int = 0,
        n_out: int = 0,
        in_offsets: list[int] | None = None,
        out_offsets: list[int] | None = None,
        origin: str = "",
        made_by: str = "frontend",
        schedule: Schedule | None = None,
        came_from: Numbers = (),
    ) -> None:
        super().__init__(
            name,
            inputs={f"a{i}": None for i in range(n_in)},
            outputs={f"o{i}": None for i in range(n_out)},
        )
        self._spec: Operator | None = spec
        self._own_schedule, self._came_from = schedule, came_from
        self.in_offsets = in_offsets or [0] * n_in
        self.out_offsets = out_offsets or [0] * n_out
        self.origin, self.made_by = origin, made_by

    @classmethod
    def made(
        cls, name: str, spec: Operator, in_offsets: list[int], out_offsets: list[int], origin: str, made_by: str,
        schedule: Schedule | None = None, came_from: Numbers = (),
    ) -> Op:  # fmt: skip
        """The same as the constructor, which sets and checks every property one by one, at a tenth of the time."""
        found: Op = like(
            _pattern(len(in_offsets), len(out_offsets)), _name=name, _label=name, _spec=spec, _in_offsets=in_offsets,
            _out_offsets=out_offsets, _origin=origin, _made_by=made_by, _own_schedule=schedule, _came_from=came_from,
        )  # fmt: skip
        return found

    @property
    def spec(self) -> Operator:
        """The operator's spec."""
        spec: Operator | None = getattr(self, "_spec", None)  # DaCe makes nodes of a file without the constructor
        if spec is None:
            spec = self._spec = decode(json.loads(self.spec_json))
        return spec

    @spec.setter
    def spec(self, value: Operator) -> None:
        self._spec = value

    @property
    def came_from(self) -> Numbers:
        """Numbers of the imported operators it came from, sorted."""
        if not hasattr(self, "_came_from"):
            self._came_from = tuple(self.imported)
        return self._came_from

    @came_from.setter
    def came_from(self, value: Numbers) -> None:
        self._came_from = value

    @property
    def own_schedule(self) -> Schedule | None:
        """How its loops are to run; None: as the target has it."""
        if not hasattr(self, "_own_schedule"):
            self._own_schedule = decode(json.loads(self.schedule_json))
        return self._own_schedule

    @own_schedule.setter
    def own_schedule(self, value: Schedule | None) -> None:
        self._own_schedule = value

    def known(self, kind: type[_Known]) -> _Known:
        """The spec, where the class of it is known."""
        spec = self.spec
        assert isinstance(spec, kind)
        return spec

    def to_json(self, parent: Any) -> Any:
        """DaCe's serialisation; the spec becomes text only here, since passes replace it often."""
        self.spec_json, self.schedule_json = json.dumps(encode(self.spec)), json.dumps(encode(self.own_schedule))
        self.imported = list(self.came_from)
        return super().to_json(parent)


@functools.lru_cache(maxsize=256)
def _pattern(n_in: int, n_out: int) -> Op:
    return Op("op", None, n_in, n_out)
