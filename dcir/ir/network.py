"""The network SDFG: one state of library nodes over single-assignment containers, and the only reader of its insides.

Every container has one access node; all its writers come before all its readers, and several writers fill disjoint
parts (a concatenation is two writers). Names are our own (x0 inputs, c0 constants, t0 transients, y0 results); the
user's names live in ``names``, a side table that never reaches generated code.
"""

from __future__ import annotations

import copy
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import dace
from dace.sdfg import nodes as dace_nodes

from dcir.errors import InvalidGraph
from dcir.ir.annotations import ImagePipeline
from dcir.ir.dace.memlets import OperandMemlet, operand_memlet
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.objects import DACE_TYPES, access_node, array
from dcir.ir.dace.validation import validate
from dcir.ir.load_time import load_time_operators
from dcir.ir.memory_plan import PREPARED, MemoryPlan
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers, Origins, Place, union
from dcir.ir.remarks import RewriteLog, Rewriting
from dcir.ir.sizes import whole
from dcir.ir.types import itemsize

FRONTEND = "frontend"
"""Who has made an operator that no pass has."""


class Operand(NamedTuple):
    """Where an operator's operand begins: a container and the first element in it."""

    data: str
    offset: int = 0


@dataclass(frozen=True)
class Result:
    """One result of the network: a strided window of a container.

    Attributes:
        data: container; an input container means the result is (a view of) that argument.
        shape, strides, offset: the window, in elements.
        dtype: element type.
    """

    data: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str


@dataclass
class Container:
    """What dcir knows of one container beyond its SDFG descriptor.

    Attributes:
        shape, strides: logical shape and element strides.
        dtype: element type.
        role: "input", "constant", "transient" or "result".
        size: elements from first to last, both included (0 for an empty tensor).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    role: str
    size: int = field(init=False)

    def __post_init__(self) -> None:
        empty = any(d == 0 for d in self.shape)
        self.size = 0 if empty else 1 + sum((d - 1) * s for d, s in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes the container occupies."""
        return self.size * itemsize(self.dtype)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of ``shape``, in elements."""
    strides, step = [], 1
    for d in reversed(shape):
        strides.append(step)
        step *= max(whole(d), 1)
    return tuple(reversed(strides))


class Network:
    """A network SDFG with its inputs, constants, results and side tables.

    Attributes:
        inputs, constants, results: in the order of the call.
        containers, names: what is known of each container; the user's names.
        memory: where containers lie, as far as that is planned.
        free: numbers of results whose layout nobody but the backward graph sees: passes may choose it.
        updates: result containers that share the memory of an input and replace its contents (``updates.py``).
        static: inputs that are parameters or buffers: they change between calls, not with every call.
        target: what it is compiled for (``dcir.cost.target.Target``); None until the driver says. Files of it do not say.
        streams: runs of operators that take one image after the other.
        rewrites: what passes tell place by place, while they run and somebody asks.
        origins: the imported operators that its own came from; shared with its bodies and copies.
    """

    def __init__(self, name: str = "network") -> None:
        self.sdfg = dace.SDFG(name)
        self.state = self.sdfg.add_state("run", is_start_block=True)
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.results: list[Result] = []
        self.containers: dict[str, Container] = {}
        self.names: dict[str, str] = {}
        self.memory = MemoryPlan()
        self.static: set[str] = set()
        self.free: set[int] = set()
        self.updates: dict[str, str] = {}
        self.target: object | None = None
        self.streams: list[ImagePipeline] = []
        self.rewrites: RewriteLog | None = None
        self.origins = Origins()
        self._access: dict[str, Any] = {}
        self._operands: dict[Op, tuple[list[Operand], list[Operand]]] = {}
        self._order: list[Op] = []
        self._count = 0

    # ------------------------------------------------------------------ containers
    def add_container(
        self, shape: Iterable[int], dtype: str, role: str = "transient", strides: Iterable[int] | None = None
    ) -> str:
        """Declare a container; returns its name."""
        shape = tuple(int(d) for d in shape)
        strides = contiguous(shape) if strides is None else tuple(int(s) for s in strides)
        prefix = {"input": "x", "constant": "c", "transient": "t", "result": "y"}[role]
        name = f"{prefix}{self._count}"
        self._count += 1
        self._declare(name, Container(shape, strides, dtype, role))
        if role == "input":
            self.inputs.append(name)
        elif role == "constant":
            self.constants.append(name)
        return name

    def _declare(self, name: str, c: Container) -> None:
        self.sdfg.add_datadesc(name, self._described(name, c))
        self.containers[name] = c

    def _described(self, name: str, c: Container) -> Any:
        # DaCe has no arrays of extent 0 and no scalars with strides: both become one element that is never touched.
        shape = tuple(max(d, 1) for d in c.shape) or (1,)
        strides = tuple(s if d > 1 else 1 for d, s in zip(c.shape, c.strides, strict=True)) or (1,)
        if any(s < 0 for s in strides):
            raise InvalidGraph("a container cannot have negative strides", details=[("container", name)])
        return array(shape, strides, DACE_TYPES[c.dtype], max(c.size, 1), c.role == "transient")

    def resize(self, name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
        """Give a container other extents; who uses it is rewired next, since memlets are of its dimensions."""
        old = self.containers[name]
        self.containers[name] = c = Container(tuple(shape), tuple(strides), old.dtype, old.role)
        self.sdfg.arrays[name] = self._described(name, c)

    def promote(self, name: str) -> str:
        """Turn a transient into a result container (allocated afresh for every call); returns its name."""
        c = self.containers[name]
        if c.role == "transient":
            c.role = "result"
            self.sdfg.arrays[name].transient = False
        return name

    def remove_container(self, name: str) -> None:
        """Forget a container that nothing reads or writes.

        Raises:
            InvalidGraph: something does.
        """
        if users := [*self.writers(name), *self.readers(name)]:
            raise InvalidGraph(
                "a container that is used is taken out", details=[("container", name), ("operator", users[0].label)],
            )  # fmt: skip
        del self.containers[name]
        self.sdfg.remove_data(name, validate=False)

    # ------------------------------------------------------------------ operators
    def add_op(
        self,
        spec: Operator,
        ins: Sequence[Operand],
        outs: Sequence[Operand],
        *,
        came_from: Iterable[Op] | None = None,
        origin: str = "",
        made_by: str = FRONTEND,
        before: Op | None = None,
    ) -> Op:
        """Add an operator at the end of the order, or just ``before`` another.

        A pass says which operators it ``came_from``, the first of which gives its ``origin``. A frontend gives that, and says in
        ``origins.now`` what it imports; what is made of nothing is an imported operator by itself.

        Raises:
            InvalidGraph: a pass does not say it.
        """
        if came_from is None and made_by != FRONTEND:
            raise InvalidGraph(
                f"{made_by} adds an operator that came from none", hint="add_op(..., came_from=operators)"
            )
        label = f"{spec.kind}_{self._count}"
        self._count += 1
        if came_from is None:
            numbers = self.origins.now or self.origins.add(Place(label))
        else:
            old = list(came_from)
            numbers, origin = union(map(sources, old)), next((o.origin for o in old if o.origin), "")
        op = Op.made(label, spec, [o.offset for o in ins], [o.offset for o in outs], origin, made_by, None, numbers)
        self.state.add_node(op)
        self._connect(op, ins, outs)
        if before is None:
            self._order.append(op)
        else:
            self._order.insert(self._order.index(before), op)
        if self.rewrites is not None:
            self.rewrites.touch(op, new=True)
        return op

    def _connect(self, op: Op, ins: Sequence[Operand], outs: Sequence[Operand]) -> None:
        for i, o in enumerate(ins):
            self.state.add_edge(self._node(o.data), None, op, f"a{i}", self._memlet(op.spec, o, (False, i)))
        for i, o in enumerate(outs):
            self.state.add_edge(op, f"o{i}", self._node(o.data), None, self._memlet(op.spec, o, (True, i)))
        self._operands[op] = list(ins), list(outs)

    def rewire(
        self,
        op: Op,
        spec: Operator,
        ins: Sequence[Operand],
        outs: Sequence[Operand],
        *,
        made_by: str | None = None,
        came_from: Iterable[Op] = (),
    ) -> Op:
        """Give an operator another spec and other operands; it keeps its place in the order. Linear in its operands.

        ``came_from`` are others whose work it does, too, from now on; of those that are removed, ``remove_op`` says it.
        """
        near = {o.data for o in (*self.ins(op), *self.outs(op))}
        for e in (*self.state.in_edges(op), *self.state.out_edges(op)):
            self.state.remove_edge(e)
        for i in range(len(ins), len(op.in_offsets)):
            op.remove_in_connector(f"a{i}")
        for i in range(len(op.in_offsets), len(ins)):
            op.add_in_connector(f"a{i}")
        for i in range(len(outs), len(op.out_offsets)):
            op.remove_out_connector(f"o{i}")
        for i in range(len(op.out_offsets), len(outs)):
            op.add_out_connector(f"o{i}")
        op.own_schedule = op.own_schedule if type(spec) is type(op.spec) else None  # else loops have other names
        op.in_offsets, op.out_offsets = [o.offset for o in ins], [o.offset for o in outs]
        op.spec, op.made_by = spec, op.made_by if made_by is None else made_by
        for other in came_from:
            _take_over(op, other)
        self._connect(op, ins, outs)
        self._drop_isolated(near)
        if self.rewrites is not None:
            self.rewrites.touch(op, new=False)
        return op

    def _memlet(self, spec: Operator, o: Operand, operand: tuple[bool, int]) -> OperandMemlet:
        c = self.containers[o.data]
        return operand_memlet(o.data, spec, operand, o.offset, c.shape, c.strides, c.dtype)

    def remove_op(self, op: Op, *, into: Op | Iterable[Op]) -> None:
        """Take an operator out of the graph.

        Args:
            op: the operator.
            into: who does its work from now on, all of these; none where nobody needs what it has computed.
        """
        heirs = (into,) if isinstance(into, Op) else tuple(into)
        for heir in heirs:
            _take_over(heir, op)
        if not heirs:
            self.origins.gone.update(sources(op))
        near = {o.data for o in (*self.ins(op), *self.outs(op))}
        self.state.remove_node(op)
        self._order.remove(op)
        del self._operands[op]
        self._drop_isolated(near)

    def _drop_isolated(self, names: Iterable[str]) -> None:
        for name in names:  # DaCe wants no isolated nodes
            node = self._access[name]
            if not self.state.in_degree(node) and not self.state.out_degree(node):
                self.state.remove_node(self._access.pop(name))

    def _node(self, name: str) -> Any:
        """The container's access node; it exists while some operator uses the container."""
        if name not in self._access:
            # Not state.add_access, which walks the Python stack for debug information: 3 ms each inside torch.compile.
            self._access[name] = access_node(name)
            self.state.add_node(self._access[name])
        return self._access[name]

    def __contains__(self, op: object) -> bool:
        """Whether an operator is still there."""
        return op in self._operands

    def ops(self) -> list[Op]:
        """All operators in execution order."""
        return list(self._order)

    def set_order(self, order: Sequence[Op]) -> None:
        """Execute in this (topological) order."""
        assert set(order) == set(self._order)
        self._order = list(order)

    def ins(self, op: Op) -> list[Operand]:
        """Input operands of ``op`` in connector order."""
        return list(self._operands[op][0])

    def outs(self, op: Op) -> list[Operand]:
        """Output operands of ``op`` in connector order."""
        return list(self._operands[op][1])

    def writers(self, name: str) -> list[Op]:
        """Operators that write into container ``name``."""
        node = self._access.get(name)
        return list(dict.fromkeys(e.src for e in self.state.in_edges(node))) if node is not None else []

    def readers(self, name: str) -> list[Op]:
        """Operators that read container ``name``."""
        node = self._access.get(name)
        return list(dict.fromkeys(e.dst for e in self.state.out_edges(node))) if node is not None else []

    def read_once(self, name: str) -> bool:
        """Whether one operand of one operator is all that reads container ``name``: it is no result, and none reads it twice."""
        reads = sum(o.data == name for op in self.readers(name) for o in self.ins(op))
        return reads == 1 and name not in self.result_containers()

    def preparable(self) -> set[Op]:
        """Operators that depend on nothing but static inputs and constants, make no result, and call nothing outside."""
        kept = self.result_containers() | {name for name, c in self.containers.items() if c.role != "transient"}
        return load_time_operators(self._order, self._operands, self.static_containers(), kept)

    def prepared_ops(self) -> set[Op]:
        """Operators that run when static inputs change and not in every call (none before they have been given places)."""
        return self.preparable() if PREPARED in self.memory.blocks else set()

    def positions(self) -> dict[Op, int]:
        """When every operator runs: what prepares static values is a program of its own, which has ended when a call begins."""
        prepared = self.prepared_ops()
        order = sorted(self._order, key=lambda op: op not in prepared) if prepared else self._order
        return {op: i for i, op in enumerate(order)}

    def static_containers(self, ready: Iterable[Op] = ()) -> set[str]:
        """Containers that change between calls and not with every call: static inputs, constants, and what ``ready`` writes."""
        return self.static.union(self.constants, (o.data for op in ready for o in self._operands[op][1]))

    def result_containers(self) -> set[str]:
        """Containers that some result shows."""
        return {r.data for r in self.results}

    def allows(self, by: Rewriting, *ops: Op) -> bool:
        """Whether a pass may rewrite these operators, asked when all else says that it will: the user may have switched the place off."""
        return self.rewrites is None or self.rewrites.allows(self, by.name, ops)

    # ------------------------------------------------------------------ whole graph
    def bytes_moved(self) -> int:
        """Bytes that a call's operators read and write."""
        prepared = self.prepared_ops()
        return sum(self.moved_by(op) for op in self._order if op not in prepared)

    def moved_by(self, op: Op) -> int:
        """Bytes that one operator reads and writes, read off its memlets; with bodies, what these do, as often as they run.

        Operands that read the same elements of a container, as in a product of a matrix with itself, count once.
        """
        if bodies := op.spec.bodies():
            return op.spec.in_all([body.network.bytes_moved() for body in bodies])
        memlets = [e.data for e in self.state.out_edges(op)]
        reads: dict[str, list[Any]] = {}
        for e in self.state.in_edges(op):
            reads.setdefault(e.data.data, []).append(e.data)
        for same in reads.values():  # the text of a subset takes longer than all else here
            memlets += same if len(same) == 1 else {str(m.subset): m for m in same}.values()
        return sum(int(m.volume) * itemsize(self.containers[m.data].dtype) for m in memlets)

    @classmethod
    def rebuilt(cls, side: dict[str, Any], ops: Iterable[Sequence[Any]], origins: Origins | None = None) -> Network:
        """A network of its ``side_tables``, per operator in order: label, spec, operands read and written, origin, maker, schedule,
        numbers of imported operators; and the table of these.
        """
        net = cls()
        for name, (shape, strides, dtype, role) in side["containers"].items():
            net._declare(name, Container(tuple(shape), tuple(strides), dtype, role))
        for label, spec, ins, outs, *rest in ops:
            a, o = ([Operand(*x) for x in operands] for operands in (ins, outs))
            op = Op.made(label, spec, [x.offset for x in a], [x.offset for x in o], *rest)
            net.state.add_node(op)
            net._connect(op, a, o)
        net._restore(side, origins)
        return net

    def clone(self) -> Network:
        """A deep copy that shares nothing mutable."""
        other = Network.__new__(Network)
        other.sdfg = copy.deepcopy(self.sdfg)
        other._restore(self.side_tables(), self.origins)
        other.target = self.target
        return other

    def validate(self) -> None:
        """DaCe's own validation; raises ``InvalidGraph``."""
        validate(self.sdfg, {name for name, c in self.containers.items() if 0 in c.shape})

    def side_tables(self) -> dict[str, Any]:
        """All but the graph, as JSON-able data."""
        return {
            "inputs": self.inputs,
            "constants": self.constants,
            "results": [[r.data, r.shape, r.strides, r.offset, r.dtype] for r in self.results],
            "containers": {n: [c.shape, c.strides, c.dtype, c.role] for n, c in self.containers.items()},
            "names": self.names,
            "memory": self.memory.to_json(),
            "free": sorted(self.free),
            "updates": self.updates,
            "static": sorted(self.static),
            "streams": [asdict(s) for s in self.streams],
            "order": [op.label for op in self._order],
            "count": self._count,
        }

    def _restore(self, side: dict[str, Any], origins: Origins | None = None) -> None:
        self.state = self.sdfg.start_state
        self.origins = Origins() if origins is None else origins
        self.inputs, self.constants = list(side["inputs"]), list(side["constants"])
        self.results = [Result(d, tuple(s), tuple(t), o, k) for d, s, t, o, k in side["results"]]
        self.containers = {n: Container(tuple(s), tuple(t), d, r) for n, (s, t, d, r) in side["containers"].items()}
        self.names, self._count = dict(side["names"]), side["count"]
        self.memory = MemoryPlan.from_json(side["memory"])
        self.free, self.updates, self.static = set(side["free"]), dict(side["updates"]), set(side["static"])
        self.target, self.rewrites, self.streams = None, None, [ImagePipeline(**s) for s in side["streams"]]
        self._access = {n.data: n for n in self.state.nodes() if isinstance(n, dace_nodes.AccessNode)}
        ops = {n.label: n for n in self.state.nodes() if isinstance(n, Op)}
        self._order = [ops[label] for label in side["order"]]
        self._operands = {op: self._read_operands(op) for op in self._order}

    def _read_operands(self, op: Op) -> tuple[list[Operand], list[Operand]]:
        """The operands that the edges of the graph say; asking them each time was a third of all passes."""
        ins = {e.dst_conn: e.data.data for e in self.state.in_edges(op)}
        outs = {e.src_conn: e.data.data for e in self.state.out_edges(op)}
        return (
            [Operand(ins[f"a{i}"], offset) for i, offset in enumerate(op.in_offsets)],
            [Operand(outs[f"o{i}"], offset) for i, offset in enumerate(op.out_offsets)],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the SDFG and the side tables as one zip file (``network.sdfg`` opens in DaCe's viewer)."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("network.sdfg", json.dumps(self.sdfg.to_json()))
            z.writestr("side.json", json.dumps(self.side_tables()))
            z.writestr("origins.json", json.dumps(self.origins.to_json()))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Network:
        """Read what ``save`` wrote. Only for files dcir itself wrote: DaCe evaluates expressions of an SDFG file."""
        with zipfile.ZipFile(path) as z:
            sdfg, side = json.loads(z.read("network.sdfg")), json.loads(z.read("side.json"))
            origins = Origins.from_json(json.loads(z.read("origins.json")))
        net = Network.__new__(Network)
        net.sdfg = dace.SDFG.from_json(sdfg)
        net._restore(side, origins)
        return net


def _take_over(op: Op, other: Op) -> None:
    """Let an operator come from what another one came from, too."""
    op.came_from, op.origin = union((op.came_from, sources(other))), op.origin or other.origin


def sources(op: Op) -> Numbers:
    """The imported operators that an operator came from, with those of its bodies."""
    return union((op.came_from, *(body.came_from for body in op.spec.bodies())))
