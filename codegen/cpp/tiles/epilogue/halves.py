"""Vectors of bf16 and f16 in epilogues: C++ that loads, rounds and stores them, on every instruction set.

Bits are those of the prelude's scalar conversions, NaN and denormal numbers included, also where denormal numbers of f32 are zeros.
That is why bf16 is rounded by integers: AVX512-BF16's instruction takes denormal numbers for zeros whatever the mode.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcir.codegen.cpp.tiles.emit import render
from dcir.isa import Isa

ROUNDING = 6
"""Vector statements that a rounding to a half type is."""

_MEMORY = """
typedef unsigned short HalfLanes __attribute__((vector_size(VL * 2)));
typedef short ShortLanes __attribute__((vector_size(VL * 2)));
typedef unsigned short HalfLanesAt __attribute__((vector_size(VL * 2), aligned(2), may_alias));
typedef unsigned short HalfLaneAt __attribute__((may_alias));
typedef unsigned LaneBits __attribute__((vector_size(VL * 4)));
$part
template <bool WHOLE> $inline HalfLanes get_halves(const void *p, L step, int n) {
    if (step == 1) return WHOLE ? (HalfLanes)*(const HalfLanesAt *)p : halves_part(p, n);
    HalfLanes h = {};
    for (int l = 0; l < (WHOLE ? VL : n); l++) h[l] = ((const HalfLaneAt *)p)[l * step];
    return h;
}
template <bool WHOLE> $inline void put_halves(void *p, L step, HalfLanes h, int n) {
    if (step == 1) {
        if constexpr (WHOLE) *(HalfLanesAt *)p = (HalfLanesAt)h;
        else put_halves_part(p, h, n);
        return;
    }
    for (int l = 0; l < (WHOLE ? VL : n); l++) ((HalfLaneAt *)p)[l * step] = h[l];
}
"""
# The first n lanes only; no byte beyond them is touched.
_PART = """template <int B> $inline void copy_halves(char *d, const char *s, int n) {
    if constexpr (B > 0) {
        if (n & B) { __builtin_memcpy(d, s, B * 2); d += B * 2; s += B * 2; }
        copy_halves<B / 2>(d, s, n);
    }
}
$noinline HalfLanes halves_part(const void *p, int n) {
    HalfLanes h = {};
    copy_halves<VL>((char *)&h, (const char *)p, n);
    return h;
}
$noinline void put_halves_part(void *p, HalfLanes h, int n) { copy_halves<VL>((char *)p, (const char *)&h, n); }"""
_PART_MASKED = """$inline HalfLanes halves_part(const void *p, int n) {
    return (HalfLanes)__builtin_ia32_loaddquhi256_mask((const short *)p, ShortLanes{}, (unsigned short)((1u << n) - 1));
}
$inline void put_halves_part(void *p, HalfLanes h, int n) {
    __builtin_ia32_storedquhi256_mask((short *)p, (ShortLanes)h, (unsigned short)((1u << n) - 1));
}"""
# ``bits_of_…`` of what is rounded already.
_BF16 = """
$inline V widen_bf16(HalfLanes h) { return (V)(__builtin_convertvector(h, LaneBits) << 16); }
$inline V round_bf16(V x) {
    const LaneBits b = (LaneBits)x, r = (b + 0x7fffu + (b >> 16 & 1u)) & 0xffff0000u;
    return (V)(x != x ? LaneBits{} + 0x7fc00000u : r);
}
$inline HalfLanes bits_of_bf16(V x) { return __builtin_convertvector((LaneBits)x >> 16, HalfLanes); }
"""
# The instruction keeps what a NaN carries.
_F16 = """
$inline V widen_f16(HalfLanes h) { return $widen; }
$inline HalfLanes bits_of_f16(V x) {
    x = x != x ? (V)(((LaneBits)x & 0x80000000u) | 0x7fc00000u) : x;
    return (HalfLanes)$narrow;
}
$inline V round_f16(V x) { return widen_f16(bits_of_f16(x)); }
"""
_F16_BY_INSTRUCTION = {
    "avx512": (
        "__builtin_ia32_vcvtph2ps512_mask((ShortLanes)h, V{}, (unsigned short)-1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask(x, 0, ShortLanes{}, (unsigned short)-1)",
    ),
    "avx2": ("__builtin_ia32_vcvtph2ps256((ShortLanes)h)", "__builtin_ia32_vcvtps2ph256(x, 0)"),
}
# The steps of ``d_f16_to_f32`` and ``d_f32_to_f16``.
_F16_BY_BITS = """
$inline V widen_f16(HalfLanes h) {
    const LaneBits b = __builtin_convertvector(h, LaneBits), m = (b & 0x7fffu) << 13;
    const LaneBits small = (LaneBits)((V)(m + 0x38800000u) - 0x1p-14f);
    const LaneBits r = m >= 0x0f800000u ? m | 0x7f800000u : m + 0x38000000u;
    return (V)((m < 0x00800000u ? small : r) | (b & 0x8000u) << 16);
}
$inline HalfLanes bits_of_f16(V x) {
    const LaneBits b = (LaneBits)x, m = b & 0x7fffffffu;
    const LaneBits normal = (m + 0xfffu + (m >> 13 & 1u) - 0x38000000u) >> 13;
    LaneBits r = m < 0x38800000u ? (LaneBits)((V)m + 0.5f) - 0x3f000000u : normal;
    r = m >= 0x47800000u ? LaneBits{} + 0x7c00u : r;
    r = m > 0x7f800000u ? LaneBits{} + 0x7e00u : r;
    return __builtin_convertvector(r | (b >> 16 & 0x8000u), HalfLanes);
}
$inline V round_f16(V x) { return widen_f16(bits_of_f16(x)); }
"""


def half_vectors(types: Iterable[str], isa: Isa) -> str:
    """What vector statements over the half types call: nothing if there are none.

    ``get_halves`` and ``put_halves`` move bits; ``widen_T`` makes vectors of f32 of them, ``round_T`` rounds one to what T can hold,
    ``bits_of_T`` are the bits of a rounded one.
    """
    used = sorted(set(types))
    if not used:
        return ""
    wide = isa.vectors == "avx512"
    text = render(_MEMORY, part=render(_PART_MASKED if wide else _PART))
    if "bf16" in used:
        text += render(_BF16)
    if "f16" in used:
        if isa.vectors in _F16_BY_INSTRUCTION:
            widen, narrow = _F16_BY_INSTRUCTION[isa.vectors]
            text += render(_F16, widen=widen, narrow=narrow)
        else:
            text += render(_F16_BY_BITS)
    return text
