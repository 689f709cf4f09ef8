// Remainders, the inverse error function, the digamma function and its derivatives, orthogonal polynomials: one text for CPUs and for devices.
#ifndef DCIR_PRELUDE_SPECIAL_H
#define DCIR_PRELUDE_SPECIAL_H

// Templates, since what d_fmod of floats is made of is compiled for those who call it.
// Python's sign rule: the remainder has the sign of the divisor.
template <class T> D_INLINE T d_remainder(T x, T y) {
    T r = d_fmod(x, y);
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}
// Exact even where x / y rounds up to an integer; the quotient comes from the remainder.
template <class T> D_INLINE T d_floor_div(T x, T y) {
    T r = d_fmod(x, y), q = (x - r) / y;
    q = (r != 0) & ((r < 0) != (y < 0)) ? q - 1 : q;
    T f = d_floor(q);
    f = q - f > T(0.5) ? f + 1 : f;
    f = q == 0 ? d_copysign(T(0), x / y) : f;
    return y == 0 ? x / y : f;
}

// Winitzki's closed form (2008, two digits), then Halley steps on erfc, which keeps the tail's accuracy.
static inline double d_erfinv(double x) {
    double a = d_abs(x);
    if (!(a < 1.0)) return a == 1.0 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
    if (a < 1e-8) return x * 0.886226925452758;
    double l = __builtin_log1p(-a * a), u = 4.330746750799873 + 0.5 * l;
    double y = __builtin_sqrt(__builtin_sqrt(u * u - l * 6.802721088435375) - u);
    for (int i = 0; i < 3; i++) {
        double d = a < 0.5 ? __builtin_erf(y) - a : (1.0 - a) - __builtin_erfc(y);
        double step = d / (1.1283791670955126 * __builtin_exp(-y * y));
        y = y - step / (1.0 + y * step);
    }
    return d_copysign(y, x);
}
D_INLINE float d_erfinv(float x) { return (float)d_erfinv((double)x); }

// Reflection for x <= 0, recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18).
static inline double d_digamma(double x) {
    double r = 0.0;
    if (x == 0.0) return __builtin_copysign(__builtin_inf(), -x);
    if (x < 0.0) {
        double whole = __builtin_trunc(x);
        if (whole == x) return __builtin_nan("");
        r = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * (x - whole));
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
    return r + __builtin_log(x) - 0.5 / x - s * z;
}
D_INLINE float d_digamma(float x) { return (float)d_digamma((double)x); }

// Hurwitz's zeta(s, q), the sum of (q + i)^-s over all i >= 0, for whole s >= 2 and q > 0: terms one by one, the rest by Euler
// and Maclaurin (DLMF 25.11.5) with terms B_2k / (2k)! * s (s + 1) ... (s + 2k - 2) * a^(1 - s - 2k).
static inline double d_zeta(double s, double q) {
    const double b[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000.0,
                        1.0 / 74724249600.0, -3617.0 / 10670622842880000.0, 43867.0 / 5109094217170944000.0};
    double sum = 0.0, a = q;
    for (; a < 10.0 + 0.6 * s; a += 1.0) {
        double term = __builtin_pow(a, -s);
        sum += term;
        if (term < sum * 0x1p-60) return sum;
    }
    double power = __builtin_pow(a, -s);
    double rest = power * a / (s - 1.0) + 0.5 * power, factor = s * power / a;
    for (int k = 0; k < 9; k++) {
        rest += b[k] * factor;
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2) / (a * a);
    }
    return sum + rest;
}

// The n-th derivative of digamma, (-1)^(n+1) n! zeta(n + 1, x) (DLMF 25.11.12), for n >= 1. Left of zero the sum runs over a
// pole: its terms there, mirrored, are a difference of two sums. At infinities and poles it is what PyTorch gives.
static inline double d_polygamma_double(double n, double x) {
    double s = n + 1.0, whole = __builtin_floor(x), value;
    if (x != x || s != s) return x + s;
    if (x == __builtin_inf()) return n == 1.0 ? 0.0 : __builtin_nan("");
    double scale = 1.0, even = __builtin_fmod(s, 2.0) == 0.0 ? 1.0 : -1.0;
    for (double k = 2.0; k <= n && scale < __builtin_inf(); k += 1.0) scale *= k;
    if (x > 0.0) {
        value = d_zeta(s, x);
    } else if (x == whole) {
        return n == 1.0 && x == -__builtin_inf() ? __builtin_nan("") : even * __builtin_inf();
    } else {
        double part = x - whole;
        value = d_zeta(s, part) + even * (d_zeta(s, whole + 1.0 - x) - d_zeta(s, 1.0 - x));
    }
    return even * scale * value;
}

// The first derivative at a negative whole number is infinite; PyTorch's formula, pi^2 / sin(pi x)^2, finds pi * x off the pole.
D_INLINE double d_polygamma(double n, double x) {
    if (n == 1.0 && x < 0.0 && x == d_floor(x) && x > -__builtin_inf()) {
        double pole = __builtin_sin(3.14159265358979323846 * x);
        return 9.86960440108935861883 / (pole * pole);
    }
    return d_polygamma_double(n, x);
}
D_INLINE float d_polygamma(float n, float x) {
    if (n == 1.0f && x < 0.0f && x == d_floor(x) && x > -D_INF) {
        float pole = d_libm_sin(3.14159265f * x);
        return 9.86960440f / (pole * pole);
    }
    return (float)d_polygamma_double(n, x);
}

D_INLINE long long d_degree(float n) { return d_f32_to_i64(n); }
D_INLINE long long d_degree(double n) { return d_f64_to_i64(n); }

// Chebyshev's polynomials of the first to the fourth kind (0 to 3) by r = 2 x q - p; inside (-1, 1) those of high degree by
// their cosines and sines, which do not lose digits with the degree.
template <int kind, class T>
static inline T d_chebyshev(T x, T degree) {
    long long n = d_degree(degree);
    if (n < 0) return T(0);
    T wide = T(n + n + 1), right = kind == 1 ? T(n + 1) : kind == 3 ? wide : T(1);
    T left = kind == 1 ? T(n + 1) : kind == 2 ? wide : T(1);
    left = n % 2 == 0 ? left : -left;
    if (d_abs(x) == T(1)) return x > T(0) ? right : left;
    if (n > (kind == 0 ? 6 : 8) && d_abs(x) < T(1)) {
        T angle = d_acos(x);
        if (kind == 0) return d_libm_cos(T(n) * angle);
        if (kind == 1) {
            T below = d_libm_sin(angle);
            return below != T(0) ? d_libm_sin(T(n + 1) * angle) / below : T(n + 1) * d_libm_cos(T(n + 1) * angle) / x;
        }
        T half = angle / T(2), turned = (T(n) + T(0.5)) * angle;
        if (kind == 2) return d_libm_sin(half) != T(1) ? d_libm_cos(turned) / d_libm_cos(half) : left;
        return d_libm_cos(half) != T(1) ? d_libm_sin(turned) / d_libm_sin(half) : x > T(0) ? right : left;
    }
    T p = T(1), q = kind == 0 ? x : kind == 1 ? x + x : kind == 2 ? x + x - T(1) : x + x + T(1);
    if (n < 2) return n == 0 ? p : q;
    for (long long k = 2; k <= n && q == q; k++) {
        T r = (x + x) * q - p;
        p = q;
        q = r;
    }
    return q;
}

// Hermite's polynomials, the physicists' (r = 2 x q - 2 (k - 1) p) and the probabilists' (r = x q - (k - 1) p).
template <int physical, class T>
static inline T d_hermite(T x, T degree) {
    long long n = d_degree(degree);
    if (n < 0) return T(0);
    if (n > (sizeof(T) == 4 ? 128 : 512)) return T(D_NAN);  // as PyTorch: beyond, they overflow nearly everywhere
    T p = T(1), q = physical ? x + x : x, step = physical ? x + x : x;
    if (n < 2) return n == 0 ? p : q;
    for (long long k = 1; k < n; k++) {
        T r = step * q - T(physical ? k + k : k) * p;
        p = q;
        q = r;
    }
    return q;
}

// Laguerre's: (k + 1) r = (2 k + 1 - x) q - k p.
template <class T>
static inline T d_laguerre(T x, T degree) {
    long long n = d_degree(degree);
    if (n < 0) return T(0);
    if (x == T(0)) return T(1);
    T p = T(1), q = T(1) - x;
    if (n < 2) return n == 0 ? p : q;
    for (long long k = 1; k < n && q == q; k++) {
        T r = ((T(k + k) + (T(1) - x)) * q - T(k) * p) / T(k + 1);
        p = q;
        q = r;
    }
    return q;
}

// Legendre's: (k + 1) r = (2 k + 1) x q - k p.
template <class T>
static inline T d_legendre(T x, T degree) {
    long long n = d_degree(degree);
    if (n < 0) return T(0);
    if (d_abs(x) == T(1)) return x > T(0) || n % 2 == 0 ? T(1) : T(-1);
    T p = T(1), q = x;
    if (n < 2) return n == 0 ? p : q;
    for (long long k = 1; k < n && q == q; k++) {
        T r = (T(k + k + 1) * x * q - T(k) * p) / T(k + 1);
        p = q;
        q = r;
    }
    return q;
}

#define D_POLYNOMIAL(name, function)                                        \
    D_INLINE float d_##name(float x, float n) { return function(x, n); }    \
    D_INLINE double d_##name(double x, double n) { return function(x, n); }
D_POLYNOMIAL(chebyshev_t, d_chebyshev<0>)
D_POLYNOMIAL(chebyshev_u, d_chebyshev<1>)
D_POLYNOMIAL(chebyshev_v, d_chebyshev<2>)
D_POLYNOMIAL(chebyshev_w, d_chebyshev<3>)
D_POLYNOMIAL(hermite_h, d_hermite<1>)
D_POLYNOMIAL(hermite_he, d_hermite<0>)
D_POLYNOMIAL(laguerre_l, d_laguerre)
D_POLYNOMIAL(legendre_p, d_legendre)

#endif
