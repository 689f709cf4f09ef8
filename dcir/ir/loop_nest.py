"""Loop nests: the maps and tasklets of one kernel in compact form, a list of scalar statements over a loop nest.

A program runs its statements for every point of ``outer`` x ``inner``. A value is *full* (one per point) or *outer*
(one per outer point): a ``reduce`` turns a full value into an outer one, everything that depends on it comes after the
whole inner loop. So softmax is one program: outer = rows, inner = columns, with two reduces. As an SDFG each statement
is a tasklet in a map and each load or store a memlet (see ``expand.py``); the compact form is what passes rewrite, since
thousands of DaCe maps would cost seconds to build and match.

Statements (``op``; ``attr``):
    load      (operand, strides)                       args: () or (mask, other)
    gather    (operand, strides, extents, steps, how)  args: indices [+ (mask, other)]; how: "checked" | "trusted"
    const     (value,)
    index     (dimension,)                             the loop variable, i64
    reduce    (kind,)                                  kind: sum prod max min any all argmax argmin
    store     (operand, strides)                       args: (value,)
    cast      ()                                       conversion to the statement's dtype
    narrow    (storage,)                               value as it would be after a store to a half type and a load
                                                       (without a storage type: the scalar operator, nearest integer)
    any name of the scalar table                       args: values
Strides run over (*outer, *inner), in elements; operand offsets live on the network's node, so that equal kernels at
different places are the same program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dcir.ir.describe import sizes_text, words_of
from dcir.ir.operator import Operator
from dcir.ir.types import FLOATS, itemsize

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


class Stmt(NamedTuple):
    """One scalar statement; its position in the body is its value number."""

    op: str
    args: tuple[int, ...]
    dtype: str
    attr: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class LoopNest(Operator):
    """A loop nest of scalar statements. Immutable and hashable: equal programs are the same kernel.

    Attributes:
        outer: extents of the parallel dimensions.
        inner: extents of the reduced dimensions (empty for pointwise programs).
        inputs: element types of the input operands a0, a1, …
        outputs: element types of the output operands o0, o1, …
        body: the statements in order.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: tuple[Stmt, ...]

    kind = "program"

    @functools.cached_property
    def _identity(self) -> tuple[object, ...]:
        # Constants by their text: 0.0 == -0.0 and 1 == True, but NaN != NaN.
        body = tuple(s._replace(attr=repr(s.attr)) if s.op == "const" else s for s in self.body)  # type: ignore[arg-type]
        return self.outer, self.inner, self.inputs, self.outputs, body

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoopNest) and self._hash == other._hash and self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    @property
    def dims(self) -> tuple[int, ...]:
        """Extents of all loops, outer first."""
        return self.outer + self.inner

    def levels(self) -> list[tuple[int, bool]]:
        """Per statement (stage, full): the number of reduces it waits for, and whether it varies over inner."""
        n_outer = len(self.outer)
        result: list[tuple[int, bool]] = []
        for s in self.body:
            stage = max((result[a][0] for a in s.args), default=0)
            full = any(result[a][1] for a in s.args)
            if s.op in ("load", "gather", "store"):
                full = full or any(s.attr[1][n_outer:])
            elif s.op == "index":
                full = full or s.attr[0] >= n_outer
            elif s.op == "reduce":
                stage, full = stage + 1, False
            result.append((stage, full))
        return result

    def points(self) -> int:
        """Iterations of the whole nest."""
        return math.prod(self.dims)

    def operations(self) -> int:
        """Exact number of scalar arithmetic operations of one run (loads, stores, constants, indices are free)."""
        free = ("load", "gather", "const", "index", "store", "cast", "narrow")
        outer = math.prod(self.outer)
        total = 0
        for s, (_, full) in zip(self.body, self.levels(), strict=True):
            if s.op == "reduce":
                total += self.points()
            elif s.op not in free:
                total += self.points() if full else outer
        return total

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes each input and output operand touches.

        Different gathers from one operand count one element per point each, together at most all elements they can reach.
        """
        reads, writes = [0] * len(self.inputs), [0] * len(self.outputs)
        gathered, reach = [0] * len(self.inputs), [0] * len(self.inputs)
        seen: set[Stmt] = set()
        for s, (_, full) in zip(self.body, self.levels(), strict=True):
            if s.op in ("load", "store"):
                k, strides = s.attr
                n = math.prod(d for d, st in zip(self.dims, strides, strict=True) if st != 0)
                table, types = (reads, self.inputs) if s.op == "load" else (writes, self.outputs)
                table[k] = max(table[k], n * itemsize(types[k]))
            elif s.op == "gather" and s not in seen:
                seen.add(s)
                k, strides, extents, steps, _ = s.attr
                gathered[k] += self.points() if full else math.prod(self.outer)
                walked = math.prod(d for d, st in zip(self.dims, strides, strict=True) if st != 0)
                reach[k] = max(reach[k], walked * math.prod(e for e, st in zip(extents, steps, strict=True) if st != 0))
        for k, n in enumerate(gathered):
            reads[k] = max(reads[k], min(n, reach[k]) * itemsize(self.inputs[k]))
        return tuple(reads), tuple(writes)

    def reference(self, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Run it with the interpreter."""
        self.reference_at(ins, outs, (), ())

    def reference_at(
        self, ins: Sequence[Any], outs: Sequence[Any], in_starts: Sequence[int], out_starts: Sequence[int]
    ) -> None:
        """A loop nest may walk backwards from where its operands begin."""
        from dcir.ir.interpret import run_program
        from dcir.ir.scalars import reference

        run_program(self, ins, outs, reference, in_starts, out_starts)

    def loop_nest(self) -> LoopNest:
        """Itself."""
        return self

    @property
    def stored_by(self) -> LoopNest:
        """Itself."""
        return self

    def stored_as(self, nest: LoopNest) -> LoopNest:
        """The other one."""
        return nest

    def describe(self) -> str:
        """Its loops' extents and its distinct operations."""
        inner = f" over {sizes_text(self.inner)}" if self.inner else ""
        return f"loops {sizes_text(self.outer) or '1'}{inner}: {words_of(self)}"

    def split(self, dim: int, factor: int) -> LoopNest:
        """The same program with loop ``dim`` (extent n) as two loops of extents (n // factor, factor)."""
        extent = self.dims[dim]
        if extent % factor:
            raise ValueError(f"{factor} does not divide {extent}")
        body: list[Stmt] = []
        where: dict[int, int] = {}

        def emit(s: Stmt) -> int:
            body.append(s)
            return len(body) - 1

        for i, s in enumerate(self.body):
            args = tuple(where[a] for a in s.args)
            attr = s.attr
            if s.op in ("load", "store", "gather"):
                st = attr[1]
                attr = (attr[0], (*st[:dim], st[dim] * factor, *st[dim:]), *attr[2:])
            elif s.op == "index" and attr[0] == dim:
                high, low = emit(Stmt("index", (), "i64", (dim,))), emit(Stmt("index", (), "i64", (dim + 1,)))
                scaled = emit(Stmt("mul", (high, emit(Stmt("const", (), "i64", (factor,)))), "i64"))
                where[i] = emit(Stmt("add", (scaled, low), "i64"))
                continue
            elif s.op == "index" and attr[0] > dim:
                attr = (attr[0] + 1,)
            where[i] = emit(Stmt(s.op, args, s.dtype, attr))
        new = (*self.dims[:dim], extent // factor, factor, *self.dims[dim + 1 :])
        n_outer = len(self.outer) + (1 if dim < len(self.outer) else 0)
        return replace(self, outer=new[:n_outer], inner=new[n_outer:], body=tuple(body))

    def reorder(self, outer: Sequence[int], inner: Sequence[int]) -> LoopNest:
        """The same program with its loops in another order (old positions; every loop named once, or of extent 1)."""
        order = (*outer, *inner)
        back = {old: new for new, old in enumerate(order)}
        body = []
        for s in self.body:
            attr = s.attr
            if s.op in ("load", "store", "gather"):
                attr = (attr[0], tuple(attr[1][o] for o in order), *attr[2:])
            elif s.op == "index":
                attr = (back[attr[0]],)
            body.append(s._replace(attr=attr))
        dims = self.dims
        return replace(self, outer=tuple(dims[o] for o in outer), inner=tuple(dims[o] for o in inner), body=tuple(body))


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
        self.outer, self.inner = tuple(int(d) for d in outer), tuple(int(d) for d in inner)
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self._body: list[Stmt] = []
        self._seen: dict[object, int] = {}

    @property
    def rank(self) -> int:
        """Number of loops."""
        return len(self.outer) + len(self.inner)

    def add(self, s: Stmt) -> int:
        """Append a statement (or find its equal); returns its value number."""
        if s.op == "const":  # 0.0 == -0.0 and 1 == True as dictionary keys, so the text joins the key
            key: object = (s, repr(s.attr[0]))
        else:
            key = s
        if s.op != "store" and key in self._seen:
            return self._seen[key]
        self._body.append(s)
        self._seen[key] = len(self._body) - 1
        return len(self._body) - 1

    def input(self, dtype: str) -> int:
        """Declare the next input operand; returns its number."""
        self.inputs.append(dtype)
        return len(self.inputs) - 1

    def output(self, dtype: str) -> int:
        """Declare the next output operand; returns its number."""
        self.outputs.append(dtype)
        return len(self.outputs) - 1

    def _expr(self, s: Stmt) -> Expr:
        return Expr(self, self.add(s), s.dtype)

    def const(self, value: float, dtype: str) -> Expr:
        """A constant of type ``dtype``."""
        if dtype == "bool":
            value = bool(value)
        elif dtype in FLOATS:
            value = float(value)
        else:
            value = int(value)
        return self._expr(Stmt("const", (), dtype, (value,)))

    def index(self, dim: int) -> Expr:
        """The loop variable of dimension ``dim`` (over outer + inner), i64."""
        return self._expr(Stmt("index", (), "i64", (dim,)))

    def load(self, operand: int, strides: Sequence[int], mask: Expr | None = None, other: Expr | None = None) -> Expr:
        """The element of input ``operand`` at this point, in its compute type; where ``mask`` is false, ``other``."""
        from dcir.ir.types import compute_type

        dtype = compute_type(self.inputs[operand])
        strides = tuple(int(s) if d != 1 else 0 for s, d in zip(strides, self.outer + self.inner, strict=True))
        args: tuple[int, ...] = ()
        if mask is not None:
            assert other is not None and other.dtype == dtype and mask.dtype == "bool"
            args = (mask.n, other.n)
        return self._expr(Stmt("load", args, dtype, (operand, strides)))

    def gather(
        self,
        operand: int,
        strides: Sequence[int],
        indices: Sequence[Expr],
        extents: Sequence[int],
        steps: Sequence[int],
        how: str = "checked",
        mask: Expr | None = None,
        other: Expr | None = None,
    ) -> Expr:
        """The element at loop address + sum(index * step); ``how`` "checked" tests 0 <= index < extent at run time."""
        from dcir.ir.types import compute_type

        dtype = compute_type(self.inputs[operand])
        strides = tuple(int(s) if d != 1 else 0 for s, d in zip(strides, self.outer + self.inner, strict=True))
        args = tuple(self.convert(i, "i64").n for i in indices)
        if mask is not None:
            assert other is not None and other.dtype == dtype
            args = (*args, mask.n, other.n)
        attr = (operand, strides, tuple(int(e) for e in extents), tuple(int(s) for s in steps), how)
        return self._expr(Stmt("gather", args, dtype, attr))

    def op(self, name: str, *args: Expr, dtype: str | None = None) -> Expr:
        """A scalar operator; the result has the first operand's type unless ``dtype`` says otherwise."""
        return self._expr(Stmt(name, tuple(a.n for a in args), dtype or args[0].dtype, ()))

    def where(self, cond: Expr, a: Expr, b: Expr) -> Expr:
        """``a`` where ``cond``, else ``b``."""
        assert a.dtype == b.dtype and cond.dtype == "bool"
        return self._expr(Stmt("where", (cond.n, a.n, b.n), a.dtype, ()))

    def convert(self, value: Expr, dtype: str) -> Expr:
        """``value`` converted to compute type ``dtype``."""
        if value.dtype == dtype:
            return value
        s = self._body[value.n]
        if s.op == "const" and not (isinstance(s.attr[0], float) and not math.isfinite(s.attr[0]) and dtype[0] != "f"):
            return self.const(s.attr[0], dtype)
        return self._expr(Stmt("cast", (value.n,), dtype, ()))

    def reduce(self, kind: str, value: Expr) -> Expr:
        """Reduce ``value`` over all inner loops (argmax/argmin give the first position in the flattened inner space)."""
        assert kind in REDUCTIONS
        dtype = {"any": "bool", "all": "bool", "argmax": "i64", "argmin": "i64"}.get(kind, value.dtype)
        return self._expr(Stmt("reduce", (value.n,), dtype, (kind,)))

    def store(self, operand: int, strides: Sequence[int], value: Expr) -> None:
        """Write ``value`` to output ``operand`` at this point (converted to its storage type)."""
        from dcir.ir.types import compute_type

        value = self.convert(value, compute_type(self.outputs[operand]))
        strides = tuple(int(s) if d != 1 else 0 for s, d in zip(strides, self.outer + self.inner, strict=True))
        self.add(Stmt("store", (value.n,), self.outputs[operand], (operand, strides)))

    def finish(self) -> LoopNest:
        """The program, without statements that no store needs."""
        return simplify(LoopNest(self.outer, self.inner, tuple(self.inputs), tuple(self.outputs), tuple(self._body)))


def simplify(program: LoopNest, keep: Callable[[Stmt], bool] = lambda s: s.op == "store") -> LoopNest:
    """Drop statements that no kept statement needs, merge equal ones; operands stay numbered as they are."""
    needed = [False] * len(program.body)
    for i in range(len(program.body) - 1, -1, -1):
        s = program.body[i]
        if needed[i] or keep(s):
            needed[i] = True
            for a in s.args:
                needed[a] = True
    builder = LoopNestBuilder(program.outer, program.inner)
    where: dict[int, int] = {}
    for i, s in enumerate(program.body):
        if needed[i]:
            where[i] = builder.add(s._replace(args=tuple(where[a] for a in s.args)))
    return replace(program, body=tuple(builder._body))
