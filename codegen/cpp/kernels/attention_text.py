"""The C++ templates of attention: what both directions share, and the forward kernel of many queries; ``attention.py`` fills
them in.

Scores lie transposed, keys down and queries across the lanes: a tile of them is keys (scalars, from where they lie)
times queries (vectors, transposed once per block), the softmax needs no shuffle, and the rows of probabilities are
the scalars of the product with the values.
"""

COMMON = """
typedef $S S;
// A register tile has up to ACC accumulators in rows of up to WIDE; a block of scores is NB keys by BV vectors of queries.
constexpr int ACC = $acc, WIDE = $wide, BV = $bv, NB = $nb, DP = $dp;
// Keys from position FIRST on lie in other memory; FIRST = 0: all lie in one piece.
constexpr L D = $d, Q = $m, N = $n, FIRST = $first, HEADS = $heads, QBLOCKS = $qblocks, LARGER = $larger;
constexpr bool CAUSAL = $causal, MASKED = $masked, FLAT = $flat, SELECTS = $selects, STRICT = $strict;
constexpr T SCALE = (T)$scale, INF = (T)D_INF;
$inline T get(bool seen) { return seen ? T(0) : -INF; }
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
template <int X> struct Int { static constexpr int value = X; };
// f(Int<size>, start) for TOTAL units in as few pieces of at most MOST as do, their sizes as equal as can be.
template <int TOTAL, int MOST, int AT = 0, class F> $inline void pieces(F f) {
    if constexpr (AT < TOTAL) {
        constexpr int LEFT = TOTAL - AT, COUNT = (LEFT + MOST - 1) / MOST, SIZE = (LEFT + COUNT - 1) / COUNT;
        f(Int<SIZE>{}, AT);
        pieces<TOTAL, MOST, AT + SIZE>(f);
    }
}
// exp, at most 2 ulp off; results below the normal numbers are 0. In float x is at most 88.
$inline V exponential(V x) {
    if constexpr (sizeof(T) == 4) {
        constexpr float SHIFT = 12583039.0f;  // 1.5 * 2^23 + 127: the low bits become the biased exponent
        const V t = x * 0x1.715476p+0f + SHIFT, k = t - SHIFT;
        const V r = x - k * 0x1.62e4p-1f - k * 0x1.7f7d1cp-20f;
        V p = r * 0x1.9e77dap-13f + 0x1.6d3a5ep-10f;
        p = p * r + 0x1.1112d6p-7f;
        p = p * r + 0x1.5554f8p-5f;
        p = p * r + 0x1.555554p-3f;
        p = p * r + 0.5f;
        p = p * (r * r) + r;
        const V scale = (V)((M)t << 23), e = p * scale + scale;
        return x < -0x1.5d589ep+6f ? V{} : e;
    }
    V e;
    for (int i = 0; i < VL; i++) e[i] = d_exp(x[i]);
    return e;
}
$inline V larger(V a, V b) { return a > b ? a : b; }
// Position i of a vector holds i.
$inline M count_lanes() {
    M m = {};
    for (int i = 0; i < VL; i++) m[i] = i;
    return m;
}
template <class P> $inline void copy_rows(T *__restrict d, const S *__restrict s, P place, L rows, T factor) {
    for (L r = 0; r < rows; r++) {
#pragma omp simd
        for (L e = 0; e < D; e++) d[r * DP + e] = factor * get(s[place(r, e)]);
        for (L e = D; e < DP; e++) d[r * DP + e] = 0;
    }
}
// d[e][r] = s[r][e] for rows of DP elements; W is a row of d, a multiple of the vector length.
template <int W> $inline void transpose_rows(T *d, const T *s) {
    for (L e = 0; e < D; e += VL)
        for (L r = 0; r < W; r += VL)
            transpose_block(s + r * DP + e, DP, VL, D - e < VL ? D - e : VL, V{}, d + e * W + r, W, VL);
}
// The queries of a block, scaled, with zeros up to whole vectors: one row per element.
template <int W, class P> $inline void transpose_queries(T *d, const S *s, P place, L rows, T factor) {
    alignas(64) T row[W * DP];
    copy_rows(row, s, place, rows, factor);
    for (L i = rows * DP; i < W * DP; i++) row[i] = 0;
    transpose_rows<W>(d, row);
}
// Where a block's rows of keys or values lie: in place if they have the type and the order asked for, else copied.
template <bool IN_PLACE, class P> $inline const T *rows_of(const S *s, P place, L rows, T *copy) {
    if constexpr (IN_PLACE) return (const T *)(s + place(0, 0));
    copy_rows(copy, s, place, rows, T(1));
    return copy;
}
// The same for keys or values from position c on, in the piece that holds it.
$inline const T *keys_from(const S *k, const S *more, L b, L h, L c, L rows, T *copy) {
    if (FIRST && c >= FIRST)
        return rows_of<K_IN_PLACE>(more, [=](L i, L e) { return at_k2(b, h, c - FIRST + i, e); }, rows, copy);
    return rows_of<K_IN_PLACE>(k, [=](L i, L e) { return at_k(b, h, c + i, e); }, rows, copy);
}
$inline const T *values_from(const S *v, const S *more, L b, L h, L c, L rows, T *copy) {
    if (FIRST && c >= FIRST)
        return rows_of<V_IN_PLACE>(more, [=](L i, L e) { return at_v2(b, h, c - FIRST + i, e); }, rows, copy);
    return rows_of<V_IN_PLACE>(v, [=](L i, L e) { return at_v(b, h, c + i, e); }, rows, copy);
}
// Where a run of keys from c on ends: with its piece, if not before.
$inline L end_of_piece(L c, L end) { return FIRST && c < FIRST && FIRST < end ? FIRST : end; }
// The addends of a block of scores: one per key if all queries share them, else transposed like the scores.
template <int W, class M> $inline void load_mask(T *d, const M *mask, L b, L h, L first, L rows, L start, L cols) {
    if constexpr (FLAT) {
        for (L c = 0; c < cols; c++) d[c] = get(mask[at_mask(b, h, first, start + c)]);
    } else {
        alignas(64) T row[VL * NB];
        for (L r = 0; r < W; r += VL) {
            for (L i = 0; i < VL; i++)
                if (r + i < rows)
                    for (L c = 0; c < cols; c++) row[i * NB + c] = get(mask[at_mask(b, h, first + r + i, start + c)]);
                else
                    for (L c = 0; c < cols; c++) row[i * NB + c] = -INF;
            for (L c = 0; c < cols; c += VL)
                transpose_block(row + c, NB, VL, cols - c < VL ? cols - c : VL, V{}, d + c * W + r, W, VL);
        }
    }
}
// Whether no query of a block sees any of its keys.
template <int W> $inline bool hidden(const T *add, L cols) {
    for (L c = 0; c < cols; c++)
        for (int i = 0; i < (FLAT ? 1 : W); i++)
            if (add[FLAT ? c : c * W + i] != -INF) return false;
    return true;
}
// A tile of scores plus its addends: KR keys by QV vectors of queries. `below` is the first key's position less the
// first query's; what a query may not see becomes -inf.
template <int W, int KR, int QV> $inline void score_tile(
    V (&acc)[KR][QV], const T *k, const T *qt, const T *add, L below
) {
    clear(acc);
    multiply_add<KR, QV, Rows<K_ROW>>(acc, k, K_STEP, qt, W, D);
    if constexpr (MASKED)
#pragma GCC unroll 32
        for (int i = 0; i < KR; i++)
#pragma GCC unroll 8
            for (int v = 0; v < QV; v++) {
                const V more = FLAT ? V{} + add[i] : load(add + i * W + v * VL);
                acc[i][v] = SELECTS ? (more < 0 ? V{} - INF : acc[i][v]) : acc[i][v] + more;
            }
    if (CAUSAL && below + KR > 1) {
        const M lane = count_lanes() - (int)below;
#pragma GCC unroll 32
        for (int i = 0; i < KR; i++)
#pragma GCC unroll 8
            for (int v = 0; v < QV; v++) acc[i][v] = lane < i - v * VL ? V{} - INF : acc[i][v];
    }
}
// out (+)= the transposed rows of s times b: W rows, of which the first `rows` count; each is scaled by its factor
// before. A query sees no key at or after its own position plus `seen`.
template <int W, int STEP> $inline void mix(
    T *out, const T *s, const T *b, L rows, L cols, L seen, const T *factor, bool again
) {
    pieces<DP / VL, WIDE>([=](auto wide, int at) __attribute__((always_inline)) {
        constexpr int NV = decltype(wide)::value, MOST = ACC / NV < W ? ACC / NV : W;
        constexpr int COUNT = (W + MOST - 1) / MOST, MR = (W + COUNT - 1) / COUNT, REST = W - COUNT * (MR - 1);
        L r = 0;
        auto run = [&](auto height, L end) __attribute__((always_inline)) {
            constexpr int H = decltype(height)::value;
            for (; r < end && r < rows; r += H) {
                V acc[H][NV];
                T *o = out + r * DP + at * VL;
                if (again) {
#pragma GCC unroll 32
                    for (int i = 0; i < H; i++)
#pragma GCC unroll 8
                        for (int v = 0; v < NV; v++) acc[i][v] = load(o + i * DP + v * VL) * factor[r + i];
                } else clear(acc);
                const L limit = CAUSAL && r + H - 1 + seen < cols ? r + H - 1 + seen : cols;
                multiply_add<H, NV, Rows<1>>(acc, s + r, W, b + at * VL, STEP, limit);
#pragma GCC unroll 32
                for (int i = 0; i < H; i++)
#pragma GCC unroll 8
                    for (int v = 0; v < NV; v++) store(o + i * DP + v * VL, acc[i][v]);
            }
        };
        run(Int<MR>{}, REST * (L)MR);
        if constexpr (REST < COUNT) run(Int<MR - 1>{}, (L)W);
    });
}
"""

# Masks of numbers often hold the least of their type in place of minus infinity. A query that sees nothing but such keys has the mean of
# all values, as in PyTorch; one that has seen another key gives them weights of zero, unless a score comes within 3 % of overflowing.
# ``hidden_from`` is the largest addend that leaves no weight, of queries with these largest scores so far.
LEAST = """
constexpr T LEAST = sizeof(T) == 4 ? T(-3.3e38) : T(-1.7e308);
$inline V hidden_from(V high) { return high > LEAST / 64 ? V{} + LEAST : V{} - INF; }
$inline T any_hidden_from(V high) {
    T most = -INF;
    for (int i = 0; i < VL; i++) most = high[i] > LEAST / 64 ? LEAST : most;
    return most;
}
// Whether no query of a block gives any of its keys a weight, whatever their scores; `high` are its largest scores so far.
template <int W> $inline bool hidden(const T *add, L cols, const V *high) {
    alignas(64) T most[W];
    for (int i = 0; i < W / VL; i++) store(most + i * VL, hidden_from(high[i]));
    if (FLAT)
        for (int i = 1; i < W; i++) most[0] = most[i] < most[0] ? most[i] : most[0];
    for (L c = 0; c < cols; c++)
        for (int i = 0; i < (FLAT ? 1 : W); i++)
            if (!(add[FLAT ? c : c * W + i] <= most[i])) return false;
    return true;
}
"""

FORWARD = """
// Scores of KR keys from c on against all queries of the block, and the largest so far of each query.
template <int W, int KR, int QV, int SKIP = 0> $inline void score(
    T *s, const T *k, const T *qt, const T *add, V *high, L below
) {
    // Vectors of queries before all keys of the tile see none of them.
    if constexpr (CAUSAL && SKIP < QV)
        if (below >= (SKIP + 1) * VL) {
#pragma GCC unroll 32
            for (int i = 0; i < KR; i++) store(s + i * W + SKIP * VL, V{} - INF);
            return score<W, KR, QV, SKIP + 1>(s, k, qt, add, high, below);
        }
    if constexpr (SKIP < QV) {
        V acc[KR][QV - SKIP];
        score_tile<W>(acc, k, qt + SKIP * VL, FLAT ? add : add + SKIP * VL, below - SKIP * VL);
#pragma GCC unroll 8
        for (int v = 0; v < QV - SKIP; v++) {
            V top = high[SKIP + v];
#pragma GCC unroll 32
            for (int i = 0; i < KR; i++) {
                top = larger(acc[i][v], top);
                store(s + i * W + (SKIP + v) * VL, acc[i][v]);
            }
            high[SKIP + v] = top;
        }
    }
}
template <int B, class M> $noinline void attend_block(
    L first, L b, L h, const S *q, const S *k, const S *v, const S *k2, const S *v2, const M *mask, S *o, T *lse
) {
    constexpr int W = B * VL;
    alignas(64) T qt[D * W], s[NB * W + VL], out[W * DP], factor[W], add[!MASKED ? 1 : FLAT ? NB : NB * W];
    alignas(64) T key[K_IN_PLACE ? 1 : NB * DP], value[V_IN_PLACE ? 1 : NB * DP];
    V high[B], sum[B];
    const L rows = Q - first < W ? Q - first : W, seen = CAUSAL && first + rows < N ? first + rows : N;
    transpose_queries<W>(qt, q, [=](L r, L e) { return at_q(b, h, first + r, e); }, rows, SCALE);
    for (int i = 0; i < B; i++) high[i] = V{} - INF, sum[i] = V{};
    for (L start = 0, cols; start < seen; start += cols) {
        const L end = end_of_piece(start, seen);
        cols = end - start < NB ? end - start : NB;
        if constexpr (MASKED) {
            load_mask<W>(add, mask, b, h, first, rows, start, cols);
            // Such keys would add zeros to the sums. The first block is never passed over, so that there is a result.
            if (start && $hidden) continue;
        }
        const T *keys = keys_from(k, k2, b, h, start, cols, key);
        const T *values = values_from(v, v2, b, h, start, cols, value);
        V top[B];
        for (int i = 0; i < B; i++) top[i] = high[i];
        pieces<B, WIDE - 1>([&](auto wide, int at) __attribute__((always_inline)) {
            constexpr int QV = decltype(wide)::value, KR = ACC / QV;
            auto tile = [&](auto height, L c) __attribute__((always_inline)) {
                score<W, decltype(height)::value, QV>(
                    s + c * W + at * VL, keys + c * K_ROW, qt + at * VL, FLAT ? add + c : add + c * W + at * VL,
                    top + at, start + c - first - at * VL
                );
            };
            L c = 0;
            for (; c + KR <= cols; c += KR) tile(Int<KR>{}, c);
            // The last tile may cover keys twice: their scores and maxima come out the same.
            if (c < cols && cols >= KR) tile(Int<KR>{}, cols - KR), c = cols;
            for (; c < cols; c++) tile(Int<1>{}, c);
        });
        V base[B];
        for (int i = 0; i < B; i++) {
            // A row of nothing but -inf so far: subtracting 0 keeps its exponentials at zero.
            base[i] = top[i] == -INF ? V{} : top[i];
            const V shrink = exponential(high[i] - base[i]);
            store(factor + i * VL, shrink);
            sum[i] *= shrink;
            high[i] = top[i];
        }
        // Sums of 32 first: the error grows with the block, not with the whole length.
        for (L c0 = 0; c0 < cols; c0 += 32) {
            V part[B] = {};
            for (L c = c0; c < c0 + 32 && c < cols; c++)
#pragma GCC unroll 16
                for (int i = 0; i < B; i++) {
                    const V e = exponential(load(s + c * W + i * VL) - base[i]);
                    store(s + c * W + i * VL, e);
                    part[i] += e;
                }
            for (int i = 0; i < B; i++) sum[i] += part[i];
        }
        mix<W, V_ROW>(out, s, values, rows, cols, first - start + 1, factor, start > 0);
    }
    alignas(64) T logs[W];
    for (int i = 0; i < B; i++) {
        const V z = STRICT ? sum[i] : sum[i] == T(0) ? V{} + T(1) : sum[i];
        store(factor + i * VL, T(1) / z);
        store(logs + i * VL, z);
        store(qt + i * VL, high[i] == -INF ? V{} : high[i]);
    }
    for (L r = 0; r < rows; r++) {
#pragma omp simd
        for (L e = 0; e < D; e++) put(o + at_o(b, h, first + r, e), out[r * DP + e] * factor[r]);
        lse[at_lse(b, h, first + r)] = qt[r] + d_log(logs[r]);
    }
}
// Blocks of a head in the order first, last, second, …: with causal attention any run of jobs has its share of long ones.
template <class M> $noinline void attend(
    L j, const S *q, const S *k, const S *v, const S *k2, const S *v2, const M *mask, S *o, T *lse
) {
    const L at = j % QBLOCKS, bh = j / QBLOCKS, b = bh / HEADS, h = bh % HEADS;
    const L block = !CAUSAL ? at : at % 2 ? QBLOCKS - 1 - at / 2 : at / 2;
    if (block < LARGER) return attend_block<BV>(block * BV * VL, b, h, q, k, v, k2, v2, mask, o, lse);
    if constexpr (LARGER < QBLOCKS)
        attend_block<BV - 1>(
            (LARGER * BV + (block - LARGER) * (BV - 1)) * VL, b, h, q, k, v, k2, v2, mask, o, lse
        );
}
// Without a mask there is no pointer to take its type from.
$inline void attend(
    L j, const S *q, const S *k, const S *v, const S *k2, const S *v2, decltype(nullptr), S *o, T *lse
) {
    attend<S>(j, q, k, v, k2, v2, nullptr, o, lse);
}
"""
