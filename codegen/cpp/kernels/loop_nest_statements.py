"""The statements of a loop nest as C++: values, addresses, guarded loads, partial results, at the current point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, element, literal
from dcir.codegen.ranges import short_values
from dcir.codegen.schedule import needed
from dcir.codegen.symbolic import Symbolic, least, most
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Cast, Const, Gather, Index, Load, Narrow, Read, Reduce, Store
from dcir.ir.types import FLOATS, compute_type, itemsize

MOST_CONDITIONS = 2
"""Conditions of reads of whose outcomes each has its loop: with every one there is twice as much of it."""


class _Condition(NamedTuple):
    """When reads happen: C++, and their numbers as in ``Statements.held``."""

    text: str
    reads: list[int]


class Statements:
    """Lines of text for the statements of a program; how its loops lie around them is the emitter's decision.

    Attributes:
        p, levels, n_outer: the program, its levels, the number of its outer loops.
        lines, depth: what is written so far.
        columns: whether lanes hold neighbouring outer points, so that a reduce's result is an array over lanes.
        buffered: values kept in a row buffer, with their stage of birth; ready: those that are in it already.
        checked: whether an index may lie outside.
        starts: where the lanes of a loop start, while it is open in blocks.
        before: values computed before the innermost loop; tested: gathers whose indices were looked at before it;
        tests: whether others are looked at inside.
        inside: the condition under which a lane lies inside the loop, while some do not.
        held: conditions that are known where what is written stands: of loads by their number, of gathers by the gather's, inverted.
    """

    def __init__(self, p: LoopNest) -> None:
        self.p = p
        self.levels = p.levels()
        self.n_outer = len(p.outer)
        self.lines: list[str] = []
        self.depth = 1
        self.columns = False
        self.buffered: dict[int, int] = {}
        self.ready: set[int] = set()
        self.checked = any(isinstance(s, Gather) and s.checked for s in p.body)
        self.starts: dict[int, str] = {}
        self.inside = ""
        self.before: set[int] = set()
        self.tested: set[int] = set()
        self.tests = self.checked
        self.held: dict[int, bool] = {}
        self._short = short_values(p)  # twice as many fill a vector

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.line("}")

    def loop(self, d: int, extent: int | str, begin: str = "0") -> None:
        self.starts.pop(d, None)
        self.open(f"for (long long i{d} = {begin}; i{d} < {extent}; i{d}++)")

    def lanes(self, d: int, width: int | str, start: str) -> None:
        """Open the loop over lanes ``l`` of one block of loop ``d``."""
        self.simd([])
        self.open(f"for (int l = 0; l < {width}; l++)")
        self.line(f"const long long i{d} = {start} + l;")
        self.starts = {d: start}

    def simd(self, reduces: list[tuple[str, str]]) -> None:
        clauses = [f" reduction({op} : {name})" for op, name in reduces]
        if self.tests:
            clauses.append(" reduction(| : bad)")
        self.line("#pragma omp simd" + "".join(clauses))

    def reduction(self, r: int) -> Reduce:
        """The reduction of this number."""
        s = self.p.body[r]
        assert isinstance(s, Reduce)
        return s

    def needs(self, roots: list[int], known: set[int]) -> list[int]:
        """Everything to compute for ``roots`` (reduces themselves stay names), in order."""
        return needed(self.p, roots, known)

    def compute(
        self, stores: Sequence[int], reduces: Sequence[int] = (), name: Callable[[int], str] = lambda r: f"v{r}"
    ) -> None:
        """Statements for ``stores`` and ``reduces`` at the current point; a reduce's partial result has a ``name``."""
        for i in self.needs([*stores, *reduces], self._known()):
            self._statement(i)
        for i in sorted([*stores, *reduces]):
            s = self.p.body[i]
            if isinstance(s, Store):
                value = cast_expr(self.value(s.args[0]), compute_type(s.dtype), s.dtype)
                when = f"if ({self.inside}) " if self.inside else ""
                self.line(f"{when}o{s.operand}[{self.address(s.strides)}] = {value};")
            else:
                self._accumulate(i, name(i))

    def combine(self, r: int, target: str, v: str, dtype: str) -> None:
        kind = self.reduction(r).kind
        if kind in ("any", "all"):
            truth = v if dtype == "bool" else f"({v} != 0)"
            joined = f"{target} {'|' if kind == 'any' else '&'} {truth}"
        else:
            joined = SCALAR_OPS[{"sum": "add", "prod": "mul"}.get(kind, kind)].cpp([target, v], dtype)
        self.line(f"{target} = {f'{self.inside} ? {joined} : {target}' if self.inside else joined};")

    def _accumulate(self, r: int, target: str) -> None:
        s = self.reduction(r)
        kind, v, dtype = s.kind, self.value(s.args[0]), self.p.body[s.args[0]].dtype
        if not s.is_place:
            self.combine(r, target, v, dtype)
        else:
            best = target.replace("v", "best", 1)
            better = ">" if kind == "argmax" else "<"
            nan = f" | (({v} != {v}) & ({best} == {best}))" if dtype in FLOATS else ""
            # Without a branch, for lanes; of what is no better than nothing the first place is the one at hand.
            self.line(f"const bool better{r} = ({v} {better} {best}){nan};")
            self.line(f"{best} = better{r} ? {v} : {best};")
            self.line(f"{target} = better{r} ? {self._placed()} : {target};")

    def inner_dims(self) -> range:
        return range(self.n_outer, self.n_outer + len(self.p.inner))

    def inner_position(self) -> str:
        text = "0"
        for d in self.inner_dims():
            text = f"i{d}" if text == "0" else f"({text}) * {self.p.dims[d]} + i{d}"
        return text

    def _placed(self) -> str:
        """The inner position as a place: with half as many bits for twice as many lanes, where it has few enough."""
        return f"({self.place_type()})({self.inner_position()})"

    def place_type(self) -> str:
        """The C++ type of a place in the inner loops."""
        return "int" if most(math.prod(self.p.inner)) < 1 << 31 else "long long"

    def value(self, i: int) -> str:
        s = self.p.body[i]
        if isinstance(s, Const):
            return literal(s.value, "i32" if i in self._short else s.dtype)
        if isinstance(s, Index):
            d = s.dim
            if i not in self._short:
                return f"i{d}"
            return f"((int){self.starts[d]} + l)" if d in self.starts else f"(int)i{d}"
        if isinstance(s, Reduce) and self.columns:
            return f"v{i}[l]"
        if i in self.ready and i in self.buffered:
            return f"buf{i}[{self.inner_position()}]"
        return f"v{i}"

    def address(self, strides: tuple[int, ...]) -> str:
        terms = [f"i{d}" if s == 1 else f"i{d} * {s}LL" for d, s in enumerate(strides) if s]
        return " + ".join(terms) or "0"

    def _statement(self, i: int) -> None:
        s = self.p.body[i]
        if isinstance(s, (Const, Index)):
            return
        if isinstance(s, Load):
            text = self._masked(s, self._element(s.operand, self.address(s.strides)))
        elif isinstance(s, Gather):
            text = self._gather(i, s)
        elif isinstance(s, Cast):
            text = cast_expr(self.value(s.args[0]), self.p.body[s.args[0]].dtype, s.dtype)
        elif isinstance(s, Narrow):
            text = cast_expr(cast_expr(self.value(s.args[0]), s.dtype, s.storage), s.storage, s.dtype)
        else:
            operand = self.p.body[s.args[1 if s.op == "where" else 0]].dtype
            if operand == "i64" and all(a in self._short for a in s.args) and (i in self._short or s.dtype == "bool"):
                operand = "i32"
            text = SCALAR_OPS[s.op].cpp([self.value(a) for a in s.args], operand)
        self.line(f"const {CPP_TYPE['i32' if i in self._short else s.dtype]} v{i} = {text};")
        if i in self.buffered and i not in self.ready:
            self.line(f"buf{i}[{self.inner_position()}] = v{i};")

    def _element(self, operand: int, at: str) -> str:
        if self.p.inputs[operand] == "bool":  # GCC 12 vectorises comparisons of bytes, but no choice by a loaded bool
            return f"(((const unsigned char *)a{operand})[{at}] != 0)"
        return element(f"a{operand}", at, self.p.inputs[operand])

    def _masked(self, s: Load, value: str) -> str:
        text = cast_expr(value, self.p.inputs[s.operand], s.dtype)
        if not s.args:
            return f"{self.inside} ? {text} : {literal(0, s.dtype)}" if self.inside else text
        mask, other = (self.value(a) for a in s.args)
        held = self.held.get(s.args[0])
        if held is not None:
            return self._as_held(held, text, other)
        test = f"({self.inside} & {mask})" if self.inside else mask
        return f"{test} ? {text} : {other}"

    def _as_held(self, held: bool, text: str, other: str) -> str:
        """What a read gives whose condition is known to hold, or not to."""
        if not held:
            return other
        return f"{self.inside} ? {text} : {other}" if self.inside else text

    def _gather(self, i: int, s: Gather) -> str:
        indices, guard = s.indices, s.guard
        terms = [f"{self.value(a)} * {st}LL" for a, st in zip(indices, s.steps, strict=True)]
        wanted = self.value(guard[0]) if guard else ""
        if self.inside:
            wanted = f"({self.inside} & {wanted})" if wanted else self.inside
        read = self._element(s.operand, " + ".join([self.address(s.strides), *terms]))
        found = cast_expr(read, self.p.inputs[s.operand], s.dtype)
        if not wanted and all(self._lies_in(a, e) for a, e in zip(indices, s.extents, strict=True)):
            return found  # GCC 12 vectorises no conditional load of 64 bits beside values of 32
        other = self.value(guard[1]) if guard else literal(0, s.dtype)
        held = self.held.get(~i)
        if held is not None:
            return self._as_held(held, found, other)
        if i not in self.tested:
            self._test(i, s, wanted)
        test = f"({wanted} & g{i})" if wanted else f"g{i}"
        if not self.inside and self._steady_in_vectors(s):
            # GCC 12 vectorises no load that may not happen; outside, the first element is read instead.
            read = self._element(s.operand, f"{self.address(s.strides)} + ({' + '.join(terms)}) * (long long)g{i}")
            found = cast_expr(read, self.p.inputs[s.operand], s.dtype)
            return f"d_pick<{CPP_TYPE[s.dtype]}>({test}, {found}, {other})"
        return f"{test} ? {found} : {other}"

    def _steady_in_vectors(self, s: Gather) -> bool:
        """Whether a gather from what is never empty walks a loop element by element, and its indices, which move, are the same there."""
        along = [d for d, step in enumerate(s.strides) if step == 1]
        if not along or itemsize(s.dtype) not in (4, 8) or not any(isinstance(e, Symbolic) for e in s.extents):
            return False
        if any(least(e) <= 0 for e in s.extents):
            return False
        behind = [self.p.body[j] for j in self.needs(list(s.indices), set())]
        follows = {t.dim for t in behind if isinstance(t, Index)}
        follows |= {d for t in behind if isinstance(t, Read) for d, step in enumerate(t.strides) if step}
        return follows.isdisjoint(along)

    def _lies_in(self, i: int, extent: int) -> bool:
        """Whether an index is known to lie in ``range(extent)``."""
        low, high = self._short.get(i, (-1, 0))
        return low >= 0 and (high < least(extent) or self._ends_below(i, extent))

    def _ends_below(self, i: int, extent: int) -> bool:
        """Whether an index is less than an extent at all sizes, though it may be as large as that is at others."""
        s = self.p.body[i]
        if isinstance(s, Index):
            return least(extent - self.p.dims[s.dim]) >= 0
        if isinstance(s, Const):
            return isinstance(s.value, Symbolic | int) and least(extent - 1 - s.value) >= 0
        decide = {"min": any, "max": all}.get(s.op)
        return decide is not None and decide(self._ends_below(a, extent) for a in s.args)

    def _test(self, i: int, s: Gather, wanted: str = "") -> None:
        """``g<i>``: whether a gather's indices lie inside."""
        good = " & ".join(
            f"((unsigned long long){self.value(a)} < {e}ULL)" for a, e in zip(s.indices, s.extents, strict=True)
        )
        self.line(f"const bool g{i} = {good or 'true'};")
        if s.checked:
            self.line(f"bad |= {f'{wanted} & ' if wanted else ''}!g{i};")

    def apart(self, roots: Sequence[int], d: int, write: Callable[[], None]) -> None:
        """Write loop ``d`` for ``roots`` once for each outcome of the conditions of reads that are the same at all its points.

        GCC 12 vectorises no read under a condition that is the same in all lanes: a 5x5 maximum over 64 channels took 82 ms, now 1.5.
        Of more than a few conditions, loops are written for when all hold, and for any other outcome.
        """
        reads = self._steadily_read(roots, d)
        if not reads:
            write()
            return
        before, tested = self.before, self.tested
        behind = [a for i in reads for a in self._condition_of(i)]
        first = sorted({*self.needs(behind, self._known()), *behind} - self._known())
        self.open("")
        for i in first:
            self._statement(i)
        self.before = before | set(first)
        tests: dict[tuple[Any, ...], _Condition] = {}
        for i in reads:
            s = self.p.body[i]
            if isinstance(s, Load):
                tests.setdefault(s.args[:1], _Condition(self.value(s.args[0]), [])).reads.append(s.args[0])
                continue
            assert isinstance(s, Gather)
            wanted = s.guard[:1] if s.guard and not isinstance(self.p.body[s.guard[0]], Const) else ()
            same = tests.get((s.indices, s.extents, wanted))
            if same is None:
                if i not in tested:
                    self._test(i, s, *map(self.value, wanted))
                text = " & ".join([*map(self.value, wanted), f"g{i}"])
                same = tests[(s.indices, s.extents, wanted)] = _Condition(text, [])
            same.reads.append(~i)
        self.tested = tested | {i for i in reads if isinstance(self.p.body[i], Gather)}
        conditions = list(tests.values())
        if len(conditions) <= MOST_CONDITIONS:
            self._by_outcome(conditions, write)
        else:
            self.open(f"if ({' & '.join(c.text for c in conditions)})")
            self.held = {read: True for c in conditions for read in c.reads}
            write()
            self.close()
            self.held = {}
            self.tested = tested  # several reads of one condition have one test here, and each its own there
            self.open("else")
            write()
            self.close()
        self.before, self.tested = before, tested
        self.close()

    def _by_outcome(self, conditions: Sequence[_Condition], write: Callable[[], None]) -> None:
        if not conditions:
            write()
            return
        first, *others = conditions
        for held, test in ((True, f"if ({first.text})"), (False, "else")):
            self.open(test)
            self.held |= dict.fromkeys(first.reads, held)
            self._by_outcome(others, write)
            self.close()
        for read in set(first.reads):
            del self.held[read]

    def _steadily_read(self, roots: Sequence[int], d: int) -> list[int]:
        """The reads that move along loop ``d`` under conditions that do not, and follow from nothing but where the other loops are."""
        steady, found = set(self.before), list[int]()
        for i in self.needs(list(roots), self._known()):
            s = self.p.body[i]
            moves_on = s.dim == d if isinstance(s, Index) else isinstance(s, Read) and bool(s.strides[d])
            if isinstance(s, Load | Gather) and moves_on and self._conditional(i):
                if all(a in steady for a in self._condition_of(i)):
                    found.append(i)
            elif not moves_on and not isinstance(s, Gather | Reduce) and all(a in steady for a in s.args):
                steady |= {i} - set(self.buffered)  # what has a place in a row is written along it
        return found

    def _condition_of(self, i: int) -> tuple[int, ...]:
        """What says whether a read happens."""
        s = self.p.body[i]
        if isinstance(s, Gather):
            return (*s.indices, *s.guard[:1])
        return s.args[:1]

    def _conditional(self, i: int) -> bool:
        s = self.p.body[i]
        if isinstance(s, Load):
            return bool(s.args) and not isinstance(self.p.body[s.args[0]], Const)
        assert isinstance(s, Gather)
        wanted = s.guard and not isinstance(self.p.body[s.guard[0]], Const)
        return bool(wanted) or not all(map(self._lies_in, s.indices, s.extents))

    def _known(self) -> set[int]:
        """What need not be computed again."""
        return self.ready & set(self.buffered) | self.before

    def take_out(self, roots: list[int], d: int) -> None:
        """Before loop ``d`` is opened, look at the indices of gathers that are the same at all its points."""
        self.before, self.tested = set(), set()
        fixed: set[int] = set()
        gathers: dict[int, Gather] = {}
        for i in self.needs(roots, set()):
            s = self.p.body[i]
            steady = all(a in fixed for a in s.args)
            if isinstance(s, Gather) and steady and s.strides[d] and not s.guard:
                gathers[i] = s
            if steady and not (s.dim == d if isinstance(s, Index) else isinstance(s, Read) and s.strides[d]):
                fixed.add(i)
        for i in self.needs(list(gathers), set()):
            self._statement(i)
            self.before.add(i)
        for i, gather in gathers.items():
            self._test(i, gather, "")
            self.tested.add(i)
        inside = ((i, self.p.body[i]) for i in self.needs(roots, self.before) if i not in self.tested)
        self.tests = any(isinstance(s, Gather) and s.checked for _, s in inside)


def identity(kind: str, dtype: str) -> str:
    if kind in ("sum", "any"):
        return literal(0, "bool" if kind == "any" else dtype)
    if kind in ("prod", "all"):
        return literal(1, "bool" if kind == "all" else dtype)
    if dtype in FLOATS:
        return literal(-math.inf if kind == "max" else math.inf, dtype)
    if dtype == "bool":
        return literal(kind == "min", dtype)
    bits = itemsize(dtype) * 8
    low, high = (0, 2**bits - 1) if dtype == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return literal(low if kind == "max" else high, dtype)
