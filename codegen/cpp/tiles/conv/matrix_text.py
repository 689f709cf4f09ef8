"""C++ of convolutions on a matrix unit: rows of pixels gathered tap by tap, split there or from a copy of the image in parts."""

# The image is [batch][depth][height][width][channel], any strides; a row is a pixel of the result, a step 32 channels of one tap.
PLACES = """
struct Places { L at[32]; int z[32], y[32], x[32], least[3], most[3]; };
$inline void place(Places &q, L pixel, L count) {
    L c = pixel % $ow, h = pixel / $ow % $oh, d = pixel / ${oplane}LL % $od, n = pixel / ${oimage}LL;
    for (L i = 0; i < count; i++) {
        const L z = d * $sd + $bd, y = h * $sh + $bh, x = c * $sw + $bw;
        q.z[i] = (int)z, q.y[i] = (int)y, q.x[i] = (int)x;
        q.at[i] = n * ${xn}LL + z * ${xd}LL + y * ${xh}LL + x * ${xw}LL;
        if (++c == $ow) { c = 0; if (++h == $oh) { h = 0; if (++d == $od) { d = 0; n++; } } }
    }
    const int *all[3] = {q.z, q.y, q.x};
    for (int a = 0; a < 3; a++) {
        q.least[a] = q.most[a] = all[a][0];
        for (L i = 1; i < count; i++) {
            q.least[a] = all[a][i] < q.least[a] ? all[a][i] : q.least[a];
            q.most[a] = all[a][i] > q.most[a] ? all[a][i] : q.most[a];
        }
    }
}
$inline bool all_inside(const Places &q, int z, int y, int x) {
    return q.least[0] + z >= 0 && q.least[1] + y >= 0 && q.least[2] + x >= 0
        && q.most[0] + z < $id && q.most[1] + y < $ih && q.most[2] + x < $iw;
}
$inline bool inside(const Places &q, L i, int z, int y, int x) {
    return (unsigned)(q.z[i] + z) < ${id}u && (unsigned)(q.y[i] + y) < ${ih}u && (unsigned)(q.x[i] + x) < ${iw}u;
}
__attribute__((noinline, noclone, cold)) static const T *element(const T *a, L pixel, L k) {
    Places q;
    place(q, pixel, 1);
    const L tap = k / $ci, z = tap / $kplane * $dd, y = tap / $kw % $kh * $dh, x = tap % $kw * $dw;
    return inside(q, 0, (int)z, (int)y, (int)x) ? a + q.at[0] + z * ${xd}LL + y * ${xh}LL + x * ${xw}LL + k % $ci : nullptr;
}
$noinline void gather($from, L pixel, L height, L k0, L depth, B *to) {
    Places q;
    place(q, pixel, height);
    $before
    for (L k = k0; k < k0 + depth; k += 32, to += STEP) {
        const L tap = k / $ci, j = k % $ci, z = tap / $kplane * $dd, y = tap / $kw % $kh * $dh, x = tap % $kw * $dw;
        $step
        if (all_inside(q, (int)z, (int)y, (int)x)) {
            for (L i = 0; i < height; i++) {
                B *d = to + i * 64;
                $copy
            }
            continue;
        }
        for (L i = 0; i < height; i++) {
            B *d = to + i * 64;
            if (inside(q, i, (int)z, (int)y, (int)x)) {
                $copy
            } else {
                *(W *)d = W{};
                *(W *)(d + PART) = W{};
                *(W *)(d + 2 * PART) = W{};
            }
        }
    }
}
"""
SPLIT_STEP = "const T *s = a + z * ${xd}LL + y * ${xh}LL + x * ${xw}LL + j;"
SPLIT_COPY = "split_pair(load(s + q.at[i]), load(s + q.at[i] + 16), d);"
# Of one depth: pixels from `low` on are in `kept`, [pixel][step][part].
KEPT_BEFORE = """L line[32];
    for (L i = 0, n = pixel / ${oimage}LL, left = ${oimage}LL - pixel % ${oimage}LL; i < height; i++) {
        line[i] = ((n * $ih + q.y[i]) * $iw + q.x[i] - low) * ${pixel_bytes}LL;
        if (--left == 0) { n++; left = ${oimage}LL; }
    }"""
KEPT_STEP = "const B *s = kept + (y * $iw + x) * ${pixel_bytes}LL + j / 32 * 192;"
KEPT_COPY = """const W *p = (const W *)(s + line[i]);
                *(W *)d = p[0];
                *(W *)(d + PART) = p[1];
                *(W *)(d + 2 * PART) = p[2];"""
KEEP = """
$noinline void keep(const T *a, L low, L high, B *kept) {
    for (L p = low; p < high; p++) {
        const T *s = a + p / ${plane}LL * ${xn}LL + p / $iw % $ih * ${xh}LL + p % $iw * ${xw}LL;
        for (L j = 0; j < $ci; j += 32, kept += 192) {
            W part[3];
            split_to(load(s + j), load(s + j + 16), part);
            for (int i = 0; i < 3; i++) ((W *)kept)[i] = part[i];
        }
    }
}
"""
KEEP_CALL = (
    "const L low = lowest(pa + first * $am), high = highest(pa + (end - 1) * $am) + 1; keep(a, low, high, kept);"
)
# The input pixels of a range of results: columns of one row, or whole rows.
RANGE_OF_ROWS = """
$inline L clamp(L v, L most) { return v < 0 ? 0 : v > most ? most : v; }
$inline L lowest(L pixel) { return (pixel / ${oimage}LL * $ih + clamp(pixel / $ow % $oh * $sh + $bh, $ih - 1)) * $iw; }
$inline L highest(L pixel) {
    return (pixel / ${oimage}LL * $ih + clamp(pixel / $ow % $oh * $sh + $bh + ($kh - 1) * $dh, $ih - 1)) * $iw + $iw - 1;
}
"""
RANGE_OF_COLUMNS = """
$inline L clamp(L v, L most) { return v < 0 ? 0 : v > most ? most : v; }
$inline L lowest(L pixel) { return pixel / $ow * $iw + clamp(pixel % $ow * $sw + $bw, $iw - 1); }
$inline L highest(L pixel) { return pixel / $ow * $iw + clamp(pixel % $ow * $sw + $bw + ($kw - 1) * $dw, $iw - 1); }
"""
