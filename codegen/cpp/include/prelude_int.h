// What of integers is C++'s own alone: choices that become vectors, 16-bit floats by their bits, and counter-based random numbers.
#ifndef DCIR_PRELUDE_INT_H
#define DCIR_PRELUDE_INT_H

// a or b, of 4 or 8 bytes, by their bits: both are computed, so that loops with it become vectors where a choice would be a branch.
D_INT T d_pick(bool first, T a, T b) {
    d_wide<T> x, y;
    __builtin_memcpy(&x, &a, sizeof a);
    __builtin_memcpy(&y, &b, sizeof b);
    x = y ^ ((x ^ y) & (0 - (d_wide<T>)first));
    __builtin_memcpy(&a, &x, sizeof a);
    return a;
}

// bfloat16 is the upper half of a float; rounding is to nearest even, NaN stays NaN.
D_INLINE float d_bf16_to_f32(bf16_t h) { return d_from_bits((unsigned)h << 16); }
D_INLINE bf16_t d_f32_to_bf16(float x) {
    unsigned b = d_bits(x), r = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return (bf16_t)(x != x ? 0x7fc0u : r);
}

// Elements of _Float16 in memory, by their bits: of loads of the type itself GCC 12 makes vectors of 8 bytes at best.
typedef unsigned short d_f16_bits __attribute__((may_alias));

// IEEE half on its bits, as GCC 12 does not vectorise conversions of _Float16. The exponent moves by addition; a half without
// one gets one, and what that adds is taken off, which works where denormal numbers are zeros, too. On the way back adding 0.5
// rounds what becomes denormal.
D_INLINE float d_f16_to_f32(_Float16 h) {
    unsigned b = __builtin_bit_cast(unsigned short, h), m = (b & 0x7fffu) << 13;
    unsigned r = m < 0x00800000u ? d_bits(d_from_bits(m + 0x38800000u) - 0x1p-14f) : m + 0x38000000u;
    r = m >= 0x0f800000u ? m | 0x7f800000u : r;
    return d_from_bits(r | (b & 0x8000u) << 16);
}
D_INLINE _Float16 d_f32_to_f16(float x) {
    unsigned b = d_bits(x), m = b & 0x7fffffffu;
    unsigned normal = (m + 0xfffu + ((m >> 13) & 1u) - 0x38000000u) >> 13;
    unsigned r = m < 0x38800000u ? d_bits(d_from_bits(m) + 0.5f) - 0x3f000000u : normal;
    r = m >= 0x47800000u ? 0x7c00u : r;
    r = m > 0x7f800000u ? 0x7e00u : r;
    return __builtin_bit_cast(_Float16, (unsigned short)(r | (b >> 16 & 0x8000u)));
}

// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): four words for
// every (key, counter), so that any element's number is found without its predecessors.
struct d_philox { unsigned x, y, z, w; };
D_INLINE d_philox d_philox4x32_10(unsigned key_lo, unsigned key_hi, unsigned long long counter_lo,
                                  unsigned long long counter_hi) {
    unsigned x = (unsigned)counter_lo, y = (unsigned)(counter_lo >> 32);
    unsigned z = (unsigned)counter_hi, w = (unsigned)(counter_hi >> 32);
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++) {
        unsigned long long p = 0xd2511f53ull * x, q = 0xcd9e8d57ull * z;
        x = (unsigned)(q >> 32) ^ y ^ key_lo;
        z = (unsigned)(p >> 32) ^ w ^ key_hi;
        y = (unsigned)q;
        w = (unsigned)p;
        key_lo += 0x9e3779b9u;
        key_hi += 0xbb67ae85u;
    }
    return {x, y, z, w};
}

// 24 bits in [0, 1).
D_INLINE float d_uniform01(unsigned bits) { return (float)(bits >> 8) * 0x1p-24f; }

// Two independent normal numbers (Box and Muller, 1958). The radius takes a uniform number in (0, 1]; the angle's
// quadrant comes from two bits, so that the kernels of sin and cos see an exact argument.
D_INLINE void d_normal2(unsigned first, unsigned second, float &a, float &b) {
    float radius = d_sqrt(-2.0f * d_log((float)((first >> 8) + 1u) * 0x1p-24f));
    int n = (int)(second >> 30);
    float r = ((float)(int)((second >> 6) & 0xffffffu) * 0x1p-24f - 0.5f) * 0x1.921fb6p+0f;
    a = radius * d_sin_quadrant(r, n + 1);
    b = radius * d_sin_quadrant(r, n);
}

#endif
