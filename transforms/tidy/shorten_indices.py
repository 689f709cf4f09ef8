"""Whole numbers that follow from one loop index are computed by a few integer operations, whatever led to them.

    where(j < 0, j + n, j) with j = int(float(i) * 0.5)     -->   i >> 1
    max(int((i + 0.5) * 0.5 - 0.5), 0)                      -->   max((i - 1) >> 1, 0)
    min(that + 1, n - 1)                                    -->   min((i + 1) >> 1, n - 1)

Interpolation, windows and tables of positions compute their indices in floating point, from numbers that are known when compiling. All
values that such an index takes are worked out, and written as min(max((a i + b) / c, low), high) where that gives every one of them.
Bounds are known of that form, so that a gather need not look at its index; and the compiler has 32-bit integers instead of doubles.

An index that depends on how the compiler rounds stays what it is: (15 + 0.5) * (3 / 31) - 0.5 is 1, or a little less where product and
difference are one multiply-add, and the neighbours of a pixel have to be counted from the same one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dcir.ir.fuse import compact
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.network import Network
from dcir.ir.scalars import reference
from dcir.ir.statements import Cast, Compute, Const, Index, Statement
from dcir.ir.types import to_numpy
from dcir.transforms.base import Pass, PassResult

_DIVISORS = (1, 2, 4, 8, 16, 32, 3, 5, 6, 7, 9, 10, 12)
_LONGEST = 1 << 16
"""Steps of a loop up to which all values of an index are worked out."""

Values = np.ndarray[Any, Any]


class Form(NamedTuple):
    """min(max((a i + b) / c, low), high), rounded down; a bound that is None is none."""

    a: int
    b: int
    c: int
    low: int | None
    high: int | None

    def of(self, i: Values) -> Values:
        """Its values."""
        found: Values = (self.a * i + self.b) // self.c
        return np.clip(found, self.low, self.high) if (self.low, self.high) != (None, None) else found

    def statements(self, index: int) -> list[Statement]:
        """What computes it, beginning with the loop index; arguments count from the first statement on."""
        body: list[Statement] = [Index(index)]

        def then(op: str, value: int) -> None:
            body.append(Const(value, "i64"))
            body.append(Compute(op, "i64", (len(body) - 2, len(body) - 1)))

        if self.a != 1:
            then("mul", self.a)
        if self.b:
            then("add", self.b)
        if self.c & (self.c - 1):
            then("idiv_floor", self.c)
        elif self.c > 1:
            then("shr", self.c.bit_length() - 1)
        if self.low is not None:
            then("max", self.low)
        if self.high is not None:
            then("min", self.high)
        return body


class ShortenIndices(Pass):
    """Rewrite loop nests whose indices are computed; equal ones are worked on once."""

    tier: ClassVar[int] = 0

    def apply(self, net: Network) -> PassResult:
        """Look at every loop nest."""
        outcome = PassResult.of(net)
        for op in net.ops():
            p = op.spec
            found = _shortened(p) if isinstance(p, LoopNest) and _computes_indices(p) else None
            if found is None or not outcome.allowed(self, net, op):
                continue
            lean = compact(found, net.ins(op), net.outs(op))
            net.rewire(op, lean.program, lean.ins, lean.outs, made_by=self.name)
            outcome.passed((op,), reason="an index is a short form of a loop's")
        return outcome


def form_of(values: Values) -> Form | None:
    """The form that gives these values for 0, 1, 2, …; None if none is known."""
    i = np.arange(len(values))
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Form(0, low, 1, None, None)
    between = np.flatnonzero((values > low) & (values < high))
    first, last = (between[0], between[-1]) if len(between) > 1 else (0, len(values) - 1)
    slope = (values[last] - values[first]) / (last - first)
    at_low, at_high = values == low, values == high
    free = np.zeros_like(at_low)
    for c in _DIVISORS:
        for a in sorted({int(np.floor(slope * c)), int(np.ceil(slope * c))}):
            least, most = values * c - a * i, values * c - a * i + c - 1
            for below, above in ((free, free), (at_low, free), (free, at_high), (at_low, at_high)):
                # At a bound the rest of the form may lie beyond it.
                b = int(least[~below].max(initial=-(2**62)))
                if b <= int(most[~above].min(initial=2**62)) and abs(b) < 2**31:
                    form = Form(a, b, c, low if below.any() else None, high if above.any() else None)
                    if np.array_equal(form.of(i), values):
                        return form
    return None


def _computes_indices(p: LoopNest) -> bool:
    """Whether it has a loop's index as more than a number to compare with or to store."""
    return any(isinstance(s, Index) for s in p.body) and sum(isinstance(s, Cast | Compute) for s in p.body) > 2


@functools.lru_cache(maxsize=512)
def _shortened(p: LoopNest) -> LoopNest | None:
    tables = dict(_tables(p))
    whole = {i for i in tables if p.body[i].dtype in ("i64", "bool")}
    wanted = {a for i, s in enumerate(p.body) if i not in whole for a in s.args if a in whole}
    body: list[Statement] = []
    where: list[int] = []
    changed = False
    for i, s in enumerate(p.body):
        made = _short(p, i, tables) if i in wanted else None
        if made is None:
            body.append(s.renumbered(where))
        else:
            first = len(body)
            body += [t.with_args(tuple(a + first for a in t.args)) if t.args else t for t in made]
            changed = True
        where.append(len(body) - 1)
    return simplify(replace(p, body=tuple(body))) if changed else None


def _short(p: LoopNest, i: int, tables: dict[int, tuple[int, Values]]) -> list[Statement] | None:
    """Fewer statements for a value that follows from one index."""
    dim, values = tables[i]
    needed = [j for j in (*p.needed_by((i,), ()), i) if isinstance(p.body[j], Cast | Compute)]
    if p.body[i].dtype == "bool":
        same = bool(values.all()), bool(values.any())
        constant: list[Statement] = [Const(same[0], "bool")]
        return constant if same[0] == same[1] else None
    form = form_of(values.astype(np.int64))
    if form is None:
        return None
    made: list[Statement] = form.statements(dim) if form.a else [Const(form.b, "i64")]
    return made if sum(isinstance(s, Compute) for s in made) < len(needed) else None


class _Known(NamedTuple):
    """What a statement is for all values of a loop's index.

    Attributes:
        dim: the loop; None for a number.
        values: one for each, or one for all.
        error: how far from these they are at most, wherever multiply-adds round once.
    """

    dim: int | None
    values: Values
    error: Values


_CONTINUOUS = {"add", "sub", "mul", "div", "neg", "abs", "min", "max"}
_STEPS = {"floor", "ceil", "trunc", "round"}
_CHOICES = {"where", "sign", "copysign", "fmod", "mod", "fmin", "fmax"}
_COMPARES = {"eq", "ne", "lt", "le", "gt", "ge"}


def _tables(p: LoopNest) -> Iterator[tuple[int, tuple[int, Values]]]:
    """All values of the statements that follow from one loop's index and numbers."""
    known: dict[int, _Known] = {}
    for i, s in enumerate(p.body):
        if isinstance(s, Const):
            number = np.full((1,), s.value, to_numpy(s.dtype))
            known[i] = _Known(None, number, np.zeros(1))
        elif isinstance(s, Index):
            extent: Any = p.dims[s.dim]
            if isinstance(extent, int) and 0 < extent <= _LONGEST:
                known[i] = _Known(s.dim, np.arange(extent), np.zeros(1))
        elif isinstance(s, Cast | Compute) and all(a in known for a in s.args):
            dims = {known[a].dim for a in s.args} - {None}
            if len(dims) < 2:
                with np.errstate(all="ignore"):
                    found = _computed(s, [known[a] for a in s.args])
                if found is not None:
                    known[i] = found._replace(dim=next(iter(dims), None))
        if i in known and (dim := known[i].dim) is not None:
            yield i, (dim, known[i].values)


def _computed(s: Cast | Compute, given: list[_Known]) -> _Known | None:
    """A statement's values; None if they depend on how its arguments are rounded, or may."""
    f = reference(f"cast:{s.dtype}" if isinstance(s, Cast) else s.op)
    values, errors = [g.values for g in given], [g.error for g in given]
    found = np.asarray(f(*values)).astype(to_numpy(s.dtype))
    if all(v.dtype.kind != "f" for v in (*values, found)):
        return _Known(None, found, np.zeros(1))
    if found.dtype.kind == "f" and (isinstance(s, Cast) or s.op in _CONTINUOUS):
        # What no digit is lost of is the same however it is computed.
        wide = np.longdouble if found.dtype == np.float64 else np.float64
        exactly = values[0].astype(wide) if isinstance(s, Cast) else f(*(v.astype(wide) for v in values))
        unit = 2.0**-22 if found.dtype != np.float64 else 2.0**-51
        lost = np.where(found == exactly, 0.0, unit * np.abs(found.astype(np.float64)))
        return _Known(None, found, _carried(s, values, errors) + lost)
    if isinstance(s, Cast) or s.op in _STEPS:
        below, above = values[0] - errors[0], values[0] + errors[0]
        same = np.array_equal(f(below).astype(found.dtype), found) and np.array_equal(
            f(above).astype(found.dtype), found
        )
    elif s.op in _COMPARES:
        apart = np.abs(values[0].astype(np.float64) - values[1].astype(np.float64))
        same = bool(np.all((apart > errors[0] + errors[1]) | (errors[0] + errors[1] == 0)))
    elif s.op in _CHOICES or found.dtype.kind != "f":
        same = not any(e.any() for e in errors)
    else:
        same = False
    return _Known(None, found, np.zeros(1)) if same else None


def _carried(s: Cast | Compute, values: list[Values], errors: list[Values]) -> Values:
    """How far a continuous function is off where its arguments are."""
    if len(values) == 1:
        return errors[0]
    a, b = (np.abs(v.astype(np.float64)) for v in values)
    p, q = errors
    off: Values = p + q
    if isinstance(s, Compute) and s.op == "mul":
        off = a * q + b * p + p * q
    elif isinstance(s, Compute) and s.op == "div":
        off = np.where(b > q, (p + a / b * q) / (b - q), np.inf)
    return off
