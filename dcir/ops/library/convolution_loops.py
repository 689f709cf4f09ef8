"""Convolutions as loop nests that gather: one loop for every dimension of every operand, by its role."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.types import compute_type
from dcir.ops.library import winograd
from dcir.ops.library.convolution_fields import ConvolutionFields
from dcir.ops.library.packing import read_packed, read_pairs


def convolution_loops(spec: ConvolutionFields) -> LoopNest:
    """The convolution without its epilogue: every result sums over all taps, with zero outside."""
    make = {"forward": _forward, "backward_data": _backward_data, "backward_weight": _backward_weight}
    return _by_points(spec) if spec.winograd and spec.panel else make[spec.kind](spec)


class Loops:
    """The strides of one operand over a program's loops, set by the loops' roles."""

    def __init__(self, spec: ConvolutionFields, outer: Sequence[str], inner: Sequence[str]) -> None:
        rank = len(spec.kernel)
        extents = {"n": [spec.n], "g": [spec.groups], "o": [spec.cout], "i": [spec.cin],
                   "x": spec.in_size, "k": spec.kernel, "y": spec.out_size,
                   "p": [t + winograd.TAPS - 1 for t in spec.winograd]}  # fmt: skip
        self.spec, self.rank, self.compute = spec, rank, spec.types.accumulator
        self.first: dict[str, int] = {}
        at = 0
        for role in (*outer, *inner):
            self.first[role] = at
            at += len(extents[role])
        self.count = at
        self.body = LoopNestBuilder([d for r in outer for d in extents[r]], [d for r in inner for d in extents[r]])

    def strides(self, **by_role: int | Sequence[int]) -> list[int]:
        result = [0] * self.count
        for role, steps in by_role.items():
            if role == "g" and role not in self.first:
                continue  # a program over one group has no loop over groups
            for j, s in enumerate([steps] if isinstance(steps, int) else steps):
                result[self.first[role] + j] = s
        return result

    def index(self, role: str, d: int) -> Expr:
        return self.body.index(self.first[role] + d)

    def read_x(self, operand: int, outside: Expr | None = None) -> Expr:
        """x at output position * stride - padding + tap * dilation, and ``outside``, else zero, where there is none."""
        spec, x = self.spec, self.spec.x
        lead = {"n": x[0], "g": x[1] * spec.cin, "i": x[1]}
        spans = zip(spec.out_size, spec.stride, spec.kernel, spec.dilation, spec.in_size, spec.padding, strict=True)
        if all(pad == 0 and (p - 1) * s + (k - 1) * d < n for p, s, k, d, n, pad in spans):
            steps = [a * b for a, b in zip(x[2:], spec.stride, strict=True)]
            taps = [a * b for a, b in zip(x[2:], spec.dilation, strict=True)]
            return self.body.load(operand, self.strides(**lead, y=steps, k=taps))
        places = [
            self.index("y", d) * spec.stride[d] + self.index("k", d) * spec.dilation[d] - spec.padding[d]
            for d in range(self.rank)
        ]
        return self._gather(operand, self.strides(**lead), places, spec.in_size, x[2:], None, outside)

    def read_y(self, operand: int) -> Expr:
        """y at (position in x + padding - tap * dilation) / stride where that is a whole number, zero elsewhere."""
        y = self.spec.y
        return self.read_result(operand, self.strides(n=y[0], g=y[1] * self.spec.cout, o=y[1]), y[2:])

    def read_result(self, operand: int, lead: Sequence[int], steps: Sequence[int]) -> Expr:
        """What lies where y would: in steps over the positions of y, from where the loops' strides ``lead`` lead."""
        spec, b = self.spec, self.body
        places: list[Expr] = []
        exact: Expr | None = None
        for d in range(self.rank):
            over = self.index("x", d) + spec.padding[d] - self.index("k", d) * spec.dilation[d]
            at = over
            if spec.stride[d] != 1:
                at = b.op("idiv_floor", over, b.const(spec.stride[d], "i64"))
                whole = (at * spec.stride[d]).eq(over)
                exact = whole if exact is None else exact & whole
            places.append(at)
        return self._gather(operand, lead, places, spec.out_size, steps, exact)

    def _gather(
        self, operand: int, strides: Sequence[int], places: Sequence[Expr], extents: Sequence[int],
        steps: Sequence[int], ok: Expr | None, outside: Expr | None = None,
    ) -> Expr:  # fmt: skip
        for p, n in zip(places, extents, strict=True):
            good = (p >= 0) & (p < n)
            ok = good if ok is None else ok & good
        if outside is None:
            outside = self.body.const(0, compute_type(self.body.inputs[operand]))
        return self.body.gather(operand, strides, places, extents, steps, checked=False, mask=ok, other=outside)

    def product(self, x: Expr, y: Expr) -> Expr:
        """The sum of products, in the type of the sums."""
        b = self.body
        return b.reduce("sum", b.convert(x, self.compute) * b.convert(y, self.compute))

    def read_w(self, operand: int) -> Expr:
        spec, panel = self.spec, self.spec.panel
        if not panel:
            return self.body.load(operand, self.w_strides())
        depth = math.prod(spec.kernel) * spec.cin
        if spec.pairs:
            step = self.index("i", 0)
            for d, s in enumerate(contiguous(spec.kernel)):
                step = step + self.index("k", d) * (s * spec.cin)
            return read_pairs(self.body, operand, self.strides(), (self.index("o", 0), step), spec.cout, depth, panel)
        taps = [panel * spec.cin * s for s in contiguous(spec.kernel)]
        column, columns, group = self.index("o", 0), spec.cout, spec.packed_weights[1] * depth * panel
        if spec.spanned:
            column, columns, group = self.index("g", 0) * spec.cout + column, spec.groups * spec.cout, 0
        return read_packed(self.body, operand, self.strides(g=group, i=panel, k=taps), column, columns, depth, panel)

    def w_strides(self) -> list[int]:
        w = self.spec.w
        return self.strides(g=w[0] * self.spec.cout, o=w[0], i=w[1], k=w[2:])


def _forward(spec: ConvolutionFields) -> LoopNest:
    loops = Loops(spec, "ngoy", "ik")
    b, types = loops.body, spec.types
    x, w = b.input(types.a), b.input(types.b)
    if spec.scales is not None:
        _store(spec, loops, _scaled(spec, loops, x, w))
        return b.finish()
    total = loops.product(loops.read_x(x), loops.read_w(w))
    if spec.bias:
        total = total + b.convert(b.load(b.input(spec.bias_type), loops.strides(g=spec.cout, o=1)), loops.compute)
    _store(spec, loops, total)
    return b.finish()


def _store(spec: ConvolutionFields, loops: Loops, total: Expr) -> None:
    y = spec.y
    where = loops.strides(n=y[0], g=y[1] * spec.cout, o=y[1], y=y[2:])
    loops.body.store(loops.body.output(spec.types.c), where, total)


def _scaled(spec: ConvolutionFields, loops: Loops, x: int, w: int) -> Expr:
    """The sum of integers less their zero points, with a bias in their sums, times both scales."""
    b, types, scales = loops.body, spec.types, spec.scales
    assert scales is not None
    compute = compute_type(types.c)
    images = loops.strides(n=scales.a[0])
    channels = loops.strides(g=scales.b[0] * spec.cout, o=scales.b[0])
    scale = b.load(b.input(compute), images) * b.load(b.input(compute), channels)
    zero = b.load(b.input(types.a), images) if scales.a_zero else None
    left, right = b.convert(loops.read_x(x, zero), loops.compute), b.convert(loops.read_w(w), loops.compute)
    left = left if zero is None else left - b.convert(zero, loops.compute)
    if scales.b_zero:
        right = right - b.convert(b.load(b.input(types.b), channels), loops.compute)
    total = loops.product(left, right)
    if spec.bias:
        total = total + b.convert(b.load(b.input(spec.bias_type), loops.strides(g=spec.cout, o=1)), loops.compute)
    return b.convert(total, compute) * scale


def _by_points(spec: ConvolutionFields) -> LoopNest:
    """The forward product with every weight as a sum over the points of its transform."""
    loops = Loops(spec, "ngoy", "ikp")
    b = loops.body
    x, w = b.input(spec.types.a), b.input(spec.types.b)
    packed, panel = contiguous(spec.packed_weights), spec.panel
    strides = loops.strides(g=packed[0], i=packed[4], p=packed[2:4])
    width = b.const(panel, "i64")
    column = loops.index("o", 0)
    places = [b.op("idiv_floor", column, width), b.op("mod", column, width)]
    u = b.gather(w, strides, places, (spec.packed_weights[1], panel), (packed[1], 1), checked=False)
    for d, tile in enumerate(spec.winograd):
        point = b.const(0, loops.compute)
        for k, row in enumerate(winograd.inverse(tile)):
            for p, factor in enumerate(row):
                if factor:
                    here = loops.index("k", d).eq(k) & loops.index("p", d).eq(p)
                    point = b.where(here, b.const(float(factor), loops.compute), point)
        u = u * point
    total = loops.product(loops.read_x(x), u)
    if spec.bias:
        total = total + b.load(b.input(spec.bias_type), loops.strides(g=spec.cout, o=1))
    _store(spec, loops, total)
    return b.finish()


def _backward_data(spec: ConvolutionFields) -> LoopNest:
    loops = Loops(spec, "ngix", "ok")
    b = loops.body
    y, w = b.input(spec.types.c), b.input(spec.types.b)
    total = loops.product(loops.read_y(y), b.load(w, loops.w_strides()))
    x = spec.x
    b.store(b.output(spec.types.a), loops.strides(n=x[0], g=x[1] * spec.cin, i=x[1], x=x[2:]), total)
    return b.finish()


def _backward_weight(spec: ConvolutionFields) -> LoopNest:
    loops = Loops(spec, "goik", "ny")
    b = loops.body
    x, y = b.input(spec.types.a), b.input(spec.types.c)
    st = spec.y
    values = loops.product(loops.read_x(x), b.load(y, loops.strides(n=st[0], g=st[1] * spec.cout, o=st[1], y=st[2:])))
    b.store(b.output(spec.types.b), loops.w_strides(), values)
    return b.finish()
