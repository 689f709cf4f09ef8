// Scalar functions of floats that are comparisons and the four operations: one text for CPUs and for devices (codegen/cuda/prelude.py).
#ifndef DCIR_PRELUDE_BASICS_H
#define DCIR_PRELUDE_BASICS_H

// What both precisions share word for word.
#define D_FLOAT_BASICS(T)                                                                                   \
    D_INLINE bool d_isnan(T x) { return x != x; }                                                           \
    D_INLINE bool d_isinf(T x) { return x == T(D_INF) || x == -T(D_INF); }                                  \
    D_INLINE bool d_isfinite(T x) { return x > -T(D_INF) && x < T(D_INF); }                                 \
    D_INLINE bool d_signbit(T x) { return d_bits(x) >> (8 * sizeof(T) - 1) != 0; }                          \
    D_INLINE T d_rsqrt(T x) { return T(1) / d_sqrt(x); }                                                    \
    D_INLINE T d_reciprocal(T x) { return T(1) / x; }                                                       \
    D_INLINE T d_sign(T x) { return T(int(x > 0) - int(x < 0)); }                                           \
    /* The second operand comes back when it is NaN, the first by its own test. */                          \
    D_INLINE T d_min(T x, T y) { return (x < y) | (x != x) ? x : y; }                                       \
    D_INLINE T d_max(T x, T y) { return (x > y) | (x != x) ? x : y; }                                       \
    /* With y known to be no NaN. */                                                                        \
    D_INLINE T d_min_constant(T x, T y) { return y < x ? y : x; }                                           \
    D_INLINE T d_max_constant(T x, T y) { return y > x ? y : x; }                                           \
    D_INLINE T d_fmin(T x, T y) { return (x < y) | (y != y) ? x : y; }                                      \
    D_INLINE T d_fmax(T x, T y) { return (x > y) | (y != y) ? x : y; }
D_FLOAT_BASICS(float)
D_FLOAT_BASICS(double)

#endif
