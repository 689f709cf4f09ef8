"""The C++ template of attention for few queries: one query against all keys, which are read where they lie and once."""

FEW = """
// Position i of the result is the sum of a[i]: neighbours are folded into the halves of one vector, level by level.
template <int COUNT> $inline V fold(const V (&a)[COUNT]) {
    if constexpr (COUNT == 1) return a[0];
    else {
        constexpr int HALF = COUNT / 2;
        M low, high;
#pragma GCC unroll 64
        for (int i = 0; i < VL; i++) {
            low[i] = i % COUNT < HALF ? i : i - HALF + VL;
            high[i] = low[i] + HALF;
        }
        V b[HALF];
#pragma GCC unroll 64
        for (int i = 0; i < HALF; i++)
            b[i] = __builtin_shuffle(a[i], a[i + HALF], low) + __builtin_shuffle(a[i], a[i + HALF], high);
        return fold(b);
    }
}
// One query: the scores of VL keys at a time in a row of scratch, keys and values read where they lie.
template <class M> $noinline void attend(
    L j, const S *q, const S *k, const S *v, const S *k2, const S *v2, const M *mask, T *scores, S *o, T *lse
) {
    constexpr int DV = DP / VL, STEP = K_ROW, V_STEP = V_ROW, RUN = V_IN_PLACE ? 64 : VL;
    const L row = j % Q, bh = j / Q, b = bh / HEADS, h = bh % HEADS;
    alignas(64) T query[DP], out[DP], copy[K_IN_PLACE && V_IN_PLACE ? 1 : VL * DP];
    T *s = scores + j * $padded;
    const L seen = CAUSAL && row + 1 < N ? row + 1 : N;
    copy_rows(query, q, [=](L, L e) { return at_q(b, h, row, e); }, 1, SCALE);
    V high = V{} - INF;$most
    for (L c = 0, cols; c < seen; c += cols) {
        const L end = end_of_piece(c, seen);
        cols = end - c < VL ? end - c : VL;
        if constexpr (MASKED) {
            bool all = true;
            for (L i = 0; i < cols; i++) all &= get(mask[at_mask(b, h, row, c + i)]) $hidden;
            if (all) {
                store(s + c, V{} - INF);
                continue;
            }
        }
        const T *keys = keys_from(k, k2, b, h, c, cols, copy);
        V part[VL];
        if (cols == VL)
#pragma GCC unroll 64
            for (int i = 0; i < VL; i++) part[i] = load(keys + i * STEP) * load(query);
        else
            for (int i = 0; i < VL; i++) part[i] = load(keys + (i < cols ? i : 0) * STEP) * load(query);
        for (int e = 1; e < DV; e++) {
            const V x = load(query + e * VL);
            if (cols == VL)
#pragma GCC unroll 64
                for (int i = 0; i < VL; i++) part[i] += load(keys + i * STEP + e * VL) * x;
            else
                for (int i = 0; i < VL; i++) part[i] += load(keys + (i < cols ? i : 0) * STEP + e * VL) * x;
        }
        V dot = fold(part);
        if constexpr (MASKED)
            for (L i = 0; i < cols; i++) {
                const T more = get(mask[at_mask(b, h, row, c + i)]);
                dot[i] = SELECTS ? (more < 0 ? -INF : dot[i]) : dot[i] + more;
            }
        for (L i = cols; i < VL; i++) dot[i] = -INF;
        store(s + c, dot);
        high = larger(dot, high);$seen
    }
    // Vectors that begin within a piece end elsewhere than those that are read below.
    if (FIRST) store(s + seen, V{} - INF);
    T top = high[0];
    for (int i = 1; i < VL; i++) top = high[i] > top ? high[i] : top;
    const T base = top == -INF ? T(0) : top;
    V sums = {};
    for (L c = 0; c < seen; c += VL) {
        const V e = exponential(load(s + c) - base);
        store(s + c, e);
        sums += e;
    }
    pieces<DV, 8>([&](auto wide, int at) __attribute__((always_inline)) {
        constexpr int NV = decltype(wide)::value, WAYS = 16 / NV;
        V acc[WAYS][NV];
        clear(acc);
        for (L c = 0; c < seen;) {
            const L left = end_of_piece(c, seen) - c, most = MASKED ? RUN : V_IN_PLACE ? left : VL;
            const L cols = left < most ? left : most;
            // Values that a mask hides have no weight, and are not read.
            if constexpr (MASKED) {
                bool all = true;
                for (L i = 0; i < cols; i++) all &= s[c + i] == 0;
                if (all) {
                    c += cols;
                    continue;
                }
            }
            const T *values = values_from(v, v2, b, h, c, cols, copy);
            L i = 0;
            for (; i + WAYS <= cols; i += WAYS)
#pragma GCC unroll 16
                for (int w = 0; w < WAYS; w++)
#pragma GCC unroll 8
                    for (int n = 0; n < NV; n++) acc[w][n] += s[c + i + w] * load(values + (i + w) * V_STEP + (at + n) * VL);
            for (; i < cols; i++)
#pragma GCC unroll 8
                for (int n = 0; n < NV; n++) acc[0][n] += s[c + i] * load(values + i * V_STEP + (at + n) * VL);
            c += cols;
        }
#pragma GCC unroll 8
        for (int n = 0; n < NV; n++) {
            V total = acc[0][n];
#pragma GCC unroll 16
            for (int w = 1; w < WAYS; w++) total += acc[w][n];
            store(out + (at + n) * VL, total);
        }
    });
    const T all = sum(sums), z = !STRICT && all == 0 ? T(1) : all;
    for (L e = 0; e < D; e++) put(o + at_o(b, h, row, e), out[e] / z);
    lse[at_lse(b, h, row)] = base + d_log(z);
}
$inline void attend(
    L j, const S *q, const S *k, const S *v, const S *k2, const S *v2, decltype(nullptr), T *scores, S *o, T *lse
) {
    attend<S>(j, q, k, v, k2, v2, nullptr, scores, o, lse);
}
"""
