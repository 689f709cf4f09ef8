"""Packed weights: the operand that a product walks as vectors, in panels of neighbouring columns.

A panel holds two vectors of neighbouring columns, or a cache line where vectors are shorter, for every step of the reduction, one step
after the other, so that a register tile reads it as one stream. Columns past the end are zeros.

A panel of a half type is two vectors of f32 wide, which is what it is widened to. In one of bf16 the columns of both vectors take turns: a
vector of 32-bit lanes holds the first one's in its lower halves and the second one's in its upper halves, so that a shift and a mask
widen them. f16 lies in order, as the instruction that widens it wants. Where the processor multiplies bf16 in pairs, a panel of it holds
two steps of the reduction side by side for every column, in a lane of 32 bits; a last step without a neighbour has zeros for one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.types import FLOATS, itemsize
from dcir.isa import Isa

LINE_BYTES = 64
MOST_TAPS = 7  # of a row of a kernel whose code names each


def panel_width(dtype: str, isa: Isa, stored: str = "") -> int:
    """Columns of a panel for an instruction set; ``stored``: the half type that it is kept in.

    A tile of AVX2 that reads half of each step of a wider panel leaves half of the first-level cache's sets empty: convolutions were 5 to
    25 % slower, products 4 to 9 % (Zen 3).
    """
    vectors = 2 * isa.vector_bytes
    return (vectors if stored else max(LINE_BYTES, vectors)) // itemsize(dtype)


def panels(columns: int, panel: int) -> int:
    """Panels that hold ``columns``."""
    return -(-columns // panel)


def spans_groups(groups: int, columns: int, taps: int, panel: int) -> bool:
    """Whether the weights of a grouped convolution lie in panels of neighbouring output channels of all groups.

    So they do where panels of their own would leave groups a tenth or more of padding.

    Args:
        groups, columns: groups, and output channels of each.
        taps: of a row of the kernel.
        panel: columns of a panel.
    """
    return groups > 1 and taps <= MOST_TAPS and 10 * columns < 9 * panel * panels(columns, panel)


def wants_panels(dtype: str, columns: int, depth: int, isa: Isa) -> bool:
    """Whether a constant right operand of a product should be packed.

    Panels were faster than nn.Linear's layout at every number of rows, from 1 (5 % in the third-level cache, 20 % in memory) to
    thousands. Only where most of a panel would be padding do dot products over the operand as it lies win.
    """
    return dtype in FLOATS and depth > 0 and 4 * columns >= panel_width(dtype, isa)


def packed_shape(
    groups: Sequence[int], columns: int, depth: int, panel: int, *, pairs: bool = False
) -> tuple[int, ...]:
    """Shape of a packed operand: (*groups, panel number, step of the reduction, column in the panel); ``pairs`` of steps side by side."""
    steps, width = (pairs_of(depth), 2 * panel) if pairs else (depth, panel)
    return (*groups, panels(columns, panel), steps, width)


def pairs_of(depth: int) -> int:
    """Pairs of steps that hold ``depth``."""
    return -(-depth // 2)


def pack_program(
    dtype: str, groups: Sequence[int], columns: int, depth: Sequence[int], panel: int,
    group_strides: Sequence[int], column_stride: int, depth_strides: Sequence[int],
) -> LoopNest:  # fmt: skip
    """The copy of a strided operand into panels.

    Args:
        dtype: element type, a half type too.
        groups, columns, depth: extents of what is independent, of the panels' dimension, and of the reduction (row-major).
        panel: columns of a panel.
        group_strides, column_stride, depth_strides: the operand's strides in elements.
    """
    turns = takes_turns(dtype)
    inner, steps = ((panel // 2, 2), (1, panel // 2)) if turns else ((panel,), (1,))
    shape = (*groups, panels(columns, panel), *depth, *inner)
    body = LoopNestBuilder(shape)
    source, target = body.input(dtype), body.output(dtype)
    strides = (*group_strides, column_stride * panel, *depth_strides, *(column_stride * s for s in steps))
    if columns % panel == 0:
        value = body.load(source, strides)
    else:
        column, first = body.index(len(groups)) * panel, len(shape) - len(inner)
        for d, step in enumerate(steps):
            column = column + (body.index(first + d) * step if step != 1 else body.index(first + d))
        plain = body.load(source, strides)
        value = body.load(source, strides, column < columns, body.const(0, plain.dtype))
    body.store(target, contiguous(shape), value)
    return body.finish()


def pair_program(
    dtype: str, groups: Sequence[int], columns: int, depth: Sequence[int], panel: int,
    group_strides: Sequence[int], column_stride: int, depth_strides: Sequence[int], *, stored: str = "",
) -> LoopNest:  # fmt: skip
    """The copy of a strided operand into panels of pairs, of neighbours in the last dimension of ``depth``, in the type ``stored``.

    Other arguments are as of ``pack_program``.
    """
    *outer, last = depth
    rank, shape = len(groups), (*groups, panels(columns, panel), *outer, pairs_of(last), panel, 2)
    body = LoopNestBuilder(shape)
    source, target = body.input(dtype), body.output(stored or dtype)
    *steps, step = depth_strides
    strides = (*group_strides, column_stride * panel, *steps, 2 * step, column_stride, step)
    pair = rank + 1 + len(outer)
    inside = []
    if columns % panel:
        inside.append(body.index(rank) * panel + body.index(pair + 1) < columns)
    if last % 2:
        inside.append(body.index(pair) * 2 + body.index(pair + 2) < last)
    if inside:
        kept = functools.reduce(operator.and_, inside)
        plain = body.load(source, strides)
        value = body.load(source, strides, kept, body.const(0, plain.dtype))
    else:
        value = body.load(source, strides)
    body.store(target, contiguous(shape), value)
    return body.finish()


def takes_turns(dtype: str) -> bool:
    """Whether the columns of a panel's two vectors take turns."""
    return dtype == "bf16"


def read_packed(
    body: LoopNestBuilder, operand: int, strides: Sequence[int], column: Expr, columns: int, depth: int, panel: int
) -> Expr:
    """A packed element in a loop nest: ``strides`` walk groups and the reduction, ``column`` is computed."""
    width = body.const(panel, "i64")
    number, lane = body.op("idiv_floor", column, width), body.op("mod", column, width)
    if takes_turns(body.inputs[operand]):
        half = body.const(panel // 2, "i64")
        lane = body.op("mod", lane, half) * 2 + body.op("idiv_floor", lane, half)
    extents, steps = (panels(columns, panel), panel), (depth * panel, 1)
    return body.gather(operand, strides, [number, lane], extents, steps, checked=False)


def read_pairs(
    body: LoopNestBuilder,
    operand: int,
    strides: Sequence[int],
    at: tuple[Expr, Expr],
    columns: int,
    depth: int,
    panel: int,
) -> Expr:
    """An element of panels of pairs in a loop nest: ``strides`` walk groups; ``at``: the column and the step."""
    column, step = at
    width, two = body.const(panel, "i64"), body.const(2, "i64")
    number, pair = body.op("idiv_floor", column, width), body.op("idiv_floor", step, two)
    lane = body.op("mod", column, width) * 2 + body.op("mod", step, two)
    pairs = pairs_of(depth)
    extents, steps = (panels(columns, panel), pairs, 2 * panel), (pairs * 2 * panel, 2 * panel, 1)
    return body.gather(operand, strides, [number, pair, lane], extents, steps, checked=False)


def strides_at_source(
    shape: Sequence[int], strides: Sequence[int], extents: Sequence[int], read: Sequence[int], written: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of a window of a copy in what it was copied from; None if it walks other dimensions than the copy did.

    Args:
        shape, strides: the window of the copy, from where that begins.
        extents, read, written: of the copy's loops: extents, strides in its source and in itself.
    """
    places = {(w, n): r for n, r, w in zip(extents, read, written, strict=True) if n != 1}
    walked = [(s, n) if n != 1 and s else None for n, s in zip(shape, strides, strict=True)]
    return (
        tuple(0 if d is None else places[d] for d in walked) if all(d is None or d in places for d in walked) else None
    )
