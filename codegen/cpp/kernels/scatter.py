"""C++ for scatters: the base copied or filled in parallel, then the writes, in order wherever two could meet.

    jobs = blocks of loops that move the result's address by themselves x owners of ranges of one index
    per job:  other loops with an address of their own
                  loops without one (their order counts); indices read and checked, or those found that the job owns
                      the loop of neighbouring elements, along the vector

A loop may run in parallel if equal addresses imply equal loop values: the strides of loops and indices, sorted, form a
mixed-radix number. By the same argument jobs may share out the values of an index, each scanning all of them, which
keeps every address' updates in order and so the sums the same for any number of threads. A job finds its own a strip
of indices at a time: a test at each of them would be wrong half of the time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.indices import SLACK, STRIP, find_function
from dcir.codegen.cpp.kernels.loop_nest import plan_program
from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import Undecided, least, most, moves, usual, usually
from dcir.cost.machine import Machine
from dcir.ir.loop_nest import LoopNest
from dcir.ir.loop_nest_builder import LoopNestBuilder
from dcir.ir.statements import Access, Store
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.library.scatter import ScatterSpec, unambiguous

# Below this many points a second thread costs more than it brings.
SERIAL_POINTS = 8192
# Neighbouring elements that stay in one job: a few cache lines.
BLOCK = 64
# The same of what is only read side by side: one line.
LINE = 16


@planner(ScatterSpec, any_size=True)
def plan_scatter(spec: ScatterSpec, machine: Machine) -> KernelPlan:
    """The kernel of a scatter."""
    writes = _Writes(spec, machine)
    phase = writes.phase()
    if spec.kept:
        return KernelPlan(f"scatter_{spec.op}", writes.functions, (phase,))
    start = plan_program(_start(spec), machine)
    return KernelPlan(f"scatter_{spec.op}", start.globals + writes.functions, (*start.phases, phase))


def _start(spec: ScatterSpec) -> LoopNest:
    """The loop nest that makes the result the base."""
    if moves(*spec.shape):  # the same, but for where elements lie
        made = _start(usually(spec))
        places = (spec.base or (), spec.out)
        body = tuple(s.with_strides(places[isinstance(s, Store)]) if isinstance(s, Access) else s for s in made.body)
        return replace(made, outer=spec.shape, body=body)
    nest = LoopNestBuilder(spec.shape)
    if spec.base is None:
        value = nest.const(spec.fill, compute_type(spec.dtype))
    else:
        value = nest.load(nest.input(spec.dtype), spec.base)
    nest.store(nest.output(spec.dtype), spec.out, value)
    return nest.finish()


def _clear(spec: ScatterSpec) -> bool:
    """Whether an address tells all that moves it, at all sizes."""
    try:
        return unambiguous(spec)
    except Undecided:
        return False


class _Writes:
    def __init__(self, spec: ScatterSpec, machine: Machine) -> None:
        self.spec = spec
        self.lines: list[str] = []
        self.depth = 0
        self.open_braces = 0
        self.functions = ""
        self.along_vector = False
        self.owned = max(range(len(spec.index_steps)), key=lambda i: usual(spec.index_steps[i]))
        self.first = spec.first
        rank = len(spec.dims)
        clear = _clear(spec)
        free = [d for d in range(rank) if clear and spec.to[d] and most(spec.dims[d]) > 1]
        self.vector = free[-1] if free and spec.to[free[-1]] == 1 else None
        block = BLOCK
        if self.vector is None and (along := [d for d in free if spec.source[d] == 1]):
            # Channels side by side into planes: what is read lies together, and each plane's line stays for its next elements.
            self.vector, block = along[0], LINE
        points, threads = usual(math.prod(spec.dims)), max(machine.threads, 1)
        self.prefix: list[int] = []
        self.jobs, self.tiles, self.owners = 1, 1, 1
        if points >= SERIAL_POINTS and threads > 1:
            for d in free:
                if d != self.vector and usual(self.jobs) < 4 * threads:
                    self.prefix.append(d)
                    self.jobs *= spec.dims[d]
            jobs = usual(self.jobs)
            if self.vector is not None and jobs < 4 * threads:
                self.tiles = max(1, min(-(-4 * threads // jobs), usual(spec.dims[self.vector]) // block))
            if jobs * self.tiles < threads and clear:
                self.owners = min(threads, least(spec.extents[self.owned]))
        # Free loops outside the others, so that neighbouring writes meet in cache; the vector inside.
        rest = [d for d in free if d not in self.prefix and d != self.vector]
        inside = [] if self.vector is None else [self.vector]
        self.order = [*self.prefix, *rest, *(d for d in range(rank) if d not in free), *inside]
        self.strip = self.walked()

    def walked(self) -> list[int]:
        """Neighbouring loops, in order, that the owned index walks in steps of one size; none if there is no more than one step."""
        strides, dims = self.spec.indices[self.owned], self.spec.dims
        if moves(self.spec.extents[self.owned]):  # what finds indices has that as a constant
            return []
        if self.spec.skip is not None and self.owned:
            return []
        loops = self.order[len(self.prefix) :]
        found: list[int] = []
        for d in reversed([d for d in loops if most(dims[d]) > 1]):
            if not strides[d] and not found:
                continue
            if found and (d > found[0] or strides[d] != strides[found[0]] * dims[found[0]]):
                break
            found.insert(0, d)
            if d == self.vector and self.tiles > 1:
                break
        return found if found and strides[found[-1]] > 0 and not moves(strides[found[-1]]) else []

    def phase(self) -> Phase:
        spec = self.spec
        self.line("int bad = 0;")
        rest = self.deal("j", "tile", self.tiles)
        rest = self.deal(rest, "owner", self.owners)
        for d in reversed(self.prefix):
            rest = self.deal(rest, f"i{d}", spec.dims[d], last=d == self.prefix[0])
        placed: set[int] = set()
        known = set(self.prefix)
        self.indices(placed, known)
        for d in self.order[len(self.prefix) :]:
            if d in self.strip and self.owners > 1:
                if d == self.strip[0]:
                    self.owned_points()
            else:
                self.loop(d, placed)
            known.add(d)
            if not (d in self.strip[:-1] and self.owners > 1):
                self.indices(placed, known)
        self.write()
        for _ in range(self.open_braces):
            self.depth -= 1
            self.line("}")
        self.line("if (bad) d_report(status);")
        return Phase(self.jobs * self.tiles * self.owners, "\n".join(self.lines))

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.depth += 1
        self.open_braces += 1

    def deal(self, source: str, name: str, count: int, *, last: bool = False) -> str:
        """Take the digit ``name`` of ``count`` values off the job number ``source``; returns what is left."""
        if count == 1 and not name.startswith("i"):
            return source
        if last:
            self.line(f"const long long {name} = {source};")
            return source
        self.line(f"const long long {name} = {source} % {count}, r{name} = {source} / {count};")
        return f"r{name}"

    def loop(self, d: int, placed: set[int]) -> None:
        """Open a loop."""
        spec, (low, high) = self.spec, self.bounds(d)
        if d == self.vector and spec.to[d] == 1 and len(placed) == len(spec.indices):
            self.line("#pragma omp simd")
            self.along_vector = True
        self.open(f"for (long long i{d} = {low}; i{d} < {high}; i{d}++)")

    def bounds(self, d: int) -> tuple[str, str]:
        """Where a loop begins and ends in this job."""
        extent = self.spec.dims[d]
        if d != self.vector or self.tiles == 1:
            return "0", str(extent)
        each = -(-extent // self.tiles)
        low = f"tile * {each}"
        return low, f"({low} + {each} < {extent} ? {low} + {each} : {extent})"

    def owned_points(self) -> None:
        """Open the loop over the points of every strip whose places the job owns."""
        spec, n = self.spec, self.owned
        low, high = self.bounds(self.strip[0])
        if len(self.strip) > 1:
            high = f"{math.prod(spec.dims[d] for d in self.strip)}LL"
        extent, each = f"{spec.extents[n]}LL", f"{-(-spec.extents[n] // self.owners)}LL"
        step = spec.indices[n][self.strip[-1]]
        self.functions = find_function(step, spec.extents[n], wrap=spec.wrap, skip=spec.skip)
        self.line(f"const long long mine = owner * {each} < {extent} ? owner * {each} : {extent};")
        self.line(f"const long long span = {extent} - mine < {each} ? {extent} - mine : {each};")
        self.line(f"long long outside = 0, end = {high};")
        self.open(f"for (long long from = {low}; from < end; from += {STRIP})")
        self.line(f"int found[{STRIP + SLACK}];")
        self.line(f"const int most = end - from < {STRIP} ? (int)(end - from) : {STRIP};")
        before = [f"i{d} * {s}LL" for d, s in enumerate(spec.indices[n]) if s and d not in self.strip]
        start = " + ".join([f"a{self.first + 1 + n}", *before, f"from * {step}LL"])
        self.line(f"const int points = d_find({start}, most, mine, span, found, outside);")
        self.line("bad |= outside < 0;")
        self.open("for (int f = 0; f < points; f++)")
        number = "unsigned" if most(math.prod(spec.dims[d] for d in self.strip)) < 1 << 32 else "unsigned long long"
        rest = "from + found[f]"
        for d in self.strip[:0:-1]:
            self.line(f"const {number} q{d} = {rest};")
            self.line(f"const long long i{d} = q{d} % {spec.dims[d]};")
            rest = f"q{d} / {spec.dims[d]}"
        self.line(f"const long long i{self.strip[0]} = {rest};")

    def address(self, strides: tuple[int, ...]) -> str:
        return " + ".join(f"i{d} * {s}LL" for d, s in enumerate(strides) if s) or "0"

    def indices(self, placed: set[int], known: set[int]) -> None:
        """Read and check the indices whose loops are all open by now."""
        spec = self.spec
        for n, strides in enumerate(spec.indices):
            if n in placed or any(s and d not in known for d, s in enumerate(strides)):
                continue
            placed.add(n)
            extent = spec.extents[n]
            self.line(f"long long k{n} = (long long)a{self.first + 1 + n}[{self.address(strides)}];")
            found = n == self.owned and self.owners > 1 and bool(self.strip)
            if n == 0 and spec.skip is not None and not found:
                self.open(f"if (k{n} != {spec.skip}LL)")
            if spec.wrap:
                self.line(f"if (k{n} < 0) k{n} += {extent}LL;")
            if found:
                continue
            self.open(f"if (__builtin_expect((unsigned long long)k{n} >= {extent}ULL, 0)) bad = 1; else")
            if self.owners > 1 and n == self.owned:
                each = -(-extent // self.owners)
                self.open(f"if (k{n} >= owner * {each}LL && k{n} < (owner + 1) * {each}LL)")

    def write(self) -> None:
        spec, t = self.spec, self.spec.dtype
        steps = [f"k{n} * {s}LL" for n, s in enumerate(spec.index_steps) if s]
        target = " + ".join([self.address(spec.to), *steps])
        source = f"a{self.first}[{self.address(spec.source)}]"
        if spec.op == "set":
            self.line(f"o0[{target}] = {source};")
            return
        compute = compute_type(t)
        self.line(f"const long long to = {target};")
        old, new = cast_expr("o0[to]", t, compute), cast_expr(source, t, compute)
        joined = SCALAR_OPS[spec.op].cpp([old, new], compute)
        if spec.op in ("min", "max") and compute in FLOATS and not self.along_vector:
            joined = f"d_choose<d_{spec.op}_of>({old}, {new})"
        self.line(f"o0[to] = {cast_expr(joined, compute, t)};")
