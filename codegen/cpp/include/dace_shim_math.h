// The global functions and dace::math of Python tasklets and of symbolic expressions, on top of the prelude.
#ifndef DCIR_DACE_SHIM_MATH_H
#define DCIR_DACE_SHIM_MATH_H

// Integers compute in double, half and bfloat16 in float.
template <class T> struct d_float_of { typedef double type; };
template <> struct d_float_of<float> { typedef float type; };
template <> struct d_float_of<_Float16> { typedef float type; };
template <> struct d_float_of<dace::bfloat16> { typedef float type; };
template <class T> using d_real = typename d_float_of<T>::type;
template <class A, class B> using d_common = decltype(true ? A() : B());

// The same function in both places, for `exp(x)` and `math.exp(x)` of a Python tasklet.
#define D_MATH1(name, call)                                                                  \
    template <class T> D_INLINE auto name(T x) { return call((d_real<T>)x); }                \
    namespace dace { namespace math { using ::name; } }
#define D_MATH2(name, call)                                                                  \
    template <class A, class B> D_INLINE auto name(A x, B y) {                               \
        typedef d_real<d_common<A, B>> R;                                                    \
        return call((R)x, (R)y);                                                             \
    }                                                                                        \
    namespace dace { namespace math { using ::name; } }
D_MATH1(exp, d_exp)
D_MATH1(exp2, d_exp2)
D_MATH1(expm1, d_expm1)
D_MATH1(log, d_log)
D_MATH1(log2, d_log2)
D_MATH1(log10, d_log10)
D_MATH1(log1p, d_log1p)
D_MATH1(sqrt, d_sqrt)
D_MATH1(rsqrt, d_rsqrt)
D_MATH1(tanh, d_tanh)
D_MATH1(erf, d_erf)
D_MATH1(erfc, d_erfc)
D_MATH1(sin, d_sin)
D_MATH1(cos, d_cos)
D_MATH1(tan, d_tan)
D_MATH1(asin, d_asin)
D_MATH1(acos, d_acos)
D_MATH1(atan, d_atan)
D_MATH1(sinh, d_sinh)
D_MATH1(cosh, d_cosh)
D_MATH1(asinh, d_asinh)
D_MATH1(acosh, d_acosh)
D_MATH1(atanh, d_atanh)
D_MATH1(lgamma, d_lgamma)
D_MATH1(floor, d_floor)
D_MATH1(ceil, d_ceil)
D_MATH1(trunc, d_trunc)
D_MATH1(round, d_round)
D_MATH1(isnan, d_isnan)
D_MATH1(isinf, d_isinf)
D_MATH1(isfinite, d_isfinite)
D_MATH1(signbit, d_signbit)
D_MATH2(fmod, d_fmod)
D_MATH2(atan2, d_atan2)
D_MATH2(copysign, d_copysign)
D_MATH2(hypot, d_hypot)

template <class T> D_INLINE T abs(T x) {
    if constexpr (T(0.5) == T(0)) return d_int_abs(x);
    else return (T)d_abs((d_real<T>)x);
}
template <class T> D_INLINE T Abs(T x) { return abs(x); }
template <class T> D_INLINE int sgn(T x) { return int(T(0) < x) - int(x < T(0)); }
template <class T> D_INLINE T sign(T x) { return (T)sgn(x); }
template <class T> D_INLINE T ROUND(T x) { return (T)round(x); }
template <class T> D_INLINE T reciprocal(T x) { return T(1) / x; }

// NaN stays, as in PyTorch; any number of arguments.
template <class A> D_INLINE A min(A a) { return a; }
template <class A> D_INLINE A max(A a) { return a; }
template <class A, class B, class... C> D_INLINE auto min(A x, B y, C... more) {
    typedef d_common<A, B> T;
    T a = (T)x, b = (T)y;
    return min((a < b) | (a != a) ? a : b, more...);
}
template <class A, class B, class... C> D_INLINE auto max(A x, B y, C... more) {
    typedef d_common<A, B> T;
    T a = (T)x, b = (T)y;
    return max((a > b) | (a != a) ? a : b, more...);
}
template <class... A> D_INLINE auto Min(A... a) { return min(a...); }
template <class... A> D_INLINE auto Max(A... a) { return max(a...); }

// Division as DaCe and Python name it: int_floor and int_ceil are of sizes, hence of non-negative numbers.
template <class A, class B> D_INLINE A int_floor(A a, B b) { return (A)(a / b); }
template <class A, class B> D_INLINE A int_ceil(A a, B b) { return (A)((a + b - 1) / b); }
template <class A, class B> D_INLINE auto py_floor(A x, B y) {
    typedef d_common<A, B> T;
    if constexpr (T(0.5) == T(0)) return d_idiv_floor((T)x, (T)y);
    else return d_floor_div((d_real<T>)x, (d_real<T>)y);
}
template <class A, class B> D_INLINE auto py_mod(A x, B y) {
    typedef d_common<A, B> T;
    if constexpr (T(0.5) == T(0)) return d_imod((T)x, (T)y);
    else return d_remainder((d_real<T>)x, (d_real<T>)y);
}

template <class A, class B> D_INLINE auto bitwise_and(A a, B b) { return a & b; }
template <class A, class B> D_INLINE auto bitwise_or(A a, B b) { return a | b; }
template <class A, class B> D_INLINE auto bitwise_xor(A a, B b) { return a ^ b; }
template <class A> D_INLINE A bitwise_invert(A a) { return ~a; }
template <class A, class B> D_INLINE A left_shift(A a, B b) { return (A)(a << b); }
template <class A, class B> D_INLINE A right_shift(A a, B b) { return (A)(a >> b); }
template <class A, class B> D_INLINE d_common<A, B> IfExpr(bool test, A a, B b) { return test ? a : b; }
#define AND(x, y) ((x) && (y))
#define OR(x, y) ((x) || (y))

namespace dace {
namespace math {
static const double pi = 3.14159265358979323846;
static const double nan = __builtin_nan("");
using ::abs;
using ::max;
using ::min;

template <class T> D_INLINE T ipow(T x, unsigned n) {
    T r = 1;
    for (; n; n >>= 1) {
        r = n & 1 ? (T)(r * x) : r;
        x = (T)(x * x);
    }
    return r;
}
// An integer exponent multiplies; an integer base with a signed exponent gives a double, as DaCe types it.
template <class A, class B> D_INLINE auto pow(A x, B y) {
    if constexpr (B(0.5) == B(0)) {
        const bool is_signed = (B)-1 < (B)0;
        if constexpr (A(0.5) != A(0)) {
            A r = ipow(x, y < 0 ? 0u - (unsigned)y : (unsigned)y);
            return (A)(y < 0 ? A(1) / r : r);
        } else if constexpr (is_signed) {
            double r = ipow((double)x, y < 0 ? 0u - (unsigned)y : (unsigned)y);
            return y < 0 ? 1.0 / r : r;
        } else return ipow(x, (unsigned)y);
    } else {
        typedef d_real<d_common<A, B>> R;
        return d_pow((R)x, (R)y);
    }
}
}  // namespace math
}  // namespace dace
using dace::math::pow;

#endif
