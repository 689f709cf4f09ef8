// Folds of partial results to one, in registers: element i joins element i + half, until one is left.
//
// The order is that of the plain loops over halves, whatever the width of the machine's vectors.
#ifndef DCIR_PRELUDE_FOLD_H
#define DCIR_PRELUDE_FOLD_H

struct d_sum_of { template <class V> D_INLINE V join(V x, V y) { return x + y; } };
struct d_prod_of { template <class V> D_INLINE V join(V x, V y) { return x * y; } };
// As d_min and d_max: NaN wins.
struct d_min_of { template <class V> D_INLINE V join(V x, V y) { return (x < y) | (x != x) ? x : y; } };
struct d_max_of { template <class V> D_INLINE V join(V x, V y) { return (x > y) | (x != x) ? x : y; } };

template <class T, int N> struct d_vector { typedef T type __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)))); };

// Of two numbers, as a vector's: a scalar choice would be a branch that nobody can predict.
template <class O, class T> D_INLINE T d_choose(T x, T y) {
    const typename d_vector<T, 16 / sizeof(T)>::type first = {x}, second = {y};
    return O::join(first, second)[0];
}

// The last two steps stay in a vector of four: a scalar choice would be a branch that nobody can predict.
template <class O, class V> D_INLINE auto d_fold_vector(V v) {
    const auto half = O::join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
    auto four = O::join(__builtin_shufflevector(half, half, 0, 1, 2, 3), __builtin_shufflevector(half, half, 4, 5, 6, 7));
    four = O::join(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
    return O::join(four, __builtin_shufflevector(four, four, 1, 1, 1, 1))[0];
}
// p has a power of two of elements, 16 at least.
template <class O, class T, int N> D_INLINE T d_fold(const T (&p)[N]) {
    static_assert(N >= 16 && N <= 256 && !(N & (N - 1)), "halves of halves down to one vector");
    typedef typename d_vector<T, 16>::type V;
    V v[N / 16];
    __builtin_memcpy(v, p, sizeof(v));
    #pragma GCC unroll 8
    for (int half = N / 32; half; half /= 2) {
        #pragma GCC unroll 8
        for (int i = 0; i < half; i++) v[i] = O::join(v[i], v[i + half]);
    }
    return d_fold_vector<O>(v[0]);
}

#endif
