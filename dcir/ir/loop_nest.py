"""Loop nests: the maps and tasklets of one kernel in compact form, a list of scalar statements over a loop nest.

A program runs its statements for every point of ``outer`` x ``inner``. A value is *full* (one per point) or *outer*
(one per outer point): a ``reduce`` turns a full value into an outer one, everything that depends on it comes after the
whole inner loop. So softmax is one program: outer = rows, inner = columns, with two reduces. As an SDFG each statement
is a tasklet in a map and each load or store a memlet (see ``expand.py``); the compact form is what passes rewrite, since
thousands of DaCe maps would cost seconds to build and match.

The statements are in ``statements.py``; ``loop_nest_builder.py`` writes them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcir.ir.describe import sizes_text, words_of
from dcir.ir.operator import IndexCheck, Operator
from dcir.ir.statements import Access, Cast, Compute, Const, Gather, Index, Load, Reduce, Statement, Store, Strides
from dcir.ir.types import itemsize


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
    body: tuple[Statement, ...]

    kind = "program"

    @functools.cached_property
    def _identity(self) -> tuple[object, ...]:
        return self.outer, self.inner, self.inputs, self.outputs, self.body

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

    def as_copy(self) -> tuple[Load, Store] | None:
        """Its load and its store, where it does nothing but copy one tensor to another."""
        if len(self.body) != 2:
            return None
        load, store = self.body
        return (load, store) if isinstance(load, Load) and isinstance(store, Store) else None

    def levels(self) -> list[tuple[int, bool]]:
        """Per statement (stage, full): the number of reduces it waits for, and whether it varies over inner."""
        n_outer = len(self.outer)
        result: list[tuple[int, bool]] = []
        for s in self.body:
            stage = max((result[a][0] for a in s.args), default=0)
            full = any(result[a][1] for a in s.args)
            if isinstance(s, Access):
                full = full or any(s.strides[n_outer:])
            elif isinstance(s, Index):
                full = full or s.dim >= n_outer
            elif isinstance(s, Reduce):
                stage, full = stage + 1, False
            result.append((stage, full))
        return result

    def needed_by(self, roots: Iterable[int], known: Container[int]) -> list[int]:
        """The statements that some need, in order: as far as ``known`` ones, which are among them."""
        seen: set[int] = set()
        stack = [a for r in roots for a in self.body[r].args]
        while stack:
            i = stack.pop()
            if i not in seen:
                seen.add(i)
                if i not in known:
                    stack.extend(self.body[i].args)
        return sorted(seen)

    def stores_apart(self) -> list[list[int]]:
        """The stores in groups that need nothing of each other but constants and loop variables."""
        groups: list[tuple[set[int], list[int]]] = []
        for store in (i for i, s in enumerate(self.body) if isinstance(s, Store)):
            wanted = {i for i in self.needed_by([store], ()) if not isinstance(self.body[i], (Const, Index))}
            joined = [g for g in groups if not g[0].isdisjoint(wanted)]
            groups = [g for g in groups if g[0].isdisjoint(wanted)]
            groups.append((wanted.union(*(n for n, _ in joined)), sorted([*(s for _, m in joined for s in m), store])))
        return [members for _, members in groups]

    def points(self) -> int:
        """Iterations of the whole nest."""
        return math.prod(self.dims)

    def operations(self) -> int:
        """Exact number of scalar arithmetic operations of one run (loads, stores, constants, indices are free)."""
        outer = math.prod(self.outer)
        total = 0
        for s, (_, full) in zip(self.body, self.levels(), strict=True):
            if isinstance(s, Reduce):
                total += self.points()
            elif isinstance(s, Compute):
                total += self.points() if full else outer
        return total

    def footprint(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Distinct bytes each input and output operand touches.

        Different gathers from one operand count one element per point each, together at most all elements they can reach.
        """
        reads, writes = [0] * len(self.inputs), [0] * len(self.outputs)
        gathered, reach = [0] * len(self.inputs), [0] * len(self.inputs)
        seen: set[Gather] = set()
        for s, (_, full) in zip(self.body, self.levels(), strict=True):
            if not isinstance(s, Access):
                continue
            k = s.operand
            walked = math.prod(d for d, st in zip(self.dims, s.strides, strict=True) if st != 0)
            if isinstance(s, Gather):
                if s in seen:
                    continue
                seen.add(s)
                gathered[k] += self.points() if full else math.prod(self.outer)
                indexed = math.prod(e for e, st in zip(s.extents, s.steps, strict=True) if st != 0)
                reach[k] = max(reach[k], walked * indexed)
            else:
                table, types = (reads, self.inputs) if isinstance(s, Load) else (writes, self.outputs)
                table[k] = max(table[k], walked * itemsize(types[k]))
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
        from dcir.ir.run_nest import run_program
        from dcir.ir.scalars import reference

        run_program(self, ins, outs, reference, in_starts, out_starts)

    def index_checks(self) -> tuple[IndexCheck, ...]:
        """One for each index of each of its gathers that tell of one outside."""
        return self._index_checks

    @functools.cached_property
    def _index_checks(self) -> tuple[IndexCheck, ...]:
        return tuple(
            self._check(value, extent, always=not s.guard)
            for s in self.body if isinstance(s, Gather) and s.checked
            for value, extent in zip(s.indices, s.extents, strict=True)
        )  # fmt: skip

    def _check(self, value: int, extent: int, *, always: bool) -> IndexCheck:
        """Of an index that is loaded, at most with what counts from the end brought into range."""
        needed = [self.body[i] for i in (*self.needed_by([value], ()), value)]
        loads = {s for s in needed if isinstance(s, Load) and not s.args}
        plain = all(
            s in loads or isinstance(s, Cast) or (isinstance(s, Const) and s.value in (0, extent))
            or (isinstance(s, Compute) and s.op in ("where", "lt", "add")) for s in needed
        )  # fmt: skip
        if not plain or len({(s.operand, s.strides) for s in loads}) != 1:
            return IndexCheck()
        load = next(iter(loads))
        return IndexCheck.of(load.operand, self.dims, load.strides, extent, always=always)

    def loop_nest(self) -> LoopNest:
        """Itself."""
        return self

    @property
    def stored_by(self) -> LoopNest:
        """Itself."""
        return self

    def stored_as(self, nest: Operator) -> Operator:
        """The other one."""
        return nest

    def describe(self) -> str:
        """Its loops' extents and its distinct operations."""
        inner = f" over {sizes_text(self.inner)}" if self.inner else ""
        return f"loops {sizes_text(self.outer) or '1'}{inner}: {words_of(self.body)}"

    def split(self, dim: int, factor: int) -> LoopNest:
        """The same program with loop ``dim`` (extent n) as two loops of extents (n // factor, factor)."""
        extent = self.dims[dim]
        if extent % factor:
            raise ValueError(f"{factor} does not divide {extent}")
        body: list[Statement] = []
        where: dict[int, int] = {}

        def emit(s: Statement) -> int:
            body.append(s)
            return len(body) - 1

        def strides(st: Strides) -> Strides:
            return (*st[:dim], st[dim] * factor, *st[dim:])

        for i, s in enumerate(self.body):
            if isinstance(s, Index) and s.dim == dim:
                high, low = emit(Index(dim)), emit(Index(dim + 1))
                scaled = emit(Compute("mul", "i64", (high, emit(Const(factor, "i64")))))
                where[i] = emit(Compute("add", "i64", (scaled, low)))
            else:
                where[i] = emit(s.renumbered(where).over_loops(strides, lambda d: d + (d > dim)))
        new = (*self.dims[:dim], extent // factor, factor, *self.dims[dim + 1 :])
        n_outer = len(self.outer) + (1 if dim < len(self.outer) else 0)
        return replace(self, outer=new[:n_outer], inner=new[n_outer:], body=tuple(body))

    def reorder(self, outer: Sequence[int], inner: Sequence[int]) -> LoopNest:
        """The same program with its loops in another order (old positions; every loop named once, or of extent 1)."""
        order = (*outer, *inner)
        back = {old: new for new, old in enumerate(order)}
        dims = self.dims
        body = tuple(s.over_loops(lambda st: tuple(st[o] for o in order), back.__getitem__) for s in self.body)
        return replace(self, outer=tuple(dims[o] for o in outer), inner=tuple(dims[o] for o in inner), body=body)


def stored_by(spec: Operator) -> LoopNest | None:
    """The loop nest whose statements store an operator's results: itself, its epilogue, or None."""
    nest = spec.stored_by
    assert nest is None or isinstance(nest, LoopNest)
    return nest


def is_store(s: Statement) -> bool:
    """Whether a statement has an effect: it and all it needs stay."""
    return isinstance(s, Store)


def simplify(program: LoopNest, keep: Callable[[Statement], bool] = is_store) -> LoopNest:
    """Drop statements that no kept statement needs, merge equal ones; operands stay numbered as they are."""
    needed = [False] * len(program.body)
    for i in range(len(program.body) - 1, -1, -1):
        s = program.body[i]
        if needed[i] or keep(s):
            needed[i] = True
            for a in s.args:
                needed[a] = True
    where: dict[int, int] = {}
    seen: dict[Statement, int] = {}
    body: list[Statement] = []
    for i, s in enumerate(program.body):
        if not needed[i]:
            continue
        new = s.renumbered(where)
        where[i] = len(body) if isinstance(new, Store) else seen.setdefault(new, len(body))
        if where[i] == len(body):
            body.append(new)
    return replace(program, body=tuple(body))
