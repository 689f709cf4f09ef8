"""C++ that reads panels of half types as vectors of f32, on every instruction set."""

from __future__ import annotations

from dcir.codegen.cpp.tiles.emit import STORED, render
from dcir.isa import Isa

# The columns of a panel's two vectors take turns (``library/packing.py``): a lane of 32 bits is one of each.
_BF16 = """
typedef M PairsOfB __attribute__((aligned(2), may_alias));
template <int NV> $inline void widen(V *v, const unsigned short *p) {
    static_assert(NV <= 2, "a panel of bf16 has two vectors");
    const M pairs = *(const PairsOfB *)p;
    v[0] = (V)(pairs << 16);
    if constexpr (NV == 2) v[1] = (V)(pairs & -65536);
}
"""
_F16 = """
typedef short HalfBits __attribute__((vector_size(VL * 2)));
typedef short HalvesOfB __attribute__((vector_size(VL * 2), aligned(2), may_alias));
template <int NV> $inline void widen(V *v, const _Float16 *p) {
#pragma GCC unroll 4
    for (int u = 0; u < NV; u++) {
        const HalfBits h = *(const HalvesOfB *)(p + u * VL);
        $convert
    }
}
"""
# Without the instruction: the exponent moves by addition. What has none gets one, and what that adds is taken off; that works where
# denormal numbers are zeros, as they are in products.
_BY_BITS = """const M b = __builtin_convertvector(h, M), m = (b & 0x7fff) << 13;
        const V small = (V)(m + 0x38800000) - 0x1p-14f;
        const M r = m < 0x00800000 ? (M)small : m < 0x0f800000 ? m + 0x38000000 : m | 0x7f800000;
        v[u] = (V)(r | (b & 0x8000) << 16);"""
_CONVERT = {
    "avx512": "v[u] = __builtin_ia32_vcvtph2ps512_mask(h, V{}, (unsigned short)-1, 4);",
    "avx2": "v[u] = __builtin_ia32_vcvtph2ps256((short __attribute__((vector_size(16))))h);",
    "generic": _BY_BITS,
}


def widening(stored: str, isa: Isa) -> str:
    """``Stored``, the type of elements in memory, and ``widen<NV>(to, from)``: NV vectors of a step of a panel, in f32."""
    text = render(_BF16) if stored == "bf16" else render(_F16, convert=_CONVERT[isa.vectors])
    return f"\ntypedef {STORED[stored]} Stored;{text}"
