// What threads of a warp do together, made of shuffles: one text for NVRTC and for the twin.
#ifndef DCIR_COOPERATION_CUH
#define DCIR_COOPERATION_CUH

D_INLINE bool d_shuffle_xor(bool v, int mask) { return d_shuffle_xor((int)v, mask) != 0; }
D_INLINE short d_shuffle_xor(short v, int mask) { return (short)d_shuffle_xor((int)v, mask); }
D_INLINE signed char d_shuffle_xor(signed char v, int mask) { return (signed char)d_shuffle_xor((int)v, mask); }
D_INLINE unsigned char d_shuffle_xor(unsigned char v, int mask) { return (unsigned char)d_shuffle_xor((int)v, mask); }
template <class T> D_INLINE d_place<T> d_shuffle_xor(d_place<T> v, int mask) {
    return {d_shuffle_xor(v.best, mask), d_shuffle_xor(v.at, mask)};
}

// The partial results of N neighbouring threads joined, the same in all of them: N is a power of two, at most 32. Whichever thread
// is the lower one's goes first, so that all of them round alike.
template <class O, int N, class T> D_INLINE T d_fold_warp(T v) {
#pragma unroll
    for (int mask = N / 2; mask > 0; mask /= 2) {
        T other = d_shuffle_xor(v, mask);
        v = O::join(d_thread() & mask ? other : v, d_thread() & mask ? v : other);
    }
    return v;
}

// N of T, side by side in a thread, joined: element i with element i + half.
template <class O, class T, int N> D_INLINE T d_fold_lanes(const T (&v)[N]) {
    T part[N];
#pragma unroll
    for (int i = 0; i < N; i++) part[i] = v[i];
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) part[i] = O::join(part[i], part[i + half]);
    }
    return part[0];
}

// N neighbours of which the first count are there: in one piece if the address is aligned, and then all are there.
// What is seldom run is not unrolled, for it to compile fast.
template <bool whole, int N, class T, class I> D_INLINE d_vector<T, N> d_load_lanes(const T *p, I at, int count) {
    if constexpr (whole) {
        return d_load_vector<N>(p, at);
    } else {
        d_vector<T, N> v = {};
#pragma unroll 1
        for (int l = 0; l < N; l++)
            if (l < count) v.of[l] = d_load(p, at + l);
        return v;
    }
}

#endif
