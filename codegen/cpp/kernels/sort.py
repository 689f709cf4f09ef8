"""C++ for sorts: rows in parallel, each a stable sort of (key, position) pairs by digits or by merging, or a short list of the best.

many wanted:  keys as whole numbers of the same order, dealt out by 8 bits after 8 bits, back and forth between two buffers
of few:       runs of 16 by insertion, merged back and forth between two buffers
few wanted:   the k best so far in order; most elements are turned away by one comparison with the last of them
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.emitters import planner
from dcir.codegen.cpp.kernels.scan import row_address
from dcir.codegen.cpp.scalar_ops import CPP_TYPE, cast_expr
from dcir.codegen.cpp.template import templates
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import moves, smaller, usual
from dcir.cost.machine import Machine
from dcir.ir.types import FLOATS, compute_type
from dcir.ops.library.sort import SortSpec

text_of = templates("kernels/sort")

# Below this many elements a second thread costs more than it brings.
SERIAL_POINTS = 4096
# A short list pays while inserting into it stays rare and cheap.
SHORT_LIST = 128
# A key of up to 8 bytes and a position.
PAIR_BYTES = 16
# Elements a row for each digit from which dealing out is faster than comparisons, of which a processor guesses half wrong: every digit
# costs 256 sums. Rows of 48 floats: 14 ns an element by dealing, 28 by merging; of 512: 10 and 53.
DEALT_FROM = 12


@planner(SortSpec, any_size=True)
def plan_sort(spec: SortSpec, machine: Machine) -> KernelPlan:
    """The kernel of a sort."""
    compute = compute_type(spec.dtype)
    dealt = not moves(spec.n) and DEALT_FROM * _digits(compute) <= spec.n < 1 << 32
    short = not moves(spec.k) and spec.k <= SHORT_LIST and spec.k * 4 <= usual(spec.n)
    # About k elements move at each of k log(n / k) insertions.
    short = short and (not dealt or spec.k**2 <= spec.n)
    rows = math.prod(spec.rows)
    jobs = 1 if usual(rows * spec.n) < SERIAL_POINTS else smaller(rows, 4 * max(machine.threads, 1))
    room = (spec.k if short else 2 * spec.n) * PAIR_BYTES
    each = f"(({rows} + {jobs} - 1) / ({jobs}))" if moves(jobs, rows) else -(-rows // jobs)
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
            f"for (long long i = 0; i < {spec.n}; i++) {{ a[i].key = {f'd_ordered({key})' if dealt else key}; a[i].at = i; }}",
            "long long in_b;",
            f"d_sort_pairs(a, a + {spec.n}, {spec.n}, &in_b);",
            f"const d_pair* best = in_b ? a + {spec.n} : a;",
        ]
    if dealt and not short:
        value = f"long long i = best[to].at; const auto value = {element}; i = to;"
        functions = text_of.dealt(key=CPP_TYPE[compute], **_word(compute, spec.descending))
    else:
        value = f"const long long i = to; const auto value = {cast_expr('best[i].key', compute, spec.dtype)};"
        functions = text_of.functions(key=CPP_TYPE[compute], before=_before(compute, spec.descending))
    lines += [
        f"for (long long to = 0; to < {spec.k}; to++) {{",
        value,
        f"o0[{row_address(spec.values)}] = value;",
        f"o1[{row_address(spec.positions)}] = best[to].at;",
        "}",
        "}",
    ]
    return KernelPlan("sort", functions, (Phase(jobs, "\n".join(lines)),), room * jobs)


def _before(compute: str, descending: bool) -> str:
    """Whether key ``a`` stands before ``b``: NaN as the largest."""
    nan = compute in FLOATS
    if descending:
        return "a > b || (a != a && b == b)" if nan else "a > b"
    return "a < b || (b != b && a == a)" if nan else "a < b"


def _word(compute: str, descending: bool) -> dict[str, object]:
    """The unsigned type that a key ``x`` becomes, its bits, and how, in the same order: NaN as the largest, both zeros as one."""
    digits = _digits(compute)
    word, top, signed = (
        ("unsigned long long", "(1ull << 63)", "long long") if digits == 8 else ("unsigned", "(1u << 31)", "int")
    )
    if compute in FLOATS:
        ordered, bits = f"x != x ? ~({word})0 : bits & {top} ? ~bits : bits | {top}", "d_bits(x + 0)"
    else:
        ordered, bits = f"bits ^ {top}", f"({word})({signed})x"
    return {"word": word, "bits": bits, "ordered": f"~({ordered})" if descending else ordered, "digits": digits}


def _digits(compute: str) -> int:
    """Of 8 bits, in the word of a key."""
    return 8 if compute in ("f64", "i64") else 4
