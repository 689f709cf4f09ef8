"""C++ of products with packed B: the register tile, how it ends, the job around it, and the packing of B."""

TILE = """
template <int MR, int NP, int NV>
$noinline void tile(const T *a, const $held *b, $to, L valid$partial_parameters$next_parameters) {
$prefetch    V acc[MR][NP * NV];
$start
    DCIR_STEPS for (L k = 0; k < $depth; k++, a += $ak, b += $panel$advance) {
        V bv[NP * NV];$fetch
$read
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++) {
            const T s = a[i * $ai];
#pragma GCC unroll 32
            for (int v = 0; v < NP * NV; v++) $multiply;
        }
    }
$stop
}
"""
READ = """#pragma GCC unroll 32
        for (int v = 0; v < NP * NV; v++) {
            const T *at = b + v / NV * $stride + v % NV * VL;
            bv[v] = load(at);
            if (v * VL * $bytes % 64 == 0) __builtin_prefetch(at + $ahead, 0, $into);
        }"""
READ_WIDENED = """#pragma GCC unroll 32
        for (int u = 0; u < NP; u++) {
            widen<NV>(bv + u * NV, b + u * $stride);
            __builtin_prefetch(b + u * $stride + $ahead, 0, $into);
        }"""
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
PRODUCT = """
$noinline void product(L j, const T *a0, const T *a1, const T *, T *o0, unsigned char *scratch$parameter) {
    $own
    $offsets
    const T *a = a0 + pa;
    const $held *b = $source;
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
            const $held *pb = b + $group_offset;$next
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
# Numbers of a panel that keep the digits of a half type; few enough to stay in the nearest cache until then.
ROUNDED = """
#pragma omp simd
            for (L i = 0; i < steps * $panel; i++) d[i] = $value;"""
# Some panels of B, put together in scratch.
PACK = """
$noinline void pack(L j, const T *, const T *a1, const T *, T *, unsigned char *scratch$parameter) {
    const L group = j / $jobs, first = j % $jobs * $together, end = first + $together < $panels ? first + $together : $panels;
    $offsets
    for (L k = 0; k < $k; k += $step)
        for (L panel = first; panel < end; panel++) {
            const L n = panel * $panel;
            const L steps = $k - k < $step ? $k - k : $step;
            T *d = (T *)scratch + (group * $panels + panel) * $size + k * $panel;
            panel_of_b<$vectors>(d, a1 + pb + k * ${bk}LL + n * ${bn}LL, steps, $n - n < $panel ? $n - n : $panel);$rounded
        }
}
"""
