"""Expansion of library nodes to plain maps and tasklets, the reference form that stock DaCe compiles.

A loop nest becomes one state per stage: the stage's reduces start at their identity, one parallel map over the outer
loops around a sequential map over the inner ones accumulates them (float sums in f64) and writes the full stores, and
a map over the outer loops writes the rest. What a later stage needs again it computes again, as the definition of a
program says; only the reduces' results live in transients. Operands are seen through flat views, so that every load
and store is one memlet with the program's own address.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import dace

from dcir.ir.dace import tasklets
from dcir.ir.dace.calls import write_call
from dcir.ir.dace.expand_control import write_control
from dcir.ir.dace.maps import add_map, address, address_text, element, enter, leave_to, outer_place
from dcir.ir.dace.objects import DACE_TYPES
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator
from dcir.ir.statements import Const, Gather, Index, Load, Reduce, Statement, Store
from dcir.ir.types import HALVES, TYPES

# Half types travel as their bits, which tasklets widen.
_STORAGE = {n: dace.uint16 if n in HALVES else DACE_TYPES[n] for n in TYPES}
_LAST = 1 << 62


def expand_node(node: Any, state: Any, sdfg: Any) -> Any:
    """The nested SDFG that computes what ``node`` does."""
    root = sdfg
    while root.parent_sdfg is not None:
        root = root.parent_sdfg
    if "frame" not in root.global_code or "DCIR_TASKLETS" not in root.global_code["frame"].as_string:
        root.append_global_code(tasklets.HELPERS)
    nested = dace.SDFG(node.label)
    spec = node.spec
    operands: dict[str, _Operand] = {}
    for number, o in enumerate(node.in_offsets):
        operands[f"a{number}"] = _Operand(f"a{number}", o)
    for number, o in enumerate(node.out_offsets):
        operands[f"o{number}"] = _Operand(f"o{number}", o)
    for e in (*state.in_edges(node), *state.out_edges(node)):
        if e.data.is_empty():  # it says an order
            continue
        # A nested SDFG is given whole arrays: DaCe wants their descriptors on both sides, and flat views of them.
        e.data = dace.Memlet.from_array(e.data.data, sdfg.arrays[e.data.data])
        desc = copy.deepcopy(sdfg.arrays[e.data.data])
        desc.transient = False
        connector = e.dst_conn if e.dst is node else e.src_conn
        if connector not in nested.arrays:
            nested.add_datadesc(connector, desc)
    writer = Writer(nested, operands)
    writer.operator(
        spec, [f"a{i}" for i in range(len(node.in_offsets))], [f"o{i}" for i in range(len(node.out_offsets))]
    )
    writer.finish()
    return nested


class _Operand:
    """An array of the nested SDFG and where in it the operand begins, in elements; a DaCe expression where that moves with a loop."""

    def __init__(self, array: str, offset: Any) -> None:
        self.array, self.offset = array, offset


class Writer:
    """Writes operators, state after state, into one nested SDFG, or into a region of it.

    Attributes:
        sdfg: the nested SDFG.
        operands: by the names that programs have for them.
        stored: the element type of every array that was added.
    """

    def __init__(self, sdfg: Any, operands: dict[str, _Operand]) -> None:
        self.sdfg, self.operands = sdfg, operands
        self.stored: dict[str, str] = {}
        self.scope: Any = sdfg
        self.last: Any = None
        self.count = 0
        self.flat: dict[str, str] = {}
        self._outside: list[tuple[Any, Any]] = []
        self._names = 0

    def operator(self, spec: Operator, ins: Sequence[str], outs: Sequence[str]) -> None:
        """What an operator computes, over operands of these names."""
        if (control := spec.control()) is not None:
            write_control(self, control, ins, outs)
            return
        if (found := spec.steps()) is None:
            write_call(self, spec, ins, outs)
            return
        temporaries, steps = found
        names = {f"{side}{i}": name for side, given in (("a", ins), ("o", outs)) for i, name in enumerate(given)}
        for name, dtype, size in temporaries:
            names[name] = self.transient(dtype, size)
        for program, reads, writes in steps:
            assert isinstance(program, LoopNest)
            self.program(program, [names[n] for n in reads], [names[n] for n in writes])

    def transient(self, dtype: str, size: int) -> str:
        """A new array, and an operand of its name."""
        name = f"m{len(self.operands)}"
        self.sdfg.add_transient(name, [max(size, 1)], _STORAGE[dtype])
        self.operands[name], self.stored[name] = _Operand(name, 0), dtype
        return name

    def moved(self, name: str, by: Any) -> str:
        """The operand that begins so many elements behind another."""
        known = self.operands[name]
        new = f"m{len(self.operands)}"
        self.operands[new] = _Operand(known.array, known.offset + by)
        return new

    def block(self, new: Any, region: Any) -> None:
        """Put a control flow block behind the last one of the scope; what follows is written into ``region``, until ``leave``.

        A block with several regions is entered once for each.
        """
        if new is not self.last:
            self._append(new)
        self._outside.append((self.scope, self.last))
        self.scope, self.last = region, None

    def leave(self) -> None:
        """Go on behind the block."""
        if self.last is None:
            self.state()
        self.scope, self.last = self._outside.pop()

    def new_name(self, kind: str) -> str:
        """A name for a region, or for the variable of a loop."""
        self._names += 1
        return f"{kind}{self._names}"

    def _append(self, new: Any) -> None:
        if new not in self.scope.nodes():
            self.scope.add_node(new, is_start_block=self.last is None)
        if self.last is not None:
            self.scope.add_edge(self.last, new, dace.InterstateEdge())
        self.last = new

    def state(self) -> Any:
        """A new state after the last one."""
        s = self.scope.add_state(f"step{self.count}", is_start_block=self.last is None)
        self.count += 1
        self._append(s)
        return s

    def finish(self) -> None:
        """An SDFG needs one state, even to do nothing."""
        if self.last is None:
            self.state()

    def view(self, operand: str, dtype: str) -> str:
        """The flat view of an operand's array."""
        array = self.operands[operand].array
        if array not in self.flat:
            desc = self.sdfg.arrays[array]
            name = f"{array}_flat"
            if desc.transient:
                name = array
            else:
                self.sdfg.add_view(name, [desc.total_size], _STORAGE[dtype])
            self.flat[array] = name
        return self.flat[array]

    def program(self, p: LoopNest, ins: Sequence[str], outs: Sequence[str]) -> None:
        """The states of one program."""
        if any(d == 0 for d in p.outer):
            return
        levels = p.levels()
        results: dict[int, str] = {}
        for stage in range(max((s for s, _ in levels), default=0) + 1):
            reduces = {i: s for i, s in enumerate(p.body) if isinstance(s, Reduce) and levels[i][0] == stage + 1}
            stores = [i for i, s in enumerate(p.body) if isinstance(s, Store) and levels[i][0] == stage]
            full = [i for i in stores if levels[i][1]]
            flat = [i for i in stores if not levels[i][1]]
            if flat:
                _Sweep(self, p, ins, outs, results, inner=False).run(flat)
            accumulated = {i: self._accumulator(p, i, s) for i, s in reduces.items()}
            if accumulated:
                self._start(p, reduces, accumulated)
            # DaCe declares a custom reduction under one name, so a tasklet can have only one of them.
            custom = [i for i, s in reduces.items() if "dcir" in tasklets.COMBINE[s.kind.removeprefix("arg")]]
            first = {i: name for i, name in accumulated.items() if i not in custom[1:]}
            if (full or first) and all(p.inner):
                _Sweep(self, p, ins, outs, results, inner=True).run(full, first)
            for i in custom[1:] if all(p.inner) else []:
                _Sweep(self, p, ins, outs, results, inner=True).run([], {i: accumulated[i]})
            places = [i for i, s in reduces.items() if s.is_place]
            if places and all(p.inner):  # the value is known now: the first place that has it
                _Sweep(self, p, ins, outs, results, inner=True).run(
                    [], {i: accumulated[i] for i in places}, places=True
                )
            results.update(accumulated)

    def _accumulator(self, p: LoopNest, i: int, s: Reduce) -> str:
        kind, dtype = s.kind, p.body[s.args[0]].dtype
        name = f"r{self.count}_{i}"
        wide = tasklets.accumulator_type(kind, dtype)
        self.sdfg.add_transient(name, p.outer or (1,), _STORAGE[wide])
        if kind.startswith("arg"):
            self.sdfg.add_transient(name + "_at", p.outer or (1,), dace.int64)
        return name

    def _start(self, p: LoopNest, reduces: dict[int, Reduce], accumulated: dict[int, str]) -> None:
        """Every accumulator at its identity; a place at one behind all."""
        state = self.state()
        entry, leave = add_map(state, "start", p.outer, 0)
        for i, name in accumulated.items():
            kind, dtype = reduces[i].kind, p.body[reduces[i].args[0]].dtype
            values = [(name, tasklets.identity(kind.removeprefix("arg"), dtype))]
            if kind.startswith("arg"):
                values.append((name + "_at", tasklets.literal(_LAST, "i64")))
            for array, value in values:
                t = state.add_tasklet(f"start_{array}", {}, {"w": None}, f"w = {value}")
                state.add_nedge(entry, t, dace.Memlet())
                leave_to(state, t, "w", [leave], array, outer_place(p.outer))


class _Sweep:
    """One mapped tasklet over the outer loops, or over all of them."""

    def __init__(
        self, writer: Writer, p: LoopNest, ins: Sequence[str], outs: Sequence[str], results: dict[int, str], *,
        inner: bool,
    ) -> None:  # fmt: skip
        self.writer, self.p, self.ins, self.outs, self.results, self.inner = writer, p, ins, outs, results, inner
        self.reads: dict[str, tuple[str, Any, bool]] = {}
        self.lines: list[str] = []

    def run(self, stores: Sequence[int], accumulated: dict[int, str] | None = None, *, places: bool = False) -> None:
        """Add the state: ``stores`` are written, reduces of ``accumulated`` take this point's value in."""
        p, accumulated = self.p, accumulated or {}
        state = self.writer.state()
        scopes = [add_map(state, "outer", p.outer, 0)]
        if self.inner and p.inner:
            scopes.append(add_map(state, "inner", p.inner, len(p.outer), sequential=True))
        for i in p.needed_by([*stores, *accumulated], self.results):
            self._statement(i, p.body[i])
        writes: list[tuple[str, str, Any, str | None]] = []
        for i in stores:
            s = p.body[i]
            assert isinstance(s, Store)
            self.lines.append(f"w{i} = {tasklets.narrow(tasklets.value(self.p, s.args[0]), s.dtype)}")
            name = self.outs[s.operand]
            at = address(s.strides, self.writer.operands[name].offset)
            writes.append((f"w{i}", self.writer.view(name, s.dtype), at, None))
        for i, array in accumulated.items():
            writes.append(self._accumulate(i, array, places))
        self._connect(state, scopes, writes)

    def _accumulate(self, i: int, array: str, places: bool) -> tuple[str, str, Any, str]:
        s = self.p.body[i]
        assert isinstance(s, Reduce)
        kind, value, dtype = s.kind, tasklets.value(self.p, s.args[0]), self.p.body[s.args[0]].dtype
        if places:
            self.reads[f"b{i}"] = (array, outer_place(self.p.outer), False)
            here = f"(({value} == b{i}) or (({value} != {value}) and (b{i} != b{i})))"
            self.lines.append(f"w{i} = dace.int64({self._position()} if {here} else {tasklets.literal(_LAST, 'i64')})")
            return f"w{i}", array + "_at", outer_place(self.p.outer), "lambda x, y: min(x, y)"
        wide = tasklets.accumulator_type(kind, dtype)
        truth = f"({value} != 0)" if kind in ("any", "all") else value
        self.lines.append(f"w{i} = {tasklets.typed(truth, wide)}")
        return f"w{i}", array, outer_place(self.p.outer), tasklets.COMBINE[kind.removeprefix("arg")]

    def _position(self) -> str:
        text = "dace.int64(0)"
        for d in range(len(self.p.outer), len(self.p.dims)):
            text = f"({text} * dace.int64({self.p.dims[d]}) + dace.int64(i{d}))"
        return text

    def _statement(self, i: int, s: Statement) -> None:
        if isinstance(s, Const):
            return
        args = [tasklets.value(self.p, a) for a in s.args]
        if isinstance(s, Reduce):
            array = self.results[i] + ("_at" if s.is_place else "")
            self.reads[f"c{i}"] = (array, outer_place(self.p.outer), False)
            text = tasklets.typed(f"(c{i} != 0)" if s.dtype == "bool" else f"c{i}", s.dtype)
        elif isinstance(s, Index):
            text = tasklets.typed(f"i{s.dim}", "i64")
        elif isinstance(s, Load):
            text = self._load(i, s, args)
        elif isinstance(s, Gather):
            text = self._gather(s, args)
        else:
            text = tasklets.statement(s, args, [self.p.body[a].dtype for a in s.args])
        self.lines.append(f"v{i} = {text}")

    def _load(self, i: int, s: Load, args: Sequence[str]) -> str:
        name, storage = self.ins[s.operand], self.p.inputs[s.operand]
        offset = self.writer.operands[name].offset
        if args:
            return self._guarded(name, storage, args[0], address_text(s.strides, offset), args[1])
        self.reads[f"c{i}"] = (self.writer.view(name, storage), address(s.strides, offset), False)
        return tasklets.widen(f"c{i}", storage)

    def _gather(self, s: Gather, args: Sequence[str]) -> str:
        indices, rest = args[: len(s.extents)], args[len(s.extents) :]
        name = self.ins[s.operand]
        # A bad index cannot be reported from here; nothing outside the tensor is read either way.
        good = [f"(({x} >= 0) and ({x} < {e}))" for x, e in zip(indices, s.extents, strict=True)]
        test = " and ".join([*([rest[0]] if rest else []), *good]) or "True"
        at = " + ".join([address_text(s.strides, self.writer.operands[name].offset),
                         *(f"{x} * dace.int64({t})" for x, t in zip(indices, s.steps, strict=True))])  # fmt: skip
        other = rest[1] if rest else tasklets.literal(0, s.dtype)
        return self._guarded(name, self.p.inputs[s.operand], f"({test})", at, other)

    def _guarded(self, name: str, storage: str, test: str, at: str, other: str) -> str:
        view = self.writer.view(name, storage)
        connector = f"p_{name}"
        if self.writer.sdfg.arrays[view].total_size == 1:  # DaCe makes a scalar of a whole memlet of one element
            self.reads[connector] = (view, address((0,) * len(self.p.dims), 0), False)
            return f"({tasklets.widen(connector, storage)} if {test} else {other})"
        self.reads[connector] = (view, None, True)
        return f"({tasklets.widen(f'{connector}[{at}]', storage)} if {test} else {other})"

    def _connect(self, state: Any, scopes: Sequence[Any], writes: Sequence[tuple[str, str, Any, str | None]]) -> None:
        arrays = self.writer.sdfg.arrays
        ins = {
            c: dace.pointer(arrays[a].dtype) if whole else arrays[a].dtype for c, (a, _, whole) in self.reads.items()
        }
        outs = {c: arrays[a].dtype for c, a, _, _ in writes}
        tasklet = state.add_tasklet(f"compute{self.writer.count}", ins, outs, "\n".join(self.lines))
        entries = [entry for entry, _ in scopes]
        sources: dict[str, Any] = {}
        for connector, (array, at, whole) in self.reads.items():
            if array not in sources:
                sources[array] = self._source(state, array)
            memlet = dace.Memlet.from_array(array, arrays[array]) if whole else element(array, at)
            if whole:
                memlet.dynamic = True
            enter(state, sources[array], entries, tasklet, connector, array, arrays[array], memlet)
        for before, after in zip(entries, [*entries[1:], tasklet], strict=True):
            if not state.edges_between(before, after):
                state.add_nedge(before, after, dace.Memlet())
        exits = [leave for _, leave in reversed(scopes)]
        for connector, array, at, wcr in writes:
            leave_to(state, tasklet, connector, exits, array, at, wcr, self._target)

    def _source(self, state: Any, array: str) -> Any:
        node = state.add_access(array)
        if isinstance(self.writer.sdfg.arrays[array], dace.data.View):
            under = array.removesuffix("_flat")
            memlet = dace.Memlet.from_array(under, self.writer.sdfg.arrays[under])
            state.add_edge(state.add_access(under), None, node, "views", memlet)
        return node

    def _target(self, state: Any, array: str) -> Any:
        node = state.add_access(array)
        if isinstance(self.writer.sdfg.arrays[array], dace.data.View):
            under = array.removesuffix("_flat")
            memlet = dace.Memlet.from_array(under, self.writer.sdfg.arrays[under])
            state.add_edge(node, "views", state.add_access(under), None, memlet)
        return node
