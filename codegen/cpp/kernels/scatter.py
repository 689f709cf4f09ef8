"""C++ for scatters: the base copied or filled in parallel, then the writes, in order wherever two could meet.

    jobs = blocks of loops that move the result's address by themselves x owners of ranges of one index
    per job:  other loops with an address of their own
                  loops without one (their order counts); indices read, checked, passed over if another job owns them
                      the loop of neighbouring elements, along the vector

A loop may run in parallel if equal addresses imply equal loop values: the strides of loops and indices, sorted, form a
mixed-radix number. By the same argument jobs may share out the values of an index, each scanning all of them, which
keeps every address' updates in order and so the sums the same for any number of threads.
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.kernels.program import plan_program
from dcir.codegen.cpp.scalar_ops import SCALAR_OPS, cast_expr
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.planners import Machine, planner
from dcir.ir.program import Body, Program
from dcir.ir.types import compute_type
from dcir.ops.scatter import ScatterSpec, unambiguous

# Below this many points a second thread costs more than it brings.
SERIAL_POINTS = 8192
# Neighbouring elements that stay in one job: a few cache lines.
BLOCK = 64


@planner(ScatterSpec)
def plan_scatter(spec: ScatterSpec, machine: Machine) -> KernelPlan:
    """The kernel of a scatter."""
    if spec.kept:
        return KernelPlan(f"scatter_{spec.op}", "", (_Writes(spec, machine).phase(),))
    start = plan_program(_start(spec), machine)
    return KernelPlan(f"scatter_{spec.op}", start.globals, (*start.phases, _Writes(spec, machine).phase()))


def _start(spec: ScatterSpec) -> Program:
    """The loop program that makes the result the base."""
    body = Body(spec.shape)
    if spec.base is None:
        value = body.const(spec.fill, compute_type(spec.dtype))
    else:
        value = body.load(body.input(spec.dtype), spec.base)
    body.store(body.output(spec.dtype), spec.out, value)
    return body.finish()


class _Writes:
    def __init__(self, spec: ScatterSpec, machine: Machine) -> None:
        self.spec = spec
        self.lines: list[str] = []
        self.depth = 0
        self.open_braces = 0
        self.owned = 0
        self.first = 0 if spec.base is None else 1  # operand number of the source
        rank = len(spec.dims)
        clear = unambiguous(spec)
        free = [d for d in range(rank) if clear and spec.to[d] and spec.dims[d] > 1]
        self.vector = free[-1] if free and spec.to[free[-1]] == 1 else None
        points, threads = math.prod(spec.dims), max(machine.threads, 1)
        self.prefix: list[int] = []
        self.jobs, self.tiles, self.owners = 1, 1, 1
        if points >= SERIAL_POINTS and threads > 1:
            for d in free:
                if d != self.vector and self.jobs < 4 * threads:
                    self.prefix.append(d)
                    self.jobs *= spec.dims[d]
            if self.vector is not None and self.jobs < 4 * threads:
                self.tiles = max(1, min(-(-4 * threads // self.jobs), spec.dims[self.vector] // BLOCK))
            if self.jobs * self.tiles < threads and clear:
                self.owned = max(range(len(spec.index_steps)), key=lambda i: spec.index_steps[i])
                self.owners = min(threads, spec.extents[self.owned])
        # Free loops outside the others, so that neighbouring writes meet in cache; the vector inside.
        rest = [d for d in free if d not in self.prefix and d != self.vector]
        inside = [] if self.vector is None else [self.vector]
        self.order = [*self.prefix, *rest, *(d for d in range(rank) if d not in free), *inside]

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
            low, high = "0", str(spec.dims[d])
            if d == self.vector and self.tiles > 1:
                each = -(-spec.dims[d] // self.tiles)
                low = f"tile * {each}"
                high = f"({low} + {each} < {spec.dims[d]} ? {low} + {each} : {spec.dims[d]})"
            if d == self.vector and len(placed) == len(spec.indices):
                self.line("#pragma omp simd")
            self.open(f"for (long long i{d} = {low}; i{d} < {high}; i{d}++)")
            known.add(d)
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
            if n == 0 and spec.skip is not None:
                self.open(f"if (k{n} != {spec.skip}LL)")
            if spec.wrap:
                self.line(f"if (k{n} < 0) k{n} += {extent}LL;")
            self.line(f"const bool g{n} = (unsigned long long)k{n} < {extent}ULL;")
            self.line(f"bad |= !g{n};")
            mine = ""
            if self.owners > 1 and n == self.owned:
                each = -(-extent // self.owners)
                mine = f" && k{n} >= owner * {each}LL && k{n} < (owner + 1) * {each}LL"
            self.open(f"if (g{n}{mine})")

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
        self.line(f"o0[to] = {cast_expr(SCALAR_OPS[spec.op].cpp([old, new], compute), compute, t)};")
