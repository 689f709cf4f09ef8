"""C++ of the convolution in Winograd's form."""

KERNEL = """
typedef T S;
alignas(64) static const T zeros[$zeros] = {};
// Tile number t of the image x, as [point][tile][channel].
$noinline void transform_image(const T *x, L top, L left, T *d0) {
    const T *from[$points];
    for (L r = 0; r < $high; r++)
        for (L c = 0; c < $wide; c++) {
            const bool inside = top + r >= 0 && top + r < $ih && left + c >= 0 && left + c < $iw;
            from[r * $wide + c] = inside ? x + (top + r) * ${xh}LL + (left + c) * ${xw}LL : zeros;
        }
    for (L i = 0; i < $ci; i += VL) {
        V d[$points];
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) d[k] = load(from[k] + i);
        $image_transform
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) store(d0 + k * ${size}LL * $pitch + i, d[k]);
    }
}
// acc[i] += row i of tiles times a part of a panel, over count channels; asks for PER vectors a row of what comes next, and for pixels.
template <int PER> $inline void chain(V (&acc)[$rows][$nv], const T *a, const T *w, const T *next, L count) {
    for (L line = 0; line < count; line += $line) {
#pragma GCC unroll 32
        for (int i = 0; i < $rows; i++) __builtin_prefetch(a + i * ${pitch}LL + line + $soon);
        for (L k = line; k < line + $line; k++, w += $panel, next += $panel) {
            V b[$nv];
#pragma GCC unroll 8
            for (int v = 0; v < PER; v++) __builtin_prefetch(next + v * VL, 0, 2);
#pragma GCC unroll 8
            for (int v = 0; v < $nv; v++) b[v] = load(w + v * VL);
#pragma GCC unroll 32
            for (int i = 0; i < $rows; i++) {
                const T s = a[i * ${pitch}LL + k];
#pragma GCC unroll 8
                for (int v = 0; v < $nv; v++) acc[i][v] += s * b[v];
            }
        }
    }
}
// Products of rows of tiles with a part of a panel, at one point. Chains of channels are summed by themselves and then added.
template <int PER> $noinline void multiply(const T *a, const T *w, T *sums, const T *next) {
    for (L k = 0; k < $ci; k += $chain, a += $chain, w += $chain * $panel, next += $chain * $panel) {
        V acc[$rows][$nv];
        clear(acc);
        chain<PER>(acc, a, w, next, $count);
        if (k)
#pragma GCC unroll 32
            for (int i = 0; i < $rows; i++)
#pragma GCC unroll 8
                for (int v = 0; v < $nv; v++) acc[i][v] += load(sums + (i * $nv + v) * VL);
#pragma GCC unroll 32
        for (int i = 0; i < $rows; i++)
#pragma GCC unroll 8
            for (int v = 0; v < $nv; v++) store(sums + (i * $nv + v) * VL, acc[i][v]);
    }
}
$noinline void transform_result(const Operands &operands, L n, L g, L o, L y, L x, const T *s) {
    const Operands e = operands;
    V t[$tile_high][$tile_wide][$nv];
#pragma GCC unroll 8
    for (int v = 0; v < $nv; v++) {
        V m[$points];
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) m[k] = load(s + k * ${size}LL * ($nv * VL) + v * VL);
        $result_transform
#pragma GCC unroll 8
        for (int r = 0; r < $tile_high; r++)
#pragma GCC unroll 8
            for (int c = 0; c < $tile_wide; c++) t[r][c][v] = m[r * $wide + c];
    }
    const L valid = $co - o < $nv * VL ? $co - o : $nv * VL;
    const L high = $oh - y < $tile_high ? $oh - y : $tile_high, wide = $ow - x < $tile_wide ? $ow - x : $tile_wide;
    for (L r = 0; r < high; r++)
        for (L c = 0; c < wide; c++)
            if constexpr (IN_REGISTERS) finish_row<$nv>(e, n, g, o, 0, y + r, x + c, t[r][c], valid);
            else finish(e, n, g, o, 0, y + r, x + c, (const T *)t[r][c], valid);
$sums_calls}
$noinline void run(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch, const Operands &operands) {
    const Operands e = $own;
    T *image = (T *)(scratch + j * ${job}LL), *sums = (T *)(scratch + j * ${job}LL + ${sums}LL);
    const L share = j / $parts, part = j % $parts;
    const L t0 = share * $tiles / $shares, t1 = (share + 1) * $tiles / $shares;
    const L p0 = part * $panels / $parts, p1 = (part + 1) * $panels / $parts;
    for (L g = 0; g < $groups; g++)
        for (L t = t0; t < t1; t += $block) {
            const L count = t1 - t < $block ? t1 - t : $block;
            for (L k = 0; k < count; k++) {
                const L c = (t + k) % $across, r = (t + k) / $across % $down, n = (t + k) / $across / $down;
                const T *x = a0 + n * ${xn}LL + g * ${xg}LL;
                transform_image(x, r * $tile_high + ($top), c * $tile_wide + ($left), image + k * $pitch);
            }
            for (L p = p0; p < p1; p++)
                for (L v = 0; v < $vectors && p * $panel + v * $nv * VL < $co; v++) {
                    for (L q = 0; q < $points; q++) {
                        const T *w = a1 + g * ${group_step}LL + q * ${point_step}LL + p * ${panel_step}LL + v * $nv * VL;
                        for (L k = 0, part = 0; k < count; k += $rows, part += $per) {
                            const T *a = image + (q * $size + k) * $pitch;
                            T *to = sums + (q * $size + k) * ($nv * VL);
                            if (part < $nv) multiply<$per>(a, w, to, w + $ahead + part * VL);
                            else multiply<0>(a, w, to, w);
                        }
                    }
                    for (L k = 0; k < count; k++) {
                        const L c = (t + k) % $across, r = (t + k) / $across % $down, n = (t + k) / $across / $down;
                        transform_result(e, n, g, p * $panel + v * $nv * VL, r * $tile_high, c * $tile_wide,
                                         sums + k * ($nv * VL));
                    }
                }
        }
}
"""

SUMS = """    for (L r = 0; r < high; r++) add_sums(e, n, g, o, 0, y + r, x, (const T *)t[r], sizeof(t[r][0]) / sizeof(T), wide, 0, valid);
"""

WEIGHT = """
typedef T S;
alignas(64) static const T zeros[$zeros] = {};
// Pixels of a tile; zeros where it leaves the image.
template <int H, int W> $inline void pixels(const T **from, const T *x, L top, L left, L ih, L iw, L xh, L xw) {
    for (L r = 0; r < H; r++)
        for (L c = 0; c < W; c++) {
            const bool inside = top + r >= 0 && top + r < ih && left + c >= 0 && left + c < iw;
            from[r * W + c] = inside ? x + (top + r) * xh + (left + c) * xw : zeros;
        }
}
$noinline void transform_image(const T *x, L top, L left, T *d0) {
    const T *from[$points];
    pixels<$high, $wide>(from, x, top, left, $ih, $iw, ${xh}LL, ${xw}LL);
    for (L i = 0; i < $inputs; i++) {
        V d[$points];
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) d[k] = load(from[k] + i * VL);
        $image_transform
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) store(d0 + (k * $inputs + i) * ($room * VL), d[k]);
    }
}
$noinline void transform_error(const T *y, L top, L left, L o0, L count, T *d0) {
    const T *from[$tile_high * $tile_wide];
    pixels<$tile_high, $tile_wide>(from, y, top, left, $oh, $ow, ${yh}LL, ${yw}LL);
    for (L o = 0; o < count; o++) {
        V d[$points];
#pragma GCC unroll 8
        for (int r = 0; r < $tile_high; r++)
#pragma GCC unroll 8
            for (int c = 0; c < $tile_wide; c++) d[r * $wide + c] = load(from[r * $tile_wide + c] + (o0 + o) * VL);
        $error_transform
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) store(d0 + (k * $mine + o) * ($room * VL), d[k]);
    }
}
// sums[i][lane] += a[t][i] * b[t][lane] over count tiles, which are added up by themselves: short chains of additions round less.
$noinline void multiply(const T *a, const T *b, T *sums, L count, bool first) {
    V acc[VL];
#pragma GCC unroll 32
    for (int i = 0; i < VL; i++) acc[i] = V{};
    for (L t = 0; t < count; t++, a += VL, b += VL) {
        const V v = load(b);
        __builtin_prefetch(b + 16 * VL);
#pragma GCC unroll 32
        for (int i = 0; i < VL; i++) acc[i] += a[i] * v;
    }
#pragma GCC unroll 32
    for (int i = 0; i < VL; i++) store(sums + i * VL, first ? acc[i] : load(sums + i * VL) + acc[i]);
}
$noinline void run(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch) {
    T *image = (T *)scratch + j * ${job}LL, *error = image + ${image}LL;
    const L share = j / $parts, part = j % $parts;
    T *sums = (T *)(scratch + ${sums_at}LL) + share * ${sums}LL;
    const L t0 = share * $tiles / $shares, t1 = (share + 1) * $tiles / $shares;
    const L o0 = part * $outputs / $parts, o1 = (part + 1) * $outputs / $parts;
    for (L t = t0; t < t1; t += $size) {
        const L count = t1 - t < $size ? t1 - t : $size;
        for (L k = 0; k < count; k++) {
            const L c = (t + k) % $across, r = (t + k) / $across % $down, n = (t + k) / $across / $down;
            transform_image(a0 + n * ${xn}LL, r * $tile_high + ($top), c * $tile_wide + ($left), image + k * VL);
            transform_error(a1 + n * ${yn}LL, r * $tile_high, c * $tile_wide, o0, o1 - o0, error + k * VL);
        }
        for (L q = 0; q < $points; q++)
            for (L i = 0; i < $inputs; i++)
                for (L o = o0; o < o1; o++)
                    multiply(image + (q * $inputs + i) * ($room * VL), error + (q * $mine + o - o0) * ($room * VL),
                             sums + ((i * $outputs + o) * $points + q) * (VL * VL), count, t == t0);
    }
}
// A square of input by output channels: the shares' sums, transformed, as [input][tap][output], then stored.
$noinline void finish_sums(L j, const T *, const T *, const T *, T *o0, unsigned char *scratch) {
    const T *sums = (const T *)(scratch + ${sums_at}LL) + j * ($points * VL * VL);
    const L i0 = j / $outputs * VL, k0 = j % $outputs * VL;
    alignas(64) T t[VL * 9 * VL];
    for (L i = 0; i < VL; i++) {
        V u[$points];
#pragma GCC unroll 64
        for (int k = 0; k < $points; k++) {
            u[k] = load(sums + (k * VL + i) * VL);
            for (L s = 1; s < $shares; s++) u[k] += load(sums + s * ${sums}LL + (k * VL + i) * VL);
        }
        $weight_transform
        for (int k = 0; k < 3; k++)
            for (int l = 0; l < 3; l++) store(t + (i * 9 + k * 3 + l) * VL, u[k * $wide + l]);
    }
$store
}
"""
# Inputs and taps of an output channel lie in order; or not.
WEIGHT_RUNS = """    for (L f = 0; f < 9 * VL; f += VL)
        transpose_block(t + f * VL, VL, VL, VL, V{}, o0 + k0 * ${wo}LL + i0 * 9 + f, ${wo}LL, VL);"""
WEIGHT_APART = """    for (L i = 0; i < VL; i++)
        for (L k = 0; k < 3; k++)
            for (L l = 0; l < 3; l++)
                for (L o = 0; o < VL; o++)
                    o0[(k0 + o) * ${wo}LL + (i0 + i) * ${wi}LL + k * ${wh}LL + l * ${ww}LL] = t[(i * 9 + k * 3 + l) * VL + o];"""
