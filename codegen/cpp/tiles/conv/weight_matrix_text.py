"""C++ of weight gradients on a matrix unit: both operands of a block of positions in parts, tiles over them, and what is not finite."""

ODD = ", ".join(str(i) for i in range(1, 64, 2))
# A block of results: images, rows and columns. Its steps of k are positions of a segment per image, rows of WIDE positions each.
BLOCKS = """
struct Block { L n0, n1, r0, r1, c0, c1; };
constexpr L WIDE = $wide, STEPS = $steps, SEGMENT = $segment, PANELS = $panels, PITCH = $pitch, IMAGE_PART = 32 * PITCH;
constexpr L PANEL = ${segments}LL * STEPS * STEP;
$inline Block place(L k) {
    const L cb = k % $column_blocks, rb = k / $column_blocks % $row_blocks, nb = k / $per_images;
    return {$n_start, $n_next, $row_start, $row_next, $column_start, $column_next};
}
"""
# Pairs of positions of the result's gradient, all panels of channels: [panel][segment][step][part][half][pair][channel].
GRADIENT = """
$noinline void split_gradient(const T *y, const Block &q, B *to) {
    alignas(64) static const T zeros[$co] = {};
    const L rows = q.r1 - q.r0, columns = q.c1 - q.c0;
    for (L n = q.n0; n < q.n1; n++, to += STEPS * STEP) {
        const T *s = y + n * ${yn}LL + q.r0 * ${yh}LL + q.c0 * ${yw}LL;
        L r = 0, c = 0;
        for (L u = 0; u < STEPS * 16; u++) {
            const T *p[2];
            for (int i = 0; i < 2; i++) {
                p[i] = r < rows && c < columns ? s + r * ${yh}LL + c * ${yw}LL : zeros;
                if (++c == WIDE) { c = 0; r++; }
            }
            B *d = to + u / 16 * STEP + u % 16 * 64;
            for (L g = 0; g < PANELS; g++, d += PANEL) {
                split_pair(load(p[0] + g * 32), load(p[1] + g * 32), d);
                split_pair(load(p[0] + g * 32 + 16), load(p[1] + g * 32 + 16), d + TILE);
            }
        }
    }
}
"""
# 32 channels of the image under the block, [part][channel][phase][segment][position], zeros where there is no image.
IMAGE = """
typedef unsigned short H __attribute__((vector_size(64)));
// Neighbours make pairs, since a tap begins at any of them.
$inline void split_line(V x, V y, B *to) {
    const H high = {$odd};
    const W x0 = lead(x), y0 = lead(y), x1 = lead(x), y1 = lead(y);
    *(H *)to = __builtin_shuffle((H)x0, (H)y0, high);
    *(H *)(to + IMAGE_PART) = __builtin_shuffle((H)x1, (H)y1, high);
    *(H *)(to + 2 * IMAGE_PART) = __builtin_shuffle((H)x, (H)y, high);
}
$noinline void split_image(const T *x, const Block &q, B *to) {
    constexpr L HIGH[] = {$high}, BROAD[] = {$broad};
    constexpr L PHASE = ${segments}LL * SEGMENT, LENGTH = $highs * $broads * PHASE, LINE = LENGTH + VL, NEXT = $sw * ${xw}LL;
    alignas(64) T line[16 * LINE];
    const L rows = q.r1 - q.r0 + $halo;
    for (int half = 0; half < 2; half++, x += 16, to += 16 * PITCH) {
        for (L i = 0; i < 16 * LINE; i += VL) store(line + i, V{});
        for (L phase = 0; phase < $highs * $broads; phase++) {
            const L f = HIGH[phase / $broads], g = BROAD[phase % $broads], columns = $columns;
            for (L n = q.n0; n < q.n1; n++)
                for (L i = 0; i < rows; i++) {
                    const L h = (q.r0 + i + $lowest) * $sh + f;
                    if (h < 0 || h >= $ih) continue;
                    const T *s = x + n * ${xn}LL + h * ${xh}LL + (q.c0 * $sw + g) * ${xw}LL;
                    T *d = line + phase * PHASE + (n - q.n0) * SEGMENT + i * WIDE + $left;
                    for (L c = 0; c < columns; c += VL)
                        transpose_block(s + c * NEXT, NEXT, columns - c < VL ? (int)(columns - c) : VL, VL, V{}, d + c, LINE, VL);
                }
        }
        for (int j = 0; j < 16; j++)
            for (L k = 0; k < LENGTH; k += 32)
                split_line(load(line + j * LINE + k), load(line + j * LINE + k + 16), to + j * PITCH + k * 2);
    }
}
"""
# 32 input by 32 output channels of one tap, which shifts the image's positions. The sums that they are added to are fetched meanwhile.
TILE = """
$noinline void weight_tile(const B *a, const B *b, T *t, L segments, const T *sums) {
    const int steps = (int)(segments * STEPS), share = 31 / steps + 1;
    int step = 0, row = 0;
    D_TILE_ZERO(0);
    D_TILE_ZERO(1);
    D_TILE_ZERO(2);
    D_TILE_ZERO(3);
    for (L g = 0; g < segments; g++, a += SEGMENT * 2)
        for (L s = 0; s < STEPS; s++, b += STEP) {
            const B *p = a + s * 64;
#define D_ROWS(r, part) D_TILE_LOAD(r, p + part * IMAGE_PART + (r - 4) * 16 * PITCH, PITCH)
#define D_COLUMNS(r, part) D_TILE_LOAD(r, b + part * PART + (r - 6) * TILE, 64)
#define D_NEW_ROWS(part) D_ROWS(4, part); D_TILE_MULTIPLY(0, 4, 6); D_TILE_MULTIPLY(1, 4, 7); \\
    D_ROWS(5, part); D_TILE_MULTIPLY(2, 5, 6); D_TILE_MULTIPLY(3, 5, 7);
#define D_NEW_COLUMNS(part) D_COLUMNS(6, part); D_TILE_MULTIPLY(0, 4, 6); D_TILE_MULTIPLY(2, 5, 6); \\
    D_COLUMNS(7, part); D_TILE_MULTIPLY(1, 4, 7); D_TILE_MULTIPLY(3, 5, 7);
            D_COLUMNS(6, 0);
            D_COLUMNS(7, 0);
            D_NEW_ROWS(2)
            D_NEW_ROWS(1)
            D_NEW_COLUMNS(1)
            for (const int stop = row + share < 32 ? row + share : 32; row < stop; row++, sums += $taps * 32) {
                __builtin_prefetch(sums, 1, 2);
                __builtin_prefetch(sums + 16, 1, 2);
            }
            D_NEW_ROWS(0)
            D_NEW_COLUMNS(2)
            D_NEW_COLUMNS(0)
            if (s % 4 == 3) D_KEEP_AWAKE(t);
            if (steps > 8 && ++step > steps - 4)
                for (int i = 0; i < 16; i++) __builtin_prefetch(t + (step - steps + 3) * 256 + i * 16, 1, 3);
        }
    D_TILE_STORE(0, t, 128);
    D_TILE_STORE(1, t + 16, 128);
    D_TILE_STORE(2, t + 512, 128);
    D_TILE_STORE(3, t + 528, 128);
}
// What is not finite or tiny, from the operands as they are.
__attribute__((noinline, noclone, cold)) static void repair(T *t, const T *x, const T *y, const Block &q, L kh, L kw) {
    for (int i = 0; i < 32; i++, t += 32) {
        const M a = lost(load(t)), b = lost(load(t + 16));
        if (sum((V)((a | b) & 0x3f800000)) == 0) continue;
        V u = {}, v = {};
        for (L n = q.n0; n < q.n1; n++)
            for (L r = q.r0; r < q.r1; r++)
                for (L c = q.c0; c < q.c1; c++) {
                    const L h = r * $sh + kh * $dh + $bh, w = c * $sw + kw * $dw + $bw;
                    if (h < 0 || h >= $ih || w < 0 || w >= $iw) continue;
                    const T s = x[n * ${xn}LL + h * ${xh}LL + w * ${xw}LL + i];
                    const T *p = y + n * ${yn}LL + r * ${yh}LL + c * ${yw}LL;
                    u += s * load(p);
                    v += s * load(p + 16);
                }
        store(t, a ? u : load(t));
        store(t + 16, b ? v : load(t + 16));
    }
}
"""
RUN = """
$noinline void partial(L j, const T *a0, const T *a1, const T *, T *, unsigned char *scratch) {
    const L share = j / $parts, part = j % $parts;
    T *sums = (T *)scratch + share * ${share_size}LL;
    B *gradient = scratch + ${at}LL + j * ${job_bytes}LL, *image = gradient + PANELS * PANEL;
    static constexpr L OFFSETS[] = {$offsets};
    const Tiles tiles;
    const L first = share * $blocks / $shares, end = (share + 1) * $blocks / $shares;
    for (L k = first; k < end; k++) {
        const Block q = place(k);
        split_gradient(a1, q, gradient);
        for (L t = part * $strips / $parts; t < (part + 1) * $strips / $parts; t++) {
            split_image(a0 + t * 32, q, image);
            for (L g = 0; g < PANELS; g++)
                for (L tap = 0; tap < $taps; tap++) {
                    const L kh = tap / $kw, kw = tap % $kw;
                    alignas(64) T c[1024];
                    T *d = sums + g * 32 * ${per_lane}LL + (t * 32 * $taps + tap) * 32;
                    weight_tile(image + OFFSETS[tap] * 2, gradient + g * PANEL, c, q.n1 - q.n0, d);
                    if (!sound(c, 64)) repair(c, a0 + t * 32, a1 + g * 32, q, kh, kw);
                    for (int i = 0; i < 32; i++, d += $taps * 32) {
                        const V u = load(c + i * 32), v = load(c + i * 32 + 16);
                        store(d, k == first ? u : load(d) + u);
                        store(d + 16, k == first ? v : load(d + 16) + v);
                    }
                }
        }
    }
}
"""
