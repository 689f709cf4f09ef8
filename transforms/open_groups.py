"""Loop nests of a network in groups that can be opened as maps by themselves, and put back changed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dace
import numpy as np

from dcir.errors import IndexOutOfRange, Unsupported
from dcir.ir.dace.nodes import Op
from dcir.ir.dace.open_maps import MapsWriter
from dcir.ir.dace.read_maps import Piece, read_sdfg
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_normal import computes, normal
from dcir.ir.network import Network, Operand
from dcir.ir.refusal import Refusal
from dcir.ir.touched import touched
from dcir.ir.types import HALVES, is_float, to_numpy
from dcir.ir.updates import settle

MOST = 48
"""Operators of a group: DaCe's searches take a time that grows faster than what they search."""
CHECKED_POINTS = 1 << 23
"""Points of loops that a group may have to be run with NumPy before and after."""


class Step(NamedTuple):
    """A loop nest at its operands."""

    nest: LoopNest
    ins: tuple[Operand, ...]
    outs: tuple[Operand, ...]


class OpenGroup:
    """Some operators of a network as maps in an SDFG of their own.

    Attributes:
        ops: the operators.
        sdfg: their maps; labels of maps are labels of operators.
    """

    def __init__(self, net: Network, ops: Sequence[Op]) -> None:
        self.net, self.ops = net, list(ops)
        members = set(ops)
        names = list(dict.fromkeys(o.data for op in ops for o in (*net.ins(op), *net.outs(op))))
        shown = net.result_containers()
        self.inside = [
            n for n in names
            if net.containers[n].role == "transient" and n not in shown and n not in net.updates
            and members.issuperset(net.writers(n)) and members.issuperset(net.readers(n)) and net.writers(n)
        ]  # fmt: skip
        self.sdfg = dace.SDFG("group")
        writer = MapsWriter(self.sdfg, self.sdfg.add_state("run", is_start_block=True), net.containers)
        writer.declare(names, self.inside)
        self.nests: dict[Op, LoopNest] = {}
        for op in ops:
            nest = writer.opened(op.spec, net.ins(op), net.outs(op))
            assert isinstance(nest, LoopNest), "groups have operators that can be opened"
            self.nests[op] = nest
            writer.nest(op.label, nest, net.ins(op), net.outs(op))
        self.types = {n: net.containers[n].dtype for n in names}
        dace.sdfg.propagation.propagate_memlets_sdfg(self.sdfg)

    def pieces(self, sdfg: Any) -> list[Piece]:
        """The loop nests of a changed SDFG.

        Raises:
            Unsupported: it has no form in loop nests, or writes what single assignment does not allow.
        """
        found = read_sdfg(sdfg, self.types)
        for name in {o.data for p in found for o in p.outs}:
            _check_assignment(
                name, found, name in self.types and self.net.containers[name].role in ("input", "constant")
            )
        return found

    def differs(self, found: Sequence[Piece], sdfg: Any) -> Refusal | None:
        """Why what was found does not compute the same, with numbers drawn at random; None if it does, or is too large to try."""
        old = [Step(op.known(LoopNest), tuple(self.net.ins(op)), tuple(self.net.outs(op))) for op in self.ops]
        new = [Step(_nest(p), p.ins, p.outs) for p in found]
        if sum(s.nest.points() for s in (*old, *new)) > CHECKED_POINTS:
            return None
        for most in (2, 1):  # integers below it may be indices
            rng = np.random.default_rng(0)
            given = {n: _drawn(rng, c.size, c.dtype, most) for n, c in self.net.containers.items() if n in self.types}
            try:
                want = self._run(old, given, sdfg)
            except IndexOutOfRange:
                continue
            got = self._run(new, given, sdfg)
            for name in self.types:
                if name not in self.inside and not _close(got[name], want[name], self.types[name]):
                    return Refusal("other numbers than before")
            return None
        return Refusal("random numbers are no indices of its tensors, so that nothing shows it computes the same")

    def _run(self, steps: Sequence[Step], given: Mapping[str, Any], sdfg: Any) -> dict[str, Any]:
        store = {n: a.copy() for n, a in given.items()}
        for s in steps:
            for o, dtype in (*zip(s.ins, s.nest.inputs, strict=True), *zip(s.outs, s.nest.outputs, strict=True)):
                if o.data not in store:
                    store[o.data] = np.zeros(int(sdfg.arrays[o.data].total_size), to_numpy(dtype))
            with np.errstate(all="ignore"):
                s.nest.reference_at(
                    [store[o.data] for o in s.ins], [store[o.data] for o in s.outs],
                    [o.offset for o in s.ins], [o.offset for o in s.outs],
                )  # fmt: skip
        return store

    def put_back(self, sdfg: Any, found: Sequence[Piece], made_by: str) -> int:
        """Replace what has changed in the network; how many operators are new."""
        net = self.net
        known: dict[object, int] = {}
        kept: dict[object, list[Op]] = {}
        for op in self.ops:
            nest, ins, outs = normal(self.nests[op], net.ins(op), net.outs(op))
            kept.setdefault((computes(nest, known), ins, outs), []).append(op)
        new: list[Piece] = []
        for p in found:
            key = (computes(_nest(p), known), p.ins, p.outs)
            if kept.get(key):
                kept[key].pop()
            else:
                new.append(p)
        known_as = {op.label: op for op in self.ops}
        names: dict[str, str] = {}
        for p in new:
            for o, dtype in (*zip(p.ins, _nest(p).inputs, strict=True), *zip(p.outs, _nest(p).outputs, strict=True)):
                if o.data not in self.types and o.data not in names:
                    desc = sdfg.arrays[o.data]
                    names[o.data] = net.add_container(
                        tuple(map(int, desc.shape)), dtype, strides=tuple(map(int, desc.strides))
                    )
        old = [op for ops in kept.values() for op in ops]
        made: list[Op] = []
        for p in new:
            reads, writes = ([o._replace(data=names.get(o.data, o.data)) for o in side] for side in (p.ins, p.outs))
            came_from = [known_as[p.label]] if p.label in known_as else old
            made.append(net.add_op(_nest(p), reads, writes, came_from=came_from, made_by=made_by))
        for op in old:
            # Who writes what it wrote; of what is stored no longer, nobody knows who computes it.
            stored = {o.data for o in net.outs(op)}
            net.remove_op(op, into=[m for m in made if stored.intersection(o.data for o in net.outs(m))] or made)
        for name in self.inside:
            if not net.writers(name) and not net.readers(name):
                net.remove_container(name)
        settle(net)
        return len(new)


def _nest(p: Piece) -> LoopNest:
    if p.nest is None:
        raise Unsupported.collect([("a library node of DaCe as a loop nest", p.label)])
    return p.nest


def groups(net: Network, wanted: Callable[[Op], bool], refused: Callable[[Refusal], None]) -> list[list[Op]]:
    """Loop nests that are wanted and can be opened, in groups none of which waits for something outside that waits for it."""
    writer = MapsWriter(dace.SDFG("probe"), None, net.containers)
    fit: set[Op] = set()
    for op in net.ops():
        if isinstance(op.spec, LoopNest) and wanted(op):
            nest = writer.opened(op.spec, net.ins(op), net.outs(op))
            if isinstance(nest, Refusal):
                refused(nest)
            else:
                fit.add(op)
    found: list[list[Op]] = [[]]
    for op in _gathered(net, fit):
        if found[-1] and (op not in fit or len(found[-1]) == MOST):
            found.append([])
        if op in fit:
            found[-1].append(op)
    return [g for g in found if g]


def _gathered(net: Network, fit: set[Op]) -> list[Op]:
    """A topological order in which operators that fit follow each other where they can."""
    ops = net.ops()
    position = {op: i for i, op in enumerate(ops)}
    waits = dict.fromkeys(ops, 0)
    followers: dict[Op, list[Op]] = {op: [] for op in ops}
    for name in net.containers:
        readers = net.readers(name)
        for w in net.writers(name):
            for r in readers:
                if r is not w:
                    followers[w].append(r)
                    waits[r] += 1
    ready: tuple[list[int], list[int]] = ([], [])
    for op in ops:
        if not waits[op]:
            heapq.heappush(ready[op not in fit], position[op])
    order: list[Op] = []
    while ready[0] or ready[1]:
        op = ops[heapq.heappop(ready[0] or ready[1])]
        order.append(op)
        for f in followers[op]:
            waits[f] -= 1
            if not waits[f]:
                heapq.heappush(ready[f not in fit], position[f])
    return order


def _check_assignment(name: str, found: Sequence[Piece], given: bool) -> None:
    """Everybody who writes an array has written it, in parts that do not meet, when the first one reads it."""
    writers = [(i, k) for i, p in enumerate(found) for k, o in enumerate(p.outs) if o.data == name]
    readers = [i for i, p in enumerate(found) if any(o.data == name for o in p.ins)]
    why = ""
    if given:
        why = "an input of the network that is written"
    elif readers and min(readers) <= max(i for i, _ in writers):
        why = "an array that is written again after it is read"
    elif len(writers) > 1:
        sets = []
        for i, k in writers:
            piece = found[i]
            elements = touched(_nest(piece))[1][k]
            sets.append(None if elements is None or not elements.exact else elements.listed() + piece.outs[k].offset)
        known = [s for s in sets if s is not None]
        if len(known) < len(sets) or len(np.unique(np.concatenate(known))) != sum(map(len, known)):
            why = "an array that is written twice"
    if why:
        raise Unsupported.collect([(f"{why} as single assignment", name)])


def _drawn(rng: Any, size: int, dtype: str, most: int) -> Any:
    if dtype in HALVES or is_float(dtype):
        numbers = rng.standard_normal(size).astype(np.float32)
        if dtype == "bf16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return numbers.astype(to_numpy(dtype))
    return rng.integers(0, most, size).astype(to_numpy(dtype))


def _close(got: Any, want: Any, dtype: str) -> bool:
    if dtype == "bf16":
        got, want = ((a.astype(np.uint32) << 16).view(np.float32) for a in (got, want))
    if not is_float(dtype):
        return bool((got == want).all())
    limit = {"f64": 1e-10, "f32": 1e-4}.get(dtype, 2e-2)
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-30))
    return bool(np.allclose(got, want, rtol=limit, atol=limit * scale, equal_nan=True))
