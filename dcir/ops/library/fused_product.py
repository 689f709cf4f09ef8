"""A matrix product with what is done to its first operand before and to its result after, as one operator.

    A'[m, k], others = prologue(...)[m, k];   C = A' B, rounded to its type;   results = tail(C, ...)

Neither A' nor C is stored, but for what the prologue stores beside, for other readers of A'. The tail may store at every element of C (a
bias, an activation, a residual sum), and reduce C's columns (a batch's statistics).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcir.ir.describe import words_of
from dcir.ir.loop_nest import LoopNest
from dcir.ir.operator import Operator, Steps
from dcir.ir.partial_results import unsplittable
from dcir.ir.refusal import Refusal
from dcir.ir.run_nest import run_program
from dcir.ir.scalars import reference as reference_of
from dcir.ir.serialize import register
from dcir.ir.statements import Access, Gather, Index, Load, Reduce, Store
from dcir.ir.types import HALVES, to_numpy
from dcir.ops.library.contraction import ContractionSpec

MOST_STATEMENTS = 80
"""Of a prologue or a tail."""
MOST_JOINED = 16
"""Statements of a tail that may run where sums of parts are joined, which holds many of them in registers."""
MOST_WAITING = 4
"""Operands of a prologue with a row of their own for every row of A: they wait in registers for a step."""


@register
@dataclass(frozen=True)
class FusedProduct(Operator):
    """Inputs are the prologue's (or A), B, and the tail's from its second on; outputs the prologue's from its second on, and the tail's.

    Attributes:
        product: of two matrices of a half type, ``refused_as_product`` of which is None; C is (m, n) without gaps.
        tail: loops (n,) outside and (m,) inside; its input 0 is C in its type. ``refused_as_tail`` says what it may hold.
        prologue: loops (m, k); its first output is A, without gaps: in rows, or where A lies in columns in these.
            ``refused_as_prologue`` says what it may hold.
    """

    product: ContractionSpec
    tail: LoopNest
    prologue: LoopNest | None = None

    kind = "fused_product"

    @property
    def heads(self) -> int:
        """How many inputs stand for A."""
        return 1 if self.prologue is None else len(self.prologue.inputs)

    @property
    def in_parts(self) -> bool:
        """Whether parts of its steps may be summed apart: nothing wants whole columns, or rows stored beside, and the tail is short."""
        tail = self.tail.body
        return not self.beside and len(tail) <= MOST_JOINED and not any(isinstance(s, Reduce) for s in tail)

    @property
    def beside(self) -> int:
        """How many results the prologue stores."""
        return 0 if self.prologue is None else len(self.prologue.outputs) - 1

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes of each operand."""
        (a, b), (c,) = self.product.footprint()
        heads, made = ((a,), (c,)) if self.prologue is None else self.prologue.footprint()
        reads, writes = self.tail.footprint()
        return (*heads, b, *reads[1:]), (*made[1:], *writes)

    def operations(self) -> int:
        """Those of all parts."""
        before = 0 if self.prologue is None else self.prologue.operations()
        return before + self.product.operations() + self.tail.operations()

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """One part after the other; A and C are rounded to their type."""
        s, heads = self.product, list(ins[: self.heads])
        if self.prologue is not None:
            made = np.zeros(s.m * s.k, to_numpy(s.types.a))
            run_program(self.prologue, heads, [made, *outs[: self.beside]], reference_of)
            heads = [made]
        c = np.zeros(s.m * s.n, to_numpy(s.types.c))
        s.reference([*heads, ins[self.heads]], [c])
        run_program(self.tail, [c, *ins[self.heads + 1 :]], outs[self.beside :], reference_of)

    def steps(self) -> Steps | None:
        """The same as loop nests, over A and C as temporaries."""
        s, h = self.product, self.heads
        names = [f"a{i}" for i in range(h + len(self.tail.inputs))]
        outs = [f"o{i}" for i in range(self.beside + len(self.tail.outputs))]
        temporaries, parts, a = [("product", s.types.c, s.m * s.n)], [], "a0"
        if self.prologue is not None:
            a = "before"
            temporaries.append((a, s.types.a, s.m * s.k))
            parts.append((self.prologue, names[:h], [a, *outs[: self.beside]]))
        parts.append((s.loop_nest(), [a, names[h]], ["product"]))
        return temporaries, [*parts, (self.tail, ["product", *names[h + 1 :]], outs[self.beside :])]

    def describe(self) -> str:
        """All parts."""
        before = f"{words_of(self.prologue.body)}, then " if self.prologue is not None else ""
        return f"{before}{self.product.describe()}, then {words_of(self.tail.body)}"


def refused_as_product(s: ContractionSpec) -> Refusal | None:
    """Why the matrix units have no kernel for a product."""
    if s.dtype not in HALVES or s.types.b != s.dtype:
        return Refusal("the matrix units' kernels multiply halves of one type")
    if s.batch or s.panel or s.rounds or s.dots or s.scales is not None or s.epilogue is not None:
        return Refusal("it is more than a product of two matrices")
    if min(s.m, s.n) < 2 or not s.k:
        return Refusal("it is a product of a matrix and a vector")
    if 1 not in s.a or 1 not in s.b or min(*s.a, *s.b) < 0:
        return Refusal("neither rows nor columns of an operand lie side by side")
    return None


def refused_as_tail(p: LoopNest) -> Refusal | None:
    """Why a loop nest over (n,) and (m,) cannot follow a product in its kernel."""
    if (refused := _refused(p)) is not None:
        return refused
    for s, (stage, full) in zip(p.body, p.levels(), strict=True):
        if isinstance(s, Store) and (0 in s.strides if full else not stage):
            return Refusal("a result does not depend on all of the product")
    return unsplittable(p) if any(isinstance(s, Reduce) for s in p.body) else None


def along(s: ContractionSpec) -> int:
    """The loop of (m, k) along which A's elements lie side by side."""
    return 1 if s.a[1] == 1 else 0


def refused_as_prologue(p: LoopNest, side: int = 1) -> Refusal | None:
    """Why a loop nest over (m, k) cannot run where a product loads its first operand, of which loop ``side`` has neighbours."""
    if p.inner or any(isinstance(s, Reduce) for s in p.body):
        return Refusal("it sums")
    if sum(isinstance(s, Load) and s.strides[1 - side] != 0 for s in p.body) > MOST_WAITING:
        return Refusal("too many operands would wait in registers")
    if any(isinstance(s, Store) and 0 in s.strides for s in p.body):
        return Refusal("several points store to one place")
    return _refused(p, side)


def _refused(p: LoopNest, side: int = 0) -> Refusal | None:
    if len(p.body) > MOST_STATEMENTS:
        return Refusal("it is too long to run inside of a product")
    for s in p.body:
        if isinstance(s, (Gather, Index)) or (isinstance(s, Load) and s.args):
            return Refusal("it reads through indices or a mask")
        if isinstance(s, Load) and s.strides[side] not in (0, 1):
            return Refusal("it reads across the rows of the product")
        if isinstance(s, Access) and min(s.strides, default=0) < 0:
            return Refusal("it walks backwards")
        if isinstance(s, Store) and s.added:
            return Refusal("many points add to its results")
    return None
