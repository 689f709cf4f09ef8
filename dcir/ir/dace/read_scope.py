"""One scope of maps and tasklets read as one loop nest."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import dace
import sympy
from dace.sdfg import nodes

from dcir.ir.dace.combining import OPERATORS, is_identity, reduction
from dcir.ir.dace.read_tasklet import TaskletReader
from dcir.ir.dace.scope_arrays import Alias, LocalValue, standing
from dcir.ir.dace.scope_loops import Frame, Loop, Point, ScopeLoops, over_loops, stride_pairs
from dcir.ir.dace.tasklet_values import Affine, Bounds, Known, StatementList, Value, affine_value
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_normal import normal
from dcir.ir.network import Operand
from dcir.ir.statements import Cast, Const, Gather, Load, Reduce, Store
from dcir.ir.types import TYPES, compute_type

_TYPES = {getattr(dace, t.dace): n for n, t in TYPES.items() if t.words != "none" and n not in ("bf16", "f8e4m3fn")}


class ScopeReader(ScopeLoops):
    """Reads a scope at the top of a state, or a tasklet there, or a copy."""

    def __init__(self, sdfg: Any, state: Any, types: Mapping[str, str]) -> None:
        super().__init__(sdfg)
        self.state, self.types = state, types
        self.body = StatementList()
        self._inside: set[Any] = set()
        self._frames: dict[Any, Frame] = {None: Frame()}
        self._local: dict[str, list[LocalValue | Alias]] = {}
        self._carried: dict[Any, Known] = {}
        self._ins: dict[tuple[str, int], int] = {}
        self._outs: dict[tuple[str, int], int] = {}
        self._stores: list[tuple[str, dict[int, int], int, int, str]] = []
        self._leaves: list[tuple[Loop, ...]] = []
        self._reduced: list[tuple[Loop, ...]] = []

    # ------------------------------------------------------------------ walking
    def read(self, top: Any, children: Mapping[Any, Sequence[Any]], order: Mapping[Any, int]) -> None:
        """Read all that is in the scope of ``top``.

        Raises:
            Unsupported: what no loop nest says.
        """
        self.where = top.label
        if isinstance(top, nodes.Tasklet):
            self._tasklet(top, self._frames[None])
            return
        self._inside = {top, *self._under(top, children)}
        self._scope(top, None, children, order)

    def _under(self, entry: Any, children: Mapping[Any, Sequence[Any]]) -> list[Any]:
        found = list(children[entry])
        for n in children[entry]:
            if isinstance(n, nodes.EntryNode):
                found += self._under(n, children)
        return found

    def _scope(self, entry: Any, outside: Any, children: Mapping[Any, Sequence[Any]], order: Mapping[Any, int]) -> None:
        frame = self._frames[entry] = self.enter(entry, self._frames[outside])
        for node in sorted(children[entry], key=order.__getitem__):
            if isinstance(node, nodes.MapEntry):
                self._scope(node, entry, children, order)
            elif isinstance(node, nodes.Tasklet):
                self._tasklet(node, frame)
            elif isinstance(node, nodes.AccessNode):
                self._arrive(node, frame)
            elif not isinstance(node, nodes.MapExit):
                raise self.refuse(f"a {type(node).__name__} in a map as part of a loop nest")

    # ------------------------------------------------------------------ places
    def _under_view(self, node: Any) -> str:
        name: str = node.data
        if isinstance(self.sdfg.arrays[name], dace.data.View):
            raise self.refuse("a view of an array")
        return name

    # ------------------------------------------------------------------ reads
    def _storage(self, name: str) -> str:
        if name in self.types:
            return self.types[name]
        found = _TYPES.get(self.sdfg.arrays[name].dtype)
        if found is None:
            raise self.refuse(f"elements of type {self.sdfg.arrays[name].dtype} in a loop nest")
        return found

    def _is_local(self, node: Any) -> bool:
        """Whether an access node stands inside of the scope."""
        return node in self._inside

    def _load(self, name: str, point: Point) -> Value:
        steps, offset = self.address(name, point)
        operand = self._ins.setdefault((name, offset), len(self._ins))
        # Strides over all loops come when they are all known.
        return self.body.add(Load(operand, stride_pairs(steps), compute_type(self._storage(name))))

    def _read(self, name: str, point: Point, local: bool) -> Known:
        if not local:
            return self._load(name, point)
        found = standing(self._local.get(name, []), point)
        if isinstance(found, LocalValue):
            return found.value
        if found is not None:
            return self._load(*found)
        raise self.refuse(f"a value of {name} that is read in another place than it is written")

    def _incoming(self, node: Any, frame: Frame) -> tuple[dict[str, Known | Affine], dict[str, Any]]:
        names: dict[str, Known | Affine] = {}
        pointers: dict[str, Any] = {}
        for param, x in frame.meaning.items():
            found = self.affine(x)
            if found is not None:
                names[param] = found
        for name, constant in self.sdfg.constants.items():
            if getattr(constant, "ndim", 0) == 0:
                names[name] = getattr(constant, "item", lambda c=constant: c)()
        for e in self.state.in_edges(node):
            if e.data.is_empty():
                continue
            source = self.state.memlet_path(e)[0].src
            if isinstance(source, nodes.Tasklet):
                names[e.dst_conn] = self._carried[source, self.state.memlet_path(e)[0].src_conn]
                continue
            if not isinstance(source, nodes.AccessNode):
                raise self.refuse(f"what comes from a {type(source).__name__}")
            name = self._under_view(source)
            if e.data.data != name:
                raise self.refuse("a memlet that names its target")
            if not e.data.dynamic and e.data.subset.num_elements() == 1 and e.data.num_accesses == 1:
                names[e.dst_conn] = self._read(name, self.point(e.data.subset, frame), self._is_local(source))
            elif self._is_local(source):
                raise self.refuse(f"many elements of {name}, which is a value of the nest")
            else:
                pointers[e.dst_conn] = self._pointer(name, self.point(e.data.subset, frame), e.data.subset.size())
                if e.data.subset.num_elements() == 1:  # a guarded element
                    names[e.dst_conn] = self._read(name, self.point(e.data.subset, frame), False)
        return names, pointers

    def _pointer(self, name: str, first: Point, size: Sequence[Any]) -> Any:
        """Reads elements of a part of an array by their place behind its first; dimensions of extent 1 may be left out."""
        desc = self.sdfg.arrays[name]

        def read(at: Sequence[Affine], mask: Value | None, other: Known, bounds: Bounds) -> Value:
            storage = self._storage(name)
            dtype = compute_type(storage)
            point = list(first)
            if at and len(at) != len(point):
                wide = [k for k, n in enumerate(size) if n != 1]
                if len(at) != len(wide):
                    raise self.refuse(f"{len(at)} indices of {name}")
                given = dict(zip(wide, at, strict=True))
                at = [given.get(k, Affine(0)) for k in range(len(point))]
            at = at or [Affine(0)] * len(point)
            indices: list[int] = []
            extents: list[int] = []
            index_steps: list[int] = []
            checked = False
            for k, a in enumerate(at):
                point[k] += a.constant + sum(self.symbols[d] * s for d, s in a.loops)
                for n, s in a.values:
                    extent, error = bounds.get(n, (int(desc.shape[k]), True))
                    checked = checked or error
                    step = s * int(desc.strides[k])
                    if n in indices:
                        index_steps[indices.index(n)] += step
                    else:
                        indices.append(n)
                        extents.append(extent)
                        index_steps.append(step)
            steps, offset = self.address(name, tuple(point))
            operand = self._ins.setdefault((name, offset), len(self._ins))
            guard = () if mask is None else (mask.n, self.body.typed(other, dtype).n)
            if indices:
                if mask is None and not self._is_zero(other):
                    raise self.refuse(f"another value than 0 outside of {name}")
                return self.body.add(
                    Gather(
                        operand,
                        stride_pairs(steps),
                        tuple(extents),
                        tuple(index_steps),
                        checked,
                        dtype,
                        (*indices, *guard),
                    )
                )
            return self.body.add(Load(operand, stride_pairs(steps), dtype, guard))

        return read

    def _is_zero(self, x: Known) -> bool:
        if isinstance(x, Value):
            s = self.body.statements[x.n]
            return isinstance(s, Const) and s.value == 0
        return x == 0

    # ------------------------------------------------------------------ tasklets
    def _tasklet(self, node: Any, frame: Frame) -> None:
        if node.language != dace.Language.Python:
            raise self.refuse(f"a tasklet in {node.language.name} as scalar statements")
        names, pointers = self._incoming(node, frame)
        code = node.code.code if isinstance(node.code.code, list) else ast.parse(str(node.code.code)).body
        known = TaskletReader(self.body, names, pointers, node.label).run(code)
        for e in self.state.out_edges(node):
            if e.data.is_empty():
                continue
            found = known.get(e.src_conn)
            if found is None:
                raise self.refuse(f"the connector {e.src_conn}, which nothing is assigned to")
            value = affine_value(self.body, found) if isinstance(found, Affine) else found
            if isinstance(e.dst, nodes.Tasklet):
                self._carried[node, e.src_conn] = value
                continue
            self._leave(e, value, frame)

    def _leave(self, edge: Any, value: Known, frame: Frame) -> None:
        """A value that goes along an edge to an array."""
        target = self.state.memlet_path(edge)[-1].dst
        if not isinstance(target, nodes.AccessNode):
            raise self.refuse(f"what goes to a {type(target).__name__}")
        name = self._under_view(target)
        subset = edge.data.subset if edge.data.data == name else edge.data.other_subset
        if subset is None:
            subset = edge.data.get_dst_subset(edge, self.state)
        if subset is None or subset.num_elements() != 1:
            raise self.refuse(f"more than one element of {name} from one tasklet")
        point = self.point(subset, frame)
        if edge.data.wcr is not None:
            value = self._reduce(edge, name, point, value, target, frame)
        if self._is_local(target):
            if self._local_type(name, value) is not None:
                value = self._local_type(name, value)
            self._local.setdefault(name, []).append(LocalValue(point, value, frame.loops))
        else:
            self._store(name, point, value, frame)

    def _local_type(self, name: str, value: Known) -> Value:
        """What an array of the scope makes of a value that is written to it."""
        if isinstance(value, Value) and value.bits:
            return value
        dtype = _TYPES.get(self.sdfg.arrays[name].dtype)
        if dtype is None:
            raise self.refuse(f"elements of type {self.sdfg.arrays[name].dtype} in a loop nest")
        if dtype == "u16" and isinstance(value, Value) and value.dtype == "f32":
            return value
        return self.body.typed(value, compute_type(dtype))

    def _store(self, name: str, point: Point, value: Known, frame: Frame) -> None:
        steps, offset = self.address(name, point)
        storage = self._storage(name)
        if isinstance(value, Value) and value.bits:
            if value.bits != storage:
                raise self.refuse(f"bits of {value.bits} in an array of {storage}")
            n = value.n
        else:
            n = self.body.typed(value, compute_type(storage)).n
        self._outs.setdefault((name, offset), len(self._outs))
        self._stores.append((name, steps, offset, n, storage))
        self._leaves.append(frame.loops)

    def _reduce(self, edge: Any, name: str, point: Point, value: Known, target: Any, frame: Frame) -> Value:
        kind = reduction(edge.data.wcr)
        if kind is None:
            raise self.refuse(f"a reduction by {edge.data.wcr}")
        around = self._frames[self.state.entry_node(target)].loops if self._is_local(target) else ()
        moving = {s for p in point for s in p.free_symbols}
        inner = tuple(x for x in frame.loops if x not in around and self.symbols[x.number] not in moving)
        dtype = compute_type(self._storage(name))
        x = self.body.typed(value, dtype)
        if inner:
            self._reduced.append(inner)
            self._leaves.append(frame.loops)
            x = self.body.add(Reduce(kind, dtype, (x.n,)))
        before = self._before(name, point, target)
        if before is None or self._begins(before, kind, dtype):
            return x
        return self.body.compute(OPERATORS[kind], (before, x), "bool" if kind in ("any", "all") else dtype)

    def _before(self, name: str, point: Point, target: Any) -> Known | None:
        """What an accumulator holds before."""
        if self._is_local(target):
            return self._read(name, point, True)
        return self._load(name, point)

    def _begins(self, x: Known, kind: str, dtype: str) -> bool:
        """Whether a value is what a reduction begins with anyway."""
        if not isinstance(x, Value):
            return is_identity(x, kind, dtype)
        s = self.body.statements[x.n]
        while isinstance(s, Cast):
            s = self.body.statements[s.args[0]]
        return isinstance(s, Const) and is_identity(s.value, kind, dtype)

    # ------------------------------------------------------------------ arrays of the scope
    def _arrive(self, node: Any, frame: Frame) -> None:
        """What copies bring to an array of the scope, and take from it."""
        for e in self.state.in_edges(node):
            source = self.state.memlet_path(e)[0].src
            if e.data.is_empty() or isinstance(source, nodes.Tasklet):
                continue
            self._alias(e, source, node, frame)
        for e in self.state.out_edges(node):
            if e.data.is_empty() or not isinstance(e.dst, nodes.MapExit):
                continue
            target = self.state.memlet_path(e)[-1].dst
            self._copied(e, node, target, frame)

    def _alias(self, edge: Any, source: Any, node: Any, frame: Frame) -> None:
        src = edge.data.get_src_subset(edge, self.state) or edge.data.subset
        dst = edge.data.get_dst_subset(edge, self.state)
        if edge.data.data == source.data:
            src, dst = edge.data.subset, edge.data.other_subset
        else:
            src, dst = edge.data.other_subset, edge.data.subset
        zero = tuple(sympy.Integer(0) for _ in self.sdfg.arrays[node.data].shape)
        start = (
            self.point(src, frame)
            if src is not None
            else tuple(sympy.Integer(0) for _ in self.sdfg.arrays[source.data].shape)
        )
        first = self.point(dst, frame) if dst is not None else zero
        if self._is_local(source):
            if not all(isinstance(x, LocalValue) for x in self._local.get(source.data, [])):
                raise self.refuse("a copy of a copy")
            self._local.setdefault(node.data, []).append(
                LocalValue(first, self._read(source.data, start, True), frame.loops)
            )
            return
        count = (src if src is not None else dst).num_elements()
        if count == 1:
            self._local.setdefault(node.data, []).append(LocalValue(first, self._load(source.data, start), frame.loops))
        else:
            self._local.setdefault(node.data, []).append(Alias(first, source.data, start))

    def _copied(self, edge: Any, node: Any, target: Any, frame: Frame) -> None:
        """An array of the scope that goes out."""
        if edge.data.data == node.data:
            src, dst = edge.data.subset, edge.data.other_subset
        else:
            src, dst = edge.data.other_subset, edge.data.subset
        name = self._under_view(target)
        count = (dst if dst is not None else src).num_elements()
        if count != 1 or dst is None or edge.data.wcr is not None:
            raise self.refuse(f"a block of {name} that is copied from near memory")
        zero = tuple(sympy.Integer(0) for _ in self.sdfg.arrays[node.data].shape)
        value = self._read(node.data, self.point(src, frame) if src is not None else zero, True)
        point = self.point(dst, frame)
        if self._is_local(target):
            self._local.setdefault(name, []).append(LocalValue(point, value, frame.loops))
        else:
            self._store(name, point, value, frame)

    # ------------------------------------------------------------------ the nest
    def finish(self) -> tuple[LoopNest, tuple[Operand, ...], tuple[Operand, ...]]:
        """The nest and its operands.

        Raises:
            Unsupported: loops that are not two levels.
        """
        reduced = {tuple(x for x in loops) for loops in self._reduced}
        if len(reduced) > 1:
            raise self.refuse("reductions over different loops")
        inner = reduced.pop() if reduced else ()
        outer: list[Loop] = []
        for loops in self._leaves:
            outer += [x for x in loops if x not in outer and x not in inner]
        for loops in self._leaves:
            if [x for x in outer if x not in loops]:
                raise self.refuse("maps of different extents in one scope")
        order = [*outer, *inner]
        body = [over_loops(s, order) for s in self.body.statements]
        for name, steps, offset, n, storage in self._stores:
            strides = tuple(steps.get(x.number, 0) for x in order)
            body.append(Store(self._outs[name, offset], strides, storage, (n,)))
        nest = LoopNest(
            tuple(x.extent for x in outer), tuple(x.extent for x in inner),
            tuple(self._storage(name) for name, _ in self._ins), tuple(self._storage(name) for name, _ in self._outs),
            tuple(body),
        )  # fmt: skip
        return normal(nest, [Operand(*o) for o in self._ins], [Operand(*o) for o in self._outs])
