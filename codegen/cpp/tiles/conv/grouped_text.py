"""C++ of the grouped convolution in channels-last: a tile's steps, the walk over rows, the packing of weights."""

PLACE = """
// What a tile needs besides its place in a row.
struct Place { Operands e; T *total; L n, g, o, d, h, kd0, kd1, kh0, kh1, valid; };
$inline constexpr L place_of(L v) { return v / $per_panel * ${panel_step}LL + v % $per_panel * VL; }
$inline V spread(T x) { return V{$spread}; }
"""
TILE = """
$noinline void $name(const Place &q, const T *x, const T *w, L c) {
    constexpr int TC = $pixels, NV = $vectors;
    V acc[TC][NV];
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) acc[i][v] = V{};
$begin    const L kh0 = q.kh0, kh1 = q.kh1, kd1 = q.kd1;
    for (L kd = q.kd0; kd < kd1; kd++)
        for (L kh = kh0; kh < kh1; kh++) {
            const T *p = x + kd * ${kds}LL + kh * ${khs}LL, *u = w + (kd * $kh + kh) * ${row}LL;
$steps
        }
$stop
}
"""
# Every input channel does the same; where lanes are exchanged, each has constants of its own.
ANY_INPUT = """            for (L i = 0; i < $count; i++, p++, u += $panel) {
$step
            }"""
CHAINS = """            for (L k = 0; k < $ci; k += $chain) {
                const L count = $ci - k < $chain ? $ci - k : $chain;
$steps
                rest(acc, total, !rested), rested = true;
            }"""
REST_BEGIN = """    T *total = q.total;
    bool rested = false;
"""
# Vectors that pass over a block of rows, one after the other; or for every tile of a row, so that neighbouring lines are read together.
REGION = """
$noinline void region(Place &q, const T *a, const T *packed, L k, L b0, L b1) {
    const L rb = k % $row_blocks, n = k / $per_image, od = k / $row_blocks % $od;
    const L z = od * $sd + $bd;
    q.n = n;
    q.d = od;
    q.kd0 = z < 0 ? (-z + $dd - 1) / $dd : 0;
    q.kd1 = z + ($kd - 1) * $dd < $id ? $kd : z < $id ? ($id - z + $dd - 1) / $dd : 0;
    for (L r = $row_start; r < $row_next; r++) {
        const L y = r * $sh + $bh;
        q.h = r;
        q.kh0 = y < 0 ? (-y + $dh - 1) / $dh : 0;
        q.kh1 = y + ($kh - 1) * $dh < $ih ? $kh : y < $ih ? ($ih - y + $dh - 1) / $dh : 0;
        const T *image = a + n * ${xn}LL + z * ${xd}LL + y * ${xh}LL + ($bw) * ${xw}LL;
$tiles
    }
}
"""
BLOCKS = """for (L b = b0; b < b1; b++) {
            q.o = b * $vectors * VL;
            q.valid = $channels - q.o;
            const T *x = image + q.o / $co * $ci, *w = packed + place_of(b * $vectors);
$calls
        }"""
RUN = """
$noinline void run(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch, const Operands &operands) {
    const L share = j / $parts, part = j % $parts;
    const L b0 = part * $blocks / $parts, b1 = (part + 1) * $blocks / $parts;
    const L k0 = share * $regions / $shares, k1 = (share + 1) * $regions / $shares;
    Place q;
    q.e = $own;
    q.g = 0;
    $rest
    const T *a = $image, *packed = $weights;
$walk
}
"""
BY_VECTORS = """    for (L s = k0; s < k1; s += $together) {
        const L s1 = s + $together < k1 ? s + $together : k1;
        for (L b = b0; b < b1; b++)
            for (L k = s; k < s1; k++) region(q, a, packed, k, b, b + 1);
    }"""
BY_TILES = "    for (L k = k0; k < k1; k++) region(q, a, packed, k, b0, b1);"
PACK = """
// A panel of weights, [tap][input][output channel of the panel]; channels of all groups one after the other.
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch, const Operands &) {
    T *d = (T *)scratch + j * ${panel_step}LL;
    for (L l = 0; l < $panel; l++, d++) {
        const L o = j * $panel + l;
        const T *s = a1 + ${w0}LL + o / $co * ${wg}LL + o % $co * ${wo}LL;
        for (L tap = 0; tap < $taps; tap++)
            for (L i = 0; i < $ci; i++) d[(tap * $ci + i) * $panel] = o < $channels ? s[$offset + i * ${wi}LL] : 0;
    }
}
"""
