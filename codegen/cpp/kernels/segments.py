"""C++ for folds of listed points: groups dealt to jobs by their points, each folded in a row that stays in the nearest cache.

per job, a range of groups:
    the row = base
        points of the group, in order; what they read is asked for some points ahead
            row = row op value, along the vector; a row of a few vectors stays in registers
    finish, along the vector
groups with more points than a thread's share: the same once more, their columns dealt to jobs
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.loop_nest_statements import Statements
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, SCALAR_OPS, cast_expr, literal
from dcir.codegen.cpp.template import templates
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Undecided, moves, smaller, usual
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import contiguous
from dcir.ir.statements import Gather, Index, Load, Read, Store
from dcir.ir.types import compute_type, itemsize
from dcir.ops.library.segments import SegmentSpec, group_loops, point_loops

# Below this many elements a second thread costs more than it brings.
SERIAL_POINTS = 16384
# Points ahead whose rows are asked for, and lines of a row after which the processor goes on by itself.
AHEAD, LINES = 8, 8
# Columns of a job at least, of a group that is shared out.
LEAST_COLUMNS = 16

# Vectors of a row that stay in registers while points are folded into it, and operations of a value for which there is room beside them.
MOST_VECTORS, LIGHT = 8, 4

_FUNCTIONS = templates("kernels/segments").functions()


@planner(SegmentSpec, any_size=True)
def plan_segments(spec: SegmentSpec, machine: Machine) -> KernelPlan:
    """The kernel of a fold of listed points."""
    threads = max(machine.threads, 1)
    value, finish = spec.value.outer[point_loops(spec) :], spec.finish.outer[group_loops(spec) :]
    if moves(spec.columns):
        raise Undecided("how many columns a row has")
    if threads == 1 or usual(spec.points + spec.groups) * spec.columns < SERIAL_POINTS:
        return KernelPlan("segment", _FUNCTIONS, (Phase(1, _text(spec, machine, 1, 0)),))
    jobs = smaller(8 * threads, spec.groups)
    phases = [Phase(jobs, _text(spec, machine, jobs, 0))]
    tiles = min(threads, value[0] // LEAST_COLUMNS) if len(value) == 1 and value == finish else 1
    if tiles > 1:
        phases = [
            Phase(jobs, _text(spec, machine, jobs, 2 * threads)),
            Phase(tiles, _text(spec, machine, tiles, 2 * threads, shared=True)),
        ]
    return KernelPlan("segment", _FUNCTIONS, tuple(phases))


def _text(spec: SegmentSpec, machine: Machine, jobs: int, share: int, *, shared: bool = False) -> str:
    """A phase: groups of more than a ``share``-th of all points are left out, or are all that it does, by columns."""
    compute = compute_type(spec.dtype)
    first = 2 if spec.base is None else 3
    value = _Value(spec, _moved(spec.value, first, 0))
    if not shared:
        value.lanes_of_row = machine.isa.vector_bytes // itemsize(compute)
    finish = _Finish(spec, _moved(spec.finish, first + len(spec.value.inputs) - 1, 1))
    finish.fixed, value.fixed = group_loops(spec), point_loops(spec)
    if shared:
        each = -(-spec.columns // jobs)
        low = f"j * {each}LL"
        value.window = finish.window = ("clo", "chi")
    lines = ["int bad = 0;", f"const long long work = a0[{spec.groups}] + {spec.groups}LL;"]
    if shared:
        lines += [f"const long long clo = {low}, chi = clo + {each} < {spec.columns} ? clo + {each} : {spec.columns};"]
        lines += [f"for (long long g = 0; g < {spec.groups}; g++) {{"]
    else:
        end = f"d_group_after(a0, {spec.groups}, work * (j + 1) / {jobs})"
        lines += [f"const long long end = {end};"]
        lines += [f"for (long long g = d_group_after(a0, {spec.groups}, work * j / {jobs}); g < end; g++) {{"]
    # A list from elsewhere than a counting sort (a part of a graph that is tried by itself) must not lead outside.
    end = "g + 1" if shared else "end"
    lines.append(f"const long long from = d_within(a0[g], {spec.points}), to = d_within(a0[g + 1], {spec.points});")
    lines.append(f"const long long last = d_within(a0[{end}], {spec.points});")
    if share:
        lines.append(f"if ((to - from) * {share} {'<=' if shared else '>'} work) continue;")
    lines.append(f"alignas(64) {CPP_TYPE[compute]} row[{spec.columns}];")
    finish.start()
    value.fold()
    finish.end()
    lines += [*finish.before_fold, *value.lines, *finish.lines, "}", "if (bad) d_report(status);"]
    return "\n".join(lines)


def _moved(p: LoopNest, by: int, kept: int) -> LoopNest:
    """``p`` with its inputs from number ``kept`` on numbered ``by`` higher, as they are operands of the node."""
    body = tuple(s.with_operand(s.operand + by) if isinstance(s, Read) and s.operand >= kept else s for s in p.body)
    return replace(p, inputs=(*p.inputs[:kept], *(p.inputs[kept:][:1] * by), *p.inputs[kept:]), body=body)


class _Row(Statements):
    """A program over (points or groups, columns), with the row of folded values beside it."""

    def __init__(self, spec: SegmentSpec, p: LoopNest) -> None:
        super().__init__(p)
        self.spec = spec
        self.fixed = 0
        self.window = ("0", "")
        self.inside_of: set[tuple[int, int]] = set()
        self.stores = [i for i, s in enumerate(p.body) if isinstance(s, Store)]

    def digits(self, number: str) -> None:
        """The first loops' indices, from a row-major position."""
        rest = number
        for d in range(self.fixed - 1, 0, -1):
            n = self.p.outer[d]
            self.line(f"const long long i{d} = {rest} % {n}, q{d} = {rest} / {n};")
            rest = f"q{d}"
        if self.fixed:
            self.line(f"const long long i0 = {rest};")

    def columns_of(self) -> range:
        return range(self.fixed, len(self.p.outer))

    def at(self) -> str:
        """The row's element at this column."""
        dims = self.p.outer[self.fixed :]
        terms = [f"i{d} * {s}" for d, s in zip(self.columns_of(), contiguous(dims), strict=True)]
        return f"row[{' + '.join(terms) or '0'}]"

    def over_columns(self) -> int:
        """Open the loops over columns, the last along the vector; returns how many."""
        columns = self.columns_of()
        for d in columns[:-1]:
            self.loop(d, self.p.outer[d])
        if columns:
            last = columns[-1]
            if self.checked:
                self.take_out(self.stores, last)
                self.sure()
            self.simd([])
            self.loop(last, self.window[1] or self.p.outer[last], self.window[0])
        return len(columns)

    def sure(self) -> None:
        """Points whose indices were found to lie outside are passed over: the call fails in any case."""
        for i in sorted(self.tested):
            self.line(f"if (!g{i}) continue;")
            s = self.p.body[i]
            assert isinstance(s, Gather)
            self.inside_of |= set(zip(s.indices, s.extents, strict=True))

    def _lies_in(self, i: int, extent: int) -> bool:
        return (i, extent) in self.inside_of or super()._lies_in(i, extent)


class _Value(_Row):
    """The values of one group's points, folded into the row."""

    lanes_of_row = 0

    def fold(self) -> None:
        compute = compute_type(self.spec.dtype)
        self.open("for (long long e = from; e < to; e++)")
        self._ask_ahead()
        self.line("const long long point = a1[e];")
        self.line(f"if ((unsigned long long)point >= {self.spec.points}ULL) {{ bad = 1; continue; }}")
        self.digits("point")
        if self.in_registers():
            self.blocks(compute)
        else:
            opened = self.over_columns()
            self.join(compute)
            for _ in range(opened):
                self.close()
        self.close()

    def join(self, compute: str) -> None:
        """The value at this column, folded into the row."""
        for i in self.needs(self.stores, self.before):
            self._statement(i)
        (store,) = self.stores
        new, at = self.value(self.p.body[store].args[0]), self.at()
        self.line(f"{at} = {SCALAR_OPS[self.spec.op].cpp([at, new], compute)};")

    def in_registers(self) -> bool:
        """Whether the row is a few whole vectors, and the value so little that they stay in registers beside it."""
        columns, lanes = self.columns_of(), self.lanes_of_row
        if len(columns) != 1 or not lanes or self.spec.value.operations() > LIGHT * self.spec.value.points():
            return False
        return self.spec.columns % lanes == 0 and lanes < self.spec.columns <= MOST_VECTORS * lanes

    def blocks(self, compute: str) -> None:
        """The columns, vector by vector: the compiler keeps in registers what has one place in every round."""
        (column,) = self.columns_of()
        if self.checked:
            self.take_out(self.stores, column)
            self.sure()
        self.line(f"#pragma GCC unroll {MOST_VECTORS}")
        self.open(f"for (int b = 0; b < {self.spec.columns}; b += {self.lanes_of_row})")
        self.lanes(column, self.lanes_of_row, "b")
        self.join(compute)
        self.close()
        self.close()

    def _ask_ahead(self) -> None:
        """Rows lie anywhere, so the processor cannot know which comes next: first what their addresses are made of, then they."""
        columns = self.columns_of()
        rows = [i for i in self.needs(self.stores, set()) if columns and self._is_row(i, columns)]
        needed = {i: self.p.body[i] for i in self.needs(rows, set())}
        made_of = [i for i, s in needed.items() if isinstance(s, Load) and any(s.strides)]
        for ahead, wanted in ((2 * AHEAD, made_of), (AHEAD, rows)):
            if not wanted:
                continue
            other = _Row(self.spec, self.p)
            other.fixed, other.depth = self.fixed, self.depth
            other.open(f"if (e + {ahead} < last)")
            other.line(f"const unsigned listed = (unsigned)a1[e + {ahead}];")
            other.line(f"const long long ahead = listed < {self.spec.points}u ? listed : 0;")
            other.digits("ahead")
            if wanted is rows:
                for i in other.needs(rows, set()):
                    other._statement(i)
            for i in wanted:
                self._ask(other, i)
            other.close()
            self.lines += other.lines

    def _ask(self, other: _Row, i: int) -> None:
        """Ask for what a load or gather reads."""
        s = self.p.body[i]
        assert isinstance(s, Read)
        terms = [f"i{d} * {st}LL" for d, st in enumerate(s.strides[: self.fixed]) if st]
        tests = []
        for a, extent, step in zip(s.indices, s.extents, s.steps, strict=True) if isinstance(s, Gather) else ():
            terms.append(f"{other.value(a)} * {step}LL")
            tests.append(f"(unsigned long long){other.value(a)} < {extent}ULL")
        if tests:
            other.open(f"if ({' && '.join(tests)})")
        row = any(s.strides[self.fixed :])
        size = itemsize(self.p.inputs[s.operand]) * (self.spec.columns if row else 1)
        other.line(f"const char* next{i} = (const char*)(a{s.operand} + ({' + '.join(terms) or '0'}));")
        for line in range(min(LINES, -(-size // 64))):
            other.line(f"__builtin_prefetch(next{i} + {64 * line});")
        if tests:
            other.close()

    def _is_row(self, i: int, columns: range) -> bool:
        """Whether a statement reads a row of its own for every point."""
        s = self.p.body[i]
        if not isinstance(s, Read) or s.strides[columns[-1]] != 1:
            return False
        if s.guard or any(self._walks(a, columns) for a in s.args):
            return False
        strides = s.strides
        dense = all(strides[a] == strides[b] * self.p.outer[b] for a, b in pairwise(columns))
        return dense and (isinstance(s, Gather) or any(strides[: self.fixed]))

    def _walks(self, i: int, columns: range) -> bool:
        """Whether a value depends on the column."""
        s = self.p.body[i]
        if isinstance(s, Index):
            return s.dim in columns
        here = isinstance(s, Read) and any(s.strides[d] for d in columns)
        return here or any(self._walks(a, columns) for a in s.args)


class _Finish(_Row):
    """The row's first values, and what becomes of the folded ones."""

    def start(self) -> None:
        """Lines before the fold."""
        spec, compute = self.spec, compute_type(self.spec.dtype)
        self.digits("g")
        for d in (columns := self.columns_of())[:-1]:
            self.loop(d, self.p.outer[d])
        if columns:
            self.line("#pragma omp simd")
            self.loop(columns[-1], self.window[1] or self.p.outer[columns[-1]], self.window[0])
        first = literal(spec.fill, compute)
        if spec.base is not None:
            first = cast_expr(f"a2[{self.address(spec.base)}]", spec.dtype, compute)
        self.line(f"{self.at()} = {first};")
        for _ in columns:
            self.close()
        self.before_fold, self.lines = self.lines, []

    def end(self) -> None:
        """Lines after it."""
        opened = self.over_columns()
        self.compute(self.stores)
        for _ in range(opened):
            self.close()

    def _element(self, operand: int, at: str) -> str:
        return self.at() if operand == 0 else super()._element(operand, at)
