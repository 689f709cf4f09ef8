"""Accesses to one layout of some elements as accesses to another: the arithmetic that moves operators between the sides of a copy.

A copy maps the elements of one window to those of another, and need not be an operator: a container that gets new strides is
a copy too, from the old layout to the new one. An operator that walks one side by strides can walk the other side if each of
its strides and its offset decompose into the first side's (``dcir.ir.fuse.match``, as digits of a mixed-radix number):
stride = sum_d coefficient[d] * first_stride[d]. Its stride on the other side is sum_d coefficient[d] * other_stride[d].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import compact, match
from dcir.ir.loop_forms import collapse, drop_unit_loops, order_loops
from dcir.ir.loop_nest import LoopNest, stored_by
from dcir.ir.network import Network, Operand
from dcir.ir.operator import Operator
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Access, Gather, Load, Statement, Store
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.epilogue import first_store
from dcir.ops.library.product import Product
from dcir.ops.library.scatter import ScatterSpec
from dcir.transforms.tier3_layout.layout.guarded_loads import guarded_walk


class Side(NamedTuple):
    """One side of a copy: where it begins, and its strides over the copy's loops."""

    at: Operand
    strides: tuple[int, ...]


class LayoutCopy(NamedTuple):
    """Two windows of the same extents."""

    dims: tuple[int, ...]
    source: Side
    target: Side

    def other(self, side: Side) -> Side:
        """The side that is not ``side``."""
        return self.target if side is self.source else self.source

    def map(
        self, walked: Side, program: LoopNest, number: int, offset: int
    ) -> tuple[LoopNest, tuple[int, ...], int] | Refusal:
        """A statement that walks one side from ``offset`` on, put on the other side.

        Returns:
            The program (its loops split where one of them runs over several of the copy's), the statement's strides
            and offset on the other side; or the reason why there are none.
        """
        other = self.other(walked)
        if any(s == 0 for s in walked.strides):
            return Refusal("the copy repeats elements")
        store = Store(0, walked.strides, "", ())
        m = match(LoopNest(self.dims, (), (), (), ()), store, walked.at.offset, program, [(number, offset)])
        if not isinstance(m, Refusal):
            program, starts, rows = m.consumer, m.start, m.coefficients
        else:
            walk = guarded_walk(self.dims, walked.strides, program, number, offset - walked.at.offset)
            if walk is None:
                return m
            starts, rows = walk
        strides = [0] * len(program.dims)
        for row, step in zip(rows, other.strides, strict=True):
            for k, q in enumerate(row or ()):
                strides[k] += q * step
        start = other.at.offset + sum(a * s for a, s in zip(starts, other.strides, strict=True))
        return program, tuple(strides), start

    def map_window(
        self, walked: Side, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> tuple[tuple[int, ...], int] | Refusal:
        """The same for a window, whose dimensions cannot be split; dimensions of extent 1 keep their stride."""
        window = LoopNest(tuple(shape), (), ("",), (), (Load(0, tuple(strides), ""),))
        mapped = self.map(walked, window, 0, offset)
        if isinstance(mapped, Refusal):
            return mapped
        program, new, start = mapped
        if program is not window:
            return Refusal("a dimension runs over several dimensions of the copy")
        return tuple(old if n == 1 else s for old, s, n in zip(strides, new, shape, strict=True)), start


def copy_of(net: Network, op: Op) -> LayoutCopy | None:
    """The copy that an operator is, over as few loops as possible."""
    p = op.spec
    if not isinstance(p, LoopNest) or p.as_copy() is None or p.inner:
        return None
    if p.inputs != p.outputs or p.points() == 0:
        return None
    return copy_between(p, net.ins(op)[0], net.outs(op)[0])


def copy_between(p: LoopNest, source: Operand, target: Operand) -> LayoutCopy:
    """The copy that a load and a store make of two operands, over as few loops as possible."""
    p = collapse(order_loops(drop_unit_loops(p)))
    pair = p.as_copy()
    assert pair is not None
    return LayoutCopy(p.dims, Side(source, pair[0].strides), Side(target, pair[1].strides))


class BoundOperator(NamedTuple):
    """A spec and its operands."""

    spec: Operator
    ins: Sequence[Operand]
    outs: Sequence[Operand]


def moved(was: BoundOperator, copy: LayoutCopy, walked: Side, way: str) -> BoundOperator | Refusal:
    """An operator with its operands on one side of the copy put on the other, or why it cannot be; ``way``: "in" or "out"."""
    if isinstance(was.spec, LoopNest):
        mapped = _moved_program(was.spec, copy, walked, was.ins if way == "in" else was.outs, way)
        if isinstance(mapped, Refusal):
            return mapped
        ins, outs = (mapped[1], was.outs) if way == "in" else (was.ins, mapped[1])
        lean = compact(mapped[0], ins, outs)
        return BoundOperator(lean.program, lean.ins, lean.outs)
    if isinstance(was.spec, ScatterSpec):
        return _moved_scatter(was, was.spec, copy, walked, way)
    product = was
    if isinstance(was.spec, Product) and was.spec.epilogue is not None:
        after = _moved_epilogue(was, copy, walked, way)
        if isinstance(after, Refusal) or way == "out":
            return after
        product = after
    own = _own_inputs(was)
    ins = list(product.ins[:own])
    spec = product.spec
    if isinstance(spec, ContractionSpec):
        new = _moved_contraction(spec, copy, walked, ins, product.outs, way)
    else:
        new = _moved_windows(spec, copy, walked, ins, product.outs, way)
    if isinstance(new, Refusal):
        return new
    return BoundOperator(new.spec, (*new.ins, *product.ins[own:]), new.outs)


def _own_inputs(was: BoundOperator) -> int:
    """How many operands an operator reads before those of its epilogue."""
    epilogue = stored_by(was.spec)
    return len(was.ins) - (len(epilogue.inputs) - 1 if epilogue is not None else 0)


def _moved_epilogue(was: BoundOperator, copy: LayoutCopy, walked: Side, way: str) -> BoundOperator | Refusal:
    """The epilogue's operands; its input 0 is the product, which lies nowhere."""
    own, p = _own_inputs(was), stored_by(was.spec)
    assert p is not None and isinstance(was.spec, Product)
    ins = [Operand(""), *was.ins[own:]]
    mapped = _moved_program(p, copy, walked, ins if way == "in" else was.outs, way)
    if isinstance(mapped, Refusal):
        return mapped
    if mapped[0].dims != p.dims:
        return Refusal("a dimension runs over several dimensions of the copy")
    lean = compact(mapped[0], *((mapped[1], was.outs) if way == "in" else (ins, mapped[1])))
    if not lean.ins or lean.ins[0].data:
        return Refusal("the epilogue does not use the product")
    # Along extents of 1 the product keeps its strides, which name a layout; the epilogue's are 0.
    kept = zip(was.spec.result_strides, first_store(lean.program).strides, p.dims, strict=True)
    strides = tuple(old if n == 1 else new for old, new, n in kept)
    return BoundOperator(was.spec.with_epilogue(lean.program, strides), (*was.ins[:own], *lean.ins[1:]), lean.outs)


def _moved_contraction(
    old: ContractionSpec, copy: LayoutCopy, walked: Side, ins: Sequence[Operand], outs: Sequence[Operand], way: str
) -> BoundOperator | Refusal:
    if old.panel and way == "in" and ins[1].data == walked.at.data:
        return Refusal("a packed operand keeps its layout")
    mapped = _moved_program(_as_loops(old), copy, walked, ins if way == "in" else outs, way)
    if isinstance(mapped, Refusal):
        return mapped
    if (old.panel or old.epilogue is not None) and mapped[0].dims != (*old.batch, old.m, old.n, old.k):
        return Refusal("a dimension runs over several dimensions of the copy")
    spec = _as_contraction(old, mapped[0])
    if isinstance(spec, Refusal):
        return spec
    kind = Load if way == "in" else Store
    placed = [mapped[1][s.operand] for s in mapped[0].body if isinstance(s, kind)]
    ins, outs = (placed, outs) if way == "in" else (ins, placed)
    return BoundOperator(*_rows_first(spec, ins), outs)


def _moved_windows(
    spec: Operator, copy: LayoutCopy, walked: Side, ins: Sequence[Operand], outs: Sequence[Operand], way: str
) -> BoundOperator | Refusal:
    """A spec that is no program, with every operand on one side of the copy put on the other."""
    fixed = Refusal(f"an operator of kind {spec.kind} keeps the layout of its operands")
    table = spec.windows()
    if table is None:
        return fixed
    operands = ins if way == "in" else outs
    placed, other = list(operands), copy.other(walked)
    for i, (o, w) in enumerate(zip(operands, table[way == "out"], strict=True)):
        if o.data != walked.at.data:
            continue
        if w is None:
            return Refusal("a packed operand keeps its layout")
        to = copy.map_window(walked, w.shape, w.strides, o.offset)
        if isinstance(to, Refusal):
            return to
        if any(s < 0 for s in to[0]):
            return Refusal("the copy goes backwards")
        placed_spec = spec.with_strides(w, to[0])
        if placed_spec is None:
            return fixed
        spec = placed_spec
        placed[i] = Operand(other.at.data, to[1])
    return BoundOperator(spec, placed, outs) if way == "in" else BoundOperator(spec, ins, placed)


def _moved_scatter(
    was: BoundOperator, spec: ScatterSpec, copy: LayoutCopy, walked: Side, way: str
) -> BoundOperator | Refusal:
    """A scatter's points are loops that cannot be split, and so are its indices."""
    if spec.kept:
        return Refusal("a scatter's base and its result share their memory")
    operands = list(was.ins if way == "in" else was.outs)
    for i, o in enumerate(operands):
        if o.data != walked.at.data:
            continue
        if way == "in" and i > spec.first:
            return Refusal("indices keep their layout")
        whole = way == "out" or i < spec.first
        shape, strides = (spec.shape, spec.out if way == "out" else spec.base) if whole else (spec.dims, spec.source)
        assert strides is not None
        to = copy.map_window(walked, shape, strides, o.offset)
        if isinstance(to, Refusal):
            return to
        operands[i] = Operand(copy.other(walked).at.data, to[1])
        if way == "in":
            spec = replace(spec, base=to[0]) if whole else replace(spec, source=to[0])
            continue
        rank = len(spec.dims)
        points = copy.map_window(walked, (*spec.dims, *spec.extents), (*spec.to, *spec.index_steps), o.offset)
        if isinstance(points, Refusal):
            return points
        if points[1] != to[1]:
            return Refusal("the points begin elsewhere than the result")
        spec = replace(spec, out=to[0], to=points[0][:rank], index_steps=points[0][rank:])
    return BoundOperator(spec, operands, was.outs) if way == "in" else BoundOperator(spec, was.ins, operands)


def _as_loops(spec: ContractionSpec) -> LoopNest:
    """The strides of a contraction over its loops (*batch, m, n, k), so that its batch can be split."""
    rank = len(spec.batch)
    a = (*spec.a[:rank], spec.a[rank], 0, spec.a[rank + 1])
    b = (*spec.b[:rank], 0, 0, 0) if spec.panel else (*spec.b[:rank], 0, spec.b[rank + 1], spec.b[rank])
    body = (Load(0, a, spec.dtype), Load(1, b, spec.dtype),
            Store(0, (*spec.c, 0), spec.dtype, (0,)))  # fmt: skip
    return LoopNest((*spec.batch, spec.m, spec.n, spec.k), (), (spec.dtype,) * 2, (spec.dtype,), body)


def _as_contraction(old: ContractionSpec, p: LoopNest) -> ContractionSpec | Refusal:
    """The inverse of ``_as_loops``."""
    *batch, m, n, k = p.dims
    if (m, n, k) != (old.m, old.n, old.k):
        return Refusal("a dimension runs over several dimensions of the copy")
    a, b, c = (s.strides for s in p.body if isinstance(s, Access))
    if any(s < 0 for s in (*a, *b, *c)):
        return Refusal("the copy goes backwards")
    rank = len(batch)
    new = [(*a[:rank], a[rank], a[-1]), (*b[:rank], b[-1], b[rank + 1]), c[:-1]]
    extents, before = ((m, k), (k, n), (m, n)), (old.a, old.b, old.c)
    for i, (strides, kept, (d0, d1)) in enumerate(zip(new, before, extents, strict=True)):
        last = (kept[-2] if d0 == 1 else strides[-2], kept[-1] if d1 == 1 else strides[-1])
        new[i] = (*strides[:-2], *last)  # along an extent of 1 any stride is right, and a usual one is fastest
    if old.panel:
        new[1] = old.b
    return replace(old, batch=tuple(batch), a=new[0], b=new[1], c=new[2])


def _rows_first(spec: ContractionSpec, ins: Sequence[Operand]) -> tuple[ContractionSpec, Sequence[Operand]]:
    """The product of the transposes where C would be written along columns: kernels write rows."""
    if spec.c[-2] >= spec.c[-1] or spec.m == 1 or spec.n == 1 or spec.panel or spec.epilogue is not None:
        return spec, ins
    a, b, c = ((*st[:-2], st[-1], st[-2]) for st in (spec.a, spec.b, spec.c))
    return replace(spec, m=spec.n, n=spec.m, a=b, b=a, c=c), ins[::-1]


def _moved_program(
    p: LoopNest, copy: LayoutCopy, walked: Side, operands: Sequence[Operand], way: str
) -> tuple[LoopNest, list[Operand]] | Refusal:
    """A program with every statement on one side of the copy put on the other; and its operands, old and new."""
    placed = list(operands)
    other = copy.other(walked)

    def on_this_side(s: Statement) -> Access | None:
        if not isinstance(s, Access) or isinstance(s, Store) != (way == "out"):
            return None
        return s if placed[s.operand].data == walked.at.data else None

    number = 0
    while number < len(p.body):
        s = on_this_side(p.body[number])
        if s is None:
            number += 1
            continue
        mapped = mapped_statement(p, number, copy, walked, placed[s.operand].offset)
        if isinstance(mapped, Refusal):
            return mapped
        p, moved, start = mapped
        number = next(i for i in range(number, len(p.body)) if on_this_side(p.body[i]))  # a split adds statements
        operand = Operand(other.at.data, start)
        known = operand in placed and way == "in"
        moved = moved.with_args(p.body[number].args).with_operand(placed.index(operand) if known else len(placed))
        p = replace(p, body=(*p.body[:number], moved, *p.body[number + 1 :]))
        if not known:
            placed.append(operand)
            if way == "in":
                p = replace(p, inputs=(*p.inputs, p.inputs[s.operand]))
            else:
                p = replace(p, outputs=(*p.outputs, s.dtype))
    return p, placed


def mapped_statement(
    p: LoopNest, number: int, copy: LayoutCopy, walked: Side, offset: int
) -> tuple[LoopNest, Access, int] | Refusal:
    """A load, gather or store on the other side: the program (perhaps split), the statement, and the offset."""
    s = p.body[number]
    assert isinstance(s, Access)
    if not isinstance(s, Gather):
        mapped = copy.map(walked, p, number, offset)
        return mapped if isinstance(mapped, Refusal) else (mapped[0], s.with_strides(mapped[1]), mapped[2])
    rank = len(p.dims)  # its computed indices are loops like others, only that they cannot be split
    to = copy.map_window(walked, (*p.dims, *s.extents), (*s.strides, *s.steps), offset)
    if isinstance(to, Refusal):
        return to
    return p, replace(s, strides=to[0][:rank], steps=to[0][rank:]), to[1]
