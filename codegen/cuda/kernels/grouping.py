"""Points listed by group, in their order: a counting sort in chunks of points, each with counters of its own.

    per chunk:   count[c, g] = points of group g in chunk c       a point's rank in its tile by looking at all before it
    per group:   count[c, g] = points in the chunks before c;  total[g]
    one block:   starts[g] = sum of the totals before g
    per chunk:   order[starts[g] + count[c, g] + rank] = point

Whatever the order of blocks and threads, the list is the same; no atomic operation is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcir.codegen.cuda.device import ceil_div
from dcir.codegen.cuda.emitters import planner
from dcir.codegen.cuda.kernels.loop_nest import Plan
from dcir.codegen.cuda.kernels.text import Lines, Places, finished
from dcir.codegen.cuda.launch import CudaPlan
from dcir.cost.machine import Machine
from dcir.ops.library.segments import GroupSpec

TILE = 256
SCAN = 1024
# Counters of all chunks at most.
MOST_COUNTERS = 1 << 24
MOST_POINTS = 2**31 - 1


@dataclass(frozen=True)
class Indices:
    """Where the points of some loops go.

    Attributes:
        dims: extents of the loops.
        strides: per index, its strides over them.
        types, extents: per index, its element type, and how many values it may take.
        first: the operand of the first index; the others follow.
        wrap: whether negative indices count from the end.
        skip: a value of the first index whose points are passed over.
    """

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    extents: tuple[int, ...]
    first: int
    wrap: bool
    skip: int | None

    def operand_types(self) -> dict[str, str]:
        """Of the indices."""
        return {f"a{self.first + n}": t for n, t in enumerate(self.types)}

    def find(self, text: Lines) -> None:
        """Lines that make of a point ``p`` its indices ``k0, k1, …`` and ``listed``; a bad one sets ``bad``."""
        text.decompose("p", range(len(self.dims)), self.dims)
        text.line("bool listed = true;")
        for n, (strides, extent) in enumerate(zip(self.strides, self.extents, strict=True)):
            at = " + ".join(f"(long long)i{d} * {s}ll" for d, s in enumerate(strides) if s) or "0"
            text.line(f"long long k{n} = (long long)d_load(a{self.first + n}, {at});")
            if n == 0 and self.skip is not None:
                text.line(f"listed = k0 != {self.skip}ll;")
            if self.wrap:
                text.line(f"if (k{n} < 0) k{n} += {extent}ll;")
            text.line(f"const bool in{n} = (unsigned long long)k{n} < {extent}ull;")
        inside = " & ".join(f"in{n}" for n in range(len(self.extents))) or "true"
        text.line(f"bad |= listed & !({inside});")
        text.line(f"listed &= {inside};")


def grouped(plan: Plan, indices: Indices, points: int, groups: int, group: str, places: Places) -> None:
    """Add the kernels that list points by group.

    Args:
        plan: where to.
        indices: of a point.
        points, groups: how many there are.
        group: C++ of a point's group, from its indices and loop variables.
        places: where ``o0`` (starts) and ``o1`` (order), i32, and the indices are.
    """
    chunks = max(1, min(ceil_div(points, TILE), MOST_COUNTERS // max(groups, 1)))
    chunk = ceil_div(ceil_div(points, chunks), TILE) * TILE
    chunks = max(1, ceil_div(points, chunk))
    counters = chunks * groups
    own = places.having({"o2": str(plan.room(4 * counters)), "o3": str(plan.room(4 * groups))})
    types = {**indices.operand_types(), "o0": "i32", "o1": "i32", "o2": "i32", "o3": "i32"}

    def add(lines: Sequence[str], blocks: int, threads: int) -> None:
        plan.launches.append(finished(lines, types, own, (max(blocks, 1), 1, 1), threads))

    zero = [
        f"  const long long at = (long long)d_block() * {TILE} + d_thread();",
        f"  if (at < {counters}ll) d_store(o2, at, 0);",
    ]
    add(zero, ceil_div(counters, TILE), TILE)
    add(_sweep(indices, points, groups, group, chunk, placing=False), chunks, TILE)
    prefix = [
        f"  const int g = d_block() * {TILE} + d_thread();",
        f"  if (g < {groups}) {{",
        "    int found = 0;",
        f"    for (int c = 0; c < {chunks}; c++) {{",
        f"      const long long at = c * {groups}ll + g;",
        "      const int here = d_load(o2, at);",
        "      d_store(o2, at, found);",
        "      found += here;",
        "    }",
        "    d_store(o3, g, found);",
        "  }",
    ]
    add(prefix, ceil_div(groups, TILE), TILE)
    add(_starts(groups), 1, SCAN)
    add(_sweep(indices, points, groups, group, chunk, placing=True), chunks, TILE)


def _sweep(indices: Indices, points: int, groups: int, group: str, chunk: int, *, placing: bool) -> list[str]:
    """A pass over the points of a chunk, tile by tile: counting them, or placing them."""
    text = Lines("int")
    text.line(f"D_SHARED(int, ids, {TILE});")
    text.line("int bad = 0;")
    text.line(f"const int lo = d_block() * {chunk}, hi = lo + {chunk} < {points} ? lo + {chunk} : {points};")
    text.line(f"const long long row = (long long)d_block() * {groups}ll;")
    text.open(f"for (int tile = lo; tile < hi; tile += {TILE})")
    text.line("const int p = tile + d_thread();")
    text.line("int g = -1;")
    text.open("if (p < hi)")
    indices.find(text)
    text.line(f"if (listed) g = (int)({group});")
    text.close()
    text.line("ids[d_thread()] = g;")
    text.line("d_barrier();")
    text.line("int rank = 0;")
    text.line("bool last = true;")
    text.open(f"for (int k = 0; k < {TILE}; k++)")
    text.line("const int other = ids[k];")
    text.line("rank += k < d_thread() && other == g;")
    text.line("last &= !(k > d_thread() && other == g);")
    text.close()
    text.line("const int before = g >= 0 ? d_load(o2, row + g) : 0;")
    if placing:
        text.line("if (g >= 0) d_store(o1, d_load(o0, g) + before + rank, p);")
    text.line("d_barrier();")
    text.line("if (g >= 0 && last) d_store(o2, row + g, before + rank + 1);")
    text.close()
    if not placing:
        text.line("if (bad) d_report(status);")
    return text.lines


def _starts(groups: int) -> list[str]:
    """One block: the sums of the totals before every group, a run of groups for each thread."""
    each = ceil_div(groups, SCAN)
    text = Lines("int")
    text.line(f"D_SHARED(int, sums, {2 * SCAN});")
    text.line(f"const int lo = d_thread() * {each}, end = lo + {each}, hi = end < {groups} ? end : {groups};")
    text.line("int found = 0;")
    text.line("for (int g = lo; g < hi; g++) found += d_load(o3, g);")
    text.line("sums[d_thread()] = found;")
    text.line("d_barrier();")
    text.line("int from = 0;")
    text.open(f"for (int step = 1; step < {SCAN}; step *= 2)")
    text.line("int sum = sums[from + d_thread()];")
    text.open("if (d_thread() >= step)")
    text.line("const int other = sums[from + d_thread() - step];")
    text.line("sum += other;")
    text.close()
    text.line(f"from = {SCAN} - from;")
    text.line("sums[from + d_thread()] = sum;")
    text.line("d_barrier();")
    text.close()
    text.line("const int all = sums[from + d_thread()];")
    text.line("int at = all - found;")
    text.open("for (int g = lo; g < hi; g++)")
    text.line("d_store(o0, g, at);")
    text.line("at += d_load(o3, g);")
    text.close()
    text.line(f"if (d_thread() == {SCAN - 1}) d_store(o0, {groups}, all);")
    return text.lines


@planner(GroupSpec)
def plan_group(spec: GroupSpec, machine: Machine | None) -> CudaPlan:
    """The kernels of a list of points."""
    plan = Plan()
    indices = Indices(spec.dims, spec.indices, spec.index_types, spec.extents, 0, spec.wrap, spec.skip)
    grouped(plan, indices, spec.points, spec.groups, group_number(spec.extents), Places())
    return plan.made()


def group_number(extents: Sequence[int]) -> str:
    """C++ of the row-major position of indices in their extents."""
    text = "0"
    for n, extent in enumerate(extents):
        text = f"k{n}" if text == "0" else f"({text}) * {extent}ll + k{n}"
    return text
