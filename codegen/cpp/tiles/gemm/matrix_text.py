"""C++ of products on a matrix unit: numbers in three parts, the tile, the job around it, and what is done about NaN and infinity."""

# One step of a tile is 32 steps of k: of A [part][row][pair of k], of B [part][half][pair of k][column][k of the pair], 6 KiB each.
SUPPORT = """
typedef unsigned W __attribute__((vector_size(64)));
typedef unsigned char B;
constexpr L STEP = 6144, PART = 2048, TILE = 1024;
// Linux lets a process use tile registers once it has asked.
static const long permission = [] {
    long result = 158;
    asm volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result;
}();
// Tile registers of 16 rows of 64 bytes, while it lives.
struct Tiles {
    Tiles() {
        alignas(64) static const B shape[64] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 64, 0,
            64, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16};
        asm volatile("ldtilecfg %0" : : "m"(shape));
    }
    ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
};
#define D_TILE_ZERO(r) asm volatile("tilezero %%tmm" #r : : )
#define D_TILE_LOAD(r, p, pitch) asm volatile("tileloadd (%0,%1,1), %%tmm" #r : : "r"(p), "r"((L)(pitch)) : "memory")
#define D_TILE_STORE(r, p, pitch) asm volatile("tilestored %%tmm" #r ", (%0,%1,1)" : : "r"(p), "r"((L)(pitch)) : "memory")
// The first store after some 130 products takes 0.3 us, where there was none before: any now and then makes it as fast as others.
#define D_KEEP_AWAKE(p) D_TILE_STORE(6, p, 64)
#define D_TILE_MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : )
// The eight leading bits of every number, rounded, and what is left; three times that is all of it. The third part of what is not
// finite, or rounds to infinity, is NaN.
$inline W lead(V &x) {
    const W bits = ((W)x + 0x8000u) & 0xffff0000u;
    x -= (V)bits;
    return bits;
}
// Steps of k that a tile multiplies at once are 16 apart: two vectors side by side become pairs with a shift.
$inline void split_to(V x, V y, W (&parts)[3]) {
    const W x0 = lead(x), y0 = lead(y), x1 = lead(x), y1 = lead(y);
    parts[0] = x0 >> 16 | y0;
    parts[1] = x1 >> 16 | y1;
    parts[2] = (W)x >> 16 | ((W)y & 0xffff0000u);
}
$inline void split_pair(V x, V y, B *to) {
    W parts[3];
    split_to(x, y, parts);
    *(W *)to = parts[0];
    *(W *)(to + PART) = parts[1];
    *(W *)(to + 2 * PART) = parts[2];
}
// Whether all is finite, and zero or no smaller than LEAST: below, parts of the operands may have been lost. Of a multiple of 8 vectors.
constexpr unsigned LEAST = $least;
$noinline bool sound(const T *t, int vectors) {
    V s[8] = {};
    W least[2] = {~W{}, ~W{}};
    for (int i = 0; i < vectors; i += 8)
#pragma GCC unroll 8
        for (int u = 0; u < 8; u++) {
            const V x = load(t + (i + u) * VL);
            s[u] += x * 0;
            const W above = ((W)x & 0x7fffffffu) - 1;  // of a zero the largest of all
            least[u % 2] = above < least[u % 2] ? above : least[u % 2];
        }
    const W few = (least[0] < LEAST - 1) | (least[1] < LEAST - 1);
    return sum((s[0] + s[1]) + (s[2] + s[3]) + ((s[4] + s[5]) + (s[6] + s[7])) + (V)(few & 0x3f800000u)) == 0;
}
$inline M lost(V x) { return (M)((x - x != 0) | ((M)(((W)x & 0x7fffffffu) - 1 < LEAST - 1))); }
"""
LEAST = f"0x{(127 - 86) << 23:x}u"  # 2^-86
# Panels of 32 columns of B: packed, or rows of the matrix where it lies, the last panel's cut off at the last column. What is read
# later is fetched in the order it lies in memory; pieces of rows, which may share a set of the nearest cache, no nearer than the second.
PACKED = """
$inline const T *panel_at(const T *b, L g, L k) { return b + g * ${panel}LL + k * 32; }
$inline V columns_at(const T *p, L k, int half, L) { return load(p + k * 32 + half * 16); }
$inline void fetch_later(const T *p, L u, int i) { __builtin_prefetch(p + (u + 8) * 64 + i * 16, 0, 3); }
"""
ROWS_OF_B = """
$inline const T *panel_at(const T *b, L g, L k) { return b + g * 32 + k * ${bk}LL; }
$inline V columns_at(const T *p, L k, int half, L valid) {
    const T *s = p + k * ${bk}LL + half * 16;
    const L left = valid - half * 16;
    return left >= 16 ? load(s) : left > 0 ? load_part(s, (int)left) : V{};
}
$inline void fetch_later(const T *p, L u, int i) { __builtin_prefetch(p + (u + (u & -16) + i / 2 * 16 + 32) * ${bk}LL + i % 2 * 16, 0, 2); }
"""
# Columns of the matrix where it lies, each of neighbours: eight pairs are half the columns of a step, which are transposed.
COLUMNS_OF_B = """
$inline const T *panel_at(const T *b, L g, L k) { return b + g * 32 * ${bn}LL + k; }
$inline V columns_at(const T *p, L k, int half, L valid) {
    V v = {};
    for (int i = 0; i < 16 && half * 16 + i < valid; i++) v[i] = p[(half * 16 + i) * ${bn}LL + k];
    return v;
}
// Four steps of k of sixteen columns: what lies four columns apart comes into one vector, so that only quarters are left to transpose.
// Nothing goes by way of memory: stores beside a tile's loads cost more than what is computed.
$inline void four_steps(const T *s, V (&v)[4]) {
    typedef T Q __attribute__((vector_size(16), aligned(4), may_alias));
    for (int e = 0; e < 4; e++) {
        const T *q = s + e * ${bn}LL;
        v[e] = __builtin_ia32_broadcastf32x4_512(*(const Q *)q, V{}, (short)-1);
        for (int l = 1; l < 4; l++) v[e] = __builtin_ia32_broadcastf32x4_512(*(const Q *)(q + l * 4 * ${bn}LL), v[e], (short)(15 << 4 * l));
    }
$quarters
}
$noinline void split_panel(const T *p, B *to, L begin, L end, L depth$valid) {
    for (L u = begin; u < end; u += 8) {
        const L k = u / 16 * 32, half = u / 8 % 2, left = depth - k, columns = $whole - half * 16;
        const T *s = p + half * 16 * ${bn}LL + k;
        B *d = to + u / 16 * STEP + half * TILE;
        const T *later = half ? s - 16 * ${bn}LL + 32 : s + 16 * ${bn}LL;
        if (columns >= 16 && left >= 32) {
            for (int j = 0; j < 16; j += 4) {
                for (int i = 0; i < 4; i++) {
                    __builtin_prefetch(later + (j + i) * ${bn}LL, 0, 3);
                    __builtin_prefetch(later + (j + i) * ${bn}LL + 16, 0, 3);
                }
                V x[4], y[4];
                four_steps(s + j, x);
                four_steps(s + j + 16, y);
                for (int i = 0; i < 4; i++) split_pair(x[i], y[i], d + (j + i) * 64);
            }
            continue;
        }
        alignas(64) T block[512] = {};
        if (columns > 0) {
            const int rows = columns < 16 ? (int)columns : 16;
            transpose_block(s, ${bn}LL, rows, left < 16 ? (int)left : 16, V{}, block, 16, 16);
            if (left > 16) transpose_block(s + 16, ${bn}LL, rows, left < 32 ? (int)left - 16 : 16, V{}, block + 256, 16, 16);
        }
        for (int i = 0; i < 16; i++) split_pair(load(block + i * 16), load(block + 256 + i * 16), d + i * 64);
    }
}
"""
# Pairs of rows of a panel, from the `begin`th on; rows from `depth` on are zeros.
SPLIT_PANEL = """
$noinline void split_panel(const T *p, B *to, L begin, L end, L depth$valid) {
    for (L u = begin; u < end; u++) {
        const L k = u + (u & -16);
        B *d = to + u / 16 * STEP + u % 16 * 64;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) fetch_later(p, u, i);
        const bool first = k < depth, second = k + 16 < depth;
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            split_pair(first ? columns_at(p, k, h, $whole) : V{}, second ? columns_at(p, k + 16, h, $whole) : V{}, d + h * TILE);
    }
}
"""
ELEMENT = """
$inline const T *element(const T *a, L m, L k) { return a + m * ${am}LL + k * ${ak}LL; }
"""
# Rows whose steps of k are neighbours, and any others, which pass through a block.
SPLIT_ROWS_ALONG = """
$noinline void split_rows(const T *a, L rows, L depth, B *to) {
    for (L i = 0; i < rows; i++) {
        const T *s = a + i * ${am}LL;
        L k = 0;
        for (; k + 32 <= depth; k += 32) {
            __builtin_prefetch(s + k + ${am}LL, 0, 3);
            __builtin_prefetch(s + k + 16 + ${am}LL, 0, 3);
            split_pair(load(s + k), load(s + k + 16), to + k / 32 * STEP + i * 64);
        }
        const int left = (int)(depth - k);
        if (left > 0) {
            const V x = load_part(s + k, left < 16 ? left : 16), y = left > 16 ? load_part(s + k + 16, left - 16) : V{};
            split_pair(x, y, to + k / 32 * STEP + i * 64);
        }
    }
}
"""
SPLIT_ROWS_ACROSS = """
$noinline void split_rows(const T *a, L rows, L depth, B *to) {
    alignas(64) T block[16 * 32];
    for (L i = 0; i < rows; i += 16)
        for (L k = 0; k < depth; k += 32) {
            const int height = rows - i < 16 ? (int)(rows - i) : 16, width = depth - k < 32 ? (int)(depth - k) : 32;
            $fill
            for (int r = 0; r < height; r++) split_pair(load(block + r * 32), load(block + r * 32 + 16), to + k / 32 * STEP + (i + r) * 64);
        }
}
"""
FILL_TRANSPOSED = """const T *s = a + i + k * ${ak}LL;
            transpose_block(s, ${ak}LL, width < 16 ? width : 16, height, V{}, block, 32, 16);
            if (width > 16) transpose_block(s + 16 * ${ak}LL, ${ak}LL, width - 16, height, V{}, block + 16, 32, 16);
            else for (int r = 0; r < height; r++) store(block + r * 32 + 16, V{});"""
FILL_ANY = """for (int r = 0; r < height; r++)
                for (int c = 0; c < 32; c++) block[r * 32 + c] = c < width ? a[(i + r) * ${am}LL + (k + c) * ${ak}LL] : 0;"""
# R times 16 rows by 32 columns: the six largest of the nine products of parts, the smallest of which are below half a unit in the last
# place of the whole. The matrix unit works on its own: meanwhile, three times a step, the processor splits what comes next, and
# finishes the tile before in $pieces pieces.
TILE = """
template <int R$type, class A, class F>
$noinline void matrix_tile(const B *a, const B *b, T *t, L steps, $given, const A &ahead, const F &finish_piece) {
    const int share = (int)((16 * R - 1) / steps + 1);
    int row = 0, owed = 0;
    D_TILE_ZERO(0);
    D_TILE_ZERO(1);
    if constexpr (R == 2) { D_TILE_ZERO(2); D_TILE_ZERO(3); }
    $before
    for (L s = 0; s < steps; s++, a += STEP, b += STEP) {
#define D_ROWS(r, part) D_TILE_LOAD(r, a + part * PART + (r - 4) * TILE, 64)
#define D_COLUMNS(r, part) D_TILE_LOAD(r, b + part * PART + (r - 6) * TILE, 64)
#define D_UPPER D_TILE_MULTIPLY(0, 4, 6); D_TILE_MULTIPLY(1, 4, 7)
#define D_LOWER D_TILE_MULTIPLY(2, 5, 6); D_TILE_MULTIPLY(3, 5, 7)
#define D_LEFT D_TILE_MULTIPLY(0, 4, 6); if constexpr (R == 2) D_TILE_MULTIPLY(2, 5, 6)
#define D_RIGHT D_TILE_MULTIPLY(1, 4, 7); if constexpr (R == 2) D_TILE_MULTIPLY(3, 5, 7)
#define D_NEW_ROWS(part) D_ROWS(4, part); D_UPPER; if constexpr (R == 2) { D_ROWS(5, part); D_LOWER; }
#define D_NEW_COLUMNS(part) D_COLUMNS(6, part); D_LEFT; D_COLUMNS(7, part); D_RIGHT;
#define D_MEANWHILE { $meanwhile }
        D_COLUMNS(6, 0); D_COLUMNS(7, 0);
        D_NEW_ROWS(2)
        D_NEW_ROWS(1) D_MEANWHILE
        D_NEW_COLUMNS(1)
        for (const int stop = row + share < 16 * R ? row + share : 16 * R; row < stop; row++) ahead(row);
        D_NEW_ROWS(0) D_MEANWHILE
        for (owed += $pieces; owed >= steps; owed -= (int)steps) finish_piece();
        D_NEW_COLUMNS(2)
        D_NEW_COLUMNS(0) D_MEANWHILE
        if (steps > 8 && s % 4 == 3) D_KEEP_AWAKE(t);
        if (steps > 8 && s >= steps - 4)  // where the sums go: what was there has left the nearest cache
            for (int i = 0; i < 16; i++) __builtin_prefetch(t + (s - steps + 4) * 256 + i * 16, 1, 3);
    }
    D_TILE_STORE(0, t, 128);
    D_TILE_STORE(1, t + 16, 128);
    if constexpr (R == 2) { D_TILE_STORE(2, t + 512, 128); D_TILE_STORE(3, t + 528, 128); }
}
"""
FINISH_TILE = """\
// What is not finite or tiny, from the operands as they are: a part of an infinity times a part that is zero is not what was asked for,
// and of a number below 2^-110 the unit reads the last parts as zeros.
__attribute__((noinline, noclone, cold)) static void repair(T *t, int rows, const T *a, L m, const T *p, L valid) {
    for (int i = 0; i < rows; i++, t += 32) {
        const M left = lost(load(t)), right = lost(load(t + 16));
        if (sum((V)((left | right) & 0x3f800000)) == 0) continue;
        V x = {}, y = {};
        for (L k = 0; k < $k; k++) {
            const T *s = element(a, m + i, k);
            if (!s) continue;
            x += *s * columns_at(p, k, 0, valid);
            y += *s * columns_at(p, k, 1, valid);
        }
        store(t, left ? x : load(t));
        store(t + 16, right ? y : load(t + 16));
    }
}
template <int MR> $noinline void finish_tile(const T *t, $to, L valid) {
$stop
}
"""
# What is split: pairs of a panel, so many of them in a pause, or whatever the caller says.
PANEL = {
    "type": "",
    "given": "const T *next, B *to, L u, L end, L depth$valid",
    "before": "const int pauses = 3 * (int)steps, groups = (int)(end - u) / $together; int due = 0;",
    "meanwhile": "for (due += groups; due >= pauses; due -= pauses, u += $together) split_panel(next, to, u, u + $together, depth$pass);",
}
ANYTHING = {"type": ", class W", "given": "const W &meanwhile", "before": "", "meanwhile": "meanwhile();"}
PRODUCT = """
$noinline void product(L job, const T *a0, const T *a1, const T *, T *o0, B *scratch$parameter) {
    B *rows = scratch + ${at}LL + job * ${bytes}LL, *columns = rows + ${row_bytes}LL;
    const Tiles tiles;
    $own
    for (L j = job * ${items}LL / $jobs; j < (job + 1) * ${items}LL / $jobs; j++) {
    $offsets
    const T *a = $image, *b = $source;
    const L mp = j / $q % $p, np = j % $q;
    const L t0 = mp * $strips / $p, t1 = (mp + 1) * $strips / $p, g0 = np * $panels / $q, g1 = (np + 1) * $panels / $q;
    const L blocks = (t1 - t0 + $per_block - 1) / $per_block;
    $rows_left
    for (L block = 0; block < blocks; block++) {
        const L s0 = t0 + block * (t1 - t0) / blocks, s1 = t0 + (block + 1) * (t1 - t0) / blocks;
        const L first = s0 * 32, end = s1 * 32 < $m ? s1 * 32 : $m;
        $start
$pending
$body
$flush
    }
    $last_rows
    }
}
"""
# A tile in a buffer of its own until the next is done.
PENDING = """        alignas(64) T sums_[2][1024];
        int turn = 0;
        L m_left = 0, n_left = 0, g_left = 0, row_left = 32;
        const auto finish_piece = [&]() __attribute__((always_inline)) {
            if (row_left == 32) return;
            const L m = m_left + row_left, n = n_left, g = g_left;
            T *c_ = sums_[turn ^ 1] + row_left * 32;
            row_left += $rows;
            $finish
        };"""
ALONE = """        alignas(64) T sums_[1][1024];
        constexpr int turn = 0;
        const auto finish_piece = [] {};"""
FLUSH = """        while (row_left < 32) finish_piece();"""
NEXT = "m_left = m, n_left = n, g_left = g, row_left = 0, turn ^= 1;"
# An epilogue that reads several matrices reads memory row by row: in tiles, a line at a time, the processor's few requests under way
# are what it waits for. So a block's sums stay where they are until the next block, whose tiles finish them meanwhile.
ROWS_LEFT = """const L width = (g1 - g0) * 32;
    L row_done = 0, rows_end = 0, rows_first = 0, column_done = 0;
    const T *rows_sums = nullptr;
    const auto finish_rows = [&]() __attribute__((always_inline)) {
        const L m = row_done, n = g0 * 32 + column_done, left = width - column_done;
        const T *t = rows_sums + (m - rows_first) * ${pitch}LL + column_done;
        column_done += $piece;
        if (column_done >= width) column_done = 0, row_done++;
        finish(e, $indices, t, left < $piece ? left : $piece);
    };"""
BY_ROWS = """        T *const fresh = (T *)(columns + ${at}LL) + block % 2 * ${size}LL;
        alignas(64) T sums_[2][1024];
        int turn = 0;
        L m_left = 0, n_left = 0, g_left = 0, row_left = 32;
        const auto finish_piece = [&]() __attribute__((always_inline)) {
            if (row_left < 32) {
                const L m = m_left + row_left, n = n_left;
                T *c_ = sums_[turn ^ 1] + row_left * 32, *to = fresh + (m - first) * ${pitch}LL + n - g0 * 32;
                row_left += 4;
                if (!sound(c_, 8)) repair(c_, 4, a, $row, panel_at(b, g_left, 0), $n - n);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    store(to + i * ${pitch}LL, load(c_ + i * 32));
                    store(to + i * ${pitch}LL + VL, load(c_ + i * 32 + VL));
                }
            }
            if (row_done < rows_end) finish_rows();
        };"""
FLUSH_ROWS = """        while (row_left < 32) finish_piece();
        while (row_done < rows_end) finish_rows();
        row_done = rows_first = first, rows_end = end, rows_sums = fresh;"""
LAST_ROWS = """while (row_done < rows_end) finish_rows();"""
# Blocks of rows are split, and pass panel after panel, each split while the one before is multiplied.
BLOCKS = """        $k_loop
        const L steps = (depth + 31) / 32, pairs = steps * 16;
        for (L t = s0; t < s1; t++) {
            const L m = t * 32, height = $m - m < 32 ? $m - m : 32;
            B *d = rows + (t - s0) * ${strip}LL;
            $fill
        }
        split_panel(panel_at(b, g0, k0), columns, 0, pairs, depth${of_first});
        for (L g = g0; g < g1; g++) {
            const L n = g * 32;
            const T *next = panel_at(b, g + 1, k0);
            const B *cur = columns + (g - g0) % 2 * ${strip}LL;
            B *to = columns + (g - g0 + 1) % 2 * ${strip}LL;
            const L split = g + 1 < g1 ? pairs / $together : 0;
            for (L t = s0; t < s1; t++) {
                const L m = t * 32, begin = (t - s0) * split / (s1 - s0) * $together, until = (t - s0 + 1) * split / (s1 - s0) * $together;
                const B *ta = rows + (t - s0) * ${strip}LL;
                T *const c_ = sums_[turn];$parts
                const auto ahead = [&](int i) __attribute__((always_inline)) { $ahead };
                $tile$add_parts
                $finish
            }
        }
        $k_end"""
# Few columns: all panels stay in the second-level cache, and a strip of rows goes from the first to every one of them, while the next
# strip is split, and at first the next panel.
STRIPS = """        const L k0 = 0, depth = $depth, steps = (depth + 31) / 32, pairs = steps * 16;
        const int pauses = 3 * (int)steps;
        L m0 = first, row = 0, row_end = end - first < 32 ? end - first : 32, row_step = row_end;
        L g_next = g0, pair = 0, pair_end = block ? 0 : pairs, pair_step = pairs;
        B *strip = rows;
        const auto meanwhile = [&]() __attribute__((noinline)) {
            if (row < row_end) {
                const L height = row_end - row < row_step ? row_end - row : row_step, m = m0 + row;
                B *d = strip + row * 64;
                row += height;
                $fill
            }
            if (pair < pair_end) {
                const L u = pair;
                pair = pair_end - pair < pair_step ? pair_end : pair + pair_step;
                split_panel(panel_at(b, g_next, 0), columns + (g_next - g0) * ${strip}LL, u, pair, depth${of_next});
            }
        };
        meanwhile();
        for (L t = s0; t < s1; t++) {
            const L m = t * 32, height = t + 1 == s1 ? 0 : $m - m < 64 ? $m - m - 32 : 32;
            const B *ta = rows + (t - s0) % 2 * ${strip}LL;
            m0 = m + 32, strip = rows + (t + 1 - s0) % 2 * ${strip}LL, row = 0;
            for (L g = g0; g < g1; g++) {
                const L n = g * 32, share = (height * (g + 1 - g0) / (g1 - g0) + $unit - 1) / $unit * $unit;
                row_end = share < height ? share : height;
                row_step = ((int)(row_end - row) + pauses * $unit - 1) / (pauses * $unit) * $unit;
                if (t == t0 && g + 1 < g1) {
                    g_next = g + 1, pair = 0, pair_end = pairs;
                    pair_step = (pairs + pauses * $together - 1) / (pauses * $together) * $together;
                }
                const B *cur = columns + (g - g0) * ${strip}LL;
                T *const c_ = sums_[turn];
                const auto ahead = [&](int i) __attribute__((always_inline)) { $ahead };
                $tile
                $finish
            }
        }"""
# Of a long k: the error of a sum grows with its length.
PARTS = """
                T *p_ = (T *)(columns + ${column_bytes}LL) + ((g - g0) * $per_block + t - s0) * 1024;"""
PARTS_AHEAD = (
    """__builtin_prefetch(p_ + i * 32, 1, 2); __builtin_prefetch(p_ + i * 32 + 16, 1, 2); if (kb == $last) { $ahead }"""
)
ADD_PARTS = """
                if (kb > 0)
                    for (int i = 0; i < 64; i++) store(c_ + i * VL, load(c_ + i * VL) + load(p_ + i * VL));
                if (kb < $last) {
                    for (int i = 0; i < 64; i++) store(p_ + i * VL, load(c_ + i * VL));
                    continue;
                }"""
FINISH = """if (!sound(c_, ($mr + 3) / 4 * 8)) repair(c_, $mr, a, $row, panel_at(b, g, 0), $n - n);
                    finish_tile<$mr>(c_, $arguments, $n - n);"""


def quarters() -> str:
    """C++ that transposes the four by four numbers in every quarter of four vectors."""
    lines = []
    for step, pairs in ((2, ((0, 2), (1, 3))), (1, ((0, 1), (2, 3)))):
        for i, j in pairs:
            low = ", ".join(str((n & -4) + n % 4 + (16 - step if n & step else 0)) for n in range(16))
            high = ", ".join(str((n & -4) + n % 4 + (16 if n & step else step)) for n in range(16))
            lines.append(f"    const V l{step}{i} = __builtin_shuffle(v[{i}], v[{j}], M{{{low}}});")
            lines.append(f"    v[{j}] = __builtin_shuffle(v[{i}], v[{j}], M{{{high}}}), v[{i}] = l{step}{i};")
    return "\n".join(lines)
