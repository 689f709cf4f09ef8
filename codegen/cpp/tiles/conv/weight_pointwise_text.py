"""C++ of pointwise weight gradients on a matrix unit: blocks of positions in parts, made while the block before is multiplied."""

# Where a block's positions lie in both operands, and those of the step after it, which are fetched ahead; zeros from the last one on.
POSITIONS = """
constexpr L STEPS = $steps, STRIPS = $strips, ROW_BYTES = STRIPS * STEPS * STEP;
alignas(64) static const T nothing[$most] = {};
struct Block { const T *rows[STEPS * 32 + 32], *columns[STEPS * 32 + 32]; L steps; };
$noinline void find(const T *rows, const T *columns, L first, Block &q) {
    const L left = $positions - first;
    q.steps = left < STEPS * 32 ? (left + 31) / 32 : STEPS;
    L w = first % $ow, h = first / $ow % $oh, n = first / ${plane}LL;
    const T *r = rows + n * ${rn}LL + h * ${rh}LL + w * ${rw}LL, *c = columns + n * ${cn}LL + h * ${ch}LL + w * ${cw}LL;
    for (L i = 0; i < q.steps * 32 + 32; i++, r += $rw, c += $cw) {
        q.rows[i] = i < left ? r : nothing;
        q.columns[i] = i < left ? c : nothing;
        if (++w < $ow) continue;
        w = 0;
        if (++h == $oh) { h = 0; n++; }
        r = rows + n * ${rn}LL + h * ${rh}LL - ${rw}LL;
        c = columns + n * ${cn}LL + h * ${ch}LL - ${cw}LL;
    }
}
"""
# Sixteen channels from `at` on, of sixteen positions, become rows of positions, 32 numbers apart.
TURN = """
$noinline void turn(const T *const *p, L at, int count, T *to) {
    for (int i = 0; i < 16; i++) __builtin_prefetch(p[i + 32] + at, 0, 2);
$exchanges
}
"""
# A block is made in pieces that take about as long as the unit takes between two pauses: of half a strip two transpositions, and eight
# rows twice; of a panel four times four pairs.
MAKE = """
struct Making { L done, stop, pace, each; B *rows, *columns; alignas(64) T turned[16 * 32]; };
$noinline void make(Making &m, const Block &q) {
    for (L end = m.done + m.pace < m.stop ? m.done + m.pace : m.stop; m.done < end; m.done++) {
        const L s = m.done / m.each, i = m.done % m.each, piece = i % 4;
        if (i < STRIPS * 8) {
            const L strip = i / 8, half = i / 4 % 2, channel = strip * 32 + half * 16;
            if ($height - channel <= 0) continue;
            if (piece < 2) {
                turn(q.rows + s * 32 + piece * 16, channel, $height - channel < 16 ? (int)($height - channel) : 16, m.turned + piece * 16);
                continue;
            }
            B *d = m.rows + (strip * STEPS + s) * STEP + half * TILE + (piece - 2) * 512;
            const T *t = m.turned + (piece - 2) * 256;
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) split_pair(load(t + r * 32), load(t + r * 32 + 16), d + r * 64);
            continue;
        }
        const L panels = (m.each - STRIPS * 8) / 4;
        L f = (i - STRIPS * 8) * 4, u = f / panels, g = f % panels;
        for (int v = 0; v < 4; v++) {
            const T *x = q.columns[s * 32 + u] + g * 32, *y = q.columns[s * 32 + u + 16] + g * 32;
            const T *after = q.columns[s * 32 + u + 32] + g * 32, *late = q.columns[s * 32 + u + 48] + g * 32;
            __builtin_prefetch(after, 0, 2);
            __builtin_prefetch(after + 16, 0, 2);
            __builtin_prefetch(late, 0, 2);
            __builtin_prefetch(late + 16, 0, 2);
            B *d = m.columns + (g * STEPS + s) * STEP + u * 64;
            $split
            if (++g == panels) { g = 0; u++; }
        }
    }
}
"""
WHOLE_PANELS = """split_pair(load(x), load(y), d);
            split_pair(load(x + 16), load(y + 16), d + TILE);"""
CUT_PANELS = """const L left = m.width - g * 32;
            const int low = left < 16 ? (int)left : 16, high = left > 16 ? left < 32 ? (int)left - 16 : 16 : 0;
            split_pair(load_part(x, low), load_part(y, low), d);
            split_pair(load_part(x + 16, high), load_part(y + 16, high), d + TILE);"""
RUN = """
// What is not finite or tiny, from the operands as they are.
__attribute__((noinline, noclone, cold)) static void repair(T *t, const T *x, const T *y, L first, L end, int height, int width) {
    const int low = width < 16 ? width : 16, high = width > 16 ? width - 16 : 0;
    for (int i = 0; i < height; i++, t += 32) {
        const M a = lost(load(t)), b = lost(load(t + 16));
        if (sum((V)((a | b) & 0x3f800000)) == 0) continue;
        V u = {}, v = {};
        for (L k = first; k < end; k += STEPS * 32) {
            Block q;
            find(x, y, k, q);
            const L count = end - k < STEPS * 32 ? end - k : STEPS * 32;
            V part[2] = {};
            for (L j = 0; j < count; j++) {
                part[0] += q.rows[j][i] * load_part(q.columns[j], low);
                part[1] += q.rows[j][i] * load_part(q.columns[j] + 16, high);
            }
            u += part[0];
            v += part[1];
        }
        store(t, a ? u : load(t));
        store(t + 16, b ? v : load(t + 16));
    }
}
$noinline void partial(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch) {
    const L share = j / $parts, part = j % $parts;
    const L g0 = part * $panels / $parts, panels = (part + 1) * $panels / $parts - g0;
    const T *rows = $rows, *columns = $columns + g0 * 32;
    T *sums = (T *)scratch + share * ${share_size}LL + g0 * STRIPS * 1024;
    B *mine = scratch + ${at}LL + j * ${job_bytes}LL;
    const L first = share * $blocks / $shares, end = (share + 1) * $blocks / $shares;
    const Tiles tiles;
    Block q;
    Making m;
    m.each = STRIPS * 8 + panels * 4;
    $width
    const auto begin = [&](L k) {
        m.rows = mine + (k - first) % 2 * ${half_bytes}LL;
        m.columns = m.rows + ROW_BYTES;
        m.done = m.stop = 0;
        if (k == end) return;
        find(rows, columns, k * STEPS * 32, q);
        m.stop = q.steps * m.each;
    };
    begin(first);
    m.pace = m.stop;
    make(m, q);
    for (L k = first; k < end; k++) {
        const L steps = q.steps;
        const B *r = m.rows, *c = m.columns;
        begin(k + 1);
        const L whole = m.stop;
        L number = 0;
        const auto meanwhile = [&]() __attribute__((always_inline)) { if (m.done < m.stop) make(m, q); };
        for (L t = 0; t < STRIPS; t++)
            for (L g = 0; g < panels; g++) {
                number++;
                m.stop = whole * number / (STRIPS * panels);
                m.pace = (m.stop - m.done + 3 * steps - 1) / (3 * steps);
                alignas(64) T made[1024];
                T *d = sums + (g * STRIPS + t) * 1024;
                const auto ahead = [&](int i) __attribute__((always_inline)) {
                    __builtin_prefetch(d + i * 32, 1, 2);
                    __builtin_prefetch(d + i * 32 + 16, 1, 2);
                };
                $tile
                const int vectors = $vectors;
                if (k == first)
                    for (int i = 0; i < vectors; i++) store(d + i * VL, load(made + i * VL));
                else
                    for (int i = 0; i < vectors; i++) store(d + i * VL, load(d + i * VL) + load(made + i * VL));
            }
        if (m.done < whole) { m.stop = m.pace = whole; make(m, q); }
    }
    const L last = end * STEPS * 32 < $positions ? end * STEPS * 32 : $positions;
    for (L g = 0; g < panels; g++)
        for (L t = 0; t < STRIPS; t++) {
            T *d = sums + (g * STRIPS + t) * 1024;
            const L height = $height - t * 32, width = $columns_all - (g0 + g) * 32;
            if (sound(d, $vectors)) continue;
            const int tall = height < 32 ? (int)height : 32, wide = width < 32 ? (int)width : 32;
            repair(d, rows + t * 32, columns + g * 32, first * STEPS * 32, last, tall, wide);
        }
}
// Sums of shares, [panel][row][32 columns], to w.
$noinline void finish(L g, const T *, const T *, const T *, T *o0, unsigned char *scratch) {
    const T *s = (const T *)scratch + g * STRIPS * 1024;
    const L columns = $columns_all - g * 32 < 32 ? $columns_all - g * 32 : 32;
    for (L m = 0; m < $height; m += 16)
        for (L n = 0; n < columns; n += 16) {
            const int rows = $height - m < 16 ? (int)($height - m) : 16, width = columns - n < 16 ? (int)(columns - n) : 16;
            T *to = o0 + m * ${wr}LL + (g * 32 + n) * ${wc}LL;
            alignas(64) T t[256];
            for (int i = 0; i < rows; i++) {
                V v = load(s + (m + i) * 32 + n);
                for (L p = 1; p < $shares; p++) v += load(s + p * ${share_size}LL + (m + i) * 32 + n);
                $put
            }
            $place
        }
}
"""
# Columns side by side in w, rows side by side, or neither.
ALONG = ("store_part(to + i * ${wr}LL, v, width);", "")
ACROSS = ("store(t + i * 16, v);", "transpose_block(t, 16, rows, width, V{}, to, ${wc}LL, rows);")
APART = (
    "store(t + i * 16, v);",
    "for (int i = 0; i < rows; i++)\n                for (int l = 0; l < width; l++) to[i * ${wr}LL + l * ${wc}LL] = t[i * 16 + l];",
)
