"""Values of an epilogue as sums of a few of its values, each times a static number per channel, and those numbers as a loop nest."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from dcir.ir.fuse import Fused
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import Expr, LoopNestBuilder
from dcir.ir.network import Operand
from dcir.ir.statements import Const, Read, Statement, Store
from dcir.transforms.tier2_fusion.static.affine_chains import divides
from dcir.transforms.tier2_fusion.static.static_values import static_values, walks_of

CHANNEL = 1
"""The loop of an epilogue that walks the channels."""


class WeightedSum(NamedTuple):
    """factor * value over all terms, plus a shift; None for a factor of one, and for no shift.

    Attributes:
        terms: the factor of every value, by its statement.
        shift: what is added.
    """

    terms: Mapping[Statement, Expr | None]
    shift: Expr | None


class ChannelNumbers:
    """Static numbers per channel, made of those of several epilogues; a loop nest over the channels computes all that are asked for.

    Attributes:
        body: the nest so far.
        ins: its operands.
    """

    def __init__(self, channels: int, dtype: str) -> None:
        self.body = LoopNestBuilder((channels,))
        self.ins: list[Operand] = []
        self.dtype = dtype

    def take(self, f: Fused, number: int, known: dict[int, int]) -> Expr:
        """A static value of an epilogue; ``known`` are the statements of the same epilogue that are there already."""
        p = f.program

        def copied(i: int) -> int:
            if i not in known:
                s = p.body[i]
                for a in s.args:
                    copied(a)
                s = s.renumbered(known)
                if isinstance(s, Read):
                    s = s.with_operand(self._operand(f.ins[s.operand], p.inputs[s.operand]))
                known[i] = self.body.add(s.over_loops(lambda st: (st[CHANNEL],), lambda d: d - CHANNEL))
            return known[i]

        return Expr(self.body, copied(number), p.body[number].dtype)

    def _operand(self, o: Operand, dtype: str) -> int:
        if o in self.ins:
            return self.ins.index(o)
        self.ins.append(o)
        return self.body.input(dtype)

    def times(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """The product of two factors."""
        if a is None or b is None:
            return a if b is None else b
        return a * b

    def plus(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """The sum of two shifts."""
        if a is None or b is None:
            return a if b is None else b
        return a + b

    def scaled(self, s: WeightedSum, by: Expr) -> WeightedSum:
        """A sum times a number."""
        return WeightedSum(
            {k: self.times(c, by) for k, c in s.terms.items()}, None if s.shift is None else s.shift * by
        )

    def added(self, a: WeightedSum, b: WeightedSum) -> WeightedSum:
        """Two sums as one."""
        terms = dict(a.terms)
        one = self.body.const(1.0, self.dtype)
        for k, c in b.terms.items():
            terms[k] = (c or one) + (terms[k] or one) if k in terms else c
        return WeightedSum(terms, self.plus(a.shift, b.shift))

    def constant(self, value: Expr) -> float | None:
        """The number that a value is; None where operands are read for it."""
        s = self.body.body[value.n]
        return float(s.value) if isinstance(s, Const) else None

    def program(self, values: Sequence[Expr]) -> LoopNest:
        """The nest that stores these, one container each; statements that none needs are not in it."""
        for value in values:
            self.body.store(self.body.output(self.dtype), (1,), value)
        return self.body.finish()


def weighted_sums(
    f: Fused, static: set[str], numbers: ChannelNumbers, terms: Container[Statement]
) -> list[WeightedSum | None]:
    """Of every value of a program the sum of ``terms`` that it is; None of all others.

    Args:
        f: an epilogue, or another program over (n, channel, *spatial).
        static: containers that do not change with a call.
        numbers: where factors and shifts are written.
        terms: the values to look for.
    """
    p, dtype = f.program, numbers.dtype
    flags, walks = static_values(p, f.ins, static), walks_of(p)
    known: dict[int, int] = {}
    found: list[WeightedSum | None] = []
    for i, s in enumerate(p.body):
        if isinstance(s, Store) or s.dtype != dtype:
            found.append(None)
        elif s in terms:
            found.append(WeightedSum({s: None}, None))
        elif flags[i]:
            found.append(WeightedSum({}, numbers.take(f, i, known)) if set(walks[i]) <= {CHANNEL} else None)
        else:
            found.append(_combined(s.op, [found[a] for a in s.args], numbers))
    return found


def _combined(op: str, args: Sequence[WeightedSum | None], numbers: ChannelNumbers) -> WeightedSum | None:
    if op == "neg" and args[0] is not None:
        return numbers.scaled(args[0], numbers.body.const(-1.0, numbers.dtype))
    if op not in ("add", "sub", "mul", "div"):
        return None
    a, b = args
    if a is None or b is None:
        return None
    if op == "add":
        return numbers.added(a, b)
    if op == "sub":
        return numbers.added(a, numbers.scaled(b, numbers.body.const(-1.0, numbers.dtype)))
    if op == "mul" and not a.terms:
        a, b = b, a
    if b.terms or b.shift is None:
        return None
    if op == "mul":
        return numbers.scaled(a, b.shift)
    if not divides(numbers.body, b.shift):
        return None
    one = numbers.body.const(1.0, numbers.dtype)
    return numbers.scaled(a, one / b.shift)
