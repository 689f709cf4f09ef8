// Functions that few arguments make expensive: vectors of usual ones take a short way, and one rare lane sends a vector the long one.
//
// A loop with a branch in it is not vectorised, and both ways in every lane cost three times the short one (sines: 690 against 235 us
// for 524288 numbers, AVX-512). So the loop calls: GCC calls a function that is declared ``simd`` on whole vectors, by the names of the
// vector ABI, and what has these names here looks at its lanes. Only calls of its own builtins pass GCC 12's if-conversion, hence the
// library's declarations; their symbols are ours, and scalar code gets the same numbers as lanes do. Friends of a template are made
// where it is used: kernels without such a function are compiled without one.
#ifndef DCIR_PRELUDE_LANES_H
#define DCIR_PRELUDE_LANES_H

#if defined(__AVX2__) && defined(__FMA__) && !defined(__clang__)

// F has usual(x, y), rare(x, y) and always(x, y), which is right for rare arguments; y is x where a function has but one argument.
template <class F, int N, class V> D_INLINE V d_in_lanes(V v, V w) {
    float x[N], y[N], r[N];
    __builtin_memcpy(x, &v, sizeof x);
    __builtin_memcpy(y, &w, sizeof y);
    int rare = 0;
    #pragma omp simd reduction(|:rare)
    for (int i = 0; i < N; i++) {
        r[i] = F::usual(x[i], y[i]);
        rare |= F::rare(x[i], y[i]);
    }
    if (__builtin_expect(rare, 0))
        for (int i = 0; i < N; i++) r[i] = F::rare(x[i], y[i]) ? F::always(x[i], y[i]) : r[i];
    __builtin_memcpy(&v, r, sizeof v);
    return v;
}

template <int N> struct d_lanes { typedef float type __attribute__((vector_size(4 * N))); };

#define D_ONE(T) T x
#define D_TWO(T) T x, T y
#define D_ONE_PASSED x
#define D_TWO_PASSED x, y
#define D_ONE_DOUBLED x, x
#define D_TWO_DOUBLED x, y
#define D_LANE_FUNCTION __attribute__((used, noinline))

// One vector function: its name by the vector ABI, its text, a use of it.
#define D_LANES_NAMED(name, letters, count, isa, n) \
    D_LANE_FUNCTION d_lanes<n>::type d_##name##_##n(count(d_lanes<n>::type)) asm("_ZGV" isa #n letters "_d_lane_" #name);
#define D_LANES_MADE(name, count, n) \
    friend d_lanes<n>::type d_##name##_##n(count(d_lanes<n>::type)) { return d_in_lanes<F, n>(count##_DOUBLED); }
#define D_LANES_USED(name, n) (void)&d_##name##_##n;
#ifdef __AVX512F__
#define D_IF_16(x) x
#else
#define D_IF_16(x)
#endif

// ``d_<name>`` of floats by the class d_<name>_ways: builtin is the library's function, letters are the vector ABI's for its arguments.
#define D_LANES(name, builtin, letters, count)                                                                                   \
    extern "C" __attribute__((simd("notinbranch"))) float builtin(count(float)) asm("d_lane_" #name);                            \
    D_LANE_FUNCTION float d_##name##_1(count(float)) asm("d_lane_" #name);                                                       \
    D_LANES_NAMED(name, letters, count, "bN", 4)                                                                                 \
    D_LANES_NAMED(name, letters, count, "dN", 8)                                                                                 \
    D_IF_16(D_LANES_NAMED(name, letters, count, "eN", 16))                                                                       \
    template <class F> struct d_##name##_lanes {                                                                                 \
        friend float d_##name##_1(count(float)) {                                                                                \
            return F::rare(count##_DOUBLED) ? F::always(count##_DOUBLED) : F::usual(count##_DOUBLED);                            \
        }                                                                                                                        \
        D_LANES_MADE(name, count, 4)                                                                                             \
        D_LANES_MADE(name, count, 8)                                                                                             \
        D_IF_16(D_LANES_MADE(name, count, 16))                                                                                   \
        D_INLINE float call(count(float)) {                                                                                      \
            D_LANES_USED(name, 1) D_LANES_USED(name, 4) D_LANES_USED(name, 8) D_IF_16(D_LANES_USED(name, 16))                    \
            return builtin(count##_PASSED);                                                                                      \
        }                                                                                                                        \
    };                                                                                                                           \
    template <class F = d_##name##_ways> D_INLINE float d_##name(count(float)) { return d_##name##_lanes<F>::call(count##_PASSED); }

#else

#define D_LANES(name, builtin, letters, count) count##_ALWAYS(name)
#define D_ONE_ALWAYS(name) D_INLINE float d_##name(float x) { return d_##name##_ways::always(x, x); }
#define D_TWO_ALWAYS(name) D_INLINE float d_##name(float x, float y) { return d_##name##_ways::always(x, y); }

#endif
#endif
