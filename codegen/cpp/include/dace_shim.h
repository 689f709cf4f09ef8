// Stands in for <dace/dace.h>: what DaCe 2.0's CPU code refers to, without its headers (38 ms instead of 540 per kernel).
//
// A build puts a dace/dace.h with `#include "dace_shim.h"` first on the include path and drops `../../include/hash.h`.
// Covers maps, tasklets (Python and C++), write-conflict resolution, copies, symbols, heap transients, nested graphs.
// Streams, vector types, complex numbers, 8-bit floats and instrumentation are left out and fail to compile.
// Meant to be the only header: <cmath> declares the same global functions again.
#ifndef DCIR_DACE_SHIM_H
#define DCIR_DACE_SHIM_H

#include "prelude.h"

#define DACE_EXPORTED extern "C" __attribute__((visibility("default")))
#define DACE_ALIGN(N) __attribute__((aligned(N)))
#define DACE_HDFI inline
#define DACE_PRAGMA(x) _Pragma(#x)
#define __DACE_UNROLL
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
typedef __SIZE_TYPE__ size_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
extern "C" void *aligned_alloc(size_t, size_t) noexcept;
extern "C" void *memset(void *, int, size_t) noexcept;
extern "C" void *memcpy(void *__restrict__, const void *__restrict__, size_t) noexcept;

namespace dace {
typedef bool bool_;
typedef ::int8_t int8;
typedef ::int16_t int16;
typedef ::int32_t int32;
typedef ::int64_t int64;
typedef ::uint8_t uint8;
typedef ::uint16_t uint16;
typedef ::uint32_t uint32;
typedef ::uint64_t uint64;
typedef unsigned uint;
typedef float float32;
typedef double float64;
typedef _Float16 float16;
struct bfloat16 {
    bf16_t bits;
    bfloat16() = default;
    bfloat16(float x) : bits(d_f32_to_bf16(x)) {}
    operator float() const { return d_bf16_to_f32(bits); }
};

template <class T> inline T *aligned_new_array(size_t count, size_t alignment) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, sizeof(T), &bytes) || bytes > ~alignment) __builtin_abort();
    void *block = aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    if (!block) __builtin_abort();
    return (T *)block;
}
template <class T> inline void aligned_delete_array(T *block, size_t) { __builtin_free((void *)block); }

enum class ReductionType {
    Custom, Min, Max, Sum, Product, Logical_And, Bitwise_And, Logical_Or, Bitwise_Or, Logical_Xor, Bitwise_Xor,
    Min_Location, Max_Location, Exchange, Sub, Div
};

template <class T> struct wcr_custom {
    template <class W> static inline T reduce(W f, T *at, const T &value) {
        T old = *at;
        *at = f(old, value);
        return old;
    }
    // Compare and swap on the bits, so that a NaN in memory does not spin for ever.
    template <class W> static inline T reduce_atomic(W f, T *at, const T &value) {
        T old, next;
        __atomic_load(at, &old, __ATOMIC_RELAXED);
        do next = f(old, value);
        while (!__atomic_compare_exchange(at, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return old;
    }
};

template <ReductionType R, class T> struct wcr_fixed {
    static inline T reduce(T *at, const T &value) { return wcr_custom<T>::reduce(wcr_fixed(), at, value); }
    static inline T reduce_atomic(T *at, const T &value) { return wcr_custom<T>::reduce_atomic(wcr_fixed(), at, value); }
    inline T operator()(const T &a, const T &b) const {
        using K = ReductionType;
        if constexpr (R == K::Sum) return a + b;
        else if constexpr (R == K::Product) return a * b;
        else if constexpr (R == K::Min) return (a < b) | (a != a) ? a : b;  // NaN stays, as in PyTorch
        else if constexpr (R == K::Max) return (a > b) | (a != a) ? a : b;
        else if constexpr (R == K::Logical_And) return a && b;
        else if constexpr (R == K::Logical_Or) return a || b;
        else if constexpr (R == K::Logical_Xor) return !a != !b;
        else if constexpr (R == K::Bitwise_And) return a & b;
        else if constexpr (R == K::Bitwise_Or) return a | b;
        else if constexpr (R == K::Bitwise_Xor) return a ^ b;
        else if constexpr (R == K::Exchange) return b;
        else if constexpr (R == K::Sub) return a - b;
        else {
            static_assert(R == K::Div, "this reduction has no implementation");
            return a / b;
        }
    }
};
}  // namespace dace

#include "dace_shim_copy.h"
#include "dace_shim_math.h"

#endif
