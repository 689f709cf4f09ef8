// What tasklets call, on numbers of every type: the scalar operators that C++ lacks or defines otherwise.
#ifndef DCIR_TASKLETS
#define DCIR_TASKLETS
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#define DCIR_FN1(name, expr) template <class T> static inline T dcir_##name(T x) { return T(expr); }
#define DCIR_FN2(name, expr) template <class T> static inline T dcir_##name(T x, T y) { return T(expr); }
static inline double dcir_inf() { return std::numeric_limits<double>::infinity(); }
static inline double dcir_nan() { return std::numeric_limits<double>::quiet_NaN(); }
template <class T> static inline bool dcir_isnan(T x) { return x != x; }
template <class T> static inline bool dcir_isinf(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::abs(x) == std::numeric_limits<T>::infinity();
  return false;
}
template <class T> static inline bool dcir_isfinite(T x) { return !dcir_isnan(x) && !dcir_isinf(x); }
// GCC 12 fails on vectors of std::signbit of what was shifted into place as bits.
template <class T> static inline bool dcir_signbit(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return std::bit_cast<std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>(x) >> (8 * sizeof(T) - 1);
  else return x < 0;
}
DCIR_FN1(exp, std::exp(x)) DCIR_FN1(exp2, std::exp2(x)) DCIR_FN1(expm1, std::expm1(x)) DCIR_FN1(log, std::log(x))
DCIR_FN1(log2, std::log2(x)) DCIR_FN1(log10, std::log10(x)) DCIR_FN1(log1p, std::log1p(x)) DCIR_FN1(tanh, std::tanh(x))
DCIR_FN1(erf, std::erf(x)) DCIR_FN1(erfc, std::erfc(x)) DCIR_FN1(sin, std::sin(x)) DCIR_FN1(cos, std::cos(x))
DCIR_FN1(tan, std::tan(x)) DCIR_FN1(asin, std::asin(x)) DCIR_FN1(acos, std::acos(x)) DCIR_FN1(atan, std::atan(x))
DCIR_FN1(sinh, std::sinh(x)) DCIR_FN1(cosh, std::cosh(x)) DCIR_FN1(asinh, std::asinh(x)) DCIR_FN1(acosh, std::acosh(x))
DCIR_FN1(atanh, std::atanh(x)) DCIR_FN1(sqrt, std::sqrt(x)) DCIR_FN1(rsqrt, 1 / std::sqrt(double(x)))
DCIR_FN1(reciprocal, T(1) / x) DCIR_FN1(lgamma, std::lgamma(x)) DCIR_FN1(sigmoid, 1 / (1 + std::exp(-double(x))))
DCIR_FN2(atan2, std::atan2(x, y)) DCIR_FN2(hypot, std::hypot(x, y)) DCIR_FN2(nextafter, std::nextafter(x, y))
DCIR_FN2(copysign, std::copysign(x, y))
#define DCIR_ROUND(name, fn) template <class T> static inline T dcir_##name(T x) { \
  if constexpr (std::is_floating_point_v<T>) return fn(x); else return x; }
DCIR_ROUND(floor, std::floor) DCIR_ROUND(ceil, std::ceil) DCIR_ROUND(trunc, std::trunc) DCIR_ROUND(round, std::rint)
DCIR_FN1(abs, x < 0 || (x == 0 && dcir_signbit(x)) ? -x : x)
DCIR_FN1(sign, (x > 0) - (x < 0))
DCIR_FN2(min, x != x ? x : y != y ? y : x < y ? x : y) DCIR_FN2(max, x != x ? x : y != y ? y : x > y ? x : y)
DCIR_FN2(fmin, x != x ? y : y != y ? x : x < y ? x : y) DCIR_FN2(fmax, x != x ? y : y != y ? x : x > y ? x : y)
DCIR_FN2(idiv_trunc, y == 0 ? 0 : y == T(-1) ? T(0 - (unsigned long long)x) : x / y)
DCIR_FN2(idiv_floor, y == 0 ? 0 : y == T(-1) && std::is_signed_v<T> ? T(0 - (unsigned long long)x)
                     : x / y - (x % y != 0 && (x < 0) != (y < 0)))
template <class T> static inline T dcir_fmod(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) return std::fmod(x, y);
  else return y == 0 || (y == T(-1) && std::is_signed_v<T>) ? 0 : x % y;
}
template <class T> static inline T dcir_mod(T x, T y) {
  if constexpr (!std::is_floating_point_v<T>) if (y == 0) return 0;
  T r = dcir_fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
template <class T> static inline T dcir_floor_div(T x, T y) {
  if constexpr (!std::is_floating_point_v<T>) return dcir_idiv_floor(x, y);
  else {
    if (y == 0) return x / y;
    T r = std::fmod(x, y), q = (x - r) / y;
    if (r != 0 && (r < 0) != (y < 0)) q -= 1;
    if (q == 0) return std::copysign(T(0), x / y);
    T f = std::floor(q);
    return q - f > T(0.5) ? f + 1 : f;
  }
}
template <class T> static inline T dcir_pow(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) return std::pow(x, y);
  else {
    if (y < 0) return x == 1 ? 1 : x == T(-1) ? (y % 2 == 0 ? 1 : -1) : 0;
    unsigned long long r = 1, b = (unsigned long long)x, e = (unsigned long long)y;
    for (; e; e >>= 1, b *= b) if (e & 1) r *= b;
    return T(r);
  }
}
template <class T> static inline T dcir_shl(T x, T y) {
  return y < 0 || (unsigned long long)y >= 8 * sizeof(T) ? 0 : T((unsigned long long)x << y);
}
template <class T> static inline T dcir_shr(T x, T y) {
  return y < 0 || (unsigned long long)y >= 8 * sizeof(T) ? (x < 0 ? -1 : 0) : T(x >> y);
}
template <class T> static inline T dcir_digamma(T v) {
  double x = v, r = 0, pi = 3.14159265358979323846;
  if (x == 0) return T(std::copysign(dcir_inf(), -x));
  if (x < 0) {
    if (x == std::trunc(x)) return T(dcir_nan());
    r = -pi / std::tan(pi * (x - std::trunc(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) r -= 1 / x;
  double z = 1 / (x * x), c[] = {1. / 12, -691. / 32760, 1. / 132, -1. / 240, 1. / 252, -1. / 120, 1. / 12}, s = 0;
  for (double k : c) s = s * z + k;
  return T(r + std::log(x) - 0.5 / x - s * z);
}
template <class T> static inline T dcir_polygamma(T n, T v) {
  double x = v, s = double(n) + 1, sign = std::fmod(s, 2) == 0 ? 1 : -1, sum = 0, pi = 3.14159265358979323846;
  if (x != x) return v;
  if (x == dcir_inf() || x == -dcir_inf()) return T(n == 1 ? (x > 0 ? 0 : dcir_nan()) : x > 0 ? dcir_nan() : sign * dcir_inf());
  if (x <= 0 && x == std::floor(x)) {
    T pole = std::sin(T(pi) * v);
    return x == 0 || n != 1 ? T(sign * dcir_inf()) : T(pi * pi) / (pole * pole);
  }
  double low = x > -1000 ? x : x - std::ceil(x + 1000);  // far terms are below the last digit
  for (; low < 40 + 2 * s; low += 1) sum += std::pow(low, -s);
  sum += std::pow(low, 1 - s) / (s - 1) + std::pow(low, -s) / 2 + s * std::pow(low, -s - 1) / 12
         - s * (s + 1) * (s + 2) * std::pow(low, -s - 3) / 720 + s * (s + 1) * (s + 2) * (s + 3) * (s + 4) * std::pow(low, -s - 5) / 30240;
  return T(sign * std::tgamma(s) * sum);
}
#define DCIR_POLYNOMIAL(name, at_one, at_minus_one, first, next) template <class T> static inline T dcir_##name(T x, T degree) { \
  bool known = degree >= T(-9e18) && degree < T(9e18); \
  int64_t n = known ? int64_t(degree) : -1; \
  double sign = n % 2 ? -1 : 1; (void)sign; \
  if (n < 0) return 0; \
  if (x == 1 && (at_one)) return T(at_one); \
  if (x == -1 && (at_minus_one)) return T(at_minus_one); \
  T p = 1, q = first; \
  if (n == 0) return p; \
  for (int64_t k = 1; k < n && q == q; k++) { T r = next; p = q; q = r; } \
  return q; }
DCIR_POLYNOMIAL(chebyshev_t, 1, sign, x, 2 * x * q - p)
DCIR_POLYNOMIAL(chebyshev_u, n + 1, sign * (n + 1), 2 * x, 2 * x * q - p)
DCIR_POLYNOMIAL(chebyshev_v, 1, sign * (2 * n + 1), 2 * x - 1, 2 * x * q - p)
DCIR_POLYNOMIAL(chebyshev_w, 2 * n + 1, sign, 2 * x + 1, 2 * x * q - p)
DCIR_POLYNOMIAL(legendre_p, 1, sign, x, ((2 * k + 1) * x * q - k * p) / (k + 1))
DCIR_POLYNOMIAL(laguerre_l, 0, 0, 1 - x, ((2 * k + (1 - x)) * q - k * p) / (k + 1))
#define DCIR_HERMITE_LIMIT(fall) (n > (sizeof(T) == 4 ? 128 : 512) ? T(dcir_nan()) : T(fall))
DCIR_POLYNOMIAL(hermite_h, 0, 0, DCIR_HERMITE_LIMIT(2 * x), 2 * x * q - 2 * k * p)
DCIR_POLYNOMIAL(hermite_he, 0, 0, DCIR_HERMITE_LIMIT(x), x * q - k * p)
template <class T> static inline T dcir_erfinv(T v) {
  double x = v, a = std::abs(x);
  if (!(a < 1)) return T(a == 1 ? x * dcir_inf() : dcir_nan());
  double low = 0, high = 6.5;
  for (int i = 0; i < 100; i++) {
    double mid = (low + high) / 2;
    ((a < 0.5 ? std::erf(mid) < a : std::erfc(mid) > 1 - a) ? low : high) = mid;
  }
  return T(std::copysign((low + high) / 2, x));
}
template <class T> static inline T dcir_fma(T x, T y, T z) { return x * y + z; }
// Whether an index lies in its tensor. The former says that a user's index may not; from here it cannot be reported.
template <class T> static inline bool dcir_checked(T x, int64_t extent) { return x >= 0 && x < T(extent); }
template <class T> static inline bool dcir_within(T x, int64_t extent) { return x >= 0 && x < T(extent); }
#define DCIR_TO(name, type, wide) template <class T> static inline type dcir_to_##name(T x) { \
  bool fits = x >= T(std::numeric_limits<wide>::min()) && x < -T(std::numeric_limits<wide>::min()); \
  return type(fits ? wide(x) : std::numeric_limits<wide>::min()); }
DCIR_TO(i64, int64_t, int64_t) DCIR_TO(i32, int32_t, int32_t) DCIR_TO(i16, int16_t, int32_t)
DCIR_TO(i8, int8_t, int32_t) DCIR_TO(u8, uint8_t, int32_t)
static inline float dcir_from_bf16(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }
static inline uint16_t dcir_to_bf16(float x) {
  uint32_t b = std::bit_cast<uint32_t>(x);
  return x != x ? 0x7FC0 : uint16_t((b + 0x7FFF + ((b >> 16) & 1)) >> 16);
}
static inline float dcir_from_f16(uint16_t b) { return float(std::bit_cast<dace::float16>(b)); }
static inline uint16_t dcir_to_f16(float x) { return std::bit_cast<uint16_t>(dace::float16(x)); }
#endif
