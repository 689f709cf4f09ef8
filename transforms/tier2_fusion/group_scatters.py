"""Scatters of computed rows become a list of the points of every place, made once for all scatters there, and a sum of each list.

    m = f(x); out[i[e], c] += m[e, c]   -->   starts, order = group(i);  out[g, c] = sum of m[e, c], e in order[starts[g] :]

With the points of a place listed, in their order, places are independent: each is summed in one go by one thread and
written once, to the same bits, and what is summed may be computed there (``fuse_segments.py``): messages along edges are
never written. The list costs two sweeps over the indices. Rows that lie in memory are read faster in their own order than
in that of the places, so they stay a scatter, which shares out columns or ranges of places. Saves a write and a read of a row
per point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.network import Network, Operand, contiguous
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Reduce
from dcir.ir.types import compute_type
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.scatter import ScatterSpec, unambiguous
from dcir.ops.library.segments import GroupSpec, SegmentSpec, cheap_to_repeat
from dcir.transforms.base import Pass, PassResult

_MOST = 2**31 - 1
Key = tuple[GroupSpec, tuple[Operand, ...]]


@dataclass
class _Parts:
    """A scatter taken apart: the list, the indices that it is made of, and the fold."""

    group: GroupSpec
    indices: tuple[Operand, ...]
    spec: SegmentSpec


@dataclass(frozen=True)
class GroupScatters(Pass):
    """Group the points of scatters by where they go.

    Attributes:
        min_points: least number of points, columns included, that pay for a list; below it one thread does it in a moment.
        min_columns: least elements of a row that do; shorter rows use a list that is there.
        max_columns: most elements of a row; longer ones are shared out by columns.
        stored: whether to take scatters apart whose rows lie in memory, too.
    """

    tier: ClassVar[int] = 2
    min_points: int = 16384
    min_columns: int = 8
    max_columns: int = 4096
    stored: bool = False

    def apply(self, net: Network) -> PassResult:
        """Visit the scatters, those with long rows that are computed first."""
        outcome = PassResult.of(net)
        lists: dict[Key, tuple[Operand, Operand]] = {}
        small: list[tuple[Op, _Parts, str]] = []
        for op in net.ops():
            if not isinstance(op.spec, ScatterSpec) or op.spec.op == "set":
                continue
            parts = self._parts(op.spec, net.ins(op))
            if isinstance(parts, Refusal):
                outcome.missed(parts, (op,))
            elif pays("few points", parts.spec.points * parts.spec.columns < self.min_points):
                small.append((op, parts, "there are few points"))
            elif parts.spec.columns < self.min_columns:
                small.append((op, parts, "rows are too short to pay for a list of their points"))
            elif not self.stored and not _computed(net, op):
                small.append((op, parts, "rows that lie in memory are read faster in their own order"))
            elif outcome.allowed(self, net, op):
                self._replace(net, op, parts, lists)
                outcome.passed((op,))
        for op, parts, reason in small:
            if (parts.group, parts.indices) in lists and parts.spec.columns < self.min_columns:
                if not outcome.allowed(self, net, op):
                    continue
                self._replace(net, op, parts, lists)
                outcome.passed((op,))
            else:
                outcome.missed(reason, (op,))
        return outcome

    def _parts(self, s: ScatterSpec, ins: Sequence[Operand]) -> _Parts | Refusal:
        """What takes the place of a scatter, or why nothing does."""
        columns = [d for d, to in enumerate(s.to) if to and s.dims[d] > 1]
        points = [d for d, to in enumerate(s.to) if not to or s.dims[d] == 1]
        if s.dtype == "bool":
            return Refusal("truth values are not folded")
        if any(st[d] for st in s.indices for d in columns):
            return Refusal("every column has indices of its own")
        if not unambiguous(s):
            return Refusal("different indices may name one place")
        count, width = math.prod(s.dims[d] for d in points), math.prod(s.dims[d] for d in columns)
        if pays("wide rows", width > self.max_columns):
            return Refusal("rows are long enough to be shared out by columns")
        groups = math.prod(s.extents)
        if not groups:
            return Refusal("there are no places")
        if max(groups, count) >= _MOST:
            return Refusal("there are more points than a list has numbers")
        order = _places(s, columns)
        if order is None:
            return Refusal("it does not reach all of the result")
        base, out = order
        first = 0 if s.base is None else 1
        group = _merged(GroupSpec(
            tuple(s.dims[d] for d in points), tuple(tuple(st[d] for d in points) for st in s.indices),
            s.index_types, s.extents, s.wrap, s.skip,
        ))  # fmt: skip
        compute = compute_type(s.dtype)
        along = _merged_loops([s.dims[d] for d in points], [[s.source[d] for d in points]])
        wide = _merged_loops(
            [s.dims[d] for d in columns],
            [[s.source[d] for d in columns], out[len(s.extents) :], base[len(s.extents) :]],
        )
        body = LoopNestBuilder((*along[0], *wide[0]))
        value = body.load(body.input(s.dtype), (*along[1][0], *wide[1][0]))
        body.store(body.output(compute), contiguous(body.outer), value)
        n = len(s.extents)
        finish = identity_epilogue((*s.extents, *wide[0]), s.dtype, (*out[:n], *wide[1][1]))
        stored = None if s.base is None else (*base[:n], *wide[1][2])
        spec = SegmentSpec(s.op, s.dtype, stored, s.fill, count, groups, body.finish(), finish)
        return _Parts(group, tuple(ins[first + 1 :]), spec)

    def _replace(self, net: Network, op: Op, parts: _Parts, lists: dict[Key, tuple[Operand, Operand]]) -> None:
        key = parts.group, parts.indices
        at = {o: i for i, o in enumerate(net.ops())}
        if key not in lists:
            starts = Operand(net.add_container((parts.group.groups + 1,), "i32"))
            order = Operand(net.add_container((parts.group.points,), "i32"))
            net.add_op(
                parts.group, parts.indices, [starts, order], came_from=(op,), made_by=self.name,
                before=_earliest(net, op, parts.indices, at),
            )  # fmt: skip
            lists[key] = starts, order
        ins = net.ins(op)
        values = ins[: 1 if parts.spec.base is None else 2]
        net.rewire(op, parts.spec, [*lists[key], *values], net.outs(op), made_by=self.name)


def _computed(net: Network, op: Op) -> bool:
    """Whether the source may be computed where it is summed: by a pointwise program; if others need it too, by one that reads little."""
    data = net.ins(op)[0 if op.known(ScatterSpec).base is None else 1].data
    writers = net.writers(data)
    if len(writers) != 1 or not isinstance(writers[0].spec, LoopNest):
        return False
    p = writers[0].spec
    if p.inner or len(p.outputs) != 1 or any(isinstance(s, Reduce) for s in p.body):
        return False
    if net.readers(data) == [op] and data not in net.result_containers():
        return True
    reads, writes = p.footprint()
    return cheap_to_repeat(p) and pays("reads little", 2 * sum(reads) <= sum(writes))


def _earliest(net: Network, op: Op, indices: Sequence[Operand], at: dict[Op, int]) -> Op:
    """The operator before which indices are known: other scatters, which may come first, want the list too."""
    made = [at[w] for o in indices for w in net.writers(o.data)]
    return net.ops()[max(made) + 1] if made else net.ops()[0]


def _places(s: ScatterSpec, columns: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """Strides of base and result over (indices, columns), if these walk all of the result, dimension by dimension."""
    walks = [*zip(s.index_steps, s.extents, strict=True), *((s.to[d], s.dims[d]) for d in columns)]
    base, out, left = [0] * len(walks), [0] * len(walks), {i for i, (_, n) in enumerate(walks) if n > 1}
    for d, n in enumerate(s.shape):
        if n == 1:
            continue
        found = next((i for i in sorted(left) if walks[i] == (s.out[d], n)), None)
        if found is None:
            return None
        left.remove(found)
        out[found], base[found] = s.out[d], 0 if s.base is None else s.base[d]
    return None if left else (base, out)


def _merged(group: GroupSpec) -> GroupSpec:
    """The same points in as few loops as their indices can be walked by, so that equal lists have equal specs."""
    dims, strides = _merged_loops(group.dims, group.indices)
    return replace(group, dims=tuple(dims), indices=tuple(map(tuple, strides)))


def _merged_loops(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Loops of extent 1 left out, and neighbours as one where all strides walk them as one."""
    kept: list[int] = []
    walks: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(dims):
        if n == 1:
            continue
        if kept and all(w[-1] == st[d] * n for w, st in zip(walks, strides, strict=True)):
            kept[-1] *= n
            for w, st in zip(walks, strides, strict=True):
                w[-1] = st[d]
        else:
            kept.append(n)
            for w, st in zip(walks, strides, strict=True):
                w.append(st[d])
    return kept, walks
