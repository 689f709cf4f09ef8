"""Scalar identities inside programs: what is known when compiling is not computed when running.

    x * 1, x - 0, x / 1, x + (-0.0), -(-x), not not c   -->   x (or c)
    where(c, a, a), where(true, a, b)                   -->   a
    pow(x, 2), x / 4, x * -1, x + (-y)                  -->   x * x, x * 0.25, -x, x - y
    f32(f64(x)), narrow(load of a half tensor)           -->   x
    all(x == -inf)                                      -->   max(x) == -inf, which a softmax has
    0 <= i < n for a loop i of n steps                  -->   true, and a load under this mask a plain one
    op(2, 3)                                            -->   its value

Only identities that hold for every IEEE value: NaN, infinities and the sign of zero come out as before. So x * 0 stays
(NaN, infinity), and x + 0.0 too (-0.0 becomes 0.0). Saves operations, and the loads that only they needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.many_sizes import many_sizes, never_less
from dcir.ir.network import Network
from dcir.ir.scalars import evaluate
from dcir.ir.statements import Access, Cast, Compute, Const, Gather, Index, Load, Narrow, Read, Reduce, Statement
from dcir.ir.types import FLOATS, keeps_values
from dcir.transforms.base import Pass, PassResult

_Margins = tuple[tuple[int, ...], ...]
_COMPARE: dict[str, Callable[[int, int], tuple[_Margins, _Margins]]] = {
    # ``below``: how far the highest on the left is below the lowest on the right; ``above``: the lowest above the highest. Always true
    # if, of one of the first tuples, no number is negative; never, of one of the second.
    "lt": lambda below, above: (((below - 1,),), ((above,),)),
    "le": lambda below, above: (((below,),), ((above - 1,),)),
    "gt": lambda below, above: (((above - 1,),), ((below,),)),
    "ge": lambda below, above: (((above,),), ((below - 1,),)),
    "eq": lambda below, above: (((below, above),), ((below - 1,), (above - 1,))),
    "ne": lambda below, above: (((below - 1,), (above - 1,)), ((below, above),)),
}


@dataclass(frozen=True)
class SimplifyAlgebra(Pass):
    """Scalar identities and constants, program by program; equal programs are worked on once."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """Rewrite every loop nest."""
        outcome = PassResult.of(net)
        known: dict[LoopNest, _Simplifier] = {}
        for op in net.ops():
            p = op.spec
            if not isinstance(p, LoopNest):
                continue
            if p not in known:
                known[p] = _Simplifier(p)
            done = known[p]
            for why, count in done.refused.items():
                outcome.missed(why, (op,), count=count)
            if not done.applied or not outcome.allowed(self, net, op):
                continue
            lean = compact(done.program, net.ins(op), net.outs(op))
            outcome.saved_bytes += p.bytes_moved() - lean.program.bytes_moved()
            net.rewire(op, lean.program, lean.ins, lean.outs, made_by=self.name)
            outcome.passed((op,), count=done.applied)
        return outcome


class _Simplifier:
    """One program, statement by statement; every rule gives the number of an equal value, or None."""

    def __init__(self, p: LoopNest) -> None:
        self.p = p
        self.body = LoopNestBuilder(p.outer, p.inner)
        self.refused: Counter[str] = Counter()
        self.applied = 0
        self.ranges: dict[int, tuple[int, int] | None] = {}
        where: list[int] = []
        for s in p.body:
            where.append(self.emit(s.renumbered(where)))
        self.program = simplify(replace(p, body=tuple(self.body.body)))

    def emit(self, s: Statement) -> int:
        """The number of a value equal to ``s``."""
        rule = _RULES.get(s.op)
        n = self._folded(s)
        if n is None and rule is not None:
            n = rule(self, s)
        if n is None:
            return self.body.add(s)
        self.applied += 1
        return n

    def stmt(self, n: int) -> Statement:
        """The statement of a value."""
        return self.body.body[n]

    def const(self, value: float, dtype: str) -> int:
        """A constant."""
        return self.body.const(value, dtype).n

    def value(self, n: int) -> Any:
        """The number that a value is, or None."""
        s = self.stmt(n)
        return s.value if isinstance(s, Const) else None

    def new(self, op: str, dtype: str, *args: int) -> int:
        """A simplified new statement."""
        return self.emit(Compute(op, dtype, args))

    def _folded(self, s: Statement) -> int | None:
        if not s.args or isinstance(s, (Access, Reduce)):
            return None
        values = [self.value(a) for a in s.args]
        if any(v is None for v in values):
            return None
        result = evaluate(s, [(v, self.stmt(a).dtype) for v, a in zip(values, s.args, strict=True)])
        return None if result is None else self.const(result, s.dtype)

    # ------------------------------------------------------------------ arithmetic
    def add(self, s: Statement) -> int | None:
        for x, y in (s.args, s.args[::-1]):
            v = self.value(y)
            if v is not None and v == 0:
                if s.dtype not in FLOATS or math.copysign(1, v) < 0:
                    return x
                self.refused["x + 0.0 turns -0.0 into 0.0"] += 1
            if self.stmt(y).op == "neg":
                return self.new("sub", s.dtype, x, self.stmt(y).args[0])
        return None

    def sub(self, s: Statement) -> int | None:
        x, y = s.args
        v = self.value(y)
        if v is not None and v == 0:
            if s.dtype not in FLOATS or math.copysign(1, v) > 0:
                return x
            self.refused["x + 0.0 turns -0.0 into 0.0"] += 1
        if self.stmt(y).op == "neg":
            return self.new("add", s.dtype, x, self.stmt(y).args[0])
        return None

    def mul(self, s: Statement) -> int | None:
        for x, y in (s.args, s.args[::-1]):
            v = self.value(y)
            if v is None:
                continue
            if v == 1:
                return x
            if v == -1:
                return self.new("neg", s.dtype, x)
            if v == 0:
                if s.dtype not in FLOATS:
                    return y
                self.refused["x * 0 keeps NaN, infinity and the sign of zero"] += 1
        return None

    def div(self, s: Statement) -> int | None:
        x, v = s.args[0], self.value(s.args[1])
        if v is None:
            return None
        if v == 1:
            return x
        if v and math.isfinite(v) and abs(math.frexp(v)[0]) == 0.5 and abs(math.frexp(v)[1]) < 120:
            return self.new("mul", s.dtype, x, self.const(1 / v, s.dtype))  # both round the same exact value
        return None

    def whole_div(self, s: Statement) -> int | None:
        x, v, span = s.args[0], self.value(s.args[1]), self.range(s.args[0])
        if v == 1:
            return x
        if v is not None and v > 0 and span is not None and never_less(span[0], v - 1 - span[1]):
            return self.const(0, s.dtype)
        return None

    def mod(self, s: Statement) -> int | None:
        x, v, span = s.args[0], self.value(s.args[1]), self.range(s.args[0])
        inside = v is not None and span is not None and never_less(span[0], v - 1 - span[1])
        return x if inside else None

    def pow(self, s: Statement) -> int | None:
        x, v = s.args[0], self.value(s.args[1])
        if v == 1:
            return x
        if v in (2, 3):
            square = self.new("mul", s.dtype, x, x)
            return square if v == 2 else self.new("mul", s.dtype, square, x)
        if v == -1 and s.dtype in FLOATS:
            return self.new("div", s.dtype, self.const(1, s.dtype), x)
        return None

    def twice(self, s: Statement) -> int | None:
        """f(f(x)) = x."""
        inner = self.stmt(s.args[0])
        same = inner.op == s.op and inner.dtype == s.dtype == self.stmt(inner.args[0]).dtype
        return inner.args[0] if same else None

    def abs(self, s: Statement) -> int | None:
        inner = self.stmt(s.args[0])
        if inner.op == "neg":
            return self.new("abs", s.dtype, *inner.args)
        return s.args[0] if inner.op == "abs" else None

    def extreme(self, s: Statement) -> int | None:
        """max and min; and, or of bools: f(x, x) = x and f(f(x, y), y) = f(x, y)."""
        x, y = s.args
        if self.stmt(x).dtype != s.dtype:
            return None
        if x == y:
            return x
        for a, b in (s.args, s.args[::-1]):
            if self.stmt(a).op == s.op and b in self.stmt(a).args:
                return a
        return None

    def logic(self, s: Statement) -> int | None:
        neutral = s.op == "and"
        for x, y in (s.args, s.args[::-1]):
            v = self.value(y)
            if v is None or self.stmt(x).dtype != "bool" or self.stmt(y).dtype != "bool":
                continue
            return x if bool(v) == neutral else y
        return self.extreme(s)

    # ------------------------------------------------------------------ choice, comparison, conversion
    def where(self, s: Statement) -> int | None:
        c, a, b = s.args
        v = self.value(c)
        if v is not None:
            return a if v else b
        if a == b:
            return a
        if self.stmt(c).op == "not" and self.stmt(self.stmt(c).args[0]).dtype == "bool":
            return self.new("where", s.dtype, self.stmt(c).args[0], b, a)
        if s.dtype == "bool" and (self.value(a), self.value(b)) == (True, False):
            return c
        return None

    def compare(self, s: Statement) -> int | None:
        left, right = self.range(s.args[0]), self.range(s.args[1])
        if left is None or right is None:
            return None
        ways = _COMPARE[s.op](right[0] - left[1], left[0] - right[1])
        for margins, answer in zip(ways, (True, False), strict=True):
            if any(never_less(*m) for m in margins):
                return self.const(answer, "bool")
        return None

    def cast(self, s: Statement) -> int | None:
        x = s.args[0]
        inner = self.stmt(x)
        if inner.dtype == s.dtype:
            return x
        if isinstance(inner, Cast) and keeps_values(self.stmt(inner.args[0]).dtype, inner.dtype):
            return self.emit(Cast(s.dtype, inner.args))
        return None

    def narrow(self, s: Statement) -> int | None:
        assert isinstance(s, Narrow)
        inner = self.stmt(s.args[0])
        if isinstance(inner, Narrow) and inner.storage == s.storage:
            return s.args[0]
        plain = isinstance(inner, Load) and not inner.args and self.p.inputs[inner.operand] == s.storage
        return s.args[0] if plain else None

    def read(self, s: Statement) -> int | None:
        """A load or gather whose mask is known."""
        assert isinstance(s, Read)
        if not s.guard:
            return None
        mask, other = (self.value(a) for a in s.guard)
        if mask is None:
            return None
        if not mask:
            return s.guard[1]
        # Outside of the operand, a gather gives its other value, and 0 if it has none.
        inside = not isinstance(s, Gather) or all(map(self._inside, s.indices, s.extents))
        if not inside and (other != 0 or math.copysign(1, other) < 0):
            return None
        return self.body.add(s.with_args(s.indices))

    def reduce(self, s: Statement) -> int | None:
        """``all(x == -inf)`` as ``max(x) == -inf``: of a NaN both are false, of nothing both are true."""
        assert isinstance(s, Reduce)
        asked = self.stmt(s.args[0])
        if s.kind != "all" or asked.op != "eq":
            return None
        for x, y in (asked.args, asked.args[::-1]):
            dtype = self.stmt(x).dtype
            if self.value(y) == -math.inf and dtype in FLOATS:
                return self.new("eq", "bool", self.emit(Reduce("max", dtype, (x,))), self.const(-math.inf, dtype))
        return None

    def _inside(self, index: int, extent: int) -> bool:
        span = self.range(index)
        return span is not None and never_less(span[0], extent - 1 - span[1])

    # ------------------------------------------------------------------ ranges of whole numbers
    def range(self, n: int) -> tuple[int, int] | None:
        """Lowest and highest value of an i64, as far as loop extents tell."""
        if n not in self.ranges:
            self.ranges[n] = self._range(n)
        return self.ranges[n]

    def _range(self, n: int) -> tuple[int, int] | None:
        s = self.stmt(n)
        if s.dtype != "i64" or any(d == 0 for d in self.p.dims):
            return None
        if isinstance(s, Const):
            return int(s.value), int(s.value)
        if isinstance(s, Index):
            return 0, self.p.dims[s.dim] - 1
        if s.op not in ("add", "sub", "mul"):
            return None
        left, right = self.range(s.args[0]), self.range(s.args[1])
        if left is None or right is None:
            return None
        if s.op == "add":
            span = left[0] + right[0], left[1] + right[1]
        elif s.op == "sub":
            span = left[0] - right[1], left[1] - right[0]
        elif many_sizes():
            if not never_less(left[0], right[0]):
                return None
            span = left[0] * right[0], left[1] * right[1]
        else:
            ends = [a * b for a in left for b in right]
            span = min(ends), max(ends)
        return span if span[0] > -(2**62) and span[1] < 2**62 else None


_RULES: dict[str, Callable[[_Simplifier, Statement], int | None]] = {
    "add": _Simplifier.add, "sub": _Simplifier.sub, "mul": _Simplifier.mul, "div": _Simplifier.div,
    "idiv_floor": _Simplifier.whole_div, "idiv_trunc": _Simplifier.whole_div, "mod": _Simplifier.mod,
    "pow": _Simplifier.pow, "neg": _Simplifier.twice, "not": _Simplifier.twice, "bitnot": _Simplifier.twice,
    "abs": _Simplifier.abs, "max": _Simplifier.extreme, "min": _Simplifier.extreme, "and": _Simplifier.logic,
    "or": _Simplifier.logic, "where": _Simplifier.where, "cast": _Simplifier.cast, "narrow": _Simplifier.narrow,
    "reduce": _Simplifier.reduce, "load": _Simplifier.read, "gather": _Simplifier.read, **dict.fromkeys(_COMPARE, _Simplifier.compare),
}  # fmt: skip
