"""Convolutions in one to three dimensions: forward, data gradient (= transposed convolution), weight gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dcir.ir.loop_nest import Expr, LoopNest, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.serialize import register
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library import winograd
from dcir.ops.library.epilogue import attach_epilogue, epilogue_footprint, run_epilogue
from dcir.ops.library.packing import pack_program, packed_shape, panels, read_packed, spans_groups
from dcir.ops.library.torch_call import window_tensor
from dcir.ops.torch_types import FROM_NAME


@functools.lru_cache(maxsize=4096)
def _met(size: int, taps: int, results: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """Of one dimension: pairs of an output position and a tap inside x, and positions of x that some pair meets.

    Asked of every operator after every pass, for rows of thousands of positions: hence ranges, and a memory.
    """
    pairs, met = 0, set[int]()
    for k in range(taps):
        first = k * dilation - padding
        begin = max(0, -(first // stride))  # the first result whose tap is at 0 or behind
        places = range(first + begin * stride, min(size, first + (results - 1) * stride + 1), stride)
        pairs += len(places)
        met.update(places)
    return pairs, len(met)


@register
@dataclass(frozen=True)
class ConvolutionSpec:
    """One of the three products of y[n,g,o,p] = sum_{i,k} x[n,g,i,p*stride - padding + k*dilation] * w[g,o,i,k].

    kind "forward" reads (x, w[, bias]) and writes y; "backward_data" reads (y, w) and writes x (also what a transposed
    convolution is); "backward_weight" reads (x, y) and writes w. Padding outside x counts as zero. Sizes and strides
    are in elements. Channels are split as group * channels-per-group + channel in x and y; w is
    [group*out, in, *kernel].

    Attributes:
        kind: "forward", "backward_data" or "backward_weight".
        dtype: dcir type name ("f32", "f64", "bf16", "f16"); half types accumulate in f32.
        n: batch size.
        groups: number of groups.
        cin: input channels per group (channels of x).
        cout: output channels per group (channels of y).
        in_size, kernel, out_size: spatial extents of x, w, y (1 to 3 of them, the same number everywhere).
        stride, padding, dilation: per spatial dimension; padding is the low side's, the high side's follows from sizes.
        x: strides of x over (n, channel, *spatial).
        w: strides of w over (group*cout, cin, *kernel).
        y: strides of y over (n, channel, *spatial).
        bias: forward only: whether a third input holds one value per output channel (contiguous).
        panel: forward only: if not 0, w is packed (``packing.py``) in panels of so many output channels of a group: element
            (g, o, i, tap) lies at (((g * P + o // panel) * taps + tap) * cin + i) * panel + o % panel, with P panels per group; where
            those would be padded much (``packing.spans_groups``), the channels of all groups are those of one, o + g * cout.
        winograd: not for backward_data, 3 x 3 taps without stride or dilation: if not empty, the arithmetic is that of the transforms of
            tiles of so many results (``winograd.py``); forward, w is the packed form transformed, [group][panel][point][channel][column].
        epilogue: forward only: what is done to y's elements before they are stored (``epilogue.py``), over (n, channel, *spatial);
            it owns the stores, and ``y`` equals the strides of the first of them.
    """

    kind: str
    dtype: str
    n: int
    groups: int
    cin: int
    cout: int
    in_size: tuple[int, ...]
    kernel: tuple[int, ...]
    out_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    bias: bool = False
    panel: int = 0
    epilogue: LoopNest | None = None
    winograd: tuple[int, ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of x, w and y."""
        return (
            (self.n, self.groups * self.cin, *self.in_size),
            (self.groups * self.cout, self.cin, *self.kernel),
            (self.n, self.groups * self.cout, *self.out_size),
        )

    @property
    def spanned(self) -> bool:
        """Whether panels run on from one group to the next."""
        return spans_groups(self.groups, self.cout, self.kernel[-1], self.panel)

    def packing(self) -> LoopNest:
        """The copy of weights that lie at ``w`` into panels, not transformed."""
        groups, columns = (1, self.groups * self.cout) if self.spanned else (self.groups, self.cout)
        return pack_program(
            self.dtype, (groups,), columns, (*self.kernel, self.cin), self.panel, (self.w[0] * columns,), self.w[0],
            (*self.w[2:], self.w[1]),
        )  # fmt: skip

    @property
    def packed_weights(self) -> tuple[int, ...]:
        """Shape of packed weights: (group, panel number, *kernel and cin as one, column in the panel); with points for Winograd."""
        if self.winograd:
            rows, columns = (t + winograd.TAPS - 1 for t in self.winograd)
            return (self.groups, panels(self.cout, self.panel), rows, columns, self.cin, self.panel)
        groups, columns = (1, self.groups * self.cout) if self.spanned else (self.groups, self.cout)
        return packed_shape((groups,), columns, math.prod(self.kernel) * self.cin, self.panel)

    def _met(self) -> list[tuple[int, int]]:
        """Per dimension: pairs of an output position and a tap inside x, and the positions of x that some pair meets."""
        extents = (self.in_size, self.kernel, self.out_size, self.stride, self.padding, self.dilation)
        return [_met(*extent) for extent in zip(*extents, strict=True)]

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of each operand; of x as an input only the positions that some tap meets."""
        size = itemsize(self.dtype)
        x, w, y = (size * math.prod(shape) for shape in self.shapes)
        places = math.prod(positions for _, positions in self._met())
        met = size * self.n * self.groups * self.cin * places
        if self.kind == "forward":
            if self.panel:
                w = size * math.prod(self.packed_weights)
            reads, writes = epilogue_footprint(self.epilogue) if self.epilogue is not None else ((), (y,))
            return (met, w, *([size * self.groups * self.cout] if self.bias else []), *reads), writes
        return ((y, w), (x,)) if self.kind == "backward_data" else ((met, y), (w,))

    def operations(self) -> int:
        """Multiplications and additions of elements that exist; zeros outside x do not count."""
        taps = math.prod(pairs for pairs, _ in self._met())
        extra = math.prod(self.shapes[2]) if self.bias else 0
        if self.epilogue is not None:
            extra += self.epilogue.operations()
        if self.winograd:
            return self._winograd_operations() + extra
        return 2 * self.n * self.groups * self.cin * self.cout * taps + extra

    def _winograd_operations(self) -> int:
        """Of whole tiles: products at the points, and both transforms."""
        tiles = self.n * self.groups * math.prod(-(-o // t) for o, t in zip(self.out_size, self.winograd, strict=True))
        (ah, _, bh), (aw, _, bw) = map(winograd.matrices, self.winograd)
        extent = [t + winograd.TAPS - 1 for t in self.winograd]
        image = self.cin * winograd.operations(extent, (bh, bw))
        result = self.cout * winograd.operations(extent, (ah, aw))
        return tiles * (2 * self.cin * self.cout * winograd.points(self.winograd) + image + result)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers: in float64, rounded once."""
        windows = dict(zip("xwy", zip(self.shapes, (self.x, self.w, self.y), strict=True), strict=True))
        roles = {"forward": ("xw", "y"), "backward_data": ("yw", "x"), "backward_weight": ("xy", "w")}
        reads, writes = roles[self.kind]
        t = {
            c: window_tensor(ins[i], (*windows[c], self.dtype)).double()
            for i, c in enumerate(reads)
            if not (c == "w" and self.panel)
        }
        if self.panel:
            t["w"] = self._unpacked(ins[1])
        target = None if self.epilogue is not None else window_tensor(outs[0], (*windows[writes], self.dtype))
        rank = len(self.kernel)
        span = [(p - 1) * s + (k - 1) * d + 1 for p, s, k, d in
                zip(self.out_size, self.stride, self.kernel, self.dilation, strict=True)]  # fmt: skip
        low = self.padding
        pads = [v for d in reversed(range(rank)) for v in (low[d], span[d] - self.in_size[d] - low[d])]
        none, stride, dilation = [0] * rank, list(self.stride), list(self.dilation)
        aten = torch.ops.aten
        if self.kind == "backward_data":
            whole = aten.convolution(t["y"], t["w"], None, stride, none, dilation, True, none, self.groups)
            assert target is not None
            target.copy_(torch.nn.functional.pad(whole, [-v for v in pads]))
            return
        x = torch.nn.functional.pad(t["x"], pads)
        if self.kind == "forward":
            bias = window_tensor(ins[2], ((self.groups * self.cout,), (1,), self.dtype)).double() if self.bias else None
            if self.winograd:
                grouped = x.numpy().reshape(self.n, self.groups, self.cin, *x.shape[2:])
                exact = winograd.reference(grouped, t["w"].numpy(), self.winograd, self.out_size)
                y = torch.from_numpy(exact.reshape(self.shapes[2]))
                y = y if bias is None else y + bias[:, None, None]
            else:
                y = aten.convolution(x, t["w"], bias, stride, none, dilation, False, none, self.groups)
            if self.epilogue is None:
                assert target is not None
                target.copy_(y)
                return
            rest = ins[3 if self.bias else 2 :]
            run_epilogue(self.epilogue, y.to(FROM_NAME[compute_type(self.dtype)]).numpy(), rest, outs)
            return
        assert target is not None
        like = torch.zeros(self.shapes[1], dtype=torch.float64)
        target.copy_(aten.convolution_backward(
            t["y"], x, like, None, stride, none, dilation, False, none, self.groups, [False, True, False]
        )[1])  # fmt: skip

    def _unpacked(self, buffer: Any) -> torch.Tensor:
        packed = self.packed_weights
        w = window_tensor(buffer, (packed, contiguous(packed), self.dtype)).double()
        if self.winograd:
            return w.movedim(1, 3).movedim(-1, 4).flatten(3, 4)[:, :, :, : self.cout]
        w = w.reshape(packed[0], packed[1], *self.kernel, self.cin, self.panel).movedim(-1, 2).flatten(1, 2)
        return w[:, : self.groups * self.cout // packed[0]].movedim(-1, 2).reshape(self.shapes[1])

    def program(self) -> LoopNest:
        """The same as a loop nest that gathers: every result sums over all taps, with zero outside."""
        make = {"forward": _forward, "backward_data": _backward_data, "backward_weight": _backward_weight}
        program = _by_points(self) if self.winograd and self.panel else make[self.kind](self)
        if self.epilogue is None:
            return program
        # The program's channels are two loops.
        return attach_epilogue(program, self.epilogue.split(1, self.cout))


class Loops:
    """The strides of one operand over a program's loops, set by the loops' roles."""

    def __init__(self, spec: ConvolutionSpec, outer: Sequence[str], inner: Sequence[str]) -> None:
        rank = len(spec.kernel)
        extents = {"n": [spec.n], "g": [spec.groups], "o": [spec.cout], "i": [spec.cin],
                   "x": spec.in_size, "k": spec.kernel, "y": spec.out_size,
                   "p": [t + winograd.TAPS - 1 for t in spec.winograd]}  # fmt: skip
        self.spec, self.rank, self.compute = spec, rank, compute_type(spec.dtype)
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

    def read_x(self, operand: int) -> Expr:
        """x at output position * stride - padding + tap * dilation, zero outside."""
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
        return self._gather(operand, self.strides(**lead), places, spec.in_size, x[2:], None)

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
        steps: Sequence[int], ok: Expr | None,
    ) -> Expr:  # fmt: skip
        for p, n in zip(places, extents, strict=True):
            good = (p >= 0) & (p < n)
            ok = good if ok is None else ok & good
        zero = self.body.const(0, self.compute)
        return self.body.gather(operand, strides, places, extents, steps, "trusted", ok, zero)

    def read_w(self, operand: int) -> Expr:
        spec, panel = self.spec, self.spec.panel
        if not panel:
            return self.body.load(operand, self.w_strides())
        depth = math.prod(spec.kernel) * spec.cin
        taps = [panel * spec.cin * s for s in contiguous(spec.kernel)]
        column, columns, group = self.index("o", 0), spec.cout, spec.packed_weights[1] * depth * panel
        if spec.spanned:
            column, columns, group = self.index("g", 0) * spec.cout + column, spec.groups * spec.cout, 0
        return read_packed(self.body, operand, self.strides(g=group, i=panel, k=taps), column, columns, depth, panel)

    def w_strides(self) -> list[int]:
        w = self.spec.w
        return self.strides(g=w[0] * self.spec.cout, o=w[0], i=w[1], k=w[2:])


def _forward(spec: ConvolutionSpec) -> LoopNest:
    loops = Loops(spec, "ngoy", "ik")
    b = loops.body
    x, w = b.input(spec.dtype), b.input(spec.dtype)
    total = b.reduce("sum", loops.read_x(x) * loops.read_w(w))
    if spec.bias:
        total = total + b.load(b.input(spec.dtype), loops.strides(g=spec.cout, o=1))
    y = spec.y
    b.store(b.output(spec.dtype), loops.strides(n=y[0], g=y[1] * spec.cout, o=y[1], y=y[2:]), total)
    return b.finish()


def _by_points(spec: ConvolutionSpec) -> LoopNest:
    """The forward product with every weight as a sum over the points of its transform."""
    loops = Loops(spec, "ngoy", "ikp")
    b = loops.body
    x, w = b.input(spec.dtype), b.input(spec.dtype)
    packed, panel = contiguous(spec.packed_weights), spec.panel
    strides = loops.strides(g=packed[0], i=packed[4], p=packed[2:4])
    width = b.const(panel, "i64")
    column = loops.index("o", 0)
    places = [b.op("idiv_floor", column, width), b.op("mod", column, width)]
    u = b.gather(w, strides, places, (spec.packed_weights[1], panel), (packed[1], 1), "trusted")
    for d, tile in enumerate(spec.winograd):
        point = b.const(0, loops.compute)
        for k, row in enumerate(winograd.inverse(tile)):
            for p, factor in enumerate(row):
                if factor:
                    here = loops.index("k", d).eq(k) & loops.index("p", d).eq(p)
                    point = b.where(here, b.const(float(factor), loops.compute), point)
        u = u * point
    total = b.reduce("sum", loops.read_x(x) * u)
    if spec.bias:
        total = total + b.load(b.input(spec.dtype), loops.strides(g=spec.cout, o=1))
    y = spec.y
    b.store(b.output(spec.dtype), loops.strides(n=y[0], g=y[1] * spec.cout, o=y[1], y=y[2:]), total)
    return b.finish()


def _backward_data(spec: ConvolutionSpec) -> LoopNest:
    loops = Loops(spec, "ngix", "ok")
    b = loops.body
    y, w = b.input(spec.dtype), b.input(spec.dtype)
    total = b.reduce("sum", loops.read_y(y) * b.load(w, loops.w_strides()))
    x = spec.x
    b.store(b.output(spec.dtype), loops.strides(n=x[0], g=x[1] * spec.cin, i=x[1], x=x[2:]), total)
    return b.finish()


def _backward_weight(spec: ConvolutionSpec) -> LoopNest:
    loops = Loops(spec, "goik", "ny")
    b = loops.body
    x, y = b.input(spec.dtype), b.input(spec.dtype)
    st = spec.y
    values = loops.read_x(x) * b.load(y, loops.strides(n=st[0], g=st[1] * spec.cout, o=st[1], y=st[2:]))
    b.store(b.output(spec.dtype), loops.w_strides(), b.reduce("sum", values))
    return b.finish()
