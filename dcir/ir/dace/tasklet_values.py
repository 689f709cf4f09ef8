"""What tasklet code means: values with types, literals without, places that move with loops; and a list of statements that grows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dcir.ir.statements import Cast, Compute, Const, Index, Statement
from dcir.ir.types import FLOATS, itemsize

_RANK = ("bool", "u8", "i8", "i16", "i32", "i64", "f32", "f64")
_EXACT: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_TRUTHS = ("isnan", "isinf", "isfinite", "signbit", "eq", "ne", "lt", "le", "gt", "ge")


class Value(NamedTuple):
    """A value of the body.

    Attributes:
        n, dtype: its number and its compute type.
        bits: the half type whose bits the code has in its place; "" for a number.
    """

    n: int
    dtype: str
    bits: str = ""


Known = Value | bool | int | float
"""A value, or a literal that has no type yet."""
Bounds = Mapping[int, tuple[int, bool]]
"""For values that are part of a place: the extent they were tested for, and whether it is an error to lie outside."""
Pointer = Callable[[Sequence["Affine"], "Value | None", Known, Bounds], Value]
"""Reads an element of an array behind a connector: its place, where it may, what else there is, and bounds of indices."""


class Affine(NamedTuple):
    """An index in tasklet code: a constant, plus loops times steps, plus values times steps with the extents that they were tested for."""

    constant: int
    loops: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[int, int], ...] = ()


class StatementList:
    """Statements under construction; equal ones are numbered once."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self._known: dict[Statement, int] = {}

    def add(self, s: Statement) -> Value:
        """The value of a statement."""
        if s not in self._known:
            self._known[s] = len(self.statements)
            self.statements.append(s)
        return Value(self._known[s], s.dtype)

    def typed(self, x: Known, dtype: str) -> Value:
        """A literal in a type; a value converted to it."""
        if not isinstance(x, Value):
            number: Any = bool(x) if dtype == "bool" else float(x) if dtype in FLOATS else int(x)
            return self.add(Const(number, dtype))
        if x.dtype == dtype and not x.bits:
            return x
        s = self.statements[x.n]
        if (
            isinstance(s, Const)
            and s.dtype != "bool"
            and (dtype in FLOATS or (s.dtype not in FLOATS and _fits(s.value, dtype)))
        ):
            return self.typed(s.value, dtype)
        return self.add(Cast(dtype, (x.n,)))

    def compute(self, op: str, args: Sequence[Known], dtype: str = "") -> Value:
        """An operator of values of one type, that of the widest."""
        kind = dtype or self.widest(args)
        done = [self.typed(a, kind) for a in args]
        if op in _EXACT and kind == "i64" and (number := self._exact(op, done)) is not None:
            return self.typed(number, kind)
        truth = op in _TRUTHS
        return self.add(Compute(op, "bool" if truth else kind, tuple(a.n for a in done)))

    def _exact(self, op: str, args: Sequence[Value]) -> int | None:
        """The result of whole numbers; tasklets write large ones as sums of products."""
        numbers = [s.value for a in args if isinstance(s := self.statements[a.n], Const)]
        if len(numbers) < len(args):
            return None
        result = _EXACT[op](*map(int, numbers))
        return result if -(2**63) <= result < 2**63 else None

    def widest(self, args: Sequence[Known]) -> str:
        """The type in which C++ computes with these; a literal of the other kind makes an integer f64."""
        types = [a.dtype for a in args if isinstance(a, Value)]
        if not types:
            return "f64" if any(isinstance(a, float) for a in args) else "i64"
        best = max(types, key=lambda t: _RANK.index(t) if t in _RANK else len(_RANK))
        return "f64" if best not in FLOATS and any(isinstance(a, float) for a in args) else best


def affine_value(body: StatementList, at: Affine) -> Value:
    """An index as a value."""
    terms: list[Value] = []
    for loop, step in at.loops:
        index = body.add(Index(loop))
        terms.append(index if step == 1 else body.compute("mul", (index, step)))
    terms += [Value(n, "i64") if step == 1 else body.compute("mul", (Value(n, "i64"), step)) for n, step in at.values]
    if at.constant or not terms:
        terms.append(body.typed(at.constant, "i64"))
    total = terms[0]
    for t in terms[1:]:
        total = body.compute("add", (total, t))
    return total


def _fits(number: float, dtype: str) -> bool:
    """Whether a whole number is one of an integer type."""
    if dtype == "bool":
        return True
    bits = 8 * itemsize(dtype)
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    return low <= number < low + (1 << bits)
