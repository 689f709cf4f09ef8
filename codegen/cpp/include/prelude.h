// The header of every generated kernel: scalar functions that vectorise inside omp simd loops; it includes no system header.
//
// Flags it is written for: -O2 -ftree-vectorize -march=native -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast -std=c++17.
// Without -ffast-math, NaN, infinities and signed zeros keep their meaning; every function here relies on that.
// System headers cost 100 to 500 ms per kernel, hence the __builtin_ functions. Names start with d_ (functions),
// D_ (macros) so that a kernel's own names stay free.
#ifndef DCIR_PRELUDE_H
#define DCIR_PRELUDE_H

#define D_INLINE static inline __attribute__((always_inline))

typedef unsigned short bf16_t;

// While it lives, this thread reads denormal numbers as zeros and writes none. Multipliers of some processors take 100 to 200 cycles for
// an instruction that meets one, and a few of them in a tile are many instructions; sums of products do not miss them.
struct D_NoDenormals {
#ifdef __SSE2__
    unsigned before = __builtin_ia32_stmxcsr();
    D_NoDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }
    ~D_NoDenormals() { __builtin_ia32_ldmxcsr(before); }
#else
    D_NoDenormals() {}
#endif
};

// Reinterpreting bits. The vectoriser sees a no-op.
D_INLINE unsigned d_bits(float x) { return __builtin_bit_cast(unsigned, x); }
D_INLINE unsigned long long d_bits(double x) { return __builtin_bit_cast(unsigned long long, x); }
D_INLINE float d_from_bits(unsigned x) { return __builtin_bit_cast(float, x); }
D_INLINE double d_from_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }

// What a kernel says of an index that lies outside. Several jobs may at once.
D_INLINE void d_report(int *status) { __atomic_store_n(status, 1, __ATOMIC_RELAXED); }

#define D_INF __builtin_inff()
#define D_NAN __builtin_nanf("")

// One builtin under one name for both precisions.
#define D_UNARY(name, builtin)                                   \
    D_INLINE float name(float x) { return builtin##f(x); }       \
    D_INLINE double name(double x) { return builtin(x); }
#define D_BINARY(name, builtin)                                              \
    D_INLINE float name(float x, float y) { return builtin##f(x, y); }       \
    D_INLINE double name(double x, double y) { return builtin(x, y); }

D_UNARY(d_sqrt, __builtin_sqrt)
D_UNARY(d_abs, __builtin_fabs)
D_UNARY(d_floor, __builtin_floor)
D_UNARY(d_ceil, __builtin_ceil)
D_UNARY(d_trunc, __builtin_trunc)
D_UNARY(d_round, __builtin_rint)  // half to even: the rounding mode is never changed
D_BINARY(d_copysign, __builtin_copysign)
D_BINARY(d_nextafter, __builtin_nextafter)
D_BINARY(d_hypot, __builtin_hypot)

#include "prelude_basics.h"
#include "prelude_math.h"
#include "prelude_guarded.h"
#include "prelude_int.h"
#include "prelude_special.h"
#include "prelude_fold.h"

#endif
