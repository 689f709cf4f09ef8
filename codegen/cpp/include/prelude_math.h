// Exponentials, logarithms, powers, error, gamma and trigonometric functions of the kernels' prelude, and remainders.
//
// Every float polynomial is a minimax fit of this project: Lawson's reweighted least squares (C. L. Lawson, 1961) on
// 1500 Chebyshev points, or Remez's exchange on 800 (angles, powers, gamma), against 40-digit references, coefficients
// rounded to float one by one with a refit of the rest. Float versions are branch-free so that GCC vectorises them, or
// have two ways (prelude_lanes.h); each is within 2 ulp over all floats, gamma's right of 0 (see the tests).
#ifndef DCIR_PRELUDE_MATH_H
#define DCIR_PRELUDE_MATH_H

#include "prelude_lanes.h"

// Adding 1.5 * 2^23 rounds a small float to an integer that then sits in the low mantissa bits.
#define D_SHIFT 12582912.0f

// 2^n for n in [-126, 127]; any n gives some float, as a NaN argument needs.
D_INLINE float d_pow2(int n) { return d_from_bits((unsigned)(n + 127) << 23); }

// exp(x) = (1 + p) * 2^n for |x| < 200. ln 2 is split 15 + 24 bits: n times its head is exact without FMA as well.
D_INLINE float d_exp_split(float x, int &n) {
    float t = x * 0x1.715476p+0f + D_SHIFT;
    n = (int)(d_bits(t) - d_bits(D_SHIFT));
    float k = t - D_SHIFT;
    float r = x - k * 0x1.62e4p-1f - k * 0x1.7f7d1cp-20f;
    float q = 0x1.9e77dap-13f;
    q = q * r + 0x1.6d3a5ep-10f;
    q = q * r + 0x1.1112d6p-7f;
    q = q * r + 0x1.5554f8p-5f;
    q = q * r + 0x1.555554p-3f;
    q = q * r + 0.5f;
    return q * (r * r) + r;
}

// Two factors of the scale, so that results below 2^-126 round once and results above 2^128 become infinite.
D_INLINE float d_scale(float x, int n) { return x * d_pow2(n >> 1) * d_pow2(n - (n >> 1)); }

D_INLINE float d_exp(float x) {
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    int n;
    float p = d_exp_split(c, n);
    return d_scale(1.0f + p, n);
}

// 2^(r + n) for |r| <= 1/2.
D_INLINE float d_exp2_scaled(float r, int n) {
    float q = 0x1.417284p-13f;
    q = q * r + 0x1.5f0976p-10f;
    q = q * r + 0x1.3b2ddap-7f;
    q = q * r + 0x1.c6af7ap-5f;
    q = q * r + 0x1.ebfbdcp-3f;
    q = q * r + 0x1.62e43p-1f;
    return d_scale(q * r + 1.0f, n);
}

D_INLINE float d_exp2(float x) {
    float c = x < -151.0f ? -151.0f : x;
    c = c > 129.0f ? 129.0f : c;
    float t = c + D_SHIFT;
    int n = (int)(d_bits(t) - d_bits(D_SHIFT));
    return d_exp2_scaled(c - (t - D_SHIFT), n);
}

D_INLINE float d_expm1(float x) {
    float c = x < -20.0f ? -20.0f : x;
    c = c > 89.0f ? 89.0f : c;
    int n;
    float p = d_exp_split(c, n), s = d_pow2(n - 1);  // half the scale: n reaches 128
    float r = 2.0f * (p * s + (s - 0.5f));
    return d_abs(x) < 0x1p-24f ? x : r;
}

// Below 0.6 an odd polynomial, above it 1 - 2 / (exp(2x) + 1).
D_INLINE float d_tanh(float x) {
    float z = x * x, s = -0x1.828776p-8f;
    s = s * z + 0x1.54c3c2p-6f;
    s = s * z - 0x1.b89abap-5f;
    s = s * z + 0x1.1109bep-3f;
    s = s * z - 0x1.55553ep-2f;
    s = s * (z * x) + x;
    float a = d_abs(x);
    a = a > 10.0f ? 10.0f : a;
    int n;
    float p = d_exp_split(2.0f * a, n), w = d_pow2(n);
    float r = 1.0f - 2.0f / (p * w + (w + 1.0f));
    return d_copysign(a < 0.6f ? s : r, x);  // the polynomial loses the sign of -0
}

// 1 / (1 + exp(-x)), both sides of the bar times 2^-64: results below 2^-126 have finite divisors. What 1 + 2^n rounds off goes to
// the smaller summand.
D_INLINE float d_sigmoid(float x) {
    float c = x > 40.0f ? 40.0f : x;
    c = c < -104.0f ? -104.0f : c;
    int n;
    float p = d_exp_split(-c, n), w = d_pow2(n - 64), t = w + 0x1p-64f;
    return 0x1p-64f / ((p * w + (0x1p-64f - (t - w))) + t);
}

// x = 2^e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); x positive and finite, else some numbers.
D_INLINE float d_log_split(float x, int &e) {
    bool tiny = x < 0x1p-126f;
    unsigned b = d_bits(tiny ? x * 0x1p23f : x) - 0x3f3504f3u;
    e = ((int)b >> 23) - (tiny ? 23 : 0);
    return d_from_bits((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

D_INLINE float d_log_special(float x, float r) {
    r = x < D_INF ? r : x;  // infinity and NaN stay
    r = x == 0.0f ? -D_INF : r;
    return x < 0.0f ? D_NAN : r;
}

// log(2^e * (1 + f)) with the terms summed from the smallest.
D_INLINE float d_log_core(float f, int e) {
    float q = 0x1.147f1cp-4f, k = (float)e, f2 = f * f;
    q = q * f - 0x1.de183cp-4f;
    q = q * f + 0x1.e6c6ep-4f;
    q = q * f - 0x1.fc264ep-4f;
    q = q * f + 0x1.233b22p-3f;
    q = q * f - 0x1.555c4cp-3f;
    q = q * f + 0x1.99a47ap-3f;
    q = q * f - 0x1.000006p-2f;
    q = q * f + 0x1.555548p-2f;
    q = q * f - 0.5f;
    return k * 0x1.62e4p-1f + (f + (f2 * q + k * 0x1.7f7d1cp-20f));
}

D_INLINE float d_log(float x) {
    int e;
    float f = d_log_split(x, e);
    return d_log_special(x, d_log_core(f, e));
}

// The rounding error of 1 + x enters the reduced argument, where it is still exact to first order.
D_INLINE float d_log1p(float x) {
    float u = 1.0f + x, c = x - (u - 1.0f);
    int e;
    float f = d_log_split(u, e);
    f = f + c * d_pow2(-(e > 64 ? 64 : e));
    float r = d_log_special(u, d_log_core(f, e));
    return d_abs(x) < 0x1p-24f ? x : r;
}

D_INLINE float d_log2(float x) {
    int e;
    float f = d_log_split(x, e), q = -0x1.c39bb6p-4f;
    q = q * f + 0x1.7f2818p-3f;
    q = q * f - 0x1.87f7eap-3f;
    q = q * f + 0x1.a2c9dcp-3f;
    q = q * f - 0x1.eaa24ap-3f;
    q = q * f + 0x1.277f44p-2f;
    q = q * f - 0x1.715afep-2f;
    q = q * f + 0x1.ec7094p-2f;
    q = q * f - 0x1.71547p-1f;
    float low = f * 0x1.4ae0cp-26f + q * (f * f);
    return d_log_special(x, (float)e + (f * 0x1.715476p+0f + low));
}

D_INLINE float d_log10(float x) {
    int e;
    float f = d_log_split(x, e), k = (float)e, q = -0x1.10d116p-5f;
    q = q * f + 0x1.cd1faap-5f;
    q = q * f - 0x1.d78532p-5f;
    q = q * f + 0x1.f848fp-5f;
    q = q * f - 0x1.276ab6p-4f;
    q = q * f + 0x1.63d074p-4f;
    q = q * f - 0x1.bcbf5p-4f;
    q = q * f + 0x1.287a7p-3f;
    q = q * f - 0x1.bcb7aap-3f;
    float low = q * (f * f) + (k * 0x1.3509f8p-18f - f * 0x1.5b235ep-27f);
    return d_log_special(x, k * 0x1.344p-2f + (f * 0x1.bcb7b2p-2f + low));
}

// Below 1 an odd polynomial, above it 1 - exp(-g) with g fitted to -log(erfc).
D_INLINE float d_erf(float x) {
    float z = x * x, s = 0x1.4771fcp-14f;
    s = s * z - 0x1.a3515ep-11f;
    s = s * z + 0x1.53f224p-8f;
    s = s * z - 0x1.b7f71ap-6f;
    s = s * z + 0x1.ce2ce6p-4f;
    s = s * z - 0x1.81273ep-2f;
    s = s * z + 0x1.06eba8p-3f;
    s = s * x + x;
    float a = d_abs(x);
    a = a > 3.95f ? 3.95f : a;
    float g = 0x1.6c07fep-16f;
    g = g * a - 0x1.ceee9ep-12f;
    g = g * a + 0x1.139872p-8f;
    g = g * a - 0x1.9d0b56p-6f;
    g = g * a + 0x1.bc189ap-4f;
    g = g * a + 0x1.4434f6p-1f;
    g = g * a + 0x1.212c2cp+0f;
    g = g * a - 0x1.8b3e8ep-13f;
    int n;
    float p = d_exp_split(-g, n), w = d_pow2(n);
    return a < 1.0f ? s : d_copysign(1.0f - (p * w + w), x);
}

// x * 2/pi mod 4 for any float, in double and without a branch: n is the nearest integer (mod 4), the result the
// remainder times pi/2. 2/pi enters in pieces of 29, 29 and 53 bits, so the first two products are exact. Above 2^50
// x is 2^g times an integer below 2^50, and 2^g * 2/pi is stored mod 4 (Payne and Hanek, 1983, with four windows
// instead of a bit string).
D_INLINE float d_trig_reduce(float x, int &n) {
    float a = d_abs(x);
    bool w1 = a >= 0x1p50f, w2 = a >= 0x1p77f, w3 = a >= 0x1p104f;
    double y = (double)(x * (w3 ? 0x1p-81f : w2 ? 0x1p-54f : w1 ? 0x1p-27f : 1.0f));
    // 2^g * 2/pi mod 4 for g = 81, 54, 27, 0: head, middle, tail.
    double h = w3 ? -0x1.505c15ap+0 : w2 ? 0x1.4a7f09ep+0 : w1 ? -0x1.1b1bbecp-1 : 0x1.45f306cp-1;
    double m = w3 ? 0x1.377036ep-29 : w2 ? -0x1.4170566p-29 : w1 ? 0x1.29fc276p-29 : 0x1.c9c882ap-29;
    double l = w3 ? -0x1.d6a66c3bc6fbep-59 : w2 ? 0x1.bb81b6c52b328p-59 : w1 ? -0x1.05c1596447e49p-58 : 0x1.4fe13abe8fa9ap-59;
    double p = y * h, q = y * m;
    p = p - 4.0 * d_round(p * 0.25);
    q = q - 4.0 * d_round(q * 0.25);
    double t = p + q + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer kept in the low bits
    n = (int)d_bits(t);
    double k = t - 6755399441055744.0;
    return (float)(((p - k) + q + y * l) * 0x1.921fb54442d18p+0);
}

D_INLINE float d_sin_kernel(float r) {
    float z = r * r, s = 0x1.7c3226p-19f;
    s = s * z - 0x1.a0595ep-13f;
    s = s * z + 0x1.111174p-7f;
    s = s * z - 0x1.555556p-3f;
    return s * (z * r) + r;
}

D_INLINE float d_cos_kernel(float r) {
    float z = r * r, c = -0x1.36147cp-22f;
    c = c * z + 0x1.a071b6p-16f;
    c = c * z - 0x1.6c175ep-10f;
    c = c * z + 0x1.555556p-5f;
    return c * (z * z) - (0.5f * z) + 1.0f;
}

// sin(r + n * pi/2) for |r| <= pi/4.
D_INLINE float d_sin_quadrant(float r, int n) {
    float v = n & 1 ? d_cos_kernel(r) : d_sin_kernel(r);
    return d_from_bits(d_bits(v) ^ ((unsigned)(n & 2) << 30));
}

// x less the nearest multiple n of pi/2, for |x| < 2^20: with fused operations the first product is exact, and the third rounds last.
D_INLINE float d_trig_reduce_near(float x, int &n) {
    float t = x * 0x1.45f306p-1f + D_SHIFT, k = t - D_SHIFT;
    n = (int)d_bits(t);
    return __builtin_fmaf(k, 0x1.ee59dap-50f, __builtin_fmaf(k, 0x1.777a5cp-25f, __builtin_fmaf(k, -0x1.921fb6p+0f, x)));
}

struct d_trig_ways {
    D_INLINE bool rare(float x, float) { return !(d_abs(x) < 0x1p20f); }
};
struct d_sin_ways : d_trig_ways {
    D_INLINE float of(float x, float r, int n) {
        float v = d_sin_quadrant(r, n);
        return d_abs(x) < 0x1p-12f ? x : v;
    }
    D_INLINE float usual(float x, float) {
        int n;
        float r = d_trig_reduce_near(x, n);
        return of(x, r, n);
    }
    D_INLINE float always(float x, float) {
        int n;
        float r = d_trig_reduce(x, n);
        return of(x, r, n);
    }
};
struct d_cosine_ways : d_trig_ways {
    D_INLINE float usual(float x, float) {
        int n;
        float r = d_trig_reduce_near(x, n);
        return d_sin_quadrant(r, n + 1);
    }
    D_INLINE float always(float x, float) {
        int n;
        float r = d_trig_reduce(x, n);
        return d_sin_quadrant(r, n + 1);
    }
};
D_LANES(sin, sinf, "v", D_ONE)
D_LANES(cosine, cosf, "v", D_ONE)
// Of the sine's own argument GCC would ask for both in one call, which no vector has; + 0 makes another of it and changes no cosine.
template <class F = float> D_INLINE float d_cos(float x) { return d_cosine(F(x + 0.0f)); }

// While the quotient is below 2^23 its rounded value is the whole one or 1 above it, and either leaves a remainder that is a float.
struct d_fmod_ways {
    D_INLINE bool rare(float x, float y) { return !(d_abs(x) / d_abs(y) < 0x1p23f); }
    D_INLINE float usual(float x, float y) {
        float a = d_abs(x), b = d_abs(y);
        float r = __builtin_fmaf(-d_trunc(a / b), b, a);
        r = r < 0.0f ? r + b : r;
        return d_copysign(a < b ? a : r, x);  // an infinite b times 0 is NaN
    }
    D_INLINE float always(float x, float y) { return (float)__builtin_fmod((double)x, (double)y); }
};
D_LANES(fmod, fmodf, "vv", D_TWO)
D_INLINE double d_fmod(double x, double y) { return __builtin_fmod(x, y); }

// atan(t) for t in [0, 1].
D_INLINE float d_atan_kernel(float t) {
    float z = t * t, q = -0x1.d36692p-10f;
    q = q * z + 0x1.64297cp-7f;
    q = q * z - 0x1.fd80b6p-6f;
    q = q * z + 0x1.da2acp-5f;
    q = q * z - 0x1.580932p-4f;
    q = q * z + 0x1.c08c5p-4f;
    q = q * z - 0x1.242086p-3f;
    q = q * z + 0x1.9991e4p-3f;
    q = q * z - 0x1.55553ep-2f;
    return q * (z * t) + t;
}

D_INLINE float d_atan(float x) {
    float a = d_abs(x), v = d_atan_kernel(a > 1.0f ? 1.0f / a : a);
    return d_copysign(a > 1.0f ? 0x1.921fb6p+0f - (v + 0x1.777a5cp-25f) : v, x);
}

// The angle in the first octant, then 0, pi/2 or pi plus or less it.
D_INLINE float d_atan2(float y, float x) {
    float a = d_abs(x), b = d_abs(y);
    bool steep = b > a, left = d_bits(x) >> 31 != 0;
    float high = steep ? b : a, low = steep ? a : b, t = low / high;
    t = low == high ? 1.0f : t;  // both may be infinite
    t = high == 0.0f ? 0.0f : t;
    float v = d_atan_kernel(t);
    float whole = steep ? 0x1.921fb6p+0f : left ? 0x1.921fb6p+1f : 0.0f;
    float rest = steep ? -0x1.777a5cp-25f : left ? -0x1.777a5cp-24f : 0.0f;
    float r = whole + (rest + (steep != left ? -v : v));
    r = d_copysign(r, y);
    return (x != x) | (y != y) ? D_NAN : r;
}
D_INLINE double d_atan2(double y, double x) { return __builtin_atan2(y, x); }

// log2(a) for a positive, finite a, to 2^-36 of it.
D_INLINE double d_log2_wide(float a) {
    int e;
    double f = (double)d_log_split(a, e), q = 0x1.3ce95dea30dc6p-4;
    q = q * f - 0x1.24892900914eap-3;
    q = q * f + 0x1.2871d0107f31ap-3;
    q = q * f - 0x1.252f26e62dcbfp-3;
    q = q * f + 0x1.45291a2482624p-3;
    q = q * f - 0x1.714172b770e19p-3;
    q = q * f + 0x1.a63f44717e6f8p-3;
    q = q * f - 0x1.ec72b5808780bp-3;
    q = q * f + 0x1.277651fb93e14p-2;
    q = q * f - 0x1.71547097d6358p-2;
    q = q * f + 0x1.ec709ebb96e61p-2;
    q = q * f - 0x1.715476565d087p-1;
    q = q * f + 0x1.71547652a1e9bp+0;
    return q * f + (double)e;
}

// 2^(y log2 |x|), with the logarithm and its product in double; infinities and zeros by their own rules, as IEEE 754's pow has them.
D_INLINE float d_pow_of(float x, float y) {
    float a = d_abs(x);
    double t = (double)y * d_log2_wide(a);
    t = t < -160.0 ? -160.0 : t;
    t = t > 160.0 ? 160.0 : t;
    double m = t + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer kept in the low bits
    float v = d_exp2_scaled((float)(t - (m - 6755399441055744.0)), (int)d_bits(m));
    bool whole = d_trunc(y) == y, odd = whole & (d_trunc(y * 0.5f) != y * 0.5f);
    v = (a == 0.0f) | (a == D_INF) ? ((y < 0.0f) == (a == 0.0f) ? D_INF : 0.0f) : v;
    v = odd ? d_copysign(v, x) : v;
    v = (x < 0.0f) & (a < D_INF) & !whole ? D_NAN : v;
    v = (x != x) | (y != y) ? D_NAN : v;
    return (y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (d_abs(y) == D_INF)) ? 1.0f : v;
}

// Next to its zeros at 1 and 2 a multiple of the distance to them, below 1/2 by lgamma(1 + a) = lgamma(a) + log(a), from 3 on Stirling's
// series; left of 0 by reflection, lgamma(x) + lgamma(-x) = -log(|x| sin(pi |x|) / pi). What cancels is in double.
D_INLINE float d_lgamma(float x) {
    float a = d_abs(x), y = a - (a < 0.5f ? 0.0f : a < 1.5f ? 1.0f : 2.0f);
    float p = -0x1.4350e2p-3f;
    p = p * y + 0x1.70836ap-3f;
    p = p * y - 0x1.0c02e4p-4f;
    p = p * y + 0x1.0af612p-4f;
    p = p * y - 0x1.d53668p-4f;
    p = p * y + 0x1.0c8cb2p-3f;
    p = p * y - 0x1.26bedap-3f;
    p = p * y + 0x1.5a616ep-3f;
    p = p * y - 0x1.a8b81ap-3f;
    p = p * y + 0x1.1516b4p-2f;
    float q = 0x1.a00f1ap-15f;
    q = q * y - 0x1.cf3f8cp-13f;
    q = q * y + 0x1.1bcdecp-11f;
    q = q * y - 0x1.3bc1cap-10f;
    q = q * y + 0x1.7a0b7p-9f;
    q = q * y - 0x1.e3d62p-8f;
    q = q * y + 0x1.51345p-6f;
    bool one = a < 1.5f;
    double near = (double)(one ? p : q), d = (double)y;
    near = near * d + (one ? -0x1.9a4d652f7ed69p-2 : -0x1.13e033552b7a8p-4);
    near = near * d + (one ? 0x1.a51a620e8a573p-1 : 0x1.4a34cb4c39d3cp-2);
    near = (near * d + (one ? -0x1.2788cfbdc5e69p-1 : 0x1.b0ee60909ad7ap-2)) * d;
    float u = 1.0f / a, z = u * u, s = -0x1.b89d9ap-12f;
    s = s * z + 0x1.981458p-11f;
    s = s * z - 0x1.6c051ep-9f;
    s = s * z + 0x1.555554p-4f;
    double wide = (double)a, l = d_log2_wide(a) * 0x1.62e42fefa39efp-1;
    double far = ((wide - 0.5) * l - wide) + (0x1.d67f1c864beb5p-1 + (double)(s * u));
    double right = a < 0.5f ? near - l : a < 3.0f ? near : far;
    float r = d_abs(a - d_round(a)), w = r * r, g = 0x1.94f392p-6f;
    g = g * w - 0x1.86071ep-3f;
    g = g * w + 0x1.9f9938p-1f;
    g = g * w - 0x1.a51a5ap+0f;
    g = g * w + 1.0f;
    double left = -(d_log2_wide(r * g) * 0x1.62e42fefa39efp-1) - l - right;
    float v = (float)(x < 0.0f ? left : right) + 0.0f;  // the polynomial gives -0 at 1
    v = (a == D_INF) | (a == 0.0f) | ((x < 0.0f) & (r == 0.0f)) ? D_INF : v;
    return x != x ? x : v;
}

#undef D_SHIFT

// Double versions, and the float functions that networks seldom use, are the C library's.
#define D_LIBM_DOUBLE(name) \
    D_INLINE double d_##name(double x) { return __builtin_##name(x); }
D_LIBM_DOUBLE(exp)
D_LIBM_DOUBLE(exp2)
D_LIBM_DOUBLE(expm1)
D_LIBM_DOUBLE(log)
D_LIBM_DOUBLE(log2)
D_LIBM_DOUBLE(log10)
D_LIBM_DOUBLE(log1p)
D_LIBM_DOUBLE(tanh)
D_LIBM_DOUBLE(erf)
D_LIBM_DOUBLE(sin)
D_LIBM_DOUBLE(cos)
D_LIBM_DOUBLE(atan)
D_LIBM_DOUBLE(lgamma)
// What is next to poles, and in loops that are no vectors'.
D_INLINE double d_libm_sin(double x) { return __builtin_sin(x); }
D_INLINE double d_libm_cos(double x) { return __builtin_cos(x); }
D_INLINE float d_libm_sin(float x) { return (float)__builtin_sin((double)x); }
D_INLINE float d_libm_cos(float x) { return (float)__builtin_cos((double)x); }
D_INLINE double d_sigmoid(double x) {
    double e = d_exp(-d_abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
D_UNARY(d_erfc, __builtin_erfc)
D_UNARY(d_tan, __builtin_tan)
D_UNARY(d_asin, __builtin_asin)
D_UNARY(d_acos, __builtin_acos)
D_UNARY(d_sinh, __builtin_sinh)
D_UNARY(d_cosh, __builtin_cosh)
D_UNARY(d_asinh, __builtin_asinh)
D_UNARY(d_acosh, __builtin_acosh)
D_UNARY(d_atanh, __builtin_atanh)

// Without errno GCC makes sqrt(x) of pow(x, 0.5), which is NaN in the place of inf at -inf, and -0.0 in that of 0.0 at -0.0.
#define D_POW(T, general)                                                                                  \
    D_INLINE T d_pow(T x, T y) {                                                                           \
        if (__builtin_constant_p(y) && y == (T)0.5) return x == -(T)D_INF ? -x : d_sqrt(x) + (T)0;         \
        return general(x, y);                                                                              \
    }
D_POW(float, d_pow_of)
D_POW(double, __builtin_pow)

#endif
