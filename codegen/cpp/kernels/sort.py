"""C++ for sorts: rows in parallel, each a stable merge sort of (key, position) pairs, or a short list of the best.

many wanted:  pairs, runs of 16 by insertion, merged back and forth between two buffers
few wanted:   the k best so far in order; most elements are turned away by one comparison with the last of them
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.kernels.scan import row_address
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, cast_expr
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.registry import Machine, planner
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.library.sort import SortSpec

# Below this many elements a second thread costs more than it brings.
SERIAL_POINTS = 4096
# A short list pays while inserting into it stays rare and cheap.
SHORT_LIST = 128
# A key of up to 8 bytes and a position.
PAIR_BYTES = 16

_FUNCTIONS = """
struct d_pair { KEY key; long long at; };
static inline bool d_before(KEY a, KEY b) { return BEFORE; }
static void d_sort_pairs(d_pair* a, d_pair* b, long long n, long long* in_b) {
  for (long long lo = 0; lo < n; lo += 16) {
    long long hi = lo + 16 < n ? lo + 16 : n;
    for (long long i = lo + 1; i < hi; i++) {
      d_pair p = a[i];
      long long k = i;
      for (; k > lo && d_before(p.key, a[k - 1].key); k--) a[k] = a[k - 1];
      a[k] = p;
    }
  }
  *in_b = 0;
  for (long long run = 16; run < n; run *= 2) {
    for (long long lo = 0; lo < n; lo += 2 * run) {
      long long mid = lo + run < n ? lo + run : n, hi = lo + 2 * run < n ? lo + 2 * run : n;
      long long i = lo, k = mid, to = lo;
      while (i < mid && k < hi) b[to++] = d_before(a[k].key, a[i].key) ? a[k++] : a[i++];
      while (i < mid) b[to++] = a[i++];
      while (k < hi) b[to++] = a[k++];
    }
    d_pair* t = a; a = b; b = t;
    *in_b = !*in_b;
  }
}
static void d_best_pairs(d_pair* a, d_pair p, long long* found, long long k) {
  if (*found == k && !d_before(p.key, a[k - 1].key)) return;
  long long i = *found < k ? (*found)++ : k - 1;
  for (; i > 0 && d_before(p.key, a[i - 1].key); i--) a[i] = a[i - 1];
  a[i] = p;
}
"""


@planner(SortSpec)
def plan_sort(spec: SortSpec, machine: Machine) -> KernelPlan:
    """The kernel of a sort."""
    compute = compute_type(spec.dtype)
    short = spec.k <= SHORT_LIST and spec.k * 4 <= spec.n
    rows = math.prod(spec.rows)
    jobs = 1 if rows * spec.n < SERIAL_POINTS else min(rows, 4 * max(machine.threads, 1))
    room = (spec.k if short else 2 * spec.n) * PAIR_BYTES
    each = -(-rows // jobs)
    lines = [
        f"d_pair* a = (d_pair*)(scratch + j * {room}LL);",
        f"const long long end = (j + 1) * {each} < {rows} ? (j + 1) * {each} : {rows};",
        f"for (long long row = j * {each}; row < end; row++) {{",
    ]
    rest = "row"
    for d in reversed(range(len(spec.rows))):
        lines.append(f"const long long i{d} = {rest} % {spec.rows[d]}, q{d} = {rest} / {spec.rows[d]};")
        rest = f"q{d}"
    element = f"a0[{row_address(spec.x)}]"
    key = cast_expr(element, spec.dtype, compute)
    if short:
        lines += [
            "long long found = 0;",
            f"for (long long i = 0; i < {spec.n}; i++) {{ d_pair p = {{{key}, i}}; "
            f"d_best_pairs(a, p, &found, {spec.k}); }}",
            "const d_pair* best = a;",
        ]
    else:
        lines += [
            f"for (long long i = 0; i < {spec.n}; i++) {{ a[i].key = {key}; a[i].at = i; }}",
            "long long in_b;",
            f"d_sort_pairs(a, a + {spec.n}, {spec.n}, &in_b);",
            f"const d_pair* best = in_b ? a + {spec.n} : a;",
        ]
    lines += [
        f"for (long long i = 0; i < {spec.k}; i++) {{",
        f"o0[{row_address(spec.values)}] = {cast_expr('best[i].key', compute, spec.dtype)};",
        f"o1[{row_address(spec.positions)}] = best[i].at;",
        "}",
        "}",
    ]
    functions = _FUNCTIONS.replace("KEY", CPP_TYPE[compute]).replace("BEFORE", _before(compute, spec.descending))
    return KernelPlan("sort", functions, (Phase(jobs, "\n".join(lines)),), room * jobs)


def _before(compute: str, descending: bool) -> str:
    """Whether key ``a`` stands before ``b``: NaN as the largest."""
    nan = compute in FLOATS
    if descending:
        return "a > b || (a != a && b == b)" if nan else "a > b"
    return "a < b || (b != b && a == a)" if nan else "a < b"
