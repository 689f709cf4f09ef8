"""Nodes of DaCe that stand for a loop nest by themselves: copies between arrays, and reductions."""

from __future__ import annotations

from typing import Any

import dace

from dcir.ir.dace.combining import OPERATORS, reduction
from dcir.ir.dace.read_scope import ScopeReader
from dcir.ir.dace.scope_loops import Frame
from dcir.ir.statements import Reduce


class NodeReader(ScopeReader):
    """Reads one such node, or edge; ``finish`` gives its nest."""

    def copy(self, edge: Any) -> None:
        """A copy between arrays at the top of the state."""
        self.where = edge.dst.data
        src = edge.data.get_src_subset(edge, self.state) or edge.data.subset
        dst = edge.data.get_dst_subset(edge, self.state) or dace.subsets.Range.from_array(
            self.sdfg.arrays[edge.dst.data]
        )
        wide = [[k for k, n in enumerate(s.size()) if n != 1] for s in (src, dst)]
        sizes = [[int(s.size()[k]) for k in w] for s, w in zip((src, dst), wide, strict=True)]
        if sizes[0] != sizes[1] or edge.data.wcr is not None:
            raise self.refuse("a copy between arrays of other dimensions")
        loops = tuple(self.new_loop(n) for n in sizes[0])
        frame = Frame(loops)
        points = []
        for s, w in zip((src, dst), wide, strict=True):
            point = [self.said(a, {}) for a, _, _ in s.ranges]
            for k, loop in zip(w, loops, strict=True):
                point[k] += self.symbols[loop.number] * s.ranges[k][2]
            points.append(tuple(point))
        self._store(edge.dst.data, points[1], self._load(edge.src.data, points[0]), frame)

    def reduce(self, node: Any) -> None:
        """DaCe's own node for a reduction of an array along some of its axes."""
        self.where = node.label
        (src,), (dst,) = self.state.in_edges(node), self.state.out_edges(node)
        kind = reduction(node.wcr)
        if kind is None:
            raise self.refuse(f"a reduction by {node.wcr}")
        size = [int(n) for n in src.data.subset.size()]
        axes = range(len(size)) if node.axes is None else node.axes
        loops = tuple(self.new_loop(n) for n in size)
        at = tuple(
            self.said(a, {}) + self.symbols[x.number]
            for (a, _, _), x in zip(src.data.subset.ranges, loops, strict=True)
        )
        value = self._load(src.data.data, at)
        inner = tuple(loops[k] for k in sorted(axes))
        if inner:
            self._reduced.append(inner)
            self._leaves.append(loops)
            value = self.body.add(Reduce(kind, value.dtype, (value.n,)))
        rest = [x for k, x in enumerate(loops) if k not in axes]
        ranges = dst.data.subset.ranges
        wide = [k for k, n in enumerate(dst.data.subset.size()) if n != 1]
        left = [x for x in rest if x.extent != 1]
        if len(wide) != len(left):
            raise self.refuse("a reduction to other dimensions")
        point = [self.said(a, {}) for a, _, _ in ranges]
        for k, x in zip(wide, left, strict=True):
            point[k] += self.symbols[x.number]
        if node.identity is None:
            before = self._load(dst.data.data, tuple(point))
            value = self.body.compute(
                OPERATORS[kind], (before, value), "bool" if kind in ("any", "all") else value.dtype
            )
        self._store(dst.data.data, tuple(point), value, Frame(tuple(rest)))
