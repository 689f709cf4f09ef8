// Products of tiles on the matrix units: how halves lie in shared memory, and what a warp multiplies; one text for NVRTC and for the twin.
//
// A tile is lines of WIDE pieces; a piece is 8 neighbouring halves, 16 bytes, which is what a thread moves and what a line of a matrix of
// 8 by 8 is. Pieces of a line change places with the line's number, so that the 8 lines of a matrix lie in different banks.
#ifndef DCIR_MATRIX_UNIT_CUH
#define DCIR_MATRIX_UNIT_CUH

typedef d_vector<unsigned short, 8> d_piece;

D_INLINE unsigned short d_half_bits(bf16_t h) { return h; }
D_INLINE unsigned short d_half_bits(f16_t h) { return h.bits; }
D_INLINE void d_set_half(bf16_t &h, unsigned short bits) { h = bits; }
D_INLINE void d_set_half(f16_t &h, unsigned short bits) { h.bits = bits; }
D_INLINE void d_round_half(float x, bf16_t &h) { h = d_f32_to_bf16(x); }
D_INLINE void d_round_half(float x, f16_t &h) { h = d_f32_to_f16(x); }

template <class H> D_INLINE d_piece d_as_piece(const d_vector<H, 8> &v) {
    d_piece p;
#pragma unroll
    for (int l = 0; l < 8; l++) p.of[l] = d_half_bits(v.of[l]);
    return p;
}

// Where a piece of a line begins, in halves.
template <int WIDE> D_INLINE int d_piece_at(int line, int piece) {
    constexpr bool half_lines = WIDE == 4;  // two lines lie in all banks
    return (line * WIDE + (piece ^ (half_lines ? line >> 1 & 3 : line & 7))) * 8;
}

// N neighbours of which the first count are there, zeros for the others; whole says that vectors may be moved.
template <int N, class T, class I> D_INLINE d_vector<T, N> d_fetch(const T *p, I at, int count, bool whole) {
    d_vector<T, N> v = {};
    if (whole && count >= N) {
        v = d_load_vector<N>(p, at);
    } else {
#pragma unroll
        for (int l = 0; l < N; l++)
            if (l < count) v.of[l] = d_load(p, at + l);
    }
    return v;
}
template <int N, class T, class I> D_INLINE void d_put(T *p, I at, const d_vector<T, N> &v, int count, bool whole) {
    if (whole && count >= N) {
        d_store_vector(p, at, v);
    } else {
#pragma unroll
        for (int l = 0; l < N; l++)
            if (l < count) d_store(p, at + l, v.of[l]);
    }
}

// A piece of which the first count halves are there into shared memory: on its way where it is whole, else by the thread itself.
template <class S, class T, class I> D_INLINE void d_bring(S &tile, int at, const T *p, I from, int count, bool whole) {
    if (whole && count >= 8) d_copy_piece(tile, at, p, from);
    else d_store_piece(tile, at, d_as_piece(d_fetch<8>(p, from, count, false)));
}

// Four matrices of 8 by 8 that form one of 16 by 16: from a line and a piece on. The second lies beside the first (beside), or below it.
template <int WIDE, bool turned, bool beside, class S>
D_INLINE void d_load_fragment(unsigned (&r)[4], S &tile, int start, int line, int piece) {
    const int lane = d_thread() & 31, low = lane >> 3 & 1, high = lane >> 4;
    d_load_matrix<turned>(r, tile, start + d_piece_at<WIDE>(line + (lane & 7) + 8 * (beside ? high : low), piece + (beside ? low : high)));
}

// c += A B of a warp, over STEPS of k that lie in shared memory. A's lines are its rows, or with a_turned its columns; B's lines are its
// columns, or with b_turned its rows. The warp's part begins at row and column, which are multiples of 16.
template <class H, int A_WIDE, bool a_turned, int B_WIDE, bool b_turned, int STEPS, int ROWS, int COLUMNS, class S>
D_INLINE void d_multiply(float (&c)[ROWS][COLUMNS][4], S &tile, int a_start, int b_start, int row, int column) {
#pragma unroll
    for (int k = 0; k < STEPS; k += 16) {
        unsigned a[ROWS][4];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if constexpr (a_turned) d_load_fragment<A_WIDE, true, true>(a[i], tile, a_start, k, row / 8 + 2 * i);
            else d_load_fragment<A_WIDE, false, false>(a[i], tile, a_start, row + 16 * i, k / 8);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2) {
            unsigned b[4];
            if constexpr (b_turned) d_load_fragment<B_WIDE, true, false>(b, tile, b_start, k, column / 8 + j);
            else d_load_fragment<B_WIDE, false, true>(b, tile, b_start, column + 8 * j, k / 8);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                d_mma(H(), c[i][j], a[i], b[0], b[1]);
                d_mma(H(), c[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// What a warp has multiplied, rounded, into a tile of WIDE pieces a line.
template <class H, int WIDE, int ROWS, int COLUMNS, class S>
D_INLINE void d_lay_down(const float (&c)[ROWS][COLUMNS][4], S &tile, int row, int column) {
    const int lane = d_thread() & 31;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                H low, high;
                d_round_half(c[i][j][2 * h], low);
                d_round_half(c[i][j][2 * h + 1], high);
                const int at = d_piece_at<WIDE>(row + 16 * i + 8 * h + lane / 4, column / 8 + j) + lane % 4 * 2;
                d_store_pair(tile, at, d_half_bits(low), d_half_bits(high));
            }
        }
    }
}

// The sums of a warp as they are, into a matrix of rows by columns, from a row and a column on.
template <int ROWS, int COLUMNS, class I>
D_INLINE void d_store_sums(const float (&c)[ROWS][COLUMNS][4], float *p, I row, int column, I rows, int columns) {
    const int lane = d_thread() & 31;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const I line = row + 16 * i + 8 * h + lane / 4;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
                for (int l = 0; l < 2; l++) {
                    const int at = column + 8 * j + lane % 4 * 2 + l;
                    if (line < rows && at < columns) d_store(p, line * columns + at, c[i][j][2 * h + l]);
                }
            }
        }
    }
}

#endif
