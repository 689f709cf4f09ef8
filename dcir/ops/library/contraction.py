"""Batched matrix product C[b,m,n] = sum_k A[b,m,k] B[b,k,n], every operand with its own strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dcir.ir.describe import sizes_text
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import contiguous
from dcir.ir.operator import Operator
from dcir.ir.serialize import register
from dcir.ir.types import FLOATS, compute_type, is_float, itemsize
from dcir.isa import Isa
from dcir.ops.library.epilogue import attach_epilogue, epilogue_footprint, epilogue_text, run_epilogue
from dcir.ops.library.operand_types import OperandTypes, Scales
from dcir.ops.library.packing import packed_shape, read_packed, read_pairs, takes_turns
from dcir.ops.library.torch_call import window_tensor
from dcir.ops.torch_types import FROM_NAME

# From so many rows on dot products lose against tiles.
LEAST_ROWS = 12
# Up to so many, packing them costs less than packing the other operand: 10 % at 64 rows, 6 % at 128; at 400 it costs 10 % more.
MOST_SHORT_ROWS = 256
# The same for short vectors (one thread of AVX2, 3072x768, ms, swapped : not): 16 rows 1.0 : 1.4, 64 4.1 : 4.0, 128 8.0 : 7.6. A tile's
# columns are 6 results long, of 8 lanes, and an epilogue of GELU's length is not taken through several vectors at once there: 16 rows
# 1.2 : 1.9, 32 2.5 : 2.4, 64 5.2 : 4.2, 196 16.2 : 11.6.
MOST_SHORT_ROWS_NARROW, MOST_SHORT_ROWS_CHAINED = 64, 32
# Rows, columns and steps of a product of bf16 in pairs that packs both operands: each number is used as often as there are rows or columns.
LEAST_PAIRED = 64
# The most that a product may take of scratch to pack an operand which it need not pack: 94 MB packed in every call of 256 rows took
# 37 ms where tiles over the operand as it lies take 29.
MOST_PACKED_BYTES = 32 << 20


@register
@dataclass(frozen=True)
class ContractionSpec(Operator):
    """Shapes in elements; strides in elements, batch strides first. A stride of 0 broadcasts.

    Attributes:
        types: of the operands, of the sums and of the result; a B narrower than A is a packed one, kept in a half type.
        batch: extents of the batch dimensions (may be empty).
        a: strides of A over (*batch, m, k).
        b: strides of B over (*batch, k, n); of a packed B only those over the batch count.
        c: strides of C over (*batch, m, n).
        panel: if not 0, B is packed (``packing.py``) in panels of so many columns: per batch element, element (k, n) lies at
            (n // panel * K + k) * panel + n % panel.
        rounds: of a B that is not packed the half type that its elements are rounded to before they are multiplied.
        dots: both operands hold nothing but numbers of bf16 (or B is rounded to them), and the processor multiplies them in pairs; a packed
            B holds pairs of steps then.
        epilogue: what is done to C's elements before they are stored (``epilogue.py``); it owns the stores, and ``c`` equals the
            strides of the first of them.
        scales: what integers stand for; there is neither a panel nor an epilogue then, and C is of a floating-point type.
        halves: both operands hold nothing but numbers of bf16, whatever they are stored in, and the processor has a unit for those.
    """

    types: OperandTypes
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    panel: int = 0
    epilogue: LoopNest | None = None
    rounds: str = ""
    dots: bool = False
    scales: Scales | None = None
    halves: bool = False

    kind = "contraction"

    @property
    def dtype(self) -> str:
        """The type of A and C, to which a narrower B is widened; empty if they are not alike, which is for loop nests alone."""
        return self.types.common

    @property
    def stored(self) -> str:
        """The half type that a packed B is kept in and widened from, else empty; its panels' columns may lie in another order."""
        return self.types.b if self.types.b != self.types.common else ""

    @property
    def takes_epilogue(self) -> bool:
        """Whether it may have an epilogue, or another one."""
        return self.dtype in FLOATS

    @property
    def result_strides(self) -> tuple[int, ...]:
        """Strides of C."""
        return self.c

    def with_epilogue(self, epilogue: LoopNest | None, strides: tuple[int, ...]) -> ContractionSpec:
        """The same with another epilogue, whose first store has these strides."""
        return replace(self, c=strides, epilogue=epilogue)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of A, B and C."""
        return (*self.batch, self.m, self.k), (*self.batch, self.k, self.n), (*self.batch, self.m, self.n)

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of A, B and the epilogue's operands, and of what is written."""
        types = self.types
        a, b, c = (
            itemsize(dtype) * math.prod(d for d, s in zip(shape, strides, strict=True) if s != 0)
            for shape, strides, dtype in zip(
                self.shapes, (self.a, self.b, self.c), (types.a, types.b, types.c), strict=True
            )
        )
        if self.panel:
            groups = math.prod(d for d, s in zip(self.batch, self.b, strict=False) if s != 0)
            b = itemsize(types.b) * math.prod(packed_shape((groups,), self.n, self.k, self.panel, pairs=self.dots))
        if self.scales is not None:
            return (a, b, *self._scale_bytes(self.scales)), (c,)
        if self.epilogue is None:
            return (a, b), (c,)
        reads, writes = epilogue_footprint(self.epilogue)
        return (a, b, *reads), writes

    def _scale_bytes(self, scales: Scales) -> list[int]:
        counts = [
            math.prod(d for d, s in zip((*self.batch, extent), strides, strict=True) if s != 0)
            for extent, strides in ((self.m, scales.a), (self.n, scales.b))
        ]
        given = (scales.a_zero, scales.b_zero)
        zeros = [
            n * itemsize(t) for n, t, zero in zip(counts, (self.types.a, self.types.b), given, strict=True) if zero
        ]
        return [n * itemsize(compute_type(self.types.c)) for n in counts] + zeros

    def operations(self) -> int:
        """Multiplications and additions, and the epilogue's operations; of scales one multiplication a result."""
        extra = self.epilogue.operations() if self.epilogue is not None else 0
        extra += math.prod(self.batch) * self.m * self.n if self.scales is not None else 0
        return 2 * math.prod(self.batch) * self.m * self.n * self.k + extra

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it over 1-D NumPy buffers: in float64, rounded once (and once more after an epilogue), or exactly for integers."""
        shapes = self.shapes
        if not is_float(self.types.accumulator):
            self._reference_of_integers(ins, outs)
            return
        a = window_tensor(ins[0], (shapes[0], self.a, self.types.a))
        if self.panel:
            rank, packed = len(self.batch), packed_shape(self.batch, self.n, self.k, self.panel, pairs=self.dots)
            strides = (*self.b[:rank], *contiguous(packed[rank:]))
            b = window_tensor(ins[1], (packed, strides, self.types.b))
            if self.dots:
                b = b.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-3, -2)[..., : self.k, :]
            elif takes_turns(self.types.b):
                b = b.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            b = b.movedim(-2, -3).flatten(-2)[..., : self.n]
        else:
            b = window_tensor(ins[1], (shapes[1], self.b, self.types.b))
            b = b.to(FROM_NAME[self.rounds]) if self.rounds else b
        product = torch.matmul(a.double(), b.double())
        if self.epilogue is None:
            window_tensor(outs[0], (shapes[2], self.c, self.types.c)).copy_(product)
            return
        run_epilogue(self.epilogue, product.to(FROM_NAME[compute_type(self.types.c)]).numpy(), ins[2:], outs)

    def _reference_of_integers(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        shapes, types, scales = self.shapes, self.types, self.scales
        a = window_tensor(ins[0], (shapes[0], self.a, types.a)).long()
        b = window_tensor(ins[1], (shapes[1], self.b, types.b)).long()
        scale = torch.ones((), dtype=torch.float64)
        if scales is not None:
            compute, rest = compute_type(types.c), list(ins[2:])
            rows, columns = ((*self.batch, self.m), scales.a), ((*self.batch, self.n), scales.b)
            scale = window_tensor(rest.pop(0), (*rows, compute)).double()[..., :, None]
            scale = scale * window_tensor(rest.pop(0), (*columns, compute)).double()[..., None, :]
            a = a - window_tensor(rest.pop(0), (*rows, types.a)).long()[..., :, None] if scales.a_zero else a
            b = b - window_tensor(rest.pop(0), (*columns, types.b)).long()[..., None, :] if scales.b_zero else b
        product = torch.matmul(a, b).to(FROM_NAME[types.accumulator])  # wraps round as sums in that type do
        target = window_tensor(outs[0], (shapes[2], self.c, types.c))
        target.copy_(product * scale if scales is not None else product)

    def describe(self) -> str:
        """Its extents, and what is done with B before and C after."""
        batch = f"{sizes_text(self.batch)} of " if self.batch else ""
        packed = " packed" if self.panel else ""
        return f"product {batch}m{self.m} n{self.n} k{self.k}{packed}{epilogue_text(self.epilogue)}"

    def loop_nest(self) -> LoopNest:
        """The same as a loop nest: outer (*batch, m, n), inner (k,)."""
        product = contraction_program(self)
        return product if self.epilogue is None else attach_epilogue(product, self.epilogue)


def contraction_program(spec: ContractionSpec) -> LoopNest:
    """``spec`` without its epilogue as a loop nest."""
    n_batch = len(spec.batch)
    body = LoopNestBuilder((*spec.batch, spec.m, spec.n), (spec.k,))
    a, b, c = body.input(spec.types.a), body.input(spec.types.b), body.output(spec.types.c)
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = spec.a, spec.b
    x = body.load(a, (*a_batch, a_m, 0, a_k))
    if spec.panel:
        column, step = body.index(n_batch + 1), body.index(n_batch + 2)
        if spec.dots:
            y = read_pairs(body, b, (*b_batch, 0, 0, 0), (column, step), spec.n, spec.k, spec.panel)
        else:
            y = read_packed(body, b, (*b_batch, 0, 0, spec.panel), column, spec.n, spec.k, spec.panel)
    else:
        y = body.load(b, (*b_batch, 0, b_n, b_k))
        y = body.narrow(y, spec.rounds) if spec.rounds else y
    accumulator, compute = spec.types.accumulator, compute_type(spec.types.c)
    x, y = body.convert(x, accumulator), body.convert(y, accumulator)
    if spec.scales is not None:
        x, y, scale = _scaled(body, spec, spec.scales, x, y)
        total = body.convert(body.reduce("sum", x * y), compute) * scale
    else:
        total = body.convert(body.reduce("sum", x * y), compute)
    body.store(c, (*spec.c[:n_batch], *spec.c[n_batch:], 0), total)
    return body.finish()


def _scaled(body: LoopNestBuilder, spec: ContractionSpec, scales: Scales, x: Expr, y: Expr) -> tuple[Expr, Expr, Expr]:
    """Both factors less their zero points, and the product of their scales."""
    compute, accumulator = compute_type(spec.types.c), spec.types.accumulator
    *a_batch, a_m = scales.a
    *b_batch, b_n = scales.b
    of_a, of_b = (*a_batch, a_m, 0, 0), (*b_batch, 0, b_n, 0)
    scale = body.load(body.input(compute), of_a) * body.load(body.input(compute), of_b)
    if scales.a_zero:
        x = x - body.convert(body.load(body.input(spec.types.a), of_a), accumulator)
    if scales.b_zero:
        y = y - body.convert(body.load(body.input(spec.types.b), of_b), accumulator)
    return x, y, scale


def rows_suit(spec: ContractionSpec, isa: Isa) -> bool:
    """Whether B's columns, contiguous along k, should be the rows of tiles: a short A is the smaller one to pack."""
    most = MOST_SHORT_ROWS
    if isa.vectors != "avx512" and spec.n * spec.k * itemsize(spec.dtype) <= MOST_PACKED_BYTES:
        chained = spec.epilogue is not None and any(s.op in ("exp", "erf") for s in spec.epilogue.body)
        most = MOST_SHORT_ROWS_CHAINED if chained else MOST_SHORT_ROWS_NARROW
    few = LEAST_ROWS <= spec.m <= min(spec.n // 5, most)
    return not spec.batch and spec.b[-2] == 1 and few and spec.k > 1


def pairs_pay(spec: ContractionSpec) -> bool:
    """Whether multiplying in pairs is worth turning both operands into pairs in every call, if neither is packed."""
    return min(spec.m, spec.n, spec.k) >= LEAST_PAIRED


def packs(spec: ContractionSpec, isa: Isa) -> tuple[int, int]:
    """The operand (0 or 1) that a product with an epilogue has to pack in every call, unless it is packed already, and its bytes."""
    which = 0 if rows_suit(spec, isa) else 1
    held = math.prod(d for d, s in zip(spec.batch, (spec.a, spec.b)[which], strict=False) if s)
    return which, held * (spec.m, spec.n)[which] * spec.k * itemsize(spec.dtype)
