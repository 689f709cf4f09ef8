"""Writing loop nests: values with Python's operators, and a builder that numbers equal statements once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.scalars import reference
from dcir.ir.sizes import whole
from dcir.ir.statements import (
    REDUCTIONS,
    Cast,
    Compute,
    Const,
    Gather,
    Index,
    Load,
    Narrow,
    Reduce,
    Statement,
    Store,
    Strides,
)
from dcir.ir.types import FLOATS, INTEGERS, compute_type, to_numpy, wrapped


class Expr:
    """A value under construction, with Python operators; both sides must have the same dtype (see ``LoopNestBuilder.convert``)."""

    __slots__ = ("body", "dtype", "n")

    def __init__(self, body: LoopNestBuilder, n: int, dtype: str) -> None:
        self.body, self.n, self.dtype = body, n, dtype

    def _two(self, op: str, other: Expr | float, flip: bool = False, dtype: str | None = None) -> Expr:
        rhs = other if isinstance(other, Expr) else self.body.const(other, self.dtype)
        a, b = (rhs, self) if flip else (self, rhs)
        return self.body.op(op, a, b, dtype=dtype)

    def __add__(self, o: Expr | float) -> Expr:
        return self._two("add", o)

    def __radd__(self, o: Expr | float) -> Expr:
        return self._two("add", o, True)

    def __sub__(self, o: Expr | float) -> Expr:
        return self._two("sub", o)

    def __rsub__(self, o: Expr | float) -> Expr:
        return self._two("sub", o, True)

    def __mul__(self, o: Expr | float) -> Expr:
        return self._two("mul", o)

    def __rmul__(self, o: Expr | float) -> Expr:
        return self._two("mul", o, True)

    def __truediv__(self, o: Expr | float) -> Expr:
        return self._two("div", o)

    def __rtruediv__(self, o: Expr | float) -> Expr:
        return self._two("div", o, True)

    def __neg__(self) -> Expr:
        return self.body.op("neg", self)

    def __lt__(self, o: Expr | float) -> Expr:
        return self._two("lt", o, dtype="bool")

    def __le__(self, o: Expr | float) -> Expr:
        return self._two("le", o, dtype="bool")

    def __gt__(self, o: Expr | float) -> Expr:
        return self._two("gt", o, dtype="bool")

    def __ge__(self, o: Expr | float) -> Expr:
        return self._two("ge", o, dtype="bool")

    def eq(self, o: Expr | float) -> Expr:
        """Elementwise equality (Python's ``==`` stays identity)."""
        return self._two("eq", o, dtype="bool")

    def ne(self, o: Expr | float) -> Expr:
        """Elementwise inequality."""
        return self._two("ne", o, dtype="bool")

    def __and__(self, o: Expr) -> Expr:
        return self._two("and", o, dtype="bool") if self.dtype == "bool" else self._two("bitand", o)

    def __or__(self, o: Expr) -> Expr:
        return self._two("or", o, dtype="bool") if self.dtype == "bool" else self._two("bitor", o)

    def __invert__(self) -> Expr:
        return self.body.op("not", self, dtype="bool") if self.dtype == "bool" else self.body.op("bitnot", self)


class LoopNestBuilder:
    """Builds a program statement by statement; equal statements get one value number."""

    def __init__(self, outer: Sequence[int], inner: Sequence[int] = ()) -> None:
        self.outer, self.inner = tuple(map(whole, outer)), tuple(map(whole, inner))
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.body: list[Statement] = []
        self._seen: dict[Statement, int] = {}

    @property
    def rank(self) -> int:
        """Number of loops."""
        return len(self.outer) + len(self.inner)

    def add(self, s: Statement) -> int:
        """Append a statement (or find its equal); returns its value number."""
        number = len(self.body)
        if not isinstance(s, Store):
            known = self._seen.setdefault(s, number)
            if known != number:
                return known
        self.body.append(s)
        return number

    def _walk(self, strides: Sequence[int]) -> Strides:
        """``strides``, 0 where a loop of extent 1 goes nowhere."""
        return tuple(whole(s) if d != 1 else 0 for s, d in zip(strides, self.outer + self.inner, strict=True))

    def input(self, dtype: str) -> int:
        """Declare the next input operand; returns its number."""
        self.inputs.append(dtype)
        return len(self.inputs) - 1

    def output(self, dtype: str) -> int:
        """Declare the next output operand; returns its number."""
        self.outputs.append(dtype)
        return len(self.outputs) - 1

    def _expr(self, s: Statement) -> Expr:
        return Expr(self, self.add(s), s.dtype)

    def const(self, value: float, dtype: str) -> Expr:
        """A constant of type ``dtype``."""
        if dtype == "bool":
            value = bool(value)
        elif dtype in FLOATS:
            value = float(value)
        else:
            value = wrapped(int(value), dtype)
        return self._expr(Const(value, dtype))

    def index(self, dim: int) -> Expr:
        """The loop variable of dimension ``dim`` (over outer + inner), i64."""
        return self._expr(Index(dim))

    def load(self, operand: int, strides: Sequence[int], mask: Expr | None = None, other: Expr | None = None) -> Expr:
        """The element of input ``operand`` at this point, in its compute type; where ``mask`` is false, ``other``."""
        dtype = compute_type(self.inputs[operand])
        args: tuple[int, ...] = ()
        if mask is not None:
            assert other is not None and other.dtype == dtype and mask.dtype == "bool"
            args = (mask.n, other.n)
        return self._expr(Load(operand, self._walk(strides), dtype, args))

    def gather(
        self,
        operand: int,
        strides: Sequence[int],
        indices: Sequence[Expr],
        extents: Sequence[int],
        steps: Sequence[int],
        *,
        checked: bool = True,
        mask: Expr | None = None,
        other: Expr | None = None,
    ) -> Expr:
        """The element at loop address + sum(index * step); ``checked`` tests 0 <= index < extent at run time."""
        dtype = compute_type(self.inputs[operand])
        args = tuple(self.convert(i, "i64").n for i in indices)
        if mask is not None:
            assert other is not None and other.dtype == dtype
            args = (*args, mask.n, other.n)
        sizes, walked = tuple(map(whole, extents)), tuple(map(whole, steps))
        return self._expr(Gather(operand, self._walk(strides), sizes, walked, checked, dtype, args))

    def op(self, name: str, *args: Expr, dtype: str | None = None) -> Expr:
        """A scalar operator; the result has the first operand's type unless ``dtype`` says otherwise."""
        return self._expr(Compute(name, dtype or args[0].dtype, tuple(a.n for a in args)))

    def where(self, cond: Expr, a: Expr, b: Expr) -> Expr:
        """``a`` where ``cond``, else ``b``."""
        assert a.dtype == b.dtype and cond.dtype == "bool"
        return self._expr(Compute("where", a.dtype, (cond.n, a.n, b.n)))

    def convert(self, value: Expr, dtype: str) -> Expr:
        """``value`` converted to compute type ``dtype``."""
        if value.dtype == dtype:
            return value
        s = self.body[value.n]
        if isinstance(s, Const) and (dtype[0] == "f" or math.isfinite(s.value)):
            number = s.value
            if s.dtype in FLOATS and dtype in INTEGERS:
                number = reference("cast:" + dtype)(np.full((1,), number, to_numpy(s.dtype))).item()
            return self.const(number, dtype)
        return self._expr(Cast(dtype, (value.n,)))

    def narrow(self, value: Expr, storage: str) -> Expr:
        """``value`` rounded to the half type ``storage``, in the type it has."""
        return self._expr(Narrow(storage, value.dtype, (value.n,)))

    def reduce(self, kind: str, value: Expr) -> Expr:
        """Reduce ``value`` over all inner loops (argmax/argmin give the first position in the flattened inner space)."""
        assert kind in REDUCTIONS
        dtype = {"any": "bool", "all": "bool", "argmax": "i64", "argmin": "i64"}.get(kind, value.dtype)
        return self._expr(Reduce(kind, dtype, (value.n,)))

    def store(self, operand: int, strides: Sequence[int], value: Expr) -> None:
        """Write ``value`` to output ``operand`` at this point (converted to its storage type)."""
        value = self.convert(value, compute_type(self.outputs[operand]))
        self.add(Store(operand, self._walk(strides), self.outputs[operand], (value.n,)))

    def finish(self) -> LoopNest:
        """The program, without statements that no store needs."""
        return simplify(LoopNest(self.outer, self.inner, tuple(self.inputs), tuple(self.outputs), tuple(self.body)))
