"""Holds the memlets of a network against what its loop nests touch when they run: subsets, volumes, and what is said to be exact.

Only what addresses and masks depend on is run, on the numbers of a call; the algebra of ``touched.py`` has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dcir.errors import InvalidGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Container, Network, Operand
from dcir.ir.operator import Operator, Step
from dcir.ir.run_nest import Array, run_program
from dcir.ir.scalars import reference
from dcir.ir.statements import Access, Const, Gather, Index, Load, Read, Reduce, Statement, Store
from dcir.ir.types import itemsize, to_numpy


class Counted(NamedTuple):
    """Bytes of all operands: by the edges, and as counted; those of operators without loop nests in neither."""

    by_edges: int
    counted: int


def verify_memlets(net: Network, store: Mapping[str, Array]) -> Counted:
    """Check every edge of an operator that loop nests say.

    Args:
        net: the network.
        store: the elements of all containers after a run (``interpret``).

    Raises:
        InvalidGraph: an element is touched outside of the subset, or the volume is another than that of the distinct elements touched;
            of a dynamic memlet, less.
    """
    by_edges = counted = 0
    for op in net.ops():
        marks = touched_by_running(op.spec, net.ins(op), net.outs(op), store)
        if marks is None:
            continue
        for e, data, mark in _edges(net, op, marks):
            c = net.containers[data]
            by_edges += int(e.data.volume) * itemsize(c.dtype)
            counted += int(np.count_nonzero(mark)) * itemsize(c.dtype)
            if fault := _fault(e.data, c, mark):
                details = [("memlet", str(e.data)), ("volume", str(e.data.volume)), ("container", str(c))]
                raise InvalidGraph(f"{op.label}, {op.spec.describe()}: {fault}", details=details)
    return Counted(by_edges, counted)


def touched_by_running(
    spec: Operator, ins: Sequence[Operand], outs: Sequence[Operand], store: Mapping[str, Array]
) -> tuple[list[Array], list[Array]] | None:
    """Per input and output, which elements of its container are touched; None where no loop nests say it."""
    steps = spec.steps()
    if steps is None:
        return None
    temporaries, rows = steps
    buffers = {name: np.zeros(max(size, 1), to_numpy(dtype)) for name, dtype, size in temporaries}
    starts = dict.fromkeys(buffers, 0)
    for letter, operands in (("a", ins), ("o", outs)):
        for i, o in enumerate(operands):
            buffers[f"{letter}{i}"], starts[f"{letter}{i}"] = store[o.data], o.offset
    marks = {name: np.zeros(len(buffer), bool) for name, buffer in buffers.items()}
    for step in rows:
        _run(step, buffers, starts, marks)
    return [marks[f"a{i}"] for i in range(len(ins))], [marks[f"o{i}"] for i in range(len(outs))]


class Counting(NamedTuple):
    """What counting takes: points of loops that are run, and whether the addresses of any depend on data."""

    points: int
    of_data: bool


def counting_takes(spec: Operator) -> Counting | None:
    """What ``touched_by_running`` would do for one operator; None where no loop nests say what it touches."""
    steps = spec.steps()
    if steps is None:
        return None
    points, of_data = 0, False
    for nest, _, _ in steps[1]:
        assert isinstance(nest, LoopNest)
        for one in _one_by_one(_addresses_of(nest)):
            points += one.points()
            # Besides the access itself there are only loads that its address or its mask is computed from.
            of_data |= sum(isinstance(s, Access) for s in one.body) > 1
    return Counting(points, of_data)


def _run(step: Step, buffers: Mapping[str, Array], starts: Mapping[str, int], marks: Mapping[str, Array]) -> None:
    nest, ins, outs = step
    assert isinstance(nest, LoopNest)

    def seen(s: Access, at: Array, where: Array) -> None:
        name = (ins if isinstance(s, Read) else outs)[s.operand]
        if name[0] == "o" and isinstance(s, Read):
            return  # a result of a step before
        if where.ndim:
            at, where = np.broadcast_arrays(at, where)
            at = at[where]
        if where.any():
            marks[name][at] = True

    scratch = [np.array(buffers[name]) for name in outs]
    sources, first = [buffers[name] for name in ins], ([starts[name] for name in ins], [starts[name] for name in outs])
    with np.errstate(all="ignore"):
        for one in _one_by_one(_addresses_of(nest)):
            run_program(one, sources, scratch, reference, *first, seen)


def _one_by_one(nest: LoopNest) -> Iterator[LoopNest]:
    """For each access a nest of the loops that it depends on: fewer points than all loops have."""
    for access in dict.fromkeys(s for s in nest.body if isinstance(s, Access)):
        alone = simplify(nest, lambda s, this=access: s == this)  # type: ignore[misc]
        used = {s.dim for s in alone.body if isinstance(s, Index)}
        used |= {d for s in alone.body if isinstance(s, Access) for d, t in enumerate(s.strides) if t}
        if any(isinstance(s, Reduce) for s in alone.body):
            used |= set(range(len(nest.outer), len(nest.dims)))
        dims = [n if d in used else min(n, 1) for d, n in enumerate(nest.dims)]
        cut = len(nest.outer)
        yield replace(alone, outer=tuple(dims[:cut]), inner=tuple(dims[cut:]))


def _addresses_of(nest: LoopNest) -> LoopNest:
    """A nest with the same accesses, which computes nothing but their addresses and masks."""
    body: list[Statement] = [Const(0, "i64")]
    where: dict[int, int] = {}
    for i, s in enumerate(nest.body):
        if isinstance(s, Store):
            body.append(s.with_args((0,)))
        elif isinstance(s, Load) and s.guard:
            body.append(s.with_args((where[s.args[0]], _zero(body, s.dtype))))
        elif isinstance(s, Gather) and s.guard:
            indices = tuple(where[a] for a in s.indices)
            body.append(s.with_args((*indices, where[s.guard[0]], _zero(body, s.dtype))))
        else:
            body.append(s.renumbered(where))
        where[i] = len(body) - 1
    return simplify(replace(nest, body=tuple(body)), lambda s: isinstance(s, Access))


def _zero(body: list[Statement], dtype: str) -> int:
    body.append(Const(0, dtype))
    return len(body) - 1


def _edges(net: Network, op: Op, marks: tuple[list[Array], list[Array]]) -> Iterator[tuple[Any, str, Array]]:
    for e in net.state.in_edges(op):
        yield e, e.data.data, marks[0][int(e.dst_conn[1:])]
    for e in net.state.out_edges(op):
        yield e, e.data.data, marks[1][int(e.src_conn[1:])]


def _fault(memlet: Any, c: Container, mark: Array) -> str:
    """What a memlet says wrongly, "" for nothing."""
    size, volume = int(np.count_nonzero(mark)), int(memlet.volume)
    if outside := int(np.count_nonzero(mark & ~_inside(memlet.subset, c))):
        return f"{outside} elements are touched outside of the subset"
    if volume < size or (volume > size and not memlet.dynamic):
        return f"{size} distinct elements are touched"
    return ""


def _inside(subset: Any, c: Container) -> Array:
    """For each element of a container whether a subset names it."""
    inside: Array = np.zeros(c.size, bool)
    if c.size:
        view = np.lib.stride_tricks.as_strided(inside, c.shape, c.strides)
        view[tuple(slice(int(a), int(b) + 1, int(step)) for a, b, step in subset.ranges) if c.shape else ()] = True
    return inside
