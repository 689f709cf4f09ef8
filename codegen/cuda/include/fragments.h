// The matrix units of the twin: what a warp's threads hold in registers of a matrix, exchanged between fibers. A part of twin.h.
//
// The layouts are PTX's (ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix"), so that a fragment in a wrong register makes wrong numbers.
#ifndef DCIR_TWIN_FRAGMENTS_H
#define DCIR_TWIN_FRAGMENTS_H

namespace dcir_twin {

// Shows words to the other threads of the warp; which side they lie on. As for shuffles, two sides take turns.
inline int show(const unsigned *words, int count, const char *what, int line) {
    State &s = state();
    Fiber &f = s.fibers[s.current];
    const int side = f.shuffles++ & 1;
    for (int i = 0; i < count; i++) f.shown[side][i] = words[i];
    wait(WARP, what, line);
    if ((s.current | 31) >= s.threads) fail("matrices need all 32 threads of a warp", line);
    return side;
}

// The matrix units add exact products and cut off what a float32 does not hold.
inline float towards_zero(double x) {
    const float f = (float)x;
    return __builtin_fabs((double)f) > __builtin_fabs(x) && x - x == 0 ? __builtin_nextafterf(f, 0.0f) : f;
}

inline float widened(bf16_t, unsigned word, int half) { return d_bf16_to_f32((bf16_t)(word >> 16 * half)); }
inline float widened(f16_t, unsigned word, int half) { return d_f16_to_f32(f16_t{(unsigned short)(word >> 16 * half)}); }

template <class H>
__attribute__((optimize("O2"))) void add_products(float (&c)[4], int side) {
    const State &s = state();
    const int lane = s.current & 31, first = s.current - lane;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; k++) {
            const unsigned a = s.fibers[first + row % 8 * 4 + k % 8 / 2].shown[side][row / 8 + 2 * (k / 8)];
            const unsigned b = s.fibers[first + column * 4 + k % 8 / 2].shown[side][4 + k / 8];
            sum += (double)widened(H(), a, k % 2) * (double)widened(H(), b, k % 2);
        }
        c[i] = towards_zero(sum);
    }
}

// Lines of a matrix that lie in one bank wait for each other.
inline void count_conflicts(int side, int lane) {
    State &s = state();
    const int first = s.current - lane % 8;
    unsigned banks = 0;
    for (int t = 0; t < 8; t++) banks |= 1u << s.fibers[first + t].shown[side][0] / 8 % 8;
    s.bank_conflicts += 8 - __builtin_popcount(banks);
}

template <bool turned, class S> inline void load_matrices(unsigned (&r)[4], S &tile, int at, int line) {
    const unsigned words[1] = {(unsigned)at};
    const int side = show(words, 1, "load of matrices", line);
    State &s = state();
    const int lane = s.current & 31, first = s.current - lane;
    if (at % 8) fail("a line of a matrix begins at no multiple of 16 bytes", line);
    if (lane % 8 == 0) count_conflicts(side, lane);
    for (int i = 0; i < 4; i++) {
        unsigned short h[2];
        for (int k = 0; k < 2; k++) {
            const int row = turned ? lane % 4 * 2 + k : lane / 4, column = turned ? lane / 4 : lane % 4 * 2 + k;
            h[k] = tile[Place((int)s.fibers[first + 8 * i + row].shown[side][0] + column, line)];
        }
        r[i] = h[0] | (unsigned)h[1] << 16;
    }
}

}  // namespace dcir_twin

template <class H>
D_INLINE void d_mma(H, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int line = __builtin_LINE()) {
    const unsigned words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    dcir_twin::add_products<H>(c, dcir_twin::show(words, 6, "product of matrices", line));
}
template <bool turned, class S> D_INLINE void d_load_matrix(unsigned (&r)[4], S &tile, int at, int line = __builtin_LINE()) {
    dcir_twin::load_matrices<turned>(r, tile, at, line);
}
template <class S> D_INLINE void d_store_piece(S &tile, int at, const d_vector<unsigned short, 8> &v, int line = __builtin_LINE()) {
    if (at % 8) dcir_twin::fail("a piece of shared memory begins at no multiple of 16 bytes", line);
    for (int l = 0; l < 8; l++) tile[dcir_twin::Place(at + l, line)] = v.of[l];
}
template <class S> D_INLINE d_vector<unsigned short, 8> d_load_piece(S &tile, int at, int line = __builtin_LINE()) {
    if (at % 8) dcir_twin::fail("a piece of shared memory begins at no multiple of 16 bytes", line);
    d_vector<unsigned short, 8> v;
    for (int l = 0; l < 8; l++) v.of[l] = tile[dcir_twin::Place(at + l, line)];
    return v;
}
// A piece on its way is there once it is waited for, not before.
template <class T, class S, class I>
D_INLINE void d_copy_piece(S &tile, int at, const T *p, I from, int line = __builtin_LINE()) {
    using namespace dcir_twin;
    Fiber &f = state().fibers[state().current];
    if (f.copying == MOST_COPIES) fail("more copies than a thread has here", line);
    const d_vector<T, 8> v = d_load_vector<8>(p, from, line);
    Copy &c = f.copies[f.copying++];
    c.tile = &tile;
    c.at = at;
    c.line = line;
    __builtin_memcpy(c.halves, &v, sizeof c.halves);
    c.put = [](void *tile, int at, const unsigned short *h, int line) {
        d_vector<unsigned short, 8> v;
        __builtin_memcpy(&v, h, sizeof v);
        d_store_piece(*(S *)tile, at, v, line);
    };
}
D_INLINE void d_copies_wait() {
    dcir_twin::Fiber &f = dcir_twin::state().fibers[dcir_twin::state().current];
    const int count = f.copying;
    f.copying = 0;
    for (int i = 0; i < count; i++) f.copies[i].put(f.copies[i].tile, f.copies[i].at, f.copies[i].halves, f.copies[i].line);
}
template <class S> D_INLINE void d_store_pair(S &tile, int at, unsigned short low, unsigned short high, int line = __builtin_LINE()) {
    if (at % 2) dcir_twin::fail("a pair of shared memory begins at an odd place", line);
    tile[dcir_twin::Place(at, line)] = low;
    tile[dcir_twin::Place(at + 1, line)] = high;
}

#endif
