"""Vectors of bf16 and f16 in epilogues: C++ that loads, rounds and stores them, on every instruction set.

Bits are those of the prelude's scalar conversions, NaN and denormal numbers included, also where denormal numbers of f32 are zeros.
That is why bf16 is rounded by integers: AVX512-BF16's instruction takes denormal numbers for zeros whatever the mode.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcir.codegen.cpp.template import templates
from dcir.isa import Isa

text_of = templates("epilogue/halves")

ROUNDING = 6
"""Vector statements that a rounding to a half type is."""

_F16_BY_INSTRUCTION = {
    "avx512": (
        "__builtin_ia32_vcvtph2ps512_mask((ShortLanes)h, V{}, (unsigned short)-1, 4)",
        "__builtin_ia32_vcvtps2ph512_mask(x, 0, ShortLanes{}, (unsigned short)-1)",
    ),
    "avx2": ("__builtin_ia32_vcvtph2ps256((ShortLanes)h)", "__builtin_ia32_vcvtps2ph256(x, 0)"),
}


def half_vectors(types: Iterable[str], isa: Isa) -> str:
    """What vector statements over the half types call: nothing if there are none.

    ``get_halves`` and ``put_halves`` move bits; ``widen_T`` makes vectors of f32 of them, ``round_T`` rounds one to what T can hold,
    ``bits_of_T`` are the bits of a rounded one.
    """
    used = sorted(set(types))
    if not used:
        return ""
    wide = isa.vectors == "avx512"
    text = text_of.memory(part=(text_of.part_masked if wide else text_of.part)())
    if "bf16" in used:
        text += text_of.bf16()
    if "f16" in used:
        if isa.vectors in _F16_BY_INSTRUCTION:
            widen, narrow = _F16_BY_INSTRUCTION[isa.vectors]
            text += text_of.f16(widen=widen, narrow=narrow)
        else:
            text += text_of.f16_by_bits()
    return text
