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

template <class O, class T, int N, class V> D_INLINE T d_fold_vector(V v) {
    if constexpr (N == 1) return v[0];
    else {
        typedef typename d_vector<T, N / 2>::type H;
        H low, high;
        __builtin_memcpy(&low, &v, sizeof(H));
        __builtin_memcpy(&high, (const char *)&v + sizeof(H), sizeof(H));
        if constexpr (N == 2) return O::template join<T>(low[0], high[0]);
        else return d_fold_vector<O, T, N / 2>(O::template join<H>(low, high));
    }
}
// p has 16, 32 or 64 elements.
template <class O, class T, int N> D_INLINE T d_fold(const T (&p)[N]) {
    typedef typename d_vector<T, 16>::type V;
    V v[N / 16];
    __builtin_memcpy(v, p, sizeof(v));
    if constexpr (N == 64) {
        v[0] = O::template join<V>(v[0], v[2]);
        v[1] = O::template join<V>(v[1], v[3]);
    }
    if constexpr (N >= 32) v[0] = O::template join<V>(v[0], v[1]);
    return d_fold_vector<O, T, 16>(v[0]);
}

#endif
