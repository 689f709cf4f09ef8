"""Loop nests as maps and tasklets in their containers' own dimensions: the form that DaCe's transformations match and rewrite.

A nest is one scope, as whole as its node was: a map over the outer loops, and in it for every stage of reduces

    a tasklet a reduce, which sets its accumulator to the identity
    a map over the inner loops with a tasklet: what it computes is added up in the accumulators (float32 sums in float64), or stored

and a tasklet for what is stored once for each outer point. ``read_maps.py`` is the way back. ``expand.py`` has another purpose: it
takes all that there is to plain C++, by other words than the generated code's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import dace

from dcir.ir.dace import tasklets
from dcir.ir.dace.maps import add_map, element, enter, leave_to, symbol
from dcir.ir.dace.objects import DACE_TYPES, access_node, array
from dcir.ir.dace.places import Place, place_of, split_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Container, Operand
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Const, Gather, Index, Load, Reduce, Statement, Store
from dcir.ir.types import HALVES, TYPES

STORAGE = {n: dace.uint16 if n in HALVES else DACE_TYPES[n] for n, t in TYPES.items() if t.words != "none"}
"""What arrays of a type hold in this form: half types travel as their bits, which tasklets widen."""


def openable(spec: Operator) -> Refusal | LoopNest:
    """The loop nest that an operator is, or why it stays a library node here."""
    if not isinstance(spec, LoopNest):
        return Refusal("no loop nest")
    if 0 in spec.dims:
        return Refusal("nothing to compute")
    for s in spec.body:
        if isinstance(s, Reduce) and s.is_place:
            return Refusal("a place that is looked for takes two passes over the loops")
        if isinstance(s, Store) and s.added:
            return Refusal("results that are added up where they collide")
    if any(t not in STORAGE for t in (*spec.inputs, *spec.outputs)):
        return Refusal("types that tasklets have no words for")
    return spec


class MapsWriter:
    """Writes loop nests into one state of an SDFG whose arrays are a network's containers.

    Attributes:
        sdfg, state: written into.
        containers: what is known of the arrays.
    """

    def __init__(self, sdfg: Any, state: Any, containers: Mapping[str, Container]) -> None:
        self.sdfg, self.state, self.containers = sdfg, state, dict(containers)
        self._nodes: dict[str, Any] = {}
        self._count = 0
        if "frame" not in sdfg.global_code or "DCIR_TASKLETS" not in sdfg.global_code["frame"].as_string:
            sdfg.append_global_code(tasklets.HELPERS)

    def declare(self, names: Iterable[str], inside: Iterable[str]) -> None:
        """Arrays for containers; those ``inside`` are transients."""
        transients = set(inside)
        for name in names:
            c = self.containers[name]
            shape = tuple(max(d, 1) for d in c.shape) or (1,)
            strides = tuple(s if d > 1 else 1 for d, s in zip(c.shape, c.strides, strict=True)) or (1,)
            self.sdfg.add_datadesc(name, array(shape, strides, STORAGE[c.dtype], max(c.size, 1), name in transients))

    def add_containers(self, new: Mapping[str, Container]) -> None:
        """Make more containers known."""
        self.containers |= new

    def access(self, name: str) -> Any:
        """The access node of a container."""
        if name not in self._nodes:
            self._nodes[name] = access_node(name)
            self.state.add_node(self._nodes[name])
        return self._nodes[name]

    def opened(self, spec: Operator, ins: Sequence[Operand], outs: Sequence[Operand]) -> LoopNest | Refusal:
        """The loop nest of an operator in its containers' dimensions, a loop over several of them split; or why there is none."""
        nest = openable(spec)
        while isinstance(nest, LoopNest):
            stuck = next((x for x in self._accesses(nest, ins, outs) if self._place(nest, *x) is None), None)
            if stuck is None:
                fits = all(
                    self._steps(s, o) is not None for s, o in self._accesses(nest, ins, outs) if isinstance(s, Gather)
                )
                return nest if fits else Refusal("indices that are no places in their containers' dimensions")
            c = self.containers[stuck[1].data]
            parts = split_of(stuck[0].strides, nest.dims, c.shape or (1,), c.strides or (1,))
            nest = (
                Refusal("addresses that are no places in their containers' dimensions")
                if parts is None
                else nest.split(*parts)
            )
        return nest

    def _accesses(
        self, nest: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]
    ) -> Iterator[tuple[Access, Operand]]:
        for s in nest.body:
            if isinstance(s, Access):
                yield s, (outs if isinstance(s, Store) else ins)[s.operand]

    def nest(self, label: str, nest: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]) -> None:
        """Write one nest; ``label`` names its map."""
        _Scope(self, label, nest, ins, outs).write()

    def _place(self, nest: LoopNest, s: Access, o: Operand) -> Place | None:
        c = self.containers[o.data]
        inside = not (isinstance(s, Gather) or s.args) or isinstance(s, Store)
        return place_of(o.offset, s.strides, nest.dims, c.shape or (1,), c.strides or (1,), inside=inside)

    def _steps(self, s: Gather, o: Operand) -> list[Place] | None:
        c = self.containers[o.data]
        found = [place_of(0, (t,), (2,), c.shape or (1,), c.strides or (1,), inside=False) for t in s.steps]
        return None if None in found else [p for p in found if p is not None]

    def accumulator(self, dtype: str) -> str:
        """A new array of one element."""
        name = f"r{self._count}"
        self._count += 1
        self.sdfg.add_transient(name, [1], STORAGE[dtype])
        return name


class _Scope:
    """One nest: its outer map, and what is in it."""

    def __init__(
        self, writer: MapsWriter, label: str, nest: LoopNest, ins: Sequence[Operand], outs: Sequence[Operand]
    ) -> None:
        self.writer, self.label, self.nest, self.ins, self.outs = writer, label, nest, ins, outs
        self.results: dict[int, Any] = {}
        self.entry, self.exit = add_map(writer.state, label, nest.outer, 0)
        self.entered = False

    def write(self) -> None:
        """Stage after stage."""
        nest, levels = self.nest, self.nest.levels()
        for stage in range(max((s for s, _ in levels), default=0) + 1):
            reduces = {i: s for i, s in enumerate(nest.body) if isinstance(s, Reduce) and levels[i][0] == stage + 1}
            stores = [i for i, s in enumerate(nest.body) if isinstance(s, Store) and levels[i][0] == stage]
            if flat := [i for i in stores if not levels[i][1]]:
                self._sweep(flat, {}, inner=False)
            if (full := [i for i in stores if levels[i][1]]) or reduces:
                self._sweep(full, reduces, inner=True)
        if not self.writer.state.edges_between(self.entry, self.exit) and not self.entered:
            self.writer.state.add_nedge(self.entry, self.exit, dace.Memlet())

    def _sweep(self, stores: Sequence[int], reduces: Mapping[int, Reduce], *, inner: bool) -> None:
        state, nest = self.writer.state, self.nest
        starts: list[Any] = []
        targets: dict[int, Any] = {}
        for i, s in reduces.items():
            dtype = nest.body[s.args[0]].dtype
            name = self.writer.accumulator(tasklets.accumulator_type(s.kind, dtype))
            t = state.add_tasklet(f"start_{name}", {}, {"w": None}, f"w = {tasklets.identity(s.kind, dtype)}")
            state.add_nedge(self.entry, t, dace.Memlet())
            before, targets[i] = state.add_access(name), state.add_access(name)
            state.add_edge(t, "w", before, None, dace.Memlet(f"{name}[0]"))
            starts.append(before)
        # DaCe declares a custom reduction under one name, so a tasklet can have only one of them.
        custom = [i for i, s in reduces.items() if "dcir" in tasklets.COMBINE[s.kind]]
        first = [i for i in reduces if i not in custom[1:]]
        for group in [first, *([i] for i in custom[1:])]:
            if not group and not (group is first and stores):
                continue
            t = _Tasklet(self, stores if group is first else [], {i: reduces[i] for i in group})
            scopes = [self.entry]
            exits = [self.exit]
            if inner and nest.inner:
                entry, leave = add_map(state, f"{self.label}_inner", nest.inner, len(nest.outer), sequential=True)
                scopes.append(entry)
                exits.insert(0, leave)
                for node in starts:
                    state.add_nedge(node, entry, dace.Memlet())
            t.connect(scopes, exits, targets, [] if len(scopes) > 1 else starts)
        self.results.update({i: (node.data, node) for i, node in targets.items()})
        self.entered = True


class _Tasklet:
    """What one sweep computes, as a tasklet and its edges."""

    def __init__(self, scope: _Scope, stores: Sequence[int], reduces: Mapping[int, Reduce]) -> None:
        self.scope, self.nest, self.stores, self.reduces = scope, scope.nest, stores, reduces
        self.reads: dict[str, tuple[str, Any]] = {}  # connector: array, subset or None for all of it
        self.accumulated: dict[str, Any] = {}  # connector: access node of a reduce's result
        self.lines: list[str] = []
        for i in self.nest.needed_by([*stores, *reduces], scope.results):
            self._statement(i, self.nest.body[i])

    def connect(self, entries: list[Any], exits: list[Any], targets: Mapping[int, Any], after: list[Any]) -> None:
        """Add it to the innermost of the scopes."""
        writer, state = self.scope.writer, self.scope.writer.state
        arrays = writer.sdfg.arrays
        writes: list[tuple[str, str, Any, str | None, Any]] = []
        for i in self.stores:
            s = self.nest.body[i]
            assert isinstance(s, Store)
            self.lines.append(f"w{i} = {tasklets.narrow(tasklets.value(self.nest, s.args[0]), s.dtype)}")
            o = self.scope.outs[s.operand]
            place = writer._place(self.nest, s, o)
            assert place is not None
            writes.append((f"w{i}", o.data, subset(place), None, writer.access(o.data)))
        for i, r in self.reduces.items():
            value, dtype = tasklets.value(self.nest, r.args[0]), self.nest.body[r.args[0]].dtype
            truth = f"({value} != 0)" if r.kind in ("any", "all") else value
            self.lines.append(f"w{i} = {tasklets.typed(truth, tasklets.accumulator_type(r.kind, dtype))}")
            node = targets[i]
            writes.append((f"w{i}", node.data, [(0, 0, 1)], tasklets.COMBINE[r.kind], node))
        ins = {c: dace.pointer(arrays[a].dtype) if at is None else arrays[a].dtype for c, (a, at) in self.reads.items()}
        ins |= {c: arrays[node.data].dtype for c, node in self.accumulated.items()}
        outs = {c: arrays[a].dtype for c, a, _, _, _ in writes}
        writer._count += 1
        tasklet = state.add_tasklet(f"compute{writer._count}", ins, outs, "\n".join(self.lines))
        for connector, (name, at) in self.reads.items():
            memlet = dace.Memlet.from_array(name, arrays[name]) if at is None else element(name, at)
            memlet.dynamic = at is None
            enter(state, writer.access(name), entries, tasklet, connector, name, arrays[name], memlet)
        for connector, node in self.accumulated.items():
            enter(
                state,
                node,
                entries[1:],
                tasklet,
                connector,
                node.data,
                arrays[node.data],
                element(node.data, [(0, 0, 1)]),
            )
        for before, after_ in zip(entries, [*entries[1:], tasklet], strict=True):
            if not state.edges_between(before, after_):
                state.add_nedge(before, after_, dace.Memlet())
        for node in after:
            state.add_nedge(node, tasklet, dace.Memlet())
        for connector, name, at, wcr, node in writes:
            inside = exits[:-1] if wcr else exits
            leave_to(state, tasklet, connector, inside, name, at, wcr, lambda _state, _name, node=node: node)

    def _statement(self, i: int, s: Statement) -> None:
        if isinstance(s, Const):
            return
        args = [tasklets.value(self.nest, a) for a in s.args]
        if isinstance(s, Reduce):
            self.accumulated[f"e{i}"] = self.scope.results[i][1]
            text = tasklets.typed(f"(e{i} != 0)" if s.dtype == "bool" else f"e{i}", s.dtype)
        elif isinstance(s, Index):
            text = tasklets.typed(f"i{s.dim}", "i64")
        elif isinstance(s, Load | Gather):
            text = self._read(i, s, args)
        else:
            text = tasklets.statement(s, args, [self.nest.body[a].dtype for a in s.args])
        self.lines.append(f"v{i} = {text}")

    def _read(self, i: int, s: Load | Gather, args: Sequence[str]) -> str:
        writer, o, storage = self.scope.writer, self.scope.ins[s.operand], self.nest.inputs[s.operand]
        place = writer._place(self.nest, s, o)
        assert place is not None
        if isinstance(s, Load) and not args:
            self.reads[f"e{i}"] = (o.data, subset(place))
            return tasklets.widen(f"e{i}", storage)
        indices = args[: len(s.indices)]
        rest = args[len(s.indices) :]
        tests = [rest[0]] if rest else []
        at = [_walk(start, steps) for start, steps in zip(place.starts, place.steps, strict=True)]
        if isinstance(s, Gather):
            name = "checked" if s.checked else "within"
            tests += [f"dcir_{name}({x}, dace.int64({e}))" for x, e in zip(indices, s.extents, strict=True)]
            along = writer._steps(s, o)
            assert along is not None
            for x, p in zip(indices, along, strict=True):
                at = [f"{a} + {x} * {q[0]}" if q[0] else a for a, q in zip(at, p.steps, strict=True)]
        other = rest[1] if rest else tasklets.literal(0, s.dtype)
        if writer.sdfg.arrays[o.data].total_size == 1:  # DaCe makes a scalar of a whole memlet of one element
            self.reads[f"p_{o.data}"] = (o.data, [(0, 0, 1)] * len(at))
            where = f"p_{o.data}"
        else:
            self.reads[f"p_{o.data}"] = (o.data, None)
            wide = [
                a for a, n in zip(at, writer.sdfg.arrays[o.data].shape, strict=True) if n != 1
            ]  # DaCe wants no others
            where = f"p_{o.data}[{', '.join(wide)}]"
        return f"({tasklets.widen(where, storage)} if ({' and '.join(tests) or 'True'}) else {other})"


def subset(place: Place) -> list[tuple[Any, Any, int]]:
    """A place as a memlet's range."""
    at = [
        sum((symbol(d) * s for d, s in enumerate(steps) if s), start=dace.symbolic.sympy.Integer(start))
        for start, steps in zip(place.starts, place.steps, strict=True)
    ]
    return [(a, a, 1) for a in at]


def _walk(start: int, steps: Sequence[int]) -> str:
    terms = [f"i{d} * {s}" if s != 1 else f"i{d}" for d, s in enumerate(steps) if s]
    return " + ".join(([str(start)] if start or not terms else []) + terms).replace("+ -", "- ")
