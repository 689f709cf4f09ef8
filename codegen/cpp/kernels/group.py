"""C++ for lists of points by group: a counting sort of blocks of points, each with counters of its own.

    per block:            how many points of every group it has; indices are checked
    per range of groups:  how many points all blocks have
    per range of groups:  where every group starts, and in it the points of every block
    per block:            points to their places, in order

Blocks follow one another, so a group's points are in order whatever the number of blocks.
"""

from __future__ import annotations

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import moves, usual
from dcir.cost.machine import Machine
from dcir.ops.library.segments import GroupSpec

# Points that are worth a block, and a thread, of their own.
BLOCK = 4096
# Groups of a range at least.
RANGE = 2048


@planner(GroupSpec, any_size=True)
def plan_group(spec: GroupSpec, machine: Machine) -> KernelPlan:
    """The kernel of a list of points."""
    n, groups = spec.points, spec.groups
    # Counters of a block are set to zero and added up, so they should not be many more than its points.
    blocks = max(1, min(machine.threads, usual(n) // BLOCK, 4 * usual(n) // usual(groups)))
    ranges = max(1, min(machine.threads, usual(groups) // RANGE))
    each, part = -(-n // blocks), -(-groups // ranges)
    counters = f"unsigned* count = (unsigned*)scratch + j * {groups}LL;"
    totals = blocks * groups  # the ranges' sums follow the counters
    block = f"const long long lo = j * {each}, hi = lo + {each} < {n} ? lo + {each} : {n};"
    span = f"const long long lo = j * {part}, hi = lo + {part} < {groups} ? lo + {part} : {groups};"
    count = [
        counters, block, "int bad = 0;",
        f"for (long long g = 0; g < {groups}; g++) count[g] = 0;",
        *_visit(spec, "count[g]++;", "bad |= !g{n};"),
        "if (bad) d_report(status);",
    ]  # fmt: skip
    # Where groups move there may be ranges without any, which end where all do.
    some = "lo < hi && " if moves(groups) else ""
    add = [
        "const unsigned* count = (const unsigned*)scratch;", span, "unsigned sum = 0;",
        f"for (int b = 0; b < {blocks}; b++)",
        f"  for (long long g = lo; g < hi; g++) sum += count[b * {groups}LL + g];",
        f"((unsigned*)scratch)[{totals}LL + j] = sum;",
    ]  # fmt: skip
    start = [
        "unsigned* count = (unsigned*)scratch;",
        span,
        "unsigned at = 0;",
        f"for (int r = 0; r < j; r++) at += count[{totals}LL + r];",
        "for (long long g = lo; g < hi; g++) {",
        "  o0[g] = (int)at;",
        f"  for (int b = 0; b < {blocks}; b++) {{",
        f"    unsigned* place = count + (b * {groups}LL + g);",
        "    const unsigned found = *place; *place = at; at += found;",
        "  }",
        "}",
        f"if ({some}hi == {groups}) o0[{groups}] = (int)at;",
    ]
    place = [counters, block, *_visit(spec, "o1[count[g]++] = (int)p;", "")]
    phases = ((blocks, count), (ranges, add), (ranges, start), (blocks, place))
    return KernelPlan("group", "", tuple(Phase(jobs, "\n".join(t)) for jobs, t in phases), (totals + ranges) * 4)


def _visit(spec: GroupSpec, visit: str, check: str) -> list[str]:
    """Lines that run ``visit`` for every point ``p`` of [lo, hi) that has a group ``g``, and ``check`` for every index."""
    lines, rest = ["for (long long p = lo; p < hi; p++) {"], "p"
    for d in range(len(spec.dims) - 1, 0, -1):
        lines.append(f"const long long i{d} = {rest} % {spec.dims[d]}, q{d} = {rest} / {spec.dims[d]};")
        rest = f"q{d}"
    if spec.dims:
        lines.append(f"const long long i0 = {rest};")
    group = "0"
    for n, (strides, extent) in enumerate(zip(spec.indices, spec.extents, strict=True)):
        address = " + ".join(f"i{d} * {s}LL" for d, s in enumerate(strides) if s) or "0"
        lines.append(f"long long k{n} = (long long)a{n}[{address}];")
        if n == 0 and spec.skip is not None:
            lines.append(f"if (k{n} == {spec.skip}LL) continue;")
        if spec.wrap:
            lines.append(f"if (k{n} < 0) k{n} += {extent}LL;")
        lines += [f"const bool g{n} = (unsigned long long)k{n} < {extent}ULL;", check.format(n=n)]
        lines.append(f"if (!g{n}) continue;")
        group = f"k{n}" if group == "0" else f"({group}) * {extent}LL + k{n}"
    return [*lines, f"const long long g = {group};", visit, "}"]
