"""Weight gradients: tiles of (input channel, tap) by vectors of output channels, summed over the batch and all positions.

A job owns some output blocks and a consecutive share of the (image, row block) list. Per row block it copies x without borders,
packs the output's gradient as [output block][position][lanes], and adds to its own partial sums in scratch. A second phase adds the
shares in their fixed order and writes w, so the bits depend on the division only, never on timing.
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.tiles.conv.direct import copy_of, copy_text
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes, render, round_up
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.codegen.cpp.tiles.pack_text import pack_vectors
from dcir.isa import Isa

BLOCK_BYTES = 256 << 10
STACK_BYTES = 640 << 10
SERIAL_WORK = 1 << 16

_TEXT = """
// Rows of a tile: TI input channels by TK taps of one kernel row.
template <int TK> struct Taps { static constexpr L at(int i) { return i / TK * ${cs}LL + i % TK * ${kws}LL; } };
template <int NV, int TI, int TK> $noinline void tile(const T *x, const T *y, T *d, L rows$given) {
    // A block of rows is summed by itself and then added: short chains of additions round less.
    V acc[TI * TK][NV];
    clear(acc);
    for (L r = 0; r < rows; r++)
        multiply_add<TI * TK, NV, Taps<TK>>(acc, x + r * ${rs}LL, $ps, y + r * $cols * NV * VL, NV * VL, $cols);
#pragma GCC unroll 32
    for (int i = 0; i < TI * TK; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            T *to = d + (i / TK * ${taps}LL + i % TK) * NV * VL + v * VL;
            store(to, load(to) + acc[i][v]);
        }
}
template <int NV, int TI> $inline void taps(const T *x, const T *y, T *d, L rows$given) {
    for (L kd = 0; kd < $kd; kd++)
        for (L kh = 0; kh < $kh; kh++)
            for (L t = 0; t < $tap_tiles; t++) {
                const L kw = $tap_start;
                const T *p = x + kd * $kds + kh * $khs + kw * $kws;
                T *q = d + ((kd * $kh + kh) * $kw + kw) * NV * VL;
                $tap_calls
            }
}
template <int NV> $noinline void block(const T *x, const T *y, T *d, L rows$given) {
    for (L t = 0; t < $in_tiles; t++) {
        const L c = $in_start;
        $in_calls
    }
}
$copy
$pack_y
// The output's gradient at one row block, [position][lanes] with the positions of a row together.
template <int NV> $inline void gather(T *d, const T *s, L rows$given, L valid) {
    for (L r = 0; r < rows; r++) panel_of_y<NV>(d + r * $cols * NV * VL, s + r * ${yh}LL, $cols, valid);
}
$noinline void partial(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch) {
    const L share = j / $per_share, g = j / $parts % $groups, part = j % $parts;
    const L b0 = part * $blocks / $parts, b1 = (part + 1) * $blocks / $parts;
    T *sums = (T *)scratch + share * ${share_size}LL + g * ${group_size}LL;
    const L v0 = $vector_first, v1 = $vector_end;
    for (L i = v0 * VL * ${per_lane}LL; i < v1 * VL * ${per_lane}LL; i += VL) store(sums + i, V{});
    $x_buffer
    alignas(64) T y[$y_size];
    for (L job = share * $list / $shares; job < (share + 1) * $list / $shares; job++) {
        const L cb = job % $column_blocks, rb = job / $column_blocks % $row_blocks;
        const L od = job / $per_plane % $od, n = job / $per_plane / $od;
        const L r0 = $row_start, rows = $row_next - r0, c0 = $column_start;
        $columns
        copy(x, a0 + n * ${xn}LL + g * ${xg}LL, od, r0, c0, rows, $cols);
        const T *from = a1 + n * ${yn}LL + g * ${yg}LL + od * ${yd}LL + r0 * ${yh}LL + c0 * ${yw}LL;
        for (L ob = b0; ob < b1; ob++) {
            const L v = $vector_start;
            T *d = sums + v * VL * ${per_lane}LL;
            const T *s = from + v * VL * ${yc}LL;
            $block_calls
        }
    }
}
"""

_FINISH = """
template <int NV> $noinline void spread(T *d, const T *s, L valid) {
    for (L f = 0; f < $ci * $taps; f += VL) {
        const int n = (int)($ci * $taps - f < VL ? $ci * $taps - f : VL);
        alignas(64) T t[NV * VL * VL];
        for (int i = 0; i < n; i++)
            for (int v = 0; v < NV; v++) {
                const T *q = s + ((f + i) * NV + v) * VL;
                V total = load(q);
                for (L p = 1; p < $shares; p++) total += load(q + p * ${share_size}LL);
                store(t + (v * VL + i) * VL, total);
            }
        for (int v = 0; v < NV && v * VL < valid; v++) {
            const int lanes = (int)(valid - v * VL < VL ? valid - v * VL : VL);
$place
        }
    }
}
$noinline void finish(L j, const T *, const T *, const T *, T *o0, unsigned char *scratch) {
    const L g = j / $blocks, ob = j % $blocks, v = $vector_start;
    const T *s = (const T *)scratch + g * ${group_size}LL + v * VL * ${per_lane}LL;
    T *d = o0 + g * ${wg}LL + v * VL * ${wo}LL;
    $spread_calls
}
"""

# Weights of one output channel are contiguous over (input channel, tap), or else anywhere.
_PLACE_RUNS = "            transpose_block(t + v * VL * VL, VL, n, lanes, V{}, d + v * VL * ${wo}LL + f, ${wo}LL, n);"
_PLACE_ANY = """            for (int i = 0; i < n; i++) {
                const L c = (f + i) / $taps, k = (f + i) % $taps;
                T *q = d + v * VL * ${wo}LL + c * ${wi}LL + k / $plane * ${wd}LL + k / $kw % $kh * ${wh}LL + k % $kw * ${ww}LL;
                for (int o = 0; o < lanes; o++) q[o * ${wo}LL] = t[(v * VL + i) * VL + o];
            }"""


def weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    vectors, ins, taps = _tile(p, width, isa.registers)
    oh, ow = p.out[1], p.out[2]
    rows = oh
    while rows > 1 and _block_bytes(p, rows, vectors.size * width, width, element) > BLOCK_BYTES:
        rows -= 1
    row_split, column_split = Split.at_most(oh, rows), Split(ow, 1)
    if rows == 1:
        column_split = Split.at_most(ow, _columns(p, vectors.size * width, width, element))
    listed = p.n * p.out[0] * row_split.parts * column_split.parts
    shares, parts = _division(p, vectors, listed, 1 if p.work < SERIAL_WORK else threads)
    x = copy_of(p, row_split.size, column_split.size, width, element)
    per_lane = p.ci * p.taps
    group_size = vectors.total * width * per_lane
    share_size = p.groups * group_size
    sums = round_up(shares * share_size * element, 64)
    jobs = shares * p.groups * parts
    x_bytes = round_up(x.size * element, 64)
    y_size = row_split.size * column_split.size * vectors.size * width
    on_stack = x_bytes + y_size * element <= STACK_BYTES
    buffer = f"alignas(64) T x[{x.size}];" if on_stack else f"T *x = (T *)(scratch + {sums}LL + j * {x_bytes}LL);"
    end = f"({vectors.start('b1')})"
    valid = f"{p.co} - v * VL < $ * VL ? {p.co} - v * VL : $ * VL"
    # Columns are counted at run time where there are blocks of them.
    cols, given, pass_on, columns = str(ow), "", "", ""
    if column_split.parts > 1:
        cols, given, pass_on = "cols", ", L cols", ", cols"
        columns = f"const L cols = {column_split.start('cb + 1')} - c0;"
    text = render(
        _TEXT, cs=x.channel, kws=p.dil[2] * x.pixel, khs=p.dil[1] * x.row, kds=x.plane, taps=p.taps,
        rs=x.stride[1] * x.row, ps=x.stride[2] * x.pixel, cols=cols, given=given, kd=p.ker[0], kh=p.ker[1], kw=p.ker[2],
        tap_tiles=taps.parts, tap_start=taps.start("t"), tap_calls=choose(taps, "t", f"tile<NV, TI, $>(p, y, q, rows{pass_on});"),
        in_tiles=ins.parts, in_start=ins.start("t"), ci=p.ci,
        in_calls=choose(ins, "t", f"taps<NV, $>(x + c * {x.channel}LL, y, d + c * {p.taps} * NV * VL, rows{pass_on});"),
        copy=copy_text(p, x), pack_y=pack_vectors("panel_of_y", p.ys[2], p.ys[5]), yh=p.ys[4], yn=p.ys[0], yg=p.ys[1],
        yd=p.ys[3], yc=p.ys[2], per_share=p.groups * parts, parts=parts, groups=p.groups, blocks=vectors.parts,
        share_size=share_size, group_size=group_size, vector_first=vectors.start("b0"), vector_end=end,
        per_lane=per_lane, x_buffer=buffer, y_size=y_size, list=listed, shares=shares, row_blocks=row_split.parts,
        column_blocks=column_split.parts, per_plane=row_split.parts * column_split.parts, columns=columns,
        column_start=column_split.start("cb"), yw=p.ys[5], od=p.out[0], row_start=row_split.start("rb"),
        row_next=row_split.start("rb + 1"), xn=p.xs[0], xg=p.xs[1], vector_start=vectors.start("ob"),
        block_calls=choose(vectors, "ob", f"{{ gather<$>(y, s, rows{pass_on}, {valid}); "
                           f"block<$>(x, y, d, rows{pass_on}); }}"),
    )  # fmt: skip
    text += finish_text(p, vectors, shares, share_size, group_size, per_lane)
    steps = (TileStep(jobs, "partial"), TileStep(p.groups * vectors.parts, "finish"))
    return Draft(name, p.dtype, text, steps, sums + (0 if on_stack else jobs * x_bytes))


def finish_text(
    p: ConvolutionProblem, vectors: Split, shares: int, share_size: int, group_size: int, per_lane: int
) -> str:
    """The function ``finish``, a job per group and output block: sums of shares, [output block][input][tap][lanes], to w."""
    _, kh, kw = p.ker
    contiguous = all(
        s == step or n == 1
        for n, s, step in zip((p.ci, *p.ker), p.ws[2:], (p.taps, kh * kw, kw, 1), strict=True)
    )  # fmt: skip
    place = render(
        _PLACE_RUNS if contiguous else _PLACE_ANY, wo=p.ws[1], wi=p.ws[2], wd=p.ws[3], wh=p.ws[4], ww=p.ws[5], kw=kw,
        kh=kh, plane=kh * kw, taps=p.taps,
    )  # fmt: skip
    return render(
        _FINISH, place=place, ci=p.ci, taps=p.taps, shares=shares, share_size=share_size, group_size=group_size,
        blocks=vectors.parts, vector_start=vectors.start("ob"), per_lane=per_lane, wo=p.ws[1], wg=p.ws[0],
        spread_calls=choose(vectors, "ob", f"spread<$>(d, s, {p.co} - v * VL < $ * VL ? {p.co} - v * VL : $ * VL);"),
    )  # fmt: skip


def _block_bytes(p: ConvolutionProblem, rows: int, block: int, width: int, element: int) -> int:
    return (copy_of(p, rows, p.out[2], width, element).size + rows * p.out[2] * block) * element


def _columns(p: ConvolutionProblem, block: int, width: int, element: int) -> int:
    """Columns of a row in a block."""
    cols = p.out[2]
    while cols > 32 and (copy_of(p, 1, cols, width, element).size + cols * block) * element > BLOCK_BYTES:
        cols -= 1 if cols < 128 else 16
    return cols


def _tile(p: ConvolutionProblem, width: int, registers: int) -> tuple[Split, Split, Split]:
    """Vectors of output channels, input channels and taps of a kernel row, each divided into tile sizes."""
    total = ceil_div(p.co, width)
    found = []
    for nv in range(1, 5):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > total or most < 1:
            continue
        taps = Split.at_most(p.ker[2], most)
        ins = Split.at_most(p.ci, max(1, most // taps.size))
        vectors = Split.at_most(total, nv)
        v, rows = total / vectors.parts, p.ci * p.ker[2] / (ins.parts * taps.parts)
        cycles = max(rows * v / 2, 4.0, (rows + v) / 2 * 1.05) + 0.01 * v
        found.append((cycles * vectors.parts * ins.parts * taps.parts, -nv, (vectors, ins, taps)))
    return min(found, key=lambda f: f[:2])[2]


def _division(p: ConvolutionProblem, vectors: Split, listed: int, threads: int) -> tuple[int, int]:
    """Shares of the positions and parts of the output blocks; shares cost partial sums, parts cost repeated copies."""
    best: tuple[float, int, int] | None = None
    for shares in range(1, min(listed, threads) + 1):
        for parts in range(1, min(vectors.parts, threads) + 1):
            jobs = shares * parts * p.groups
            compute = p.work / p.groups / 32 * (ceil_div(listed, shares) / listed) * (
                ceil_div(vectors.parts, parts) / vectors.parts
            )  # fmt: skip
            copies = p.n * math.prod(p.inp) * p.ci * 0.5 / shares
            sums = p.groups * p.ci * p.co * p.taps * 0.2 * (shares - 1)
            total = ceil_div(jobs, threads) * (compute + copies) + sums
            if best is None or total < best[0]:
                best = (total, shares, parts)
    assert best is not None
    return best[1], best[2]
