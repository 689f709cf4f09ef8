"""C++ of products with packed B: the register tile, how it ends, the job around it, and the packing of B."""

TILE = """
template <int MR, int NP, int NV>
$noinline void tile(const T *a, const T *b, $to, L valid$partial_parameters$next_parameters) {
$prefetch    V acc[MR][NP * NV];
$start
    for (L k = 0; k < $depth; k++, a += $ak, b += $panel$advance) {
        V bv[NP * NV];$fetch
#pragma GCC unroll 32
        for (int v = 0; v < NP * NV; v++) {
            const T *at = b + v / NV * $stride + v % NV * VL;
            bv[v] = load(at);
            if (v * VL * $bytes % 64 == 0) __builtin_prefetch(at + $ahead, 0, $into);
        }
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++) {
            const T s = a[i * $ai];
#pragma GCC unroll 32
            for (int v = 0; v < NP * NV; v++) acc[i][v] += s * bv[v];
        }
    }
$stop
}
"""
# Long sums in parts: the error grows with the part, not with the whole length.
SUM_PARTS = """    V total[MR][NP * NV];
    clear(total);
    L end = 0;
    for (L part = 0; part < $parts; part++) {
    const L begin = end;
    end = $end;"""
ADD_PARTS = """#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
        for (int v = 0; v < NP * NV; v++) total[i][v] += acc[i][v];
    }
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
        for (int v = 0; v < NP * NV; v++) acc[i][v] = total[i][v];
"""
PARTIAL_STOP = """    if (!first)
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
            for (int v = 0; v < NP * NV; v++) acc[i][v] += load(partial + (i * NP * NV + v) * VL);
    if (!last) {
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
            for (int v = 0; v < NP * NV; v++) store(partial + (i * NP * NV + v) * VL, acc[i][v]);
        return;
    }
"""
WRITE_ROWS = """    if ($tail == 0 || valid >= $vectors * VL) {
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
            for (int v = 0; v < $vectors; v++) store(c + i * ${cm}LL + v * VL, acc[i][v]);
    } else {
#pragma GCC unroll 32
        for (int v = 0; v < $vectors; v++) {
            const L left = valid - v * VL;
            if (left >= VL)
#pragma GCC unroll 32
                for (int i = 0; i < MR; i++) store(c + i * ${cm}LL + v * VL, acc[i][v]);
            else if (left > 0)
#pragma GCC unroll 32
                for (int i = 0; i < MR; i++) store_part(c + i * ${cm}LL + v * VL, acc[i][v], (int)left);
        }
    }"""
TO_STACK = """    alignas(64) T t[MR * $vectors * VL];
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
        for (int v = 0; v < $vectors; v++) store(t + (i * $vectors + v) * VL, acc[i][v]);
    const L columns = valid < $vectors * VL ? valid : $vectors * VL;
"""
WRITE_COLUMNS = (
    TO_STACK
    + """    for (L v = 0; v < columns; v += VL)
        for (int i = 0; i < MR; i += VL) {
            const int rows = MR - i < VL ? MR - i : VL, left = (int)(columns - v < VL ? columns - v : VL);
            transpose_block(t + i * $vectors * VL + v, $vectors * VL, rows, left, V{}, c + i + v * ${cn}LL, ${cn}LL, rows);
        }"""
)
WRITE_APART = (
    TO_STACK
    + """    for (L i = 0; i < MR; i++)
        for (L l = 0; l < columns; l++) c[i * ${cm}LL + l * ${cn}LL] = t[i * $vectors * VL + l];"""
)
PREFETCH_ROWS = """    for (int i = 0; i < MR; i++) prefetch_row<$vectors * VL>(operands, $indices);
"""
PREFETCH_COLUMNS = """    for (L l = 0; l < (valid < $vectors * VL ? valid : $vectors * VL); l++) prefetch_row<MR>(operands, $indices);
"""
FINISH_UNROLLED = """    const Operands e = operands;
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++) finish_row<$vectors>(e, $indices, acc[i], $valid);"""
FINISH_ROWS = (
    """    const Operands e = operands;
"""
    + TO_STACK
    + """#pragma GCC unroll 1
    for (L i = 0; i < MR; i++) {
        if constexpr (IN_REGISTERS) {
            V v[$vectors];
#pragma GCC unroll 32
            for (int u = 0; u < $vectors; u++) v[u] = load(t + (i * $vectors + u) * VL);
            finish_row<$vectors>(e, $indices, v, $valid);
        } else
            finish(e, $indices, t + i * $vectors * VL, columns);
    }"""
)
# Several rows take their chains of steps together.
FINISH_GROUPS = (
    """    const Operands e = operands;
"""
    + TO_STACK
    + """    constexpr int W = $vectors, R = W < $grouped ? $grouped / W : 1;
    L i = 0;
    if (columns == W * VL)
        for (; i + R <= MR; i += R) {
            V x[R * W];
#pragma GCC unroll 16
            for (int u = 0; u < R * W; u++) x[u] = load(t + (i * W + u) * VL);
            finish_group<R, W>(e, $indices, x);
        }
    for (; i < MR; i++) finish(e, $indices, t + i * W * VL, columns);"""
)
SUMS = """
    add_sums(e, $indices, t, $vectors * VL, MR, 0, columns);"""
FINISH_COLUMNS = (
    TO_STACK
    + """    constexpr int HEIGHT = (MR + VL - 1) / VL * VL;
    alignas(64) T r[$vectors * VL * HEIGHT];
    for (L v = 0; v < columns; v += VL)
        for (int i = 0; i < MR; i += VL)
            transpose_block(t + i * $vectors * VL + v, $vectors * VL, MR - i < VL ? MR - i : VL, VL, V{}, r + i + v * HEIGHT, HEIGHT, VL);
    for (L l = 0; l < columns; l++) finish(operands, $indices, r + l * HEIGHT, MR);"""
)
PRODUCT = """
$noinline void product(L j, const T *a0, const T *a1, const T *, T *o0, unsigned char *scratch$parameter) {
    $own
    $offsets
    const T *a = a0 + pa, *b = $source;
    const L mp = j / $q % $p, np = j % $q;
    const L t0 = mp * $m_tiles / $p, t1 = (mp + 1) * $m_tiles / $p;
    const L g0 = np * $n_groups / $q, g1 = (np + 1) * $n_groups / $q;
    const L blocks = (t1 - t0 + $per_block - 1) / $per_block;
$buffer
    for (L block = 0; block < blocks; block++) {
        const L s0 = t0 + block * (t1 - t0) / blocks, s1 = t0 + (block + 1) * (t1 - t0) / blocks;
        $k_loop
$fill
        for (L g = g0; g < g1; g++) {
            const L u = $group_start, n = u * $unit;
            $sweep
            const T *pb = b + $group_offset;$next
            for (L t = s0; t < s1; t++) {
                const L m = $m_start;
                const T *ta = $row_source;
                $calls
            }
            $sweep_end
        }
        $k_end
    }
}
"""
COPY_ROWS = """        {
            const L m0 = s0, m1 = s1;
            const L first = $first_row, end = $end_row;
            for (L m = first; m < end; m++) {
                const T *s = a + m * ${am}LL + k0;
                T *d = buffer + (m - first) * $pitch;
                L k = 0;
                for (; k + VL <= depth; k += VL) store(d + k, load(s + k));
                if (k < depth) store_part(d + k, load_part(s + k, (int)(depth - k)), (int)(depth - k));
            }
        }"""
PACK_ROWS = """        for (L k = 0; k < depth; k += $step)
            for (L t = s0; t < s1; t++) {
                const L m = $m_start, count = depth - k < $step ? depth - k : $step;
                const T *s = a + m * ${am}LL + (k0 + k) * ${ak}LL;
                T *d = buffer + (t - s0) * $pitch;
                $pack_calls
            }"""
# Some panels of B, put together in scratch.
PACK = """
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch$parameter) {
    const L group = j / $jobs, first = j % $jobs * $together, end = first + $together < $panels ? first + $together : $panels;
    $offsets
    for (L k = 0; k < $k; k += $step)
        for (L panel = first; panel < end; panel++) {
            const L n = panel * $panel;
            panel_of_b<$vectors>((T *)scratch + (group * $panels + panel) * $size + k * $panel, a1 + pb + k * ${bk}LL + n * ${bn}LL,
                $k - k < $step ? $k - k : $step, $n - n < $panel ? $n - n : $panel);
        }
}
"""
