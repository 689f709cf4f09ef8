// Scalar functions of the kernels, under the names that the CPU's prelude has for them: one text for NVRTC and for the twin.
//
// Whoever includes it defines D_INLINE, D_LIBM(name), which is the mathematical library's function of that name, and the four functions
// between numbers and their bits. NaN, infinities and signed zeros keep their meaning; no operation is undefined for any operand.
#ifndef DCIR_SCALARS_CUH
#define DCIR_SCALARS_CUH

typedef unsigned short bf16_t;
// A half in memory, by its bits. No arithmetic is done on it.
struct f16_t {
    unsigned short bits;
};

#define D_INF d_from_bits(0x7f800000u)
#define D_NAN d_from_bits(0x7fc00000u)
#define D_INF64 d_from_bits(0x7ff0000000000000ull)
#define D_NAN64 d_from_bits(0x7ff8000000000000ull)

#define D_UNARY(name, function)                                              \
    D_INLINE float d_##name(float x) { return D_LIBM(function##f)(x); }      \
    D_INLINE double d_##name(double x) { return D_LIBM(function)(x); }
#define D_BINARY(name, function)                                                          \
    D_INLINE float d_##name(float x, float y) { return D_LIBM(function##f)(x, y); }       \
    D_INLINE double d_##name(double x, double y) { return D_LIBM(function)(x, y); }

D_UNARY(sqrt, sqrt)
D_UNARY(abs, fabs)
D_UNARY(floor, floor)
D_UNARY(ceil, ceil)
D_UNARY(trunc, trunc)
D_UNARY(round, rint)  // half to even
D_UNARY(exp, exp)
D_UNARY(exp2, exp2)
D_UNARY(expm1, expm1)
D_UNARY(log, log)
D_UNARY(log2, log2)
D_UNARY(log10, log10)
D_UNARY(log1p, log1p)
D_UNARY(tanh, tanh)
D_UNARY(erf, erf)
D_UNARY(erfc, erfc)
D_UNARY(sin, sin)
D_UNARY(cos, cos)
D_UNARY(libm_sin, sin)
D_UNARY(libm_cos, cos)
D_UNARY(tan, tan)
D_UNARY(asin, asin)
D_UNARY(acos, acos)
D_UNARY(atan, atan)
D_UNARY(sinh, sinh)
D_UNARY(cosh, cosh)
D_UNARY(asinh, asinh)
D_UNARY(acosh, acosh)
D_UNARY(atanh, atanh)
D_UNARY(lgamma, lgamma)
D_BINARY(copysign, copysign)
D_BINARY(fmod, fmod)
D_BINARY(nextafter, nextafter)
D_BINARY(hypot, hypot)
D_BINARY(atan2, atan2)
D_BINARY(pow, pow)

#define D_SIGMOID(T)                                                                                        \
    /* Both sides of the bar stay finite where the result is no zero. */                                    \
    D_INLINE T d_sigmoid(T x) {                                                                             \
        T e = d_exp(-d_abs(x));                                                                             \
        return (x < T(0) ? e : T(1)) / (T(1) + e);                                                          \
    }
D_SIGMOID(float)
D_SIGMOID(double)

#include "prelude_basics.h"

#include "prelude_guarded.h"

// bfloat16 is the upper half of a float; rounding is to nearest even, NaN stays NaN.
D_INLINE float d_bf16_to_f32(bf16_t h) { return d_from_bits((unsigned)h << 16); }
D_INLINE bf16_t d_f32_to_bf16(float x) {
#ifdef D_DEVICE
    bf16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
#else
    unsigned b = d_bits(x), r = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return (bf16_t)(x != x ? 0x7fffu : r);
#endif
}

D_INLINE float d_f16_to_f32(f16_t h) {
#ifdef D_DEVICE
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h.bits));
    return r;
#else
    unsigned b = h.bits, m = (b & 0x7fffu) << 13;
    unsigned r = m < 0x00800000u ? d_bits(d_from_bits(m + 0x38800000u) - 0x1p-14f) : m + 0x38000000u;
    r = m >= 0x0f800000u ? m | 0x7f800000u : r;
    return d_from_bits(r | (b & 0x8000u) << 16);
#endif
}
D_INLINE f16_t d_f32_to_f16(float x) {
    f16_t h;
#ifdef D_DEVICE
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
#else
    unsigned b = d_bits(x), m = b & 0x7fffffffu;
    unsigned normal = (m + 0xfffu + ((m >> 13) & 1u) - 0x38000000u) >> 13;
    unsigned r = m < 0x38800000u ? d_bits(d_from_bits(m) + 0.5f) - 0x3f000000u : normal;
    r = m >= 0x47800000u ? 0x7c00u : r;
    r = m > 0x7f800000u ? 0x7fffu : r;
    h.bits = (unsigned short)(r | (b >> 16 & 0x8000u));
#endif
    return h;
}

// How partial results join. NaN wins in min and max; integers wrap.
struct d_sum_of {
    template <class T> static D_MEMBER T join(T x, T y) { return x + y; }
};
struct d_prod_of {
    template <class T> static D_MEMBER T join(T x, T y) { return x * y; }
};
struct d_wrap_sum_of {
    template <class T> static D_MEMBER T join(T x, T y) { return d_wrap_add<T>(x, y); }
};
struct d_wrap_prod_of {
    template <class T> static D_MEMBER T join(T x, T y) { return d_wrap_mul<T>(x, y); }
};
struct d_min_of {
    template <class T> static D_MEMBER T join(T x, T y) { return (x < y) | (x != x) ? x : y; }
};
struct d_max_of {
    template <class T> static D_MEMBER T join(T x, T y) { return (x > y) | (x != x) ? x : y; }
};
struct d_any_of {
    template <class T> static D_MEMBER T join(T x, T y) { return x | y; }
};
struct d_all_of {
    template <class T> static D_MEMBER T join(T x, T y) { return x & y; }
};

// A value and where it stood; a place of -1 is none yet.
template <class T> struct d_place {
    T best;
    long long at;
};
// The first of the largest (smallest); a NaN is larger and smaller than everything.
template <bool largest> struct d_first_of {
    template <class T> static D_MEMBER bool before(T x, T y) { return (largest ? x > y : x < y) | ((x != x) & (y == y)); }
    template <class T> static D_MEMBER d_place<T> join(d_place<T> a, d_place<T> b) {
        if (b.at < 0) return a;
        if (a.at < 0) return b;
        if (before(a.best, b.best)) return a;
        if (before(b.best, a.best)) return b;
        return a.at < b.at ? a : b;
    }
};
typedef d_first_of<true> d_argmax_of;
typedef d_first_of<false> d_argmin_of;

#endif
