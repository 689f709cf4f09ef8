"""C++ of the direct convolution: the tile, the loops of a job, the copy of x without borders, the ways to write y."""

TILE = """
template <int TC> struct Pixels { static constexpr L at(int i) { return i / TC * ${rs}LL + i % TC * ${ps}LL; } };
template <int NV, int TR, int TC> $noinline void tile(const T *x, const T *w, T *d, L i) {
    // A block of inputs is summed by itself and then added: short chains of additions round less.
    V acc[TR * TC][NV];
    clear(acc);
    const L c0 = $in_start, c1 = $in_next;
    x += c0 * $cs;
$reduce
    const bool first = i == 0;
#pragma GCC unroll 32
    for (int p = 0; p < TR * TC; p++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            T *to = d + ((p / TC * $tw + p % TC) * NV + v) * VL;
            store(to, first ? acc[p][v] : load(to) + acc[p][v]);
        }
}
template <int NV, int TR> $inline void strip(const T *x, const T *w, T *d, L r, L c, L t, L i) {
    x += r * ${rs}LL + c * ${ps}LL;
    d += (r * $tw + c) * NV * VL;
    $tile_calls
}
template <int NV> $noinline void block(const T *x, const T *s, T *d, L rows, L t0, L t1, const T *end, L valid) {
$weights
    for (L i = 0; i < $in_blocks; i++) {
        $next_weights
        L r = 0;
        for (; r + $tall <= rows; r += $tall)
            for (L t = t0; t < t1; t++) strip<NV, $tall>(x, w, d, r, $wide_start - $wide_first, t, i);
        if constexpr ($tall > 1)
            for (; r < rows; r++) strip<NV, 1>(x, w, d, r, 0, 0, i);
        $used_weights
    }
}
"""

# Packed weights of whole output panels lie [tap][input][lanes]; those packed by phase one, [input][tap][lanes].
PANELS = ("    const T *w = s;", "", "w += ($in_next - ($in_start)) * $panel;")

# The weights of an output block: packed by phase one, or packed here, a block of input channels at a time.
PACKED = ("    const T *w = s;", "", "w += ($in_next - ($in_start)) * $taps * NV * VL;")
FUSED = ("    alignas(64) T w[$most * $taps * NV * VL];", "fill<NV>(w, s, end, valid, $in_start, $in_next);", "")

INPUTS_INNERMOST = """    for (L kd = 0; kd < $kd; kd++)
        for (L kh = 0; kh < $kh; kh++)
            for (L kw = 0; kw < $kw; kw++, w += $tap_step)
                multiply_add<TR * TC, NV, Pixels<TC>>(
                    acc, x + kd * $kds + kh * $khs + kw * $kws, $cs, w, $input_step, c1 - c0);"""
TAPS_INNERMOST = """    for (L c = c0; c < c1; c++, x += $cs, w += $input_step - $taps * $tap_step)
        for (L kd = 0; kd < $kd; kd++)
            for (L kh = 0; kh < $kh; kh++, w += $kw * $tap_step)
                multiply_add<TR * TC, NV, Pixels<TC>>(acc, x + kd * $kds + kh * $khs, $kws, w, $tap_step, $kw);"""

RUN = """
$noinline void run(L j, const T *a0, const T *a1, const T *a2, T *o0, unsigned char *scratch$parameter) {
    $indices
    $member
    const L t0 = cb * $per_block, t1 = t0 + $per_block < $tiles ? t0 + $per_block : $tiles;
    const L c0 = $wide_t0, cols = $wide_t1 - c0, r0 = $row_start, rows = $row_next - r0;
    alignas(64) T result[$result];
    $x_buffer
    copy(x, a0 + n * ${xn}LL + g * ${xg}LL, od, r0, c0, rows, cols$q);
    $target
    for (L ob = part * $blocks / $parts; ob < (part + 1) * $blocks / $parts; ob++) {
        const L v = $vector_start;
        const T *w = $weights;
        $block_calls
    }
}
"""

COPY = """
// Input rows and columns of the outputs from (r0, c0) on; what lies outside x is zero.
$noinline void copy(T *x, const T *s, L od, L r0, L c0, L rows, L cols$q_parameter) {
    const L height = (rows - 1) * $th + $reach_h + 1, width = (cols - 1) * $tw + $reach_w + 1;
    const L ix = c0 * $sw + $bw, left = ix < 0 ? (-ix + $step_w - 1) / $step_w : 0;
    const L end = ix < $w ? ($w - ix + $step_w - 1) / $step_w : 0;
    const L hi = end < width ? end : width, lo = left < hi ? left : hi;
$loops
}
"""
COPY_PLANES = """    for (L c = 0; c < $ci; c++)
        for (L kd = 0; kd < $kd; kd++)
            for (L r = 0; r < height; r++) {
                const L iz = od * $sd + $bd + kd * $dd, iy = r0 * $sh + $bh + r * $step_h;
                T *d = x + c * $cs + kd * $kds + r * $rs;
                const bool inside = iz >= 0 && iz < $d && iy >= 0 && iy < $h;
                const T *p = s + c * ${xc}LL + iz * ${xd}LL + iy * ${xh}LL + ix * ${xw}LL;
                const L b = inside ? lo : width, e = inside ? hi : width;
                for (L q = 0; q < b; q++) d[q] = 0;
                for (L q = b; q < e; q++) d[q] = p[q * $step_x];
                for (L q = e; q < width; q++) d[q] = 0;
            }"""
COPY_PIXELS = """    for (L kd = 0; kd < $kd; kd++)
        for (L r = 0; r < height; r++) {
            const L iz = od * $sd + $bd + kd * $dd, iy = r0 * $sh + $bh + r * $step_h;
            T *d = x + kd * $kds + r * $rs;
            const bool inside = iz >= 0 && iz < $d && iy >= 0 && iy < $h;
            const T *p = s + iz * ${xd}LL + iy * ${xh}LL + ix * ${xw}LL;
            for (L q = 0; q < width; q++) {
                if (inside && q >= lo && q < hi) for (L c = 0; c < $ci; c++) d[q * $ps + c] = p[q * $step_x + c];
                else for (L c = 0; c < $ci; c++) d[q * $ps + c] = 0;
            }
        }"""

# Results of one output block, [pixel][NV vectors], to y.
WRITE = """
template <int NV> $noinline void write(const T *d, const T *bias, T *y, L rows, L cols, L v) {
    for (int u = 0; u < NV; u++) {
        const L o = (v + u) * VL;
        const int valid = (int)($co - o < VL ? $co - o : VL);
        const V b = $bias;
        T *to = y + o * ${yc}LL;
$loops
    }
}
"""
TRANSPOSE_PIXELS = """
$noinline void transpose_pixels(const T *s, L ss, L left, int valid, V b, T *d) {
    const int n = (int)(left < VL ? left : VL);
    if ($plain) return transpose_block(s, ss, n, valid, V{}, d, ${yc}LL, n);
    alignas(64) T t[VL * VL];
    for (int i = 0; i < VL; i++) store(t + i * VL, i < n ? load(s + i * ss) + b : V{});
    transpose_block(t, VL, VL, valid, V{}, d, ${yc}LL, n);
}
"""
WRITE_TRANSPOSED = """        for (L r = 0; r < $flat_rows; r++)
            for (L c = 0; c < $flat_cols; c += VL)
                transpose_pixels(d + ((r * $tw + c) * NV + u) * VL, NV * VL, $flat_cols - c, valid, b, to + r * ${yh}LL + c);"""
WRITE_PIXELS = """        for (L r = 0; r < rows; r++)
            for (L c = 0; c < cols; c++) {
                const V t = load(d + ((r * $tw + c) * NV + u) * VL) + b;
                T *q = to + r * ${yh}LL + c * ${yw}LL;
                if (valid == VL) store(q, t);
                else store_part(q, t, valid);
            }"""
WRITE_ANY = """        for (L r = 0; r < rows; r++)
            for (int l = 0; l < valid; l++)
                for (L c = 0; c < cols; c++)
                    to[r * ${yh}LL + c * ${yw}LL + l * ${yc}LL] = d[((r * $tw + c) * NV + u) * VL + l] + b[l];"""

RESIDUES = """
struct Residue { L w0, y0, bd, bh, bw, od, oh, ow; };
static const Residue residues[] = {$members};
"""
FILL = """
// Weights of input channels c0 to c1 for NV vectors of output channels, [channel][tap][lanes].
template <int NV> $inline void fill(T *d, const T *s, const T *end, L valid, L c0, L c1) {
    for (int v = 0; v < NV; v++) {
        const int rows = (int)(valid - v * VL < VL ? valid - v * VL : VL);
        const T *p = s + v * VL * ${wo}LL;
        T *t = d + v * VL;
$loops
    }
}
"""
PACK = """
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch$parameter) {
    const L g = j / $blocks % $groups, ob = j % $blocks, v = $vector_start;
    $member
    T *d = (T *)scratch + (($m + g) * $vectors + v) * VL * ${per_lane}LL;
    const T *s = a1 + ${w0} + g * ${wg}LL + v * VL * ${wo}LL, *end = a1 + ${w0} + ${end}LL;
    const L valid = $co - v * VL;
    for (L i = 0; i < $in_blocks; i++) {
        const L c0 = $in_start, c1 = $in_next;
        $fill_calls
    }
}
"""
PACK_VECTORS = """        for (L c = c0; c < c1; c++)
            for (L tap = 0; tap < $taps; tap++) {
                const T *q = p + c * ${wi}LL + $tap_offset;
                store(t + ((c - c0) * $taps + tap) * NV * VL, rows == VL ? load(q) : load_part(q, rows));
            }"""
PACK_ANY = """        for (L c = c0; c < c1; c++)
            for (L tap = 0; tap < $taps; tap++) {
                const T *q = p + c * ${wi}LL + $tap_offset;
                for (int l = 0; l < VL; l++) t[((c - c0) * $taps + tap) * NV * VL + l] = l < rows ? q[l * ${wo}LL] : 0;
            }"""
# Runs of `run` weights, contiguous for one output channel: VL channels at a time through a transposed block.
PACK_RUNS = """        for (L c = c0; c < c1; c += $step)
            for (L f = 0; f < $run; f += VL) {
                const T *q = p + c * ${wi}LL + ${lowest}LL + f;
                const int n = (int)($run - f < VL ? $run - f : VL);
                const bool whole = q + (rows - 1) * ${wo}LL + VL <= end;
                T *to = t + ((c - c0) * $taps + $first_tap) * NV * VL;
                if (n == VL || !whole) {
                    transpose_block(q, ${wo}LL, rows, n, V{}, to, $sign NV * VL, VL);
                    continue;
                }
                alignas(64) T r[VL * VL];
                transpose_block(q, ${wo}LL, rows, VL, V{}, r, VL, VL);
                for (int i = 0; i < n; i++) store(to + i * ($sign NV * VL), load(r + i * VL));
            }"""

TARGET = "T *y = o0 + $y0 + n * ${yn}LL + g * ${yg}LL + od * ${yd}LL + r0 * ${yh}LL + c0 * ${yw}LL;"

# The same through an epilogue: along the channels of a pixel, or along rows of pixels where results lie so.
FINISH_PIXELS = """
template <int NV> $noinline void finish_block(const Operands &operands, const T *d, L n, L g, L od, L r0, L c0, L rows, L cols, L v) {
    const Operands e = operands;
    const L valid = $co - v * VL;
    for (L r = 0; r < rows; r++)
        for (L c = 0; c < cols; c++) {
            V t[NV];
#pragma GCC unroll 8
            for (int u = 0; u < NV; u++) t[u] = load(d + ((r * $tw + c) * NV + u) * VL);
            finish_row<NV>(e, n, g, v * VL, od, r0 + r, c0 + c, t, valid);
        }
}
"""
FINISH_PLANES = """
template <int NV> $noinline void finish_block(const Operands &operands, const T *d, L n, L g, L od, L r0, L c0, L rows, L cols, L v) {
    const Operands e = operands;
    for (int u = 0; u < NV; u++) {
        const L o = (v + u) * VL;
        const int valid = (int)($co - o < VL ? $co - o : VL);
        for (L r = 0; r < rows; r++)
            for (L c = 0; c < cols; c += VL) {
                const int count = (int)(cols - c < VL ? cols - c : VL);
                alignas(64) T t[VL * VL];
                transpose_block(d + ((r * $tw + c) * NV + u) * VL, NV * VL, count, valid, V{}, t, VL, VL);
                for (int q = 0; q < valid; q++) finish(e, n, g, o + q, od, r0 + r, c0 + c, t + q * VL, count);
            }
    }
}
"""
