"""A matrix unit in software, for processors with vectors of 512 bits that have none: the same kernels, their tile registers in memory."""

from dcir.codegen.cpp.tiles.emit import INSIDE, OUTSIDE
from dcir.codegen.cpp.tiles.gemm.unit import unit_registers
from dcir.isa import ISAS, host_isa
from tests.conftest import COMPILED_ONLY

USED = host_isa().name in ("avx512", "avx512bf16") and not COMPILED_ONLY
"""Whether kernels for the unit run on the twin here."""
HERE = USED or host_isa() is ISAS["amx"]
"""Whether kernels for the unit can run at all."""

# Eight registers of 16 rows of 64 bytes. TDPBF16PS sums the products of even and of odd places apart (Intel's manual, volume 2).
_REGISTERS = r"""
static thread_local float d_registers[8][16][16];
struct Tiles { Tiles() { __builtin_memset(d_registers, 0xff, sizeof d_registers); } };
static __attribute__((noinline)) void d_load(int r, const void *p, long pitch) {
    for (int i = 0; i < 16; i++) __builtin_memcpy(d_registers[r][i], (const char *)p + i * pitch, 64);
}
static __attribute__((noinline)) void d_store(int r, void *p, long pitch) {
    for (int i = 0; i < 16; i++) __builtin_memcpy((char *)p + i * pitch, d_registers[r][i], 64);
}
static inline float d_number(unsigned bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
static __attribute__((noinline)) void d_multiply(int c, int a, int b) {
    unsigned rows[16][16], columns[16][16];
    __builtin_memcpy(rows, d_registers[a], 1024);
    __builtin_memcpy(columns, d_registers[b], 1024);
    for (int i = 0; i < 16; i++) {
        float even[16] = {}, odd[16] = {};
        for (int k = 0; k < 16; k++) {
            const float x = d_number(rows[i][k] << 16), y = d_number(rows[i][k] & 0xffff0000u);
            for (int j = 0; j < 16; j++) {
                even[j] += x * d_number(columns[k][j] << 16);
                odd[j] += y * d_number(columns[k][j] & 0xffff0000u);
            }
        }
        for (int j = 0; j < 16; j++) d_registers[c][i][j] += even[j] + odd[j];
    }
}
#define D_TILE_ZERO(r) __builtin_memset(d_registers[r], 0, 1024)
#define D_TILE_LOAD(r, p, pitch) d_load(r, (const void *)(p), (long)(pitch))
#define D_TILE_STORE(r, p, pitch) d_store(r, (void *)(p), (long)(pitch))
#define D_KEEP_AWAKE(p) D_TILE_STORE(6, p, 64)
#define D_TILE_MULTIPLY(c, a, b) d_multiply(c, a, b)
"""


def on_twin(text: str) -> str:
    """C++ of kernels, on the twin where it is used."""
    real = unit_registers().removeprefix(OUTSIDE).removesuffix(INSIDE).strip()
    return text.replace(real, _REGISTERS) if USED else text
