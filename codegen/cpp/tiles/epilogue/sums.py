"""Sums over a tile's results, channel by channel: C++ that adds to a job's partial sums, which a later phase puts together.

A job has its own sums, [sum][channel] in float64, cleared before it starts. ``add_sums`` takes a finished tile from the stack: per
vector of channels it goes down the rows with the sums in registers (float32 values as float32, since rows of a tile are few; float64
values and products as float64) and adds what it has to memory once. So the numbers depend on how results are dealt to jobs, and on
nothing else. What took a long chain of steps is not computed again: it is read where it was just stored.
"""

from __future__ import annotations

from dataclasses import replace

from dcir.codegen.cpp.tiles.emit import lanes, render, round_up
from dcir.codegen.cpp.tiles.epilogue.protocol import TileEpilogue
from dcir.ir.loop_nest import LoopNest, simplify
from dcir.ir.statements import Cast, Load, Store
from dcir.isa import Isa

_TEXT = """
typedef float Half __attribute__((vector_size($half)));
typedef double D __attribute__((vector_size($whole)));
typedef double Apart __attribute__((vector_size($whole), aligned(8), may_alias));
$inline D low(V v) { return __builtin_convertvector(__builtin_shufflevector(v, v, $first), D); }
$inline D high(V v) { return __builtin_convertvector(__builtin_shufflevector(v, v, $second), D); }
// The operands of job number j, whose sums start at zero.
$inline Operands own(const Operands &given, L j) {
    Operands e = given;
    e.sums += j * $size;
    for (L i = 0; i < $size; i++) e.sums[i] = 0;
    return e;
}
$inline void add_to(double *to, D l, D h, int from, int n) {
    if (from == 0 && n == VL) {
        *(Apart *)to += l;
        *(Apart *)(to + VL / 2) += h;
        return;
    }
    for (int c = from; c < n; c++) to[c] += c < VL / 2 ? l[c] : h[c - VL / 2];
}
// Every other row has sums of its own, so that none waits for the one before.
struct Sums { $sums };
template <bool WHOLE> $inline void add_vector(const Operands &e, $indices, const T *t, L stride, L rows, int from, int n) {
$before
    const auto add_row = [&](L r, Sums &u) __attribute__((always_inline)) {
        const L i$row = b$row + r;
        const V x = $value;
$inside
    };
    Sums p = {}, q = {};
    L r = 0;
    for (; r + 2 <= rows; r += 2) {
        add_row(r, p);
        add_row(r + 1, q);
    }
    if (r < rows) add_row(r, p);
$after
}
// Rows of n results each, ``stride`` apart, that are stored already; the first ``from`` of a row are another tile's.
$noinline void add_sums(const Operands &operands, $indices, const T *t, L stride, L rows, L from, L n) {
    const Operands e = operands;
    L s = 0;
    for (; s + VL <= n; s += VL) add_vector<true>(e, $at, t + s, stride, rows, from > s ? (int)(from - s) : 0, VL);
    if (s < n) add_vector<false>(e, $at, t + s, stride, rows, from > s ? (int)(from - s) : 0, (int)(n - s));
}
"""


def sums_of(p: LoopNest) -> list[Store]:
    """The stores that add."""
    return [s for s in p.body if isinstance(s, Store) and s.added]


def without_sums(p: LoopNest) -> LoopNest:
    """The epilogue that only stores; operands keep their numbers."""
    return simplify(p, keep=lambda s: isinstance(s, Store) and not s.added)


def only_sums(p: LoopNest) -> LoopNest:
    """The epilogue that only adds."""
    return simplify(p, keep=lambda s: isinstance(s, Store) and s.added)


def pitch(p: LoopNest) -> int:
    """Elements from one sum's channels to the next sum's."""
    steps = sums_of(p)[0].strides
    return round_up(1 + sum((n - 1) * s for n, s in zip(p.outer, steps, strict=True)), 16)


def sums_text(whole: TileEpilogue, isa: Isa) -> str:
    """``own`` and ``add_sums`` of an epilogue with sums."""
    program, value = _from_stored(whole) or (only_sums(whole.program), "load(t + r * stride)")
    e = whole.with_program(program)
    p, row = e.program, e.row
    width = lanes(isa, e.dtype)
    varies, lines = e.vector_varies(), e.vector_lines()
    walks = _walks(p, row)
    names = [f"i{d}" for d in range(len(p.outer))]
    before = [f"const L i{d} = b{d};" for d in range(len(p.outer)) if d != row]
    inside: list[str] = []
    after: list[str] = []
    sums: list[str] = []
    number = 0
    for i, s in enumerate(p.body):
        if s.dtype == "f64" and not isinstance(s, Store):
            continue
        if not isinstance(s, Store):
            (inside if walks[i] else before).extend(lines[i])
            continue
        sums.append(f"D l{number}, h{number};" if s.dtype == "f64" else f"V s{number};")
        if s.dtype == "f64":
            inside += [f"u.{part[0]}{number} += {_factor(e, s.args[0], part, varies)};" for part in ("low", "high")]
            left, right = (f"p.{c}{number} + q.{c}{number}" for c in "lh")
        else:
            inside.append(f"u.s{number} += {e.as_vector(s.args[0], varies)};")
            left, right = (f"{part}(p.s{number} + q.s{number})" for part in ("low", "high"))
        at = " + ".join(f"i{d} * {t}LL" for d, t in enumerate(s.strides) if t)
        after.append(f"add_to(e.sums + {number * pitch(p)} + {at or 0}, {left}, {right}, from, n);")
        number += 1
    at = ", ".join(f"{n} + s" if d == e.vector else n for d, n in enumerate(names)).replace("i", "b")
    return render(
        _TEXT, half=width * 2, whole=width * 4, first=_list(0, width // 2), second=_list(width // 2, width),
        size=number * pitch(p), indices=", ".join(f"L b{d}" for d in range(len(p.outer))), row=row, at=at, sums=" ".join(sums),
        value=value, before=_lines(before, 4), inside=_lines(inside, 8), after=_lines(after, 4),
    )  # fmt: skip


def _from_stored(whole: TileEpilogue) -> tuple[LoopNest, str] | None:
    """The epilogue that only adds, with what it stores as its input 0, and C++ that reads that; None if it would save no chain."""
    p = whole.program
    if not whole.with_program(only_sums(p)).chained:
        return None
    stores = [s for s in p.body if isinstance(s, Store) and not s.added]
    for store in stores:
        at = store.args[0]
        if not store.dtype == p.body[at].dtype == whole.dtype:
            continue
        # Nothing but what is stored may depend on the accumulators, of which a marked load tells them apart.
        given = Load(0, tuple(1 for _ in p.dims), whole.dtype)
        still = tuple(0 for _ in p.dims)
        body = [s.with_strides(still) if isinstance(s, Load) and s.operand == 0 else s for s in p.body]
        body[at] = given
        summing = only_sums(replace(p, body=tuple(body)))
        loads = [s for s in summing.body if isinstance(s, Load) and s.operand == 0]
        if loads == [given] and not whole.with_program(summing).chained:
            return summing, whole.stored(store)
    return None


def _walks(p: LoopNest, row: int) -> list[bool]:
    """Per statement whether it differs from row to row."""
    found: list[bool] = []
    for s in p.body:
        own = isinstance(s, Load) and (s.operand == 0 or s.strides[row] != 0)
        found.append(own or any(found[a] for a in s.args))
    return found


def _factor(e: TileEpilogue, number: int, part: str, varies: list[bool]) -> str:
    """A float64 value, as half a vector."""
    s = e.program.body[number]
    if isinstance(s, Cast):
        return f"{part}({e.as_vector(s.args[0], varies)})"
    return f"{_factor(e, s.args[0], part, varies)} * {_factor(e, s.args[1], part, varies)}"


def _list(low: int, high: int) -> str:
    return ", ".join(map(str, range(low, high)))


def _lines(lines: list[str], pad: int) -> str:
    return "\n".join(" " * pad + line for line in lines)
