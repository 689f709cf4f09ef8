"""The C++ templates of the attention gradients; ``attention_backward.py`` fills in sizes, strides and places."""

COMMON = """
typedef $S S;
constexpr int MR = $mr, NV = $nv, QB = $qb, NB = $nb, DP = $dp;
constexpr L D = $d, Q = $m, N = $n, HEADS = $heads, GROUP = $group, QBLOCKS = $qblocks, KBLOCKS = $kblocks;
constexpr bool CAUSAL = $causal, MASKED = $masked;
constexpr T SCALE = (T)$scale;
$inline T get(float x) { return (T)x; }
$inline T get(double x) { return (T)x; }
$inline T get(_Float16 x) { return (T)x; }
$inline T get(unsigned short x) { return (T)__builtin_bit_cast(float, (unsigned)x << 16); }
$inline void put(float *p, T x) { *p = (float)x; }
$inline void put(double *p, T x) { *p = (double)x; }
$inline void put(_Float16 *p, T x) { *p = (_Float16)x; }
$inline void put(unsigned short *p, T x) {
    const float f = (float)x;
    const unsigned u = __builtin_bit_cast(unsigned, f);
    *p = f != f ? (unsigned short)(u >> 16 | 64) : (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
$places
template <int STEP> struct Rows { static constexpr L at(int i) { return i * (L)STEP; } };
// One register tile: c (+)= a b over count steps; element (i, k) of a lies at i * AS + k * ak.
template <int NVT, int AS, bool ADD> $inline void tile(T *c, L cs, const T *a, L ak, const T *b, L bk, L count) {
    V acc[MR][NVT];
    if constexpr (ADD) {
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
            for (int v = 0; v < NVT; v++) acc[i][v] = load(c + i * cs + v * VL);
    } else clear(acc);
    multiply_add<MR, NVT, Rows<AS>>(acc, a, ak, b, bk, count);
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int v = 0; v < NVT; v++) store(c + i * cs + v * VL, acc[i][v]);
}
// c[rows, W] (+)= a b; b and c have W columns, rows are rounded up to whole tiles.
template <int W, int AS, bool ADD> $noinline void product(T *c, const T *a, L ak, const T *b, L rows, L count) {
    constexpr int FULL = W / VL / NV * NV, REST = W / VL % NV;
    for (L r = 0; r < rows; r += MR) {
        for (int v = 0; v < FULL; v += NV)
            tile<NV, AS, ADD>(c + r * W + v * VL, W, a + r * AS, ak, b + v * VL, W, count);
        if constexpr (REST > 0)
            tile<REST, AS, ADD>(c + r * W + FULL * VL, W, a + r * AS, ak, b + FULL * VL, W, count);
    }
}
// Columns of a row's scores that a query may see, within the block of keys from `first` on.
$inline L visible(L row, L first, L cols) {
    const L limit = CAUSAL ? row + 1 - first : cols;
    return limit < 0 ? 0 : limit < cols ? limit : cols;
}
// d[e][c] = s[c][e] for a packed block of keys.
$noinline void transpose_keys(T *d, const T *s) {
    for (L e = 0; e < D; e += VL)
        for (L c = 0; c < NB; c += VL)
            transpose_block(s + c * DP + e, DP, VL, D - e < VL ? D - e : VL, V{}, d + e * NB + c, NB, VL);
}
// Rows of a head lie a row of the whole apart, where no processor expects them.
constexpr L LATER = 8;
template <bool WRITTEN, class P> $inline void fetch_later(const S *s, P place, L r) {
    for (L e = 0; e < D; e += 64 / (L)sizeof(S)) __builtin_prefetch(s + place(r + LATER, e), WRITTEN, 3);
}
template <class P> $inline void copy_rows(T *d, const S *s, P place, L rows, L padded, T factor) {
    for (L r = 0; r < rows; r++) {
        fetch_later<false>(s, place, r);
        for (L e = 0; e < D; e++) d[r * DP + e] = factor * get(s[place(r, e)]);
        for (L e = D; e < DP; e++) d[r * DP + e] = 0;
    }
    for (L i = rows * DP; i < padded * DP; i++) d[i] = 0;
}
"""

BACKWARD = """
constexpr L PARTS = $parts;
$noinline void pack_keys(L j, const S *k, const S *v, T *kt, T *vt, T *kp) {
    const L first = j % KBLOCKS * NB, bh = j / KBLOCKS, b = bh / (HEADS / GROUP), h = bh % (HEADS / GROUP);
    const L cols = N - first < NB ? N - first : NB;
    T *rows = kp + j * NB * DP;
    copy_rows(rows, v, [=](L c, L e) { return at_v(b, h, first + c, e); }, cols, NB, T(1));
    transpose_keys(vt + j * D * NB, rows);
    copy_rows(rows, k, [=](L c, L e) { return at_k(b, h, first + c, e); }, cols, NB, T(1));
    transpose_keys(kt + j * D * NB, rows);
}
$noinline void pack_queries(L j, const S *q, const S *g, const S *o, T *qs, T *gs, T *delta) {
    const L first = j % QBLOCKS * QB, bh = j / QBLOCKS, b = bh / HEADS, h = bh % HEADS;
    const L left = Q - first, rows = left < QB ? left < 0 ? 0 : left : QB;
    copy_rows(qs + j * QB * DP, q, [=](L r, L e) { return at_q(b, h, first + r, e); }, rows, QB, SCALE);
    copy_rows(gs + j * QB * DP, g, [=](L r, L e) { return at_g(b, h, first + r, e); }, rows, QB, T(1));
    // In the order and with the roundings of the products that they are subtracted from: where one key has all the weight, the difference
    // is zero, and keys of hundreds times nearly zero would be seen in the gradient. Lanes are rows.
    for (L r = 0; r < QB; r += VL) {
        V d = {};
        for (L e = 0; e < D && r < rows; e++) {
            alignas(64) T x[VL] = {}, y[VL] = {};
            for (L i = 0; i < VL && r + i < rows; i++) {
                x[i] = gs[(j * QB + r + i) * DP + e];
                y[i] = get(o[at_o(b, h, first + r + i, e)]);
            }
            d += load(x) * load(y);
        }
        for (L i = 0; i < VL && r + i < QB; i++) delta[j * QB + r + i] = d[i];
    }
}
template <class M> $noinline void gradients(
    L j, const M *mask, const T *lse, const T *kt, const T *vt, const T *kp, const T *qs, const T *gs, const T *delta,
    T *part, S *dk, S *dv
) {
    // Products of transposed blocks read whole tiles of rows: a little beyond the last row of p and ds.
    constexpr int KR = (NB + MR - 1) / MR * MR;
    alignas(64) T p[QB * NB + KR], ds[QB * NB + KR], sum_k[KR * DP], sum_v[KR * DP];
    for (int i = 0; i < KR; i++) p[QB * NB + i] = ds[QB * NB + i] = 0;
    const L kh = j / PARTS, b = kh / (HEADS / GROUP), shared = kh % (HEADS / GROUP), mine = j % PARTS;
    T *all_dq = part + (mine * (L)($heads_total) + kh * GROUP) * QBLOCKS * QB * DP;
    for (L i = 0; i < GROUP * QBLOCKS * QB * DP; i++) all_dq[i] = 0;
    for (L kb = mine * KBLOCKS / PARTS; kb < (mine + 1) * KBLOCKS / PARTS; kb++) {
        const L start = kb * NB, cols = N - start < NB ? N - start : NB, block = kh * KBLOCKS + kb;
        for (int i = 0; i < KR * DP; i++) sum_k[i] = sum_v[i] = 0;
        // The heads that share these keys one after the other.
        for (L t = 0; t < GROUP * QBLOCKS; t++) {
            const L g = t / QBLOCKS, qb = t % QBLOCKS, h = shared * GROUP + g, bh = kh * GROUP + g;
            T *dq = all_dq + g * QBLOCKS * QB * DP;
            const L first = qb * QB, rows = Q - first < QB ? Q - first : QB, at = (bh * QBLOCKS + qb) * QB;
            if (rows <= 0 || (CAUSAL && qb < start / QB)) continue;
            // Keys behind the last query are seen by none of the block.
            const L seen = CAUSAL && first + rows - start < cols ? first + rows - start : cols;
            if (seen <= 0) continue;
            product<NB, DP, false>(p, qs + at * DP, 1, kt + block * D * NB, rows, D);
            product<NB, DP, false>(ds, gs + at * DP, 1, vt + block * D * NB, rows, D);
            for (L r = 0; r < rows; r++) {
                T *s = p + r * NB, *t = ds + r * NB;
                const L row = first + r, limit = visible(row, start, cols);
                const T l = lse[at_lse(b, h, row)], center = delta[at + r];
                if constexpr (MASKED)
                    for (L c = 0; c < limit; c++) s[c] += get(mask[at_mask(b, h, row, start + c)]);
#pragma omp simd
                for (L c = 0; c < limit; c++) {
                    s[c] = d_exp(s[c] - l);
                    t[c] = s[c] * (t[c] - center);
                }
                for (L c = limit; c < NB; c++) s[c] = t[c] = 0;
            }
            product<DP, 1, true>(sum_v, p, NB, gs + at * DP, seen, rows);
            product<DP, 1, true>(sum_k, ds, NB, qs + at * DP, seen, rows);
            product<DP, NB, true>(dq + first * DP, ds, 1, kp + block * NB * DP, rows, seen);
        }
        for (L c = 0; c < cols; c++) {
            fetch_later<true>(dk, [=](L r, L e) { return at_dk(b, shared, start + r, e); }, c);
            fetch_later<true>(dv, [=](L r, L e) { return at_dv(b, shared, start + r, e); }, c);
            for (L e = 0; e < D; e++) {
                put(dk + at_dk(b, shared, start + c, e), sum_k[c * DP + e]);
                put(dv + at_dv(b, shared, start + c, e), sum_v[c * DP + e]);
            }
        }
    }
}
$inline void gradients(
    L j, decltype(nullptr), const T *lse, const T *kt, const T *vt, const T *kp, const T *qs, const T *gs,
    const T *delta, T *part, S *dk, S *dv
) {
    gradients<S>(j, nullptr, lse, kt, vt, kp, qs, gs, delta, part, dk, dv);
}
$noinline void sum_parts(L j, const T *part, S *dq) {
    const L first = j % QBLOCKS * QB, bh = j / QBLOCKS, b = bh / HEADS, h = bh % HEADS;
    for (L r = 0; r < QB && first + r < Q; r++) {
        fetch_later<true>(dq, [=](L i, L e) { return at_dq(b, h, first + i, e); }, r);
        for (L e = 0; e < D; e++) {
            T sum = 0;
            for (L i = 0; i < PARTS; i++) sum += part[((i * (L)($heads_total) + bh) * QBLOCKS * QB + first + r) * DP + e];
            put(dq + at_dq(b, h, first + r, e), SCALE * sum);
        }
    }
}
"""
