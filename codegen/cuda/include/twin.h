// The twin of a device on a CPU: the names of prelude.cuh for g++, threads of a block as fibers, and checks that no device makes.
//
// A fiber runs until it meets a barrier or a shuffle; when all wait, those who wait for the same are released. One that not all reach is
// a fault that names it. Threads run forwards, backwards or in a random order between two meetings (DCIR_TWIN_ORDER=forwards, backwards,
// or a seed): results must not change. Unless DCIR_TWIN_FAST is defined, shared memory tells of races and of what is read unwritten, and
// buffers that were made known (dcir_twin::buffer) of addresses outside, of races and of what is read unwritten.
// The first fault ends the launch, whose result is not 0 then; dcir_twin::fault() is its text.
#ifndef DCIR_TWIN_H
#define DCIR_TWIN_H

#define D_INLINE static inline __attribute__((always_inline))
#define D_MEMBER inline
#define D_LIBM(name) __builtin_##name
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

D_INLINE unsigned d_bits(float x) { return __builtin_bit_cast(unsigned, x); }
D_INLINE unsigned long long d_bits(double x) { return __builtin_bit_cast(unsigned long long, x); }
D_INLINE float d_from_bits(unsigned x) { return __builtin_bit_cast(float, x); }
D_INLINE double d_from_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }

#include "scalars.cuh"

#include "fibers.h"

#include "memory.h"

D_INLINE int d_thread() { return dcir_twin::state().current; }
D_INLINE int d_block() { return (int)dcir_twin::state().block.x; }
D_INLINE int d_part() { return (int)dcir_twin::state().block.y; }

D_INLINE void d_report(int *status) { __atomic_store_n(status, 1, __ATOMIC_RELAXED); }

D_INLINE void d_barrier(int line = __builtin_LINE()) { dcir_twin::wait(dcir_twin::BARRIER, "barrier", line); }

namespace dcir_twin {
// A shuffle has the place of an even or an odd one in turns: whoever leaves one comes to the next but one after all have left it.
template <class T> inline T shuffled(T v, int mask, int line) {
    State &s = state();
    Fiber &f = s.fibers[s.current];
    const int side = f.shuffles++ & 1, other = s.current ^ mask;
    __builtin_memcpy(&f.sent[side], &v, sizeof v);
    wait(WARP, "shuffle", line);
    if (mask < 0 || mask > 31 || other >= s.threads) fail("shuffle with a thread that is not there", line);
    __builtin_memcpy(&v, &s.fibers[other].sent[side], sizeof v);
    return v;
}
}  // namespace dcir_twin

#define D_SHUFFLE(T) \
    D_INLINE T d_shuffle_xor(T v, int mask, int line = __builtin_LINE()) { return dcir_twin::shuffled(v, mask, line); }
D_SHUFFLE(int)
D_SHUFFLE(long long)
D_SHUFFLE(float)
D_SHUFFLE(double)

template <class T, class I> D_INLINE T d_load(const T *p, I at, int line = __builtin_LINE()) {
    dcir_twin::touch(p + at, sizeof(T), sizeof(T), false, line);
    T value;
    __builtin_memcpy(&value, p + at, sizeof value);
    return value;
}
template <class T, class I, class V> D_INLINE void d_store(T *p, I at, V value, int line = __builtin_LINE()) {
    dcir_twin::touch(p + at, sizeof(T), sizeof(T), true, line);
    p[at] = (T)value;
}
template <class I> D_INLINE void d_most(int *p, I at, int value, int line = __builtin_LINE()) {
    dcir_twin::touch(p + at, sizeof(int), sizeof(int), true, line, true);
    if (value > p[at]) p[at] = value;
}
D_INLINE bool d_aligned(const void *p) { return ((unsigned long long)p & 15ull) == 0; }

template <class T, int N> struct d_vector {
    T of[N];
};
template <int N, class T, class I> D_INLINE d_vector<T, N> d_load_vector(const T *p, I at, int line = __builtin_LINE()) {
    constexpr int piece = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
    dcir_twin::touch(p + at, N * sizeof(T), piece, false, line);
    d_vector<T, N> value;
    __builtin_memcpy(&value, p + at, sizeof value);
    return value;
}
template <class T, int N, class I>
D_INLINE void d_store_vector(T *p, I at, const d_vector<T, N> &value, int line = __builtin_LINE()) {
    constexpr int piece = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
    dcir_twin::touch(p + at, N * sizeof(T), piece, true, line);
    __builtin_memcpy(p + at, &value, sizeof value);
}

#include "fragments.h"

#include "cooperation.cuh"
#include "matrix_unit.cuh"
#include "prelude_special.h"

#endif
