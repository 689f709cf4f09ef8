// Strided copies and accumulations between arrays, with the template signatures that DaCe's CPU code calls.
#ifndef DCIR_DACE_SHIM_COPY_H
#define DCIR_DACE_SHIM_COPY_H

namespace dace {
// The extents and both strides come from arrays read with a step, because DaCe interleaves its run-time arguments.
struct copy_axis {
    const long long *first;
    int step;
};

template <int D, class T, class F>
inline void copy_nest(const T *src, T *dst, copy_axis n, copy_axis s, copy_axis d, F f) {
    if constexpr (D == 0) f(src, dst);
    else
        for (long long i = 0; i < *n.first; i++)
            copy_nest<D - 1>(src + i * *s.first, dst + i * *d.first, copy_axis{n.first + n.step, n.step},
                             copy_axis{s.first + s.step, s.step}, copy_axis{d.first + d.step, d.step}, f);
}

// Copy, Accumulate and Accumulate_atomic over one way of finding the axes.
#define D_COPIES(D, n, s, d, ...)                                                                                \
    template <class... A> static inline void Copy(const T *src, T *dst, A... args) {                             \
        const long long v[] = {(long long)args..., 0};                                                           \
        __VA_ARGS__;                                                                                             \
        copy_nest<D>(src, dst, n, s, d, [](const T *x, T *y) { *y = *x; });                                      \
    }                                                                                                            \
    template <class W, class... A> static inline void Accumulate(const T *src, T *dst, W w, A... args) {         \
        const long long v[] = {(long long)args..., 0};                                                           \
        __VA_ARGS__;                                                                                             \
        copy_nest<D>(src, dst, n, s, d, [w](const T *x, T *y) { *y = w(*y, *x); });                              \
    }                                                                                                            \
    template <class W, class... A> static inline void Accumulate_atomic(const T *src, T *dst, W w, A... args) {  \
        const long long v[] = {(long long)args..., 0};                                                           \
        __VA_ARGS__;                                                                                             \
        copy_nest<D>(src, dst, n, s, d, [w](const T *x, T *y) { wcr_custom<T>::reduce_atomic(w, y, *x); });      \
    }

template <class T, int, int, int... N> struct CopyND {
    template <int... S> struct ConstSrc {
        D_COPIES(sizeof...(N), (copy_axis{n, 1}), (copy_axis{s, 1}), (copy_axis{v, 1}),
                 static const long long n[] = {N..., 0}, s[] = {S..., 0})
    };
    template <int... S> struct ConstDst {
        D_COPIES(sizeof...(N), (copy_axis{n, 1}), (copy_axis{v, 1}), (copy_axis{s, 1}),
                 static const long long n[] = {N..., 0}, s[] = {S..., 0})
    };
    struct Dynamic {
        D_COPIES(sizeof...(N), (copy_axis{n, 1}), (copy_axis{v, 2}), (copy_axis{v + 1, 2}),
                 static const long long n[] = {N..., 0})
    };
};

template <class T, int, int, int D> struct CopyNDDynamic {
    template <int... S> struct ConstSrc {
        D_COPIES(D, (copy_axis{v, 2}), (copy_axis{s, 1}), (copy_axis{v + 1, 2}), static const long long s[] = {S..., 0})
    };
    template <int... S> struct ConstDst {
        D_COPIES(D, (copy_axis{v, 2}), (copy_axis{v + 1, 2}), (copy_axis{s, 1}), static const long long s[] = {S..., 0})
    };
    struct Dynamic {
        D_COPIES(D, (copy_axis{v, 3}), (copy_axis{v + 1, 3}), (copy_axis{v + 2, 3}), (void)0)
    };
};
#undef D_COPIES

template <class T, int LANES> inline void CopyImpl(const T *src, T *dst, long long count) {
    __builtin_memcpy(dst, src, count * LANES * sizeof(T));
}
template <class T, int COUNT, int LANES> inline void CopyImpl(const T *src, T *dst) {
    __builtin_memcpy(dst, src, (size_t)COUNT * LANES * sizeof(T));
}
}  // namespace dace

#endif
