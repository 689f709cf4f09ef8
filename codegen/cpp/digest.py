"""C++ that digests memory at its own speed: whether weights that others may write are what they were.

    void dcir_digest(const void* const* from, const long long* bytes, long long n, unsigned long long* to)

Each lane of a vector takes its words in two ways, ``a = a * P + w`` and ``b = (b ^ w) * Q`` with odd P and Q. Either is one to one in the
word and in what was before, so a single changed word changes both for certain, and several that cancel in one do not in the other but
with a chance of 2^-32 each. Blocks are digested by the whole team; where a block lies counts, the order of blocks does not.
"""

BLOCK_BYTES = 1 << 18

DIGEST = f"""
namespace {{
typedef unsigned W __attribute__((vector_size(32), aligned(4), may_alias));
constexpr long long BLOCK = {BLOCK_BYTES}, STEP = 4 * sizeof(W);
inline unsigned long long mixed(unsigned long long h) {{
  h ^= h >> 31; h *= 0x9e3779b97f4a7c15ull; h ^= h >> 29; h *= 0xbf58476d1ce4e5b9ull; return h ^ (h >> 32);
}}
inline void take(W (&a)[4], W (&b)[4], const char* p) {{
  for (int i = 0; i < 4; i++) {{
    const W w = *(const W*)(p + i * sizeof(W));
    a[i] = a[i] * 0x9e3779b1u + w;
    b[i] = (b[i] ^ w) * 0x85ebca77u;
  }}
}}
unsigned long long digest_block(const char* p, long long bytes) {{
  W a[4] = {{}}, b[4] = {{}};
  for (int i = 0; i < 4; i++) for (int k = 0; k < 8; k++) b[i][k] = 8 * i + k + 1;
  long long at = 0;
  for (; at + STEP <= bytes; at += STEP) take(a, b, p + at);
  if (at < bytes) {{
    alignas(32) char rest[STEP] = {{}};
    __builtin_memcpy(rest, p + at, bytes - at);
    take(a, b, rest);
  }}
  unsigned long long h = bytes;
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 8; k++) h = mixed(h ^ ((unsigned long long)a[i][k] << 32 | b[i][k]));
  return h;
}}
}}
extern "C" __attribute__((visibility("default")))
void dcir_digest(const void* const* from, const long long* bytes, long long n, unsigned long long* to) {{
  long long most = 0;
  for (long long i = 0; i < n; i++) {{ to[i] = 0; most = bytes[i] > most ? bytes[i] : most; }}
  const long long blocks = (most + BLOCK - 1) / BLOCK;
  #pragma omp parallel for collapse(2) schedule(dynamic) if (blocks * n > 1)
  for (long long i = 0; i < n; i++)
    for (long long k = 0; k < blocks; k++) {{
      const long long start = k * BLOCK, left = bytes[i] - start;
      if (left <= 0) continue;
      const unsigned long long h = digest_block((const char*)from[i] + start, left < BLOCK ? left : BLOCK);
      __atomic_fetch_xor(to + i, mixed(h + k), __ATOMIC_RELAXED);
    }}
}}
"""
