// Guarded integer arithmetic, and conversions of floats to integers: one text for CPUs and for devices (codegen/cuda/prelude.py).
//
// No operation here is undefined for any operand: overflow wraps, a division by zero gives 0 (a kernel that must
// report it tests the divisor itself), a shift outside the width gives 0 or the sign.
#ifndef DCIR_PRELUDE_GUARDED_H
#define DCIR_PRELUDE_GUARDED_H

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

// The quotient -a is taken apart from the division, because the smallest number divided by -1 traps.
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

#endif
