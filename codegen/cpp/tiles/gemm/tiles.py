"""Matrix products by register tiles: the tile's size, what is packed, how jobs divide the result, and the C++.

One job computes a rectangle of one batch element's C. It walks k in blocks and columns in chunks so that a packed chunk of B
stays in the second-level cache, and passes each tile of A (in the first-level cache) over all panels of the chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    Draft,
    Split,
    TileStep,
    ceil_div,
    lanes,
    render,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.pack_text import pack_rows, pack_vectors
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec

KC = 384
CHUNK_BYTES = 384 << 10
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay

_TEXT = """
struct Rows { static constexpr L at(int i) { return i * ${ai}LL; } };
template <int MR, int NV>
$noinline void tile(const T *a, const T *b, T *c, L depth, bool first, int valid$bias_parameter) {
    V acc[MR][NV];
    clear(acc);
    multiply_add<MR, NV, Rows>(acc, a, $ak, b, $bk, depth);
$bias
$write
}
$pack_a
$pack_b
template <int MR>
$inline void row(const T *a, const T *b, T *c, L depth, bool first, L p0, L p1$bias_parameter) {
$use_a
    for (L p = p0; p < p1; p++) {
        const L v = $panel_start;
        const T *pb = $panel_b;
        const L n = v * VL;
        $panel_calls
    }
}
$noinline void product(L j, const T *a0, const T *a1, const T *a2, T *o0, unsigned char *scratch) {
    $offsets
    const T *a = a0 + pa, *b = a1 + pb;
    T *c = o0 + pc;
    const L mp = j / $q % $p, np = j % $q;
    const L t0 = mp * $m_tiles / $p, t1 = (mp + 1) * $m_tiles / $p;
    const L q0 = np * $n_panels / $q, q1 = (np + 1) * $n_panels / $q;
$buffer
    for (L kb = 0; kb < $k_blocks; kb++) {
        const L k = $k_start, depth = $k_end - k;
        for (L p0 = q0; p0 < q1; p0 += $chunk) {
            const L p1 = p0 + $chunk < q1 ? p0 + $chunk : q1;
$fill
            for (L t = t0; t < t1; t++) {
                const L m = $m_start;
                const T *ta = a + m * ${am}LL + k * ${ak_source}LL;
                T *tc = c + m * ${cm}LL;
                $row_calls
            }
        }
    }
}
"""
_WRITE_ROWS = """#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            T *p = c + i * ${cm}LL + v * VL;
            if ($tail == 0 || v < NV - 1 || valid == NV * VL) store(p, first ? acc[i][v] : acc[i][v] + load(p));
            else store_part(p, first ? acc[i][v] : acc[i][v] + load_part(p, $tail), $tail);
        }"""
_WRITE_ANY = """    for (int i = 0; i < MR; i++)
        for (int v = 0; v < NV; v++) {
            alignas(64) T t[VL];
            store(t, acc[i][v]);
            for (int l = 0; l < VL && v * VL + l < valid; l++) {
                T *p = c + i * ${cm}LL + (v * VL + l) * ${cn}LL;
                *p = first ? t[l] : *p + t[l];
            }
        }"""
_BIAS = """    if (first)
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[i][v] += bias[i];"""
_USE_A = """    alignas(64) T packed[MR * $kc + VL];
    rows_of_a<MR>(packed, a, depth);
    a = packed;"""
_FILL = """            for (L p = p0; p < p1; p++) {
                const L v = $panel_start;
                T *to = buffer + (v - $chunk_start) * VL * depth;
                const T *from = b + k * ${bk}LL + v * VL * ${bn}LL;
                $fill_calls
            }"""


@dataclass(frozen=True)
class Shape:
    """A register tile: MR rows by NV vectors, both at most; sizes are balanced over the extents."""

    rows: Split
    panels: Split


def tile_shape(m: int, n: int, width: int, registers: int) -> Shape:
    """The tile that needs the fewest cycles for an m x n result, by counts of multiply-adds and loads."""
    vectors = ceil_div(n, width)
    candidates = []
    for nv in (1, 2, 3, 4, 8):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > vectors or most < 1 or (nv == 8 and m > 3):
            continue
        rows, panels = Split.at_most(m, most), Split.at_most(vectors, nv)
        mr, pv = m / rows.parts, vectors / panels.parts
        # Two multiply-adds and two loads a cycle; latency 4 wants eight accumulators; a few cycles to start and end.
        cycles = max(mr * pv / 2, 4.0, (mr + pv) / 2 * 1.05) + 0.002 * mr * pv
        candidates.append((rows.parts * panels.parts * cycles, -nv, Shape(rows, panels)))
    return min(candidates, key=lambda c: c[:2])[2]


def aliases(stride: int, element: int) -> bool:
    """Whether rows this far apart fall into few sets of the first-level cache."""
    return stride * element % 1024 == 0 and stride != 0


def tiles_draft(name: str, spec: ContractionSpec, isa: Isa, threads: int, bias: tuple[int, ...] | None) -> Draft:
    """The product by register tiles, any strides; a2, if any, is per row with ``bias`` as its batch strides."""
    width, element = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype]
    am, ak, bk, bn, cm, cn = *spec.a[-2:], *spec.b[-2:], *spec.c[-2:]
    bn, cn = (1, 1) if spec.n == 1 else (bn, cn)
    bk = 1 if spec.k == 1 and bn != 1 else bk
    ak = 1 if spec.k == 1 else ak
    shape = tile_shape(spec.m, spec.n, width, isa.registers)
    rows, panels = shape.rows, shape.panels
    batch = math.prod(spec.batch)
    p, q = _grid(spec, shape, batch, threads, width)
    depth = Split.at_most(spec.k, KC)
    job_rows = ceil_div(rows.parts, p)
    in_place = bn == 1 and spec.n % width == 0 and (job_rows <= 2 or (job_rows <= 6 and not aliases(bk, element)))
    # Rows a multiple of 4 KB apart fall into one set; a copy pays only if several panels use it.
    crowded = am * element % 4096 == 0 and am != 0 and rows.size > 8 and panels.parts > 2
    pack_a = spec.k > 1 and (ak != 1 or crowded)
    chunk = max(1, min(ceil_div(panels.parts, q), CHUNK_BYTES // (max(1, depth.size) * panels.size * width * element)))
    tail = spec.n % width
    padded = ceil_div(spec.n, width) * width
    valid = f"(int)({spec.n} - n < $ * VL ? {spec.n} - n : $ * VL)"
    argument = ", bias" if bias is not None else ""
    call = f"tile<MR, $>(a, pb, c + n * {cn}LL, depth, first, {valid}{argument});"
    row_bias = ", a2 + pd + m" if bias is not None else ""
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[:-2]), "pc": (0, spec.c[:-2])}
    if bias is not None:
        sums["pd"] = (0, bias)
    if in_place:
        panel_b, fill, buffer, b_step = "b + v * VL", "", "", f"{bk}LL"
        row_b = f"b + k * {bk}LL"
    else:
        panel_b = f"b + (v - {panels.start('p0')}) * VL * depth"
        fill = render(
            _FILL, panel_start=panels.start("p"), chunk_start=panels.start("p0"), bk=bk, bn=bn,
            fill_calls=choose(panels, "p", f"panel_of_b<$>(to, from, depth, {spec.n} - v * VL < $ * VL ? "
                              f"{spec.n} - v * VL : $ * VL);"),
        )  # fmt: skip
        size = min(chunk * panels.size * width, padded) * depth.size
        buffer, b_step, row_b = f"    alignas(64) T buffer[{size}];", "NV * VL", "buffer"
    text = render(
        _TEXT, ai=1 if pack_a else am, ak="MR" if pack_a else f"{ak}LL", bk=b_step,
        write=render(_WRITE_ROWS if cn == 1 else _WRITE_ANY, cm=cm, cn=cn, tail=tail),
        bias=_BIAS if bias is not None else "", bias_parameter=", const T *bias" if bias is not None else "",
        pack_a=pack_rows("rows_of_a", am, ak) if pack_a else "",
        pack_b="" if in_place else pack_vectors("panel_of_b", bn, bk),
        use_a=render(_USE_A, kc=round_up(depth.size, width)) if pack_a else "",
        panel_start=panels.start("p"), panel_b=panel_b, panel_calls=choose(panels, "p", call),
        offsets=unravel(f"j / {p * q}", spec.batch, sums), p=p, q=q, m_tiles=rows.parts, n_panels=panels.parts,
        buffer=buffer, k_blocks=depth.parts if spec.k else 1, k_start=depth.start("kb"),
        k_end=f"({depth.start('kb + 1')})", chunk=chunk, fill=fill, m_start=rows.start("t"), am=am, ak_source=ak, cm=cm,
        row_calls=choose(rows, "t", f"row<$>(ta, {row_b}, tc, depth, kb == 0, p0, p1{row_bias});"),
    )  # fmt: skip
    return Draft(name, spec.dtype, text, (TileStep(batch * p * q, "product"),))


def choose(split: Split, index: str, call: str) -> str:
    """C++ that calls with the size of the part number ``index``; ``$`` stands for the size."""
    calls = [call.replace("$", str(size)) for size in split.sizes]
    return f"if ({index} < {split.larger}) {calls[0]} else {calls[1]}" if len(calls) == 2 else calls[0]


def _grid(spec: ContractionSpec, shape: Shape, batch: int, threads: int, width: int) -> tuple[int, int]:
    """Jobs per batch element along m and n: the division that takes the least time, repeated packing included."""
    work = batch * spec.m * spec.n * spec.k
    if work < SERIAL_WORK or threads == 1:
        return 1, 1
    best: tuple[float, int, int] | None = None
    rows, panels = shape.rows.parts, shape.panels.parts
    for p in range(1, min(rows, threads) + 1):
        for q in range(1, min(panels, ceil_div(threads, p)) + 1):
            r, c = ceil_div(rows, p) * shape.rows.size, ceil_div(panels, q) * shape.panels.size * width
            time = r * c / (2 * width) + c * 1.0 + r * 0.3
            total = ceil_div(batch * p * q, threads) * time * (1 + 0.01 * p * q)
            if best is None or total < best[0]:
                best = (total, p, q)
    assert best is not None
    return best[1], best[2]
