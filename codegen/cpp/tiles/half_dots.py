"""C++ of products of bf16 in pairs: the instruction, and how rows and panels of f32 that hold numbers of bf16 become pairs of steps.

A pair lies in the 32 bits of one f32, the earlier step in the lower half: what moves f32 moves pairs, and a reduction has half the steps.
"""

from __future__ import annotations

from dcir.codegen.cpp.tiles.emit import render

# GCC's builtin took shorts before there was a type for bf16.
_INSTRUCTION = """
#if __GNUC__ >= 13
typedef __bf16 PairsOfSteps __attribute__((vector_size(64)));
#else
typedef short PairsOfSteps __attribute__((vector_size(64)));
#endif
typedef unsigned Bits __attribute__((vector_size(64)));
typedef short Halves __attribute__((vector_size(64)));
// sum + the product of both halves of a pair, which every lane of a has, with those of b's lane.
$inline V dot(V sum, T a, V b) {
    return __builtin_ia32_dpbf16ps_v16sf(sum, (PairsOfSteps)(M{} + __builtin_bit_cast(int, a)), (PairsOfSteps)b);
}
// One step's numbers and the next one's.
$inline V join(V even, V odd) { return (V)(((Bits)even >> 16) | ((Bits)odd & 0xffff0000u)); }
// Neighbours of one row.
$inline V pair_up(V first, V second) {
    const Halves odd = {$odd};
    return (V)__builtin_shuffle((Halves)first, (Halves)second, odd);
}
"""
# Rows of A along k, [row][pair].
COPY_ROWS = """        {
            const L m0 = s0, m1 = s1;
            const L first = $first_row, end = $end_row;
            const L left = $k - 2 * k0 < 2 * depth ? $k - 2 * k0 : 2 * depth;
            for (L m = first; m < end; m++) {
                const T *s = a + m * ${am}LL + 2 * k0;
                T *d = buffer + (m - first) * $pitch;
                L k = 0;
                for (; k + 2 * VL <= left; k += 2 * VL) store(d + k / 2, pair_up(load(s + k), load(s + k + VL)));
                if (k < left) {
                    const int rest = (int)(left - k);
                    const V more = rest > VL ? load_part(s + k + VL, rest - VL) : V{};
                    store(d + k / 2, pair_up(load_part(s + k, rest < VL ? rest : VL), more));
                }
            }
        }"""
# The rows of each tile, [pair][row]: packed step by step, then joined while they are in the first-level cache.
PACK_ROWS = """        for (L k = 0; k < depth; k += $step)
            for (L t = s0; t < s1; t++) {
                const L m = $m_start, count = depth - k < $step ? depth - k : $step;
                const L from = 2 * (k0 + k), left = $k - from < 2 * count ? $k - from : 2 * count;
                const T *s = a + m * ${am}LL + from * ${ak}LL;
                T *d = buffer + (t - s0) * $pitch;
                $pack_calls
            }"""
ROWS = """
template <int MR> $inline void pairs_of_a(T *d, const T *s, L left) {
    alignas(64) T steps[2 * $step * MR + VL];
    rows_of_a<MR>(steps, s, left);
    if (left % 2)
        for (int i = 0; i < MR; i++) steps[left * MR + i] = 0;
    join_steps<MR>(d, steps, (left + 1) / 2);
}
"""
_JOIN = """
template <int WIDTH> $inline void join_steps(T *d, const T *s, L pairs) {
    for (L p = 0; p < pairs; p++, d += WIDTH, s += 2 * WIDTH) {
#pragma GCC unroll 4
        for (int i = 0; i + VL <= WIDTH; i += VL) store(d + i, join(load(s + i), load(s + WIDTH + i)));
        if constexpr (WIDTH % VL != 0) {
            constexpr int at = WIDTH / VL * VL, n = WIDTH - at;
            store_part(d + at, join(load_part(s + at, n), load_part(s + WIDTH + at, n)), n);
        }
    }
}
"""
# Some panels of B, put together in scratch: a few steps of f32, then their pairs.
PACK = """
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch$parameter) {
    const L group = j / $jobs, first = j % $jobs * $together, end = first + $together < $panels ? first + $together : $panels;
    $offsets
    alignas(64) T d[$step * $panel];
    for (L k = 0; k < $k; k += $step)
        for (L panel = first; panel < end; panel++) {
            const L n = panel * $panel;
            const L steps = $k - k < $step ? $k - k : $step;
            panel_of_b<$vectors>(d, a1 + pb + k * ${bk}LL + n * ${bn}LL, steps, $n - n < $panel ? $n - n : $panel);$rounded
            if (steps % 2)
                for (int i = 0; i < $panel; i++) d[steps * $panel + i] = 0;
            join_steps<$panel>((T *)scratch + (group * $panels + panel) * $size + k / 2 * $panel, d, (steps + 1) / 2);
        }
}
"""


def functions() -> str:
    """What every kernel of pairs builds on."""
    return render(_INSTRUCTION, odd=", ".join(str(i) for i in range(1, 64, 2))) + render(_JOIN)
