"""C++ of the dense convolution in channels-last: a tile's sweeps over taps, the walk over rows, the copy with a border."""

SWEEP = """
// What a tile needs besides its place in a row.
struct Place { Operands e; T *rows, *total; L from, n, g, o, d, h, kd0, kd1, kh0, kh1, i0, i1, valid, next, ahead; bool first, last; };
$inline constexpr L place_of(L v) { return v / $per_panel * ${panel_step}LL + v % $per_panel * VL; }
// acc[i] += x of pixel i times w, over count inputs; only pixels LO to HI have this tap.
template <int LO, int HI, int NV, int TC> $inline void sweep(V (&acc)[TC][NV], const T *x, const T *w, L count, L ahead) {
    $start
    for (L k = 0; k < count; k++, x++, w += $panel) {
        __builtin_prefetch(w + ahead, 0, 2);
        $next
        V b[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            b[v] = load(w + place_of(v));
            __builtin_prefetch(w + place_of(v) + $near);
        }
#pragma GCC unroll 32
        for (int i = LO; i < HI; i++) {
            const T s = x[i * ${pixel}LL];
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[i][v] += s * b[v];
        }
    }
}
$rest"""
# A long sum is made of chains of products, each summed by itself and then added: short chains of additions round less.
REST = """
template <int NV, int TC> $inline void rest(V (&acc)[TC][NV], T *total, bool first) {
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) {
            T *to = total + (i * NV + v) * VL;
            store(to, first ? acc[i][v] : load(to) + acc[i][v]);
        }
    clear(acc);
}
"""
# Not an array of the tile's: GCC would give parts of it registers, and the sums would lose theirs (a fifth slower).
REST_PLACE = "alignas(64) T total[$size]; q.total = total;"
REST_BEGIN = """    T *total = q.total;
    bool rested = false;
    L row = 0;
"""
REST_SWEEP = "            rest(acc, total, !rested), rested = true;"
REST_ROW = """            if (row && row % $every == 0) rest(acc, total, !rested), rested = true;
            row++;
"""
REST_END = """    if (rested)
#pragma GCC unroll 32
        for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[i][v] += load(total + (i * NV + v) * VL);
"""
TILE = """
template <int NV> $noinline void $name(const Place &q, const T *x, const T *w, T *partial, L c) {
    constexpr int TC = $pixels;
    V acc[TC][NV];
    clear(acc);
$begin    const L i0 = q.i0, count = q.i1 - i0, kh0 = q.kh0, kh1 = q.kh1, kd1 = q.kd1, ahead = q.ahead;
    x += i0;
    w += i0 * $panel;
    for (L kd = q.kd0; kd < kd1; kd++)
        for (L kh = kh0; kh < kh1; kh++) {
            const T *xr = x + kd * ${kds}LL + kh * ${khs}LL, *wr = w + (kd * $kh + kh) * ${tap_row}LL;
$row$sweeps
        }
$stop
}
"""
SWEEP_MERGED = (
    "            sweep<$lo, $hi>(acc, xr + $first * ${kws}LL, wr + $first * ${tap}LL, $taps * ${ci}LL, ahead);"
)
SWEEP_CHAINS = """            for (L k = 0; k < $length; k += $chain) {
                if (k) rest(acc, total, !rested), rested = true;
                sweep<$lo, $hi>(acc, xr + $first * ${kws}LL + k, wr + $first * ${tap}LL + k * $panel, $count, ahead);
            }"""
SWEEP_TAPS = """            for (L kw = $first; kw < $end; kw++)
                sweep<$lo, $hi>(acc, xr + kw * ${kws}LL, wr + kw * ${tap}LL, count, ahead);"""

# Every block of inputs is summed by itself and then added: short chains of additions round less.
SUSPEND = """    if (!q.first)
#pragma GCC unroll 32
        for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) acc[i][v] += load(partial + (i * NV + v) * VL);
    if (!q.last) {
#pragma GCC unroll 32
        for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) store(partial + (i * NV + v) * VL, acc[i][v]);
        return;
    }
"""
STOP_UNROLLED = """    const Operands e = q.e;
    const L n = q.n, g = q.g, o = q.o, d = q.d, h = q.h, valid = $valid;
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++) finish_row<NV>(e, n, g, o, d, h, c + i, acc[i], valid);"""
STOP_ROWS = """    alignas(64) T t[TC * NV * VL];
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(t + (i * NV + v) * VL, acc[i][v]);
    const Operands e = q.e;
    const L n = q.n, g = q.g, o = q.o, d = q.d, h = q.h, valid = $valid < NV * VL ? $valid : NV * VL;
    for (int i = 0; i < TC; i++)
        if constexpr (IN_REGISTERS) {
            V row[NV];
#pragma GCC unroll 8
            for (int v = 0; v < NV; v++) row[v] = load(t + (i * NV + v) * VL);
            finish_row<NV>(e, n, g, o, d, h, c + i, row, valid);
        } else finish(e, n, g, o, d, h, c + i, t + i * NV * VL, valid);"""
STOP_GROUPS = """    alignas(64) T t[TC * NV * VL];
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(t + (i * NV + v) * VL, acc[i][v]);
    const Operands e = q.e;
    const L n = q.n, g = q.g, o = q.o, d = q.d, h = q.h, valid = $valid < NV * VL ? $valid : NV * VL;
    int i = 0;
    if (valid == NV * VL) {
        constexpr int R = NV < $grouped ? $grouped / NV : 1;
        for (; i + R <= TC; i += R) {
            V x[R * NV];
#pragma GCC unroll 16
            for (int u = 0; u < R * NV; u++) x[u] = load(t + (i * NV + u) * VL);
            finish_group<R, NV>(e, n, g, o, d, h, c + i, x);
        }
    }
    for (; i < TC; i++) finish(e, n, g, o, d, h, c + i, t + i * NV * VL, valid);"""
# Results of several tiles of a row wait on the stack, [channel][pixel]: what a block of pixels has too many, the next one overwrites.
STOP_PLANES = """    alignas(64) T t[(TC + VL - 1) / VL * VL * NV * VL];
#pragma GCC unroll 32
    for (int i = 0; i < TC; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(t + (i * NV + v) * VL, acc[i][v]);
    T *to = q.rows + (c - q.from);
    for (int i = 0; i < TC; i += VL)
        for (int v = 0; v < NV; v++)
            transpose_block(t + (i * NV + v) * VL, NV * VL, VL, VL, V{}, to + v * VL * PITCH + i, PITCH, VL);"""
PLANES = """
constexpr L PITCH = $pitch;
"""
FLUSH = """
template <int NV> $noinline void flush(const Place &q, L count) {
    const Operands e = q.e;
    const L n = q.n, g = q.g, o = q.o, d = q.d, h = q.h, c = q.from, valid = q.valid < NV * VL ? q.valid : NV * VL;
    for (L l = 0; l < valid; l++) finish(e, n, g, o + l, d, h, c, q.rows + l * PITCH, count);
}
"""
FLUSH_ROWS = "alignas(64) T rows[NV * VL * PITCH]; q.rows = rows;"
FLUSH_FROM = "if ((t - t0) % $tiles == 0) q.from = c;"
FLUSH_TILES = "if (q.last && (t + 1 == t1 || (t - t0) % $tiles == $tiles - 1)) flush<NV>(q, $end - q.from);"

STOP_SUMS = """
    add_sums(e, n, g, o, d, h, c, t, NV * VL, TC, 0, valid);"""

REGION = """
template <int NV> $noinline void region(Place &q, const T *a, const T *w, T *partial, L k, L &number) {
    const L cb = k % $column_blocks, rb = k / $column_blocks % $row_blocks, n = k / $per_image, od = k / $per_plane % $od;
    const L z = od * $sd + $bd, t0 = $tile_start, t1 = $tile_next;
    $rows
    q.n = n;
    q.d = od;
    q.kd0 = z < 0 ? (-z + $dd - 1) / $dd : 0;
    q.kd1 = z + ($kd - 1) * $dd < $id ? $kd : z < $id ? ($id - z + $dd - 1) / $dd : 0;
    for (L r = $row_start; r < $row_next; r++) {
        const L y = r * $sh + $bh;
        q.h = r;
        q.kh0 = y < 0 ? (-y + $dh - 1) / $dh : 0;
        q.kh1 = y + ($kh - 1) * $dh < $ih ? $kh : y < $ih ? ($ih - y + $dh - 1) / $dh : 0;
        const T *x = a + n * ${xn}LL + z * ${xd}LL + y * ${xh}LL + ($bw) * ${xw}LL;
        for (L t = t0; t < t1; t++, partial += $partial * NV) {
            const L c = $column;
            const T *xt = x + c * ${pixel}LL;
            // The first tiles ask for the weights that come next, each for one vector of every step.
            q.ahead = q.next && number < NV ? q.next + place_of(number) : $near;
            number++;
            $from
            $tiles
            $flush
        }
    }
}
"""
RUN = """
$noinline void run(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch, const Operands &operands) {
    const L share = j / $parts, part = j % $parts;
    const L b0 = part * $blocks / $parts, b1 = (part + 1) * $blocks / $parts;
    const L k0 = share * $regions / $shares, k1 = (share + 1) * $regions / $shares;
    Place q;
    q.e = $own;
    $rest
    const T *a = $image, *packed = $weights;
    $partials
    for (L s = k0; s < k1; s += $together) {
        const L s1 = s + $together < k1 ? s + $together : k1;
        for (L b = b0; b < b1; b++) {
            const L g = b / $per_group, v = b % $per_group * $vectors;
            const T *w = packed + g * ${group}LL + place_of(v);
            const L turn = b % $per_group + 1 < $per_group ? place_of(v + $vectors) - place_of(v) : ${group}LL - place_of(v);
            q.g = g;
            q.o = v * VL;
            q.valid = $co - v * VL;
            for (L i = 0; i < $in_blocks; i++) {
                q.i0 = $in_start;
                q.i1 = $in_next;
                q.first = i == 0;
                q.last = i == $in_blocks - 1;
                q.next = !q.last ? (q.i1 - q.i0) * $panel : b + 1 < b1 ? turn - q.i0 * $panel : 0;
                L number = 0;
                for (L k = s; k < s1; k++) $regions_calls
            }
        }
    }
}
"""
BORDER = """
// One row of the image with zeros around, [channel of all groups] side by side.
$noinline void border(L j, const T *a0, const T *, const T *, T *, unsigned char *scratch, const Operands &) {
    T *d = (T *)(scratch + ${image_at}LL) + j * ${row}LL;
    const L y = j % $height - $top, z = j / $height % $depth - $front, n = j / $height / $depth;
    if (y < 0 || y >= $ih || z < 0 || z >= $id) {
        for (L i = 0; i < $row; i++) d[i] = 0;
        return;
    }
    for (L i = 0; i < $left * $pitch; i++) d[i] = 0;
    for (L i = ($left + $iw) * $pitch; i < $row; i++) d[i] = 0;
    const T *s = a0 + n * ${xn}LL + z * ${xd}LL + y * ${xh}LL;
    d += $left * $pitch;
$copy
}
"""
COPY_CHANNELS = """    for (L c = 0; c < $iw; c++) {
        for (L i = 0; i < $channels; i++) d[c * $pitch + i] = s[c * ${xw}LL + i];
        for (L i = $channels; i < $pitch; i++) d[c * $pitch + i] = 0;
    }"""
COPY_FEW = """    for (L c = 0; c < $iw; c++)
#pragma GCC unroll 4
        for (L i = 0; i < $pitch; i++) d[c * $pitch + i] = i < $channels ? s[c * ${xw}LL + i * ${xc}LL] : 0;"""
COPY_PLANES = """    for (L c = 0; c < $iw; c += VL)
        for (L i = 0; i < $channels; i += VL)
            transpose_block(s + i * ${xc}LL + c, ${xc}LL, (int)($channels - i < VL ? $channels - i : VL),
                            (int)($iw - c < VL ? $iw - c : VL), V{}, d + c * $pitch + i, $pitch, VL);"""
PACK = """
// A panel of weights, [tap][input][output channel of the panel].
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch$parameter) {
    const T *s = a1 + j / $panels * ${wg}LL + j % $panels * $panel * ${wo}LL;
    T *d = (T *)(scratch + ${at}LL) + j * ${panel_step}LL;
    for (L v = 0; v < $panel; v += VL, s += VL * ${wo}LL, d += VL) {
        const L left = $co - j % $panels * $panel - v;
        const int rows = (int)(left < 0 ? 0 : left < VL ? left : VL);
$loops
    }
}
"""
# Inputs of a tap are contiguous; or inputs and taps together are, which leaves their order to be turned; or neither.
PACK_INPUTS = """        for (L tap = 0; tap < $taps; tap++)
            for (L i = 0; i < $ci; i += VL)
                transpose_block(s + $offset + i, ${wo}LL, rows, (int)($ci - i < VL ? $ci - i : VL), V{},
                                d + (tap * $ci + i) * $panel, $panel, VL);"""
PACK_RUNS = """        for (L f = 0; f < $ci * $taps; f += VL) {
            const int count = (int)($ci * $taps - f < VL ? $ci * $taps - f : VL);
            alignas(64) T t[VL * VL];
            transpose_block(s + f, ${wo}LL, rows, count, V{}, t, VL, VL);
            for (int i = 0; i < count; i++) store(d + ((f + i) % $taps * $ci + (f + i) / $taps) * $panel, load(t + i * VL));
        }"""
# Outputs are nearer to each other than inputs are: those of an input come from the same lines, tap after tap.
PACK_OUTPUTS = """        for (L i = 0; i < $ci; i++)
            for (L tap = 0; tap < $taps; tap++)
                for (int l = 0; l < VL; l++)
                    d[(tap * $ci + i) * $panel + l] = l < rows ? s[$offset + i * ${wi}LL + l * ${wo}LL] : 0;"""
PACK_ANY = """        for (L tap = 0; tap < $taps; tap++)
            for (L i = 0; i < $ci; i++)
                for (int l = 0; l < VL; l++)
                    d[(tap * $ci + i) * $panel + l] = l < rows ? s[$offset + i * ${wi}LL + l * ${wo}LL] : 0;"""
