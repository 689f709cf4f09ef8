"""C++ around the statements of an epilogue: those of vectors, those of a vector's lanes, exponentials, groups of vectors."""

from __future__ import annotations

VECTORS = """
struct Operands { $fields };
constexpr bool IN_REGISTERS = $short;
$prefetch
typedef unsigned char Bytes __attribute__((vector_size(VL), aligned(1), may_alias));
typedef unsigned char Mask8 __attribute__((vector_size(VL)));
template <bool WHOLE> $inline V get(const T *p, int n) { if constexpr (WHOLE) return load(p); else return load_part(p, n); }
template <bool WHOLE> $inline void put(T *p, V v, int n) {
    if constexpr (WHOLE) store(p, v);
    else store_part(p, v, n);
}
template <bool WHOLE> $inline V get_apart(const T *p, L step, int n) {
    V r = {};
    for (int l = 0; l < (WHOLE ? VL : n); l++) r[l] = p[l * step];
    return r;
}
template <bool WHOLE> $inline void put_apart(T *p, L step, V v, int n) {
    alignas(64) T t[VL];
    store(t, v);
    for (int l = 0; l < (WHOLE ? VL : n); l++) p[l * step] = t[l];
}
template <bool WHOLE> $inline M get_bool(const bool *p, L step, int n) {
    if (WHOLE && step == 1) return __builtin_convertvector((Mask8)*(const Bytes *)p, M) != 0;
    M r = {};
    for (int l = 0; l < (WHOLE ? VL : n); l++) r[l] = p[l * step] ? -1 : 0;
    return r;
}
template <bool WHOLE> $inline void put_bool(bool *p, L step, M m, int n) {
    const Mask8 b = __builtin_convertvector(m, Mask8) & 1;
    if (WHOLE && step == 1) *(Bytes *)p = (Bytes)b;
    else
        for (int l = 0; l < (WHOLE ? VL : n); l++) p[l * step] = b[l];
}
$inline M all_or_none(bool x) { const M m = {}; return x ? ~m : m; }
template <bool WHOLE> $inline void finish_vector(const Operands &e, $indices, V x, int n) {
$statements
}
$group
$noinline void finish_part(const Operands e, $indices, V x, int n) { finish_vector<false>(e, $names, x, n); }
template <int NV> $inline void finish_row(const Operands &e, $indices, const V *v, L n) {
    if (n >= NV * VL)
#pragma GCC unroll 8
        for (int u = 0; u < NV; u++) finish_vector<true>(e, $at_vector, v[u], VL);
    else
#pragma GCC unroll 8
        for (int u = 0; u < NV; u++) {
            const L left = n - u * VL;
            if (left >= VL) finish_vector<true>(e, $at_vector, v[u], VL);
            else if (__builtin_constant_p(left) && left > 0) finish_vector<false>(e, $at_vector, v[u], (int)left);
            else if (left > 0) finish_part(e, $at_vector, v[u], (int)left);
        }
}
$noinline void finish(const Operands &e, $indices, const T *t, L n) {
    L s = 0;
$walk
    for (; s + VL <= n; s += VL) finish_vector<true>(e, $at_lane, load(t + s), VL);
    if (s < n) finish_vector<false>(e, $at_lane, load_part(t + s, (int)(n - s)), (int)(n - s));
}
"""
LANES = """
struct Operands { $fields };
constexpr bool IN_REGISTERS = false;
$prefetch
// Elements side by side, in memory or, where fewer than VL are left or they lie apart, in a copy.
$inline const T *fetch(const T *p, L step, int left, T *copy) {
    if (step == 1 && left == VL) return p;
    if (step == 1) store(copy, load_part(p, left));
    else
        for (int c = 0; c < left; c++) copy[c] = p[c * step];
    return copy;
}
$inline void put_back(T *p, L step, int left, const T *copy) {
    if (step == 1 && left == VL) return;
    if (step == 1) store_part(p, load(copy), left);
    else
        for (int c = 0; c < left; c++) p[c * step] = copy[c];
}
template <class S> $inline const S *fetch(const S *p, L step, int left, S *copy) {
    if (step == 1 && left == VL) return p;
    for (int c = 0; c < left; c++) copy[c] = p[c * step];
    return copy;
}
template <class S> $inline void put_back(S *p, L step, int left, const S *copy) {
    if (step == 1 && left == VL) return;
    for (int c = 0; c < left; c++) p[c * step] = copy[c];
}
$noinline void finish(const Operands &e, $indices, const T *t, L count) {
$uniform
    for (L s = 0; s < count; s += VL) {
        const int left = (int)(count - s < VL ? count - s : VL);
$before
#pragma omp simd
        for (int c = 0; c < VL; c++) {
$statements
        }
$after
    }
}
template <int NV> $inline void finish_row(const Operands &e, $indices, const V *v, L n) {
    alignas(64) T t[NV * VL];
#pragma GCC unroll 8
    for (int u = 0; u < NV; u++) store(t + u * VL, v[u]);
    finish(e, $names, t, n);
}
"""

PREFETCH = """template <int N> $inline void prefetch_row(const Operands &e, $indices) {
$rows
}"""
CLAIM = """
template <int N> $inline void claim_row(const Operands &e, $indices) {
$rows
}"""
CLAIM_ROW = """for (int u = 0; u < N * (int)sizeof($type); u += 64)
        __builtin_prefetch((const char *)(e.o$number + $address) + u, 1, 2);"""
PREFETCH_ROW = """    for (int u = 0; u < N * (int)sizeof($type); u += 64)
        __builtin_prefetch((const char *)(e.a$number + $address) + u, 0, 2);"""

# Chains of a dozen dependent operations: a group's vectors take every step together, since the processor cannot look far enough
# ahead to find the next vector's first steps by itself. The polynomial is that of ``d_exp``. Two factors of the scale, so that
# results below 2^-126 round once and results above 2^128 become infinite.
EXPONENTIALS = """
template <int N> $inline void exponentials(V (&x)[N]) {
    V k[N], q[N];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = smaller(splat(89), larger(splat(-104), x[u]));
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = x[u] * 0x1.715476p+0f + 12582912.0f;
    M n[N];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) n[u] = (M)k[u] - (M)splat(12582912.0f);
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] - 12582912.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = x[u] - k[u] * 0x1.62e4p-1f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = x[u] - k[u] * 0x1.7f7d1cp-20f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = 0x1.9e77dap-13f * x[u] + 0x1.6d3a5ep-10f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = q[u] * x[u] + 0x1.1112d6p-7f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = q[u] * x[u] + 0x1.5554f8p-5f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = q[u] * x[u] + 0x1.555554p-3f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = q[u] * x[u] + 0.5f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = q[u] * (x[u] * x[u]) + x[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = (1.0f + x[u]) * (V)(((n[u] >> 1) + 127) << 23) * (V)((n[u] - (n[u] >> 1) + 127) << 23);
}
"""
# The same with sixteenths in a register: 2^(k/16) times a polynomial of third degree, whose first dropped term is below 2^-26.
EXPONENTIALS_512 = """
template <int N> $inline void exponentials(V (&x)[N]) {
    const V powers = {$powers};
    V k[N], t[N], q[N];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = smaller(splat(89), larger(splat(-104), x[u]));
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = x[u] * 0x1.715476p+0f + 786432.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) t[u] = __builtin_shuffle(powers, (M)k[u]);
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] - 786432.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = x[u] - k[u] * 0x1.62e4p-1f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = x[u] - k[u] * 0x1.7f7d1cp-20f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = x[u] * 0x1.555556p-3f + 0.5f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) q[u] = q[u] * x[u] + 1.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = t[u] * x[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = q[u] * x[u] + t[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = __builtin_ia32_scalefps512_mask(x[u], k[u], V{}, (unsigned short)-1, 4);
}
"""
# Error functions, likewise: the steps of ``d_erf``.
ERRORS = """
template <int N> $inline void errors(V (&x)[N]) {
    V z[N], s[N], a[N], k[N];
    M n[N];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = x[u] * x[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = 0x1.4771fcp-14f * z[u] - 0x1.a3515ep-11f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * z[u] + 0x1.53f224p-8f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * z[u] - 0x1.b7f71ap-6f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * z[u] + 0x1.ce2ce6p-4f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * z[u] - 0x1.81273ep-2f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * z[u] + 0x1.06eba8p-3f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) s[u] = s[u] * x[u] + x[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) a[u] = smaller(splat(3.95f), (V)((M)x[u] & ~(M)splat(-0.0)));
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = 0x1.6c07fep-16f * a[u] - 0x1.ceee9ep-12f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] * a[u] + 0x1.139872p-8f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] * a[u] - 0x1.9d0b56p-6f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] * a[u] + 0x1.bc189ap-4f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] * a[u] + 0x1.4434f6p-1f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] * a[u] + 0x1.212c2cp+0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = 0x1.8b3e8ep-13f - z[u] * a[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = z[u] * 0x1.715476p+0f + 12582912.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) n[u] = (M)k[u] - (M)splat(12582912.0f);
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] - 12582912.0f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] - k[u] * 0x1.62e4p-1f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = z[u] - k[u] * 0x1.7f7d1cp-20f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = 0x1.9e77dap-13f * z[u] + 0x1.6d3a5ep-10f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] * z[u] + 0x1.1112d6p-7f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] * z[u] + 0x1.5554f8p-5f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] * z[u] + 0x1.555554p-3f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = k[u] * z[u] + 0.5f;
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = k[u] * (z[u] * z[u]) + z[u];
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) k[u] = (V)((n[u] + 127) << 23);
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = 1.0f - (z[u] * k[u] + k[u]);
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) z[u] = (V)((M)z[u] | ((M)x[u] & (M)splat(-0.0)));
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) x[u] = a[u] < 1.0f ? s[u] : z[u];
}
"""
# Where x is NaN it stays.
EXTREMES = """
$inline V larger(V a, V x) { return $larger; }
$inline V smaller(V a, V x) { return $smaller; }
"""
# R rows of NV whole vectors.
GROUP = """
template <int R, int NV> $inline void finish_group(const Operands &e, $indices, const V (&given)[R * NV]) {
    constexpr int N = R * NV;
    constexpr bool WHOLE = true;
    constexpr int n = VL;
$parts
}
"""
GROUP_PART = """    $chains
#pragma GCC unroll 16
    for (int u = 0; u < N; u++) {
$statements
    }"""
GROUP_WALK = """    for (; s + $count * VL <= n; s += $count * VL) {
        V x[$count];
#pragma GCC unroll 16
        for (int u = 0; u < $count; u++) x[u] = load(t + s + u * VL);
        finish_group<1, $count>(e, $at_lane, x);
    }"""
