// The base of every kernel on a device: scalars by CUDA's own library, and how threads of a block work together.
//
// For NVRTC with -std=c++17; no header of a toolkit is needed. twin.h has the same names for a CPU. Names start with d_ (functions), D_ (macros).
#ifndef DCIR_PRELUDE_CUH
#define DCIR_PRELUDE_CUH

// A kernel need not use all that it finds here, or that its loops could.
#pragma nv_diag_suppress 177, 550

#define D_DEVICE
#define D_MEMBER __device__ __forceinline__
#define D_INLINE __device__ __forceinline__
#define D_LIBM(name) ::name

D_INLINE unsigned d_bits(float x) { return __float_as_uint(x); }
D_INLINE unsigned long long d_bits(double x) { return (unsigned long long)__double_as_longlong(x); }
D_INLINE float d_from_bits(unsigned x) { return __uint_as_float(x); }
D_INLINE double d_from_bits(unsigned long long x) { return __longlong_as_double((long long)x); }

#include "scalars.cuh"

D_INLINE int d_thread() { return (int)threadIdx.x; }
D_INLINE int d_block() { return (int)blockIdx.x; }
D_INLINE int d_part() { return (int)blockIdx.y; }

// What a kernel says of an index that lies outside. Several threads may at once.
D_INLINE void d_report(int *status) { *(volatile int *)status = 1; }

#define D_SHARED(T, name, n) __shared__ T name[n]
// Halves, by their bits, in lines that begin where banks do.
#define D_SHARED_TILE(name, n) __shared__ __align__(128) unsigned short name[n]
D_INLINE void d_barrier() { __syncthreads(); }

// The value of the thread of this warp whose number differs by the bits of mask. All 32 take part.
D_INLINE int d_shuffle_xor(int v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
D_INLINE long long d_shuffle_xor(long long v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
D_INLINE float d_shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
D_INLINE double d_shuffle_xor(double v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

template <class T, class I> D_INLINE T d_load(const T *p, I at) { return p[at]; }
template <class T, class I, class V> D_INLINE void d_store(T *p, I at, V value) { p[at] = (T)value; }
// The largest of what is there and of what any thread brings, whoever comes first.
template <class I> D_INLINE void d_most(int *p, I at, int value) { atomicMax(p + at, value); }
template <class T> D_INLINE bool d_aligned(const T *p) { return ((unsigned long long)p & 15ull) == 0; }

// N neighbours, moved in pieces of at most 16 bytes. The address is a multiple of a piece.
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) d_vector {
    T of[N];
};
template <int N, class T, class I> D_INLINE d_vector<T, N> d_load_vector(const T *p, I at) {
    return *reinterpret_cast<const d_vector<T, N> *>(p + at);
}
template <class T, int N, class I> D_INLINE void d_store_vector(T *p, I at, const d_vector<T, N> &value) {
    *reinterpret_cast<d_vector<T, N> *>(p + at) = value;
}

// Four matrices of 8 by 8 halves: the threads of each eight bring where the lines of one begin. Thread t gets of each the line t / 4 and
// its columns t % 4 * 2 and behind; turned, column t / 4 and these lines.
template <bool turned> D_INLINE void d_load_matrix(unsigned (&r)[4], const unsigned short *tile, int at) {
    const unsigned from = (unsigned)__cvta_generic_to_shared(tile + at);
    if constexpr (turned)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}
// c += A B on the matrix units, of 16 by 16 and 16 by 8 halves, with sums in float32; the first argument says which halves.
D_INLINE void d_mma(bf16_t, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
D_INLINE void d_mma(f16_t, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

D_INLINE void d_store_piece(unsigned short *tile, int at, const d_vector<unsigned short, 8> &v) {
    *reinterpret_cast<d_vector<unsigned short, 8> *>(tile + at) = v;
}
D_INLINE d_vector<unsigned short, 8> d_load_piece(const unsigned short *tile, int at) {
    return *reinterpret_cast<const d_vector<unsigned short, 8> *>(tile + at);
}
// Eight halves from memory into shared memory, past the registers: there for this thread when it has waited, for others behind a barrier.
template <class T, class I> D_INLINE void d_copy_piece(unsigned short *tile, int at, const T *p, I from) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile + at);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p + from));
}
D_INLINE void d_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
D_INLINE void d_store_pair(unsigned short *tile, int at, unsigned short low, unsigned short high) {
    *reinterpret_cast<unsigned *>(tile + at) = low | (unsigned)high << 16;
}

#include "cooperation.cuh"
#include "matrix_unit.cuh"
#include "prelude_special.h"

#endif
