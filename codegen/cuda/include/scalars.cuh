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

#define D_FLOAT_BASICS(T)                                                                                   \
    D_INLINE bool d_isnan(T x) { return x != x; }                                                           \
    D_INLINE bool d_isinf(T x) { return x == T(D_INF) || x == -T(D_INF); }                                  \
    D_INLINE bool d_isfinite(T x) { return x > -T(D_INF) && x < T(D_INF); }                                 \
    D_INLINE bool d_signbit(T x) { return d_bits(x) >> (8 * sizeof(T) - 1) != 0; }                          \
    D_INLINE T d_rsqrt(T x) { return T(1) / d_sqrt(x); }                                                    \
    D_INLINE T d_reciprocal(T x) { return T(1) / x; }                                                       \
    D_INLINE T d_sign(T x) { return T(int(x > 0) - int(x < 0)); }                                           \
    /* Both sides of the bar stay finite where the result is no zero. */                                    \
    D_INLINE T d_sigmoid(T x) {                                                                             \
        T e = d_exp(-d_abs(x));                                                                             \
        return (x < T(0) ? e : T(1)) / (T(1) + e);                                                          \
    }                                                                                                       \
    /* The second operand comes back when it is NaN, the first by its own test. */                          \
    D_INLINE T d_min(T x, T y) { return (x < y) | (x != x) ? x : y; }                                       \
    D_INLINE T d_max(T x, T y) { return (x > y) | (x != x) ? x : y; }                                       \
    /* With y known to be no NaN. */                                                                        \
    D_INLINE T d_min_constant(T x, T y) { return y < x ? y : x; }                                           \
    D_INLINE T d_max_constant(T x, T y) { return y > x ? y : x; }                                           \
    D_INLINE T d_fmin(T x, T y) { return (x < y) | (y != y) ? x : y; }                                      \
    D_INLINE T d_fmax(T x, T y) { return (x > y) | (y != y) ? x : y; }                                      \
    /* Python's sign rule: the remainder has the sign of the divisor. */                                    \
    D_INLINE T d_remainder(T x, T y) {                                                                      \
        T r = d_fmod(x, y);                                                                                 \
        return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;                                                 \
    }                                                                                                       \
    /* Exact even where x / y rounds up to an integer; the quotient comes from the remainder. */            \
    D_INLINE T d_floor_div(T x, T y) {                                                                      \
        T r = d_fmod(x, y), q = (x - r) / y;                                                                \
        q = (r != 0) & ((r < 0) != (y < 0)) ? q - 1 : q;                                                    \
        T f = d_floor(q);                                                                                   \
        f = q - f > T(0.5) ? f + 1 : f;                                                                     \
        f = q == 0 ? d_copysign(T(0), x / y) : f;                                                           \
        return y == 0 ? x / y : f;                                                                          \
    }
D_FLOAT_BASICS(float)
D_FLOAT_BASICS(double)

// Winitzki's closed form (2008, two digits), then Halley steps on erfc, which keeps the tail's accuracy.
D_INLINE double d_erfinv(double x) {
    double a = d_abs(x);
    if (!(a < 1.0)) return a == 1.0 ? d_copysign(D_INF64, x) : D_NAN64;
    if (a < 1e-8) return x * 0.886226925452758;
    double l = d_log1p(-a * a), u = 4.330746750799873 + 0.5 * l;
    double y = d_sqrt(d_sqrt(u * u - l * 6.802721088435375) - u);
    for (int i = 0; i < 3; i++) {
        double d = a < 0.5 ? d_erf(y) - a : (1.0 - a) - d_erfc(y);
        double step = d / (1.1283791670955126 * d_exp(-y * y));
        y = y - step / (1.0 + y * step);
    }
    return d_copysign(y, x);
}
D_INLINE float d_erfinv(float x) { return (float)d_erfinv((double)x); }

// Reflection for x <= 0, recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18).
D_INLINE double d_digamma(double x) {
    double r = 0.0;
    if (x == 0.0) return d_copysign(D_INF64, -x);
    if (x < 0.0) {
        double whole = d_trunc(x);
        if (whole == x) return D_NAN64;
        r = -3.14159265358979323846 / d_tan(3.14159265358979323846 * (x - whole));
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) r -= 1.0 / x;
    double z = 1.0 / (x * x), s = 1.0 / 12.0;
    s = s * z - 691.0 / 32760.0;
    s = s * z + 1.0 / 132.0;
    s = s * z - 1.0 / 240.0;
    s = s * z + 1.0 / 252.0;
    s = s * z - 1.0 / 120.0;
    s = s * z + 1.0 / 12.0;
    return r + d_log(x) - 0.5 / x - s * z;
}
D_INLINE float d_digamma(float x) { return (float)d_digamma((double)x); }

template <int bytes> struct d_unsigned_of { typedef unsigned type; };
template <> struct d_unsigned_of<8> { typedef unsigned long long type; };
// The unsigned type to compute in: never narrower than int, so that no promotion brings signed overflow back.
template <class T> using d_wide = typename d_unsigned_of<sizeof(T)>::type;

#define D_INT template <class T> D_INLINE

D_INT T d_wrap_add(T a, T b) { return (T)((d_wide<T>)a + (d_wide<T>)b); }
D_INT T d_wrap_sub(T a, T b) { return (T)((d_wide<T>)a - (d_wide<T>)b); }
D_INT T d_wrap_mul(T a, T b) { return (T)((d_wide<T>)a * (d_wide<T>)b); }
D_INT T d_wrap_neg(T a) { return (T)(0 - (d_wide<T>)a); }
D_INT T d_int_abs(T a) { return a < 0 ? d_wrap_neg(a) : a; }
D_INT T d_int_sign(T a) { return (T)(int(a > 0) - int(a < 0)); }
D_INT T d_int_min(T a, T b) { return a < b ? a : b; }
D_INT T d_int_max(T a, T b) { return a > b ? a : b; }

// The quotient -a is taken apart from the division, because the smallest number divided by -1 does not fit.
D_INT T d_idiv_trunc(T a, T b) {
    bool minus = (T)-1 < (T)0 && b == (T)-1;
    T safe = (b == 0) | minus ? (T)1 : b;
    T q = (T)(a / safe);
    return b == 0 ? (T)0 : minus ? d_wrap_neg(a) : q;
}
D_INT T d_imod_trunc(T a, T b) {
    bool minus = (T)-1 < (T)0 && b == (T)-1;
    T safe = (b == 0) | minus ? (T)1 : b;
    return (T)(a % safe);
}
D_INT T d_idiv_floor(T a, T b) {
    T q = d_idiv_trunc(a, b), r = d_imod_trunc(a, b);
    return (r != 0) & ((r < 0) != (b < 0)) ? (T)(q - 1) : q;
}
// Python's sign rule; 0 for a zero divisor.
D_INT T d_imod(T a, T b) {
    T r = d_imod_trunc(a, b);
    return (r != 0) & ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}

// A negative exponent leaves 1, -1 or 0, as integers do.
D_INT T d_ipow(T a, T b) {
    if (b < 0) return a == 1 ? a : a == (T)-1 ? (b & 1 ? a : (T)1) : (T)0;
    d_wide<T> r = 1, s = (d_wide<T>)a;
    for (unsigned long long e = (unsigned long long)b; e; e >>= 1) {
        if (e & 1) r *= s;
        s *= s;
    }
    return (T)r;
}

D_INT T d_shl(T a, T b) {
    const int width = 8 * sizeof(T);
    bool out = (b < 0) | (b >= width);
    return out ? (T)0 : (T)((d_wide<T>)a << (out ? 0 : (int)b));
}
D_INT T d_shr(T a, T b) {
    const int width = 8 * sizeof(T);
    bool out = (b < 0) | (b >= width);
    T sign = a < 0 ? (T)-1 : (T)0;
    return out ? sign : (T)(a >> (out ? 0 : (int)b));
}

// Float to integer as x86 converts: truncation, and the smallest integer for NaN and whatever does not fit. Narrow
// integers take the low bits of the 32-bit result, unsigned char those of the 64-bit one.
#define D_TO_INT(S, suffix)                                                                                       \
    D_INLINE int d_##suffix##_to_i32(S x) {                                                                       \
        return x >= (S)-2147483648.0 && x < (S)2147483648.0 ? (int)x : -2147483647 - 1;                           \
    }                                                                                                             \
    D_INLINE long long d_##suffix##_to_i64(S x) {                                                                 \
        return x >= (S)-9223372036854775808.0 && x < (S)9223372036854775808.0 ? (long long)x                      \
                                                                              : -9223372036854775807ll - 1;       \
    }                                                                                                             \
    D_INLINE short d_##suffix##_to_i16(S x) { return (short)d_##suffix##_to_i32(x); }                             \
    D_INLINE signed char d_##suffix##_to_i8(S x) { return (signed char)d_##suffix##_to_i32(x); }                  \
    D_INLINE unsigned char d_##suffix##_to_u8(S x) { return (unsigned char)d_##suffix##_to_i64(x); }              \
    D_INLINE bool d_##suffix##_to_bool(S x) { return x != 0; }
D_TO_INT(float, f32)
D_TO_INT(double, f64)

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
