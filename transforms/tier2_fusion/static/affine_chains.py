"""Chains of additions and multiplications by static values as one of each: a * x + c."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from dcir.ir.fuse import Fused
from dcir.ir.loop_nest import simplify
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.scalars import evaluate
from dcir.ir.statements import Compute, Const, Load, Statement, Store
from dcir.ir.types import FLOATS
from dcir.ops.library.product import VALUE
from dcir.transforms.tier2_fusion.static.static_values import numbered, static_values, walks_of

_ROUNDS = 4096.0
"""Numbers from here on leave less than 12 bits behind the point in float32."""
_LEAST = 2.0**-126
"""The least normal float32."""


class Affine(NamedTuple):
    """The value factor * base + shift; ``ops`` operations of the program make it of its base."""

    base: int
    factor: Expr | None
    shift: Expr | None
    ops: int


class Chains:
    """A pointwise program with its chains of additions and multiplications by static values as one of each."""

    def __init__(self, f: Fused, static: set[str]) -> None:
        self.f, p = f, f.program
        self.flags = static_values(p, f.ins, static)
        self.body = LoopNestBuilder(p.outer)
        self.where: list[int] = []  # every statement as it was
        self.chains: dict[int, Affine] = {}
        self.readers = Counter(a for s in p.body for a in s.args)
        for i, s in enumerate(p.body):
            self.where.append(-1 if isinstance(s, Store) else self.body.add(self._as_was(s)))
            if not isinstance(s, Store) and not self.flags[i]:
                self.chains[i] = self._chain(i, s)

    def _as_was(self, s: Statement) -> Statement:
        return s.renumbered(self.where)

    def _expr(self, i: int) -> Expr:
        return Expr(self.body, self.where[i], self.f.program.body[i].dtype)

    def _chain(self, i: int, s: Statement) -> Affine:
        start = Affine(i, None, None, 0)
        if s.dtype not in FLOATS or s.op not in ("add", "sub", "mul", "div", "neg"):
            return start
        if s.op == "neg":
            # Where others read the value too (x / (1 + exp(-x))), a factor of either sign could not go into the weights.
            if self.readers[s.args[0]] > 1:
                return start
            c = self.chains[s.args[0]]
            minus = self.body.const(-1, s.dtype) if c.factor is None else self._two("neg", c.factor)
            return Affine(c.base, minus, None if c.shift is None else self._two("neg", c.shift), c.ops + 1)
        x, y = s.args
        flipped = self.flags[x]
        if flipped:
            x, y = y, x
        if self.flags[x] or not self.flags[y] or (flipped and s.op == "div"):
            return start
        c, by = self.chains[x], self._expr(y)
        factor, shift = c.factor, c.shift
        if s.op == "div" and not divides(self.body, by):
            return start
        rounds = any(e is not None and self._is_large(e) for e in (shift, by if s.op in ("add", "sub") else None))
        if shift is not None and rounds:
            return start
        if s.op in ("mul", "div"):
            one = self.body.const(1, s.dtype)
            factor = self._two(s.op, one if factor is None else factor, by)
            shift = None if shift is None else self._two(s.op, shift, by)
        elif s.op == "add":
            shift = by if shift is None else self._two("add", shift, by)
        elif not flipped:
            shift = self._two("neg", by) if shift is None else self._two("sub", shift, by)
        else:
            shift = by if shift is None else self._two("sub", by, shift)
            factor = self.body.const(-1, s.dtype) if factor is None else self._two("neg", factor)
        lost = any(now is not None and self._is_lost(now) for now in (factor, shift))
        return start if lost else Affine(c.base, factor, shift, c.ops + 1)

    def _is_large(self, e: Expr) -> bool:
        """Whether a number may be there to round what it is added to: ``(x + 12582912.0) - 12582912.0``."""
        s = self.body.body[e.n]
        return isinstance(s, Const) and abs(s.value) >= _ROUNDS

    def _is_lost(self, e: Expr) -> bool:
        """Whether numbers that are none of them have become infinite or nothing together."""
        s = self.body.body[e.n]
        return isinstance(s, Const) and (not math.isfinite(s.value) or abs(s.value) < _LEAST)

    def _two(self, op: str, *args: Expr) -> Expr:
        """An operator on static values; numbers are computed here."""
        dtype = args[0].dtype
        known = [s.value if isinstance(s, Const) else None for s in (self.body.body[a.n] for a in args)]
        if None not in known:
            new = Compute(op, dtype, tuple(a.n for a in args))
            value = evaluate(new, [(k, dtype) for k in known])
            if value is not None:
                return self.body.const(value, dtype)
        if op == "mul" and known[0] == 1:
            return args[1]
        return self.body.op(op, *args)

    def _ends(self) -> dict[int, Affine]:
        """The chains' values that something else reads than the next link."""
        ends: dict[int, Affine] = {}
        for i, s in enumerate(self.f.program.body):
            next_link = i in self.chains and self.chains[i].base != i
            for a in s.args:
                if a in self.chains and not (next_link and self.chains[a].base == self.chains[i].base):
                    ends[a] = self.chains[a]
        return ends

    def common_factor(self) -> Expr | None:
        """The factor of everything that is made of the product's value (input 0)."""
        value = next(i for i, s in enumerate(self.f.program.body) if isinstance(s, Load) and s.operand == 0)
        factors = {
            e.factor.n if e.factor is not None else -1: e.factor for e in self._ends().values() if e.base == value
        }
        return next(iter(factors.values())) if len(factors) == 1 else None

    def walks(self, value: Expr) -> set[int]:
        """The loops that a value depends on."""
        return set(walks_of(replace(self.f.program, body=tuple(self.body.body)))[value.n])

    def plain(self) -> Fused:
        """With every chain that gets shorter as one multiplication and one addition."""
        shorter = {i: c for i, c in self._ends().items() if links(c) < c.ops}
        return self._finish(shorter, None) if shorter else self.f

    def without(self, factor: Expr) -> Fused:
        """For a product whose value has this factor already; a last store keeps the factor for whoever takes it (``_take``)."""
        value = next(i for i, s in enumerate(self.f.program.body) if isinstance(s, Load) and s.operand == 0)
        ends = {i: c._replace(factor=None) if c.base == value else c for i, c in self._ends().items()}
        return self._finish({i: c for i, c in ends.items() if c.base == value or links(c) < c.ops}, factor)

    def _finish(self, chains: Mapping[int, Affine], factor: Expr | None) -> Fused:
        p, body = self.f.program, LoopNestBuilder(self.f.program.outer)
        old = self.body.body
        copied: dict[int, int] = {}

        def take(n: int) -> int:
            """A value as it was."""
            if n not in copied:
                for a in old[n].args:
                    take(a)
                copied[n] = body.add(old[n].renumbered(copied))
            return copied[n]

        for i, s in enumerate(p.body):
            if isinstance(s, Store):
                body.add(s.with_args((take(self.where[s.args[0]]),)))
            if i not in chains:
                continue
            c = chains[i]
            n = take(self.where[c.base])
            if c.factor is not None:
                n = body.add(Compute("mul", s.dtype, (n, take(c.factor.n))))
            if c.shift is not None:
                n = body.add(Compute("add", s.dtype, (n, take(c.shift.n))))
            copied[self.where[i]] = n
        outputs = p.outputs
        if factor is not None:
            body.add(Store(len(outputs), (0,) * len(p.outer), factor.dtype, (take(factor.n),)))
            outputs = (*outputs, factor.dtype)
        outs = self.f.outs if factor is None else (*self.f.outs, VALUE)
        done = simplify(replace(p, outputs=outputs, body=tuple(body.body)))
        return numbered(Fused(done, self.f.ins, outs))


def divides(body: LoopNestBuilder, e: Expr) -> bool:
    """Whether a divisor is a number whose inverse may be a factor; what is only known when it runs may be 0."""
    s = body.body[e.n]
    return isinstance(s, Const) and math.isfinite(s.value) and abs(s.value) >= _LEAST


def links(c: Affine) -> int:
    """Operations that are left of a chain."""
    return (c.factor is not None) + (c.shift is not None)
