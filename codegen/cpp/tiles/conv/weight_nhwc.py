"""Weight gradients in channels-last: tiles of input channels by vectors of output channels, summed over positions in place.

Both operands lie so that a position's channels are neighbours, so nothing is copied or packed: a tile broadcasts input channels and
multiplies them with vectors of the output's gradient, position by position. Where a tap falls outside the image, the rows and columns
that have it are known when the code is made. A block of positions and of input channels stays in the second-level cache while all
output channels pass over it; the first tiles of a block ask for what the next one reads. Blocks of positions are summed by
themselves and then added: short chains of additions round less. Shares of the positions are added by a second phase in fixed order.
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, ceil
from dcir.codegen.cpp.tiles.conv.weight import SERIAL_WORK, finish_text
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes, render, round_up
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.isa import Isa

LEAST_INPUTS = 8  # input channels below which tiles need taps to be filled
POSITIONS = 128  # of a block: sums are loaded and stored once for so many; twice as many where there are several taps
BLOCK_BYTES = 256 << 10  # of the image under a block

_TEXT = """
// Where a block lies.
struct Block { L p0, p1, r0, r1, c0, c1, at_x, at_y; bool first; };
constexpr L tap_rows[][2] = {$tap_rows}, tap_columns[][2] = {$tap_columns};
template <int NV, int TI, bool WHOLE>
$noinline void tile(const T *x, const T *y, T *d, const Block &q, L kd, L kh, L kw, L ahead_x, L ahead_y) {
    V acc[TI][NV];
    clear(acc);
    const L r0 = q.r0 > tap_rows[kh][0] ? q.r0 : tap_rows[kh][0], r1 = q.r1 < tap_rows[kh][1] ? q.r1 : tap_rows[kh][1];
    const L c0 = q.c0 > tap_columns[kw][0] ? q.c0 : tap_columns[kw][0], c1 = q.c1 < tap_columns[kw][1] ? q.c1 : tap_columns[kw][1];
    const L first = q.p0, end = q.p1;
    for (L p = first; p < end; p++) {
        const L n = p / $od, od = p % $od, z = od * $sd + kd * $dd + $bd;
        if (z < 0 || z >= $id) continue;
        for (L r = r0; r < r1; r++) {
            const T *s = x + n * ${xn}LL + z * ${xd}LL + (r * $sh + kh * $dh + $bh) * ${xh}LL + (c0 * $sw + kw * $dw + $bw) * ${xw}LL;
            const T *t = y + n * ${yn}LL + od * ${yd}LL + r * ${yh}LL + c0 * $yw;
            for (L c = c0; c < c1; c++, s += $pixel, t += $yw) {
                __builtin_prefetch(s + ahead_x, 0, 2);
                __builtin_prefetch(t + ahead_y, 0, 2);
                V b[NV];
#pragma GCC unroll 8
                for (int v = 0; v < NV; v++) b[v] = WHOLE || v < NV - 1 ? load(t + v * VL) : load_part(t + v * VL, $tail);
#pragma GCC unroll 32
                for (int i = 0; i < TI; i++) {
                    const T a = s[i];
#pragma GCC unroll 8
                    for (int v = 0; v < NV; v++) acc[i][v] += a * b[v];
                }
            }
        }
    }
    const bool fresh = q.first;
#pragma GCC unroll 32
    for (int i = 0; i < TI; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            T *to = d + i * $taps * NV * VL + v * VL;
            store(to, fresh ? acc[i][v] : load(to) + acc[i][v]);
        }
}
template <int NV, bool WHOLE> $noinline void block(const T *x, const T *y, T *d, const Block &q, L t0, L t1, L ahead_x, L ahead_y) {
    for (L k = 0; k < $taps; k++) {
        const L kd = k / $plane, kh = k / $kw % $kh, kw = k % $kw;
        // The first taps ask for the next block's pixels, as many tiles as there are vectors for a vector each of its gradient.
        const L ax = kh < $sh && kw < $sw && !kd ? ahead_x : 0;
        for (L t = t0; t < t1; t++) {
            const L c = $in_start, v = k * (t1 - t0) + t - t0, ay = v < NV ? ahead_y + v * VL : 0;
            $in_calls
        }
    }
}
$inline Block place(L k) {
    const L cb = k % $column_blocks, rb = k / $column_blocks % $row_blocks, pb = k / $per_plane;
    Block q;
    q.p0 = $plane_start; q.p1 = $plane_next;
    q.r0 = $row_start; q.r1 = $row_next;
    q.c0 = $column_start; q.c1 = $column_next;
    const L n = q.p0 / $od, od = q.p0 % $od;
    q.at_x = n * ${xn}LL + od * $sd * ${xd}LL + q.r0 * $sh * ${xh}LL + q.c0 * $pixel;
    q.at_y = n * ${yn}LL + od * ${yd}LL + q.r0 * ${yh}LL + q.c0 * $yw;
    return q;
}
$noinline void partial(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch) {
    const L share = j / $per_share, g = j / $parts % $groups, part = j % $parts;
    const L b0 = part * $blocks / $parts, b1 = (part + 1) * $blocks / $parts;
    T *sums = (T *)scratch + share * ${share_size}LL + g * ${group_size}LL;
    const T *x = a0 + g * ${xg}LL, *y = a1 + g * ${yg}LL;
    const L first = share * $list / $shares, end = (share + 1) * $list / $shares;
    Block q = place(first);
    for (L k = first; k < end; k++) {
        q.first = k == first;
        const Block next = place(k + 1 < end ? k + 1 : k);
        for (L ib = 0; ib < $in_blocks; ib++) {
            const L t0 = $tile_start, t1 = $tile_next;
            const bool last = ib == $in_blocks - 1;
            const L from = $first_in, ahead_x = last ? next.at_x - q.at_x - from : $next_in - from;
            const L ahead_y = last ? next.at_y - q.at_y : 0;
            for (L ob = b0; ob < b1; ob++) {
                const L v = $vector_start, ax = ob == b0 ? ahead_x : 0;
                T *d = sums + v * VL * ${per_lane}LL;
                $block_calls
            }
        }
        q = next;
    }
}
"""


def weight_last_suits(p: ConvolutionProblem, isa: Isa) -> bool:
    """Whether a weight gradient has this form."""
    partial = p.co % lanes(isa, p.dtype) != 0
    return p.xs[2] == p.ys[2] == 1 and p.ci >= LEAST_INPUTS and p.co > 1 and (isa.vectors == "avx512" or not partial)


def weight_last_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    vectors, ins = _tile(p, width, isa.registers)
    planes, rows, columns, tiles = _blocks(p, ins, element)
    listed = planes.parts * rows.parts * columns.parts
    shares, parts = _division(p, vectors, listed, 1 if p.work < SERIAL_WORK else threads)
    per_lane = p.ci * p.taps
    group_size = vectors.total * width * per_lane
    share_size = p.groups * group_size
    tail = p.co % width
    block = "block<$, WHOLE>(x, y + v * VL, d, q, t0, t1, ax, ahead_y);"
    whole = choose(vectors, "ob", block.replace("WHOLE", "true"))
    if tail:
        cut = choose(vectors, "ob", block.replace("WHOLE", "false"))
        whole = f"if (ob < {vectors.parts - 1}) {{ {whole} }} else {{ {cut} }}"

    def reach(d: int) -> str:
        """Per tap of a dimension the results that have it."""
        found = []
        for k in range(p.ker[d]):
            at = p.base[d] + k * p.dil[d]
            found.append(f"{{{max(0, ceil(-at, p.stride[d]))}, {min(p.out[d], ceil(p.inp[d] - at, p.stride[d]))}}}")
        return ", ".join(found)

    text = render(
        _TEXT, tap_rows=reach(1), tap_columns=reach(2), od=p.out[0], sd=p.stride[0], kd=p.ker[0], kh=p.ker[1], kw=p.ker[2],
        dd=p.dil[0], bd=p.base[0], id=p.inp[0], sh=p.stride[1], dh=p.dil[1], bh=p.base[1], sw=p.stride[2], dw=p.dil[2],
        bw=p.base[2], xn=p.xs[0], xg=p.xs[1], xd=p.xs[3], xh=p.xs[4], xw=p.xs[5], yn=p.ys[0], yg=p.ys[1], yd=p.ys[3],
        yh=p.ys[4], yw=f"{p.ys[5]}LL", pixel=f"{p.stride[2] * p.xs[5]}LL", tail=tail, taps=p.taps,
        plane=p.ker[1] * p.ker[2], in_start=ins.start("t"),
        in_calls=choose(
            ins, "t", f"tile<NV, $, WHOLE>(x + c, y, d + (c * {p.taps} + k) * NV * VL, q, kd, kh, kw, ax, ay);"
        ),
        column_blocks=columns.parts, row_blocks=rows.parts, per_plane=rows.parts * columns.parts,
        plane_start=planes.start("pb"), plane_next=f"({planes.start('pb + 1')})", row_start=rows.start("rb"),
        row_next=f"({rows.start('rb + 1')})", column_start=columns.start("cb"),
        column_next=f"({columns.start('cb + 1')})", per_share=p.groups * parts, parts=parts, groups=p.groups,
        blocks=vectors.parts, share_size=share_size, group_size=group_size, list=listed, shares=shares,
        in_blocks=tiles.parts, tile_start=tiles.start("ib"), tile_next=f"({tiles.start('ib + 1')})",
        first_in=f"({ins.start('t0')})", next_in=f"({ins.start('t1')})", vector_start=vectors.start("ob"),
        per_lane=per_lane, block_calls=whole,
    )  # fmt: skip
    text += finish_text(p, vectors, shares, share_size, group_size, per_lane)
    jobs = shares * p.groups * parts
    steps = (TileStep(jobs, "partial"), TileStep(p.groups * vectors.parts, "finish"))
    return Draft(name, p.dtype, text, steps, round_up(shares * share_size * element, 64))


def _tile(p: ConvolutionProblem, width: int, registers: int) -> tuple[Split, Split]:
    """Vectors of output channels and input channels, each divided into tile sizes: what needs the fewest cycles."""
    total = ceil_div(p.co, width)
    found = []
    for nv in range(1, 5):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > total or most < 1:
            continue
        ins, vectors = Split.at_most(p.ci, most), Split.at_most(total, nv)
        v, rows = total / vectors.parts, p.ci / ins.parts
        cycles = max(rows * v / 2, 4.0, (rows + v) / 2 * 1.05) + 0.01 * v
        found.append((cycles * vectors.parts * ins.parts, -nv, (vectors, ins)))
    return min(found, key=lambda f: f[:2])[2]


def _blocks(p: ConvolutionProblem, ins: Split, element: int) -> tuple[Split, Split, Split, Split]:
    """Planes of the batch, rows and columns of a block of positions, and tiles of input channels in its blocks."""
    od, oh, ow = p.out
    most = POSITIONS if p.taps == 1 else 2 * POSITIONS
    planes, rows, columns = Split(p.n * od, p.n * od), Split(oh, 1), Split(ow, 1)
    if oh * ow <= most:
        planes = Split.at_most(p.n * od, max(1, most // (oh * ow)))
    elif ow <= most:
        rows = Split.at_most(oh, most // ow)
    else:
        rows, columns = Split(oh, oh), Split.at_most(ow, most)
    positions = planes.size * rows.size * columns.size * p.stride[0] * p.stride[1] * p.stride[2]
    tiles = Split.at_most(ins.parts, max(1, BLOCK_BYTES // (positions * element * ins.size)))
    return planes, rows, columns, tiles


def _division(p: ConvolutionProblem, vectors: Split, listed: int, threads: int) -> tuple[int, int]:
    """Shares of the positions and parts of the output blocks: shares cost partial sums, parts read the image again."""
    best: tuple[float, int, int] | None = None
    for shares in range(1, min(listed, threads) + 1):
        for parts in range(1, min(vectors.parts, threads) + 1):
            compute = p.work / p.groups / 32 * (ceil_div(listed, shares) / listed) * (
                ceil_div(vectors.parts, parts) / vectors.parts
            )  # fmt: skip
            image = p.n * math.prod(p.inp) * p.ci * 0.1 / shares
            sums = p.groups * p.ci * p.co * p.taps * 0.2 * (shares - 1)
            total = ceil_div(shares * parts * p.groups, threads) * (compute + image) + sums
            if best is None or total < best[0]:
                best = (total, shares, parts)
    assert best is not None
    return best[1], best[2]
