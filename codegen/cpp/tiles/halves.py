"""C++ that reads panels of half types as vectors of f32, on every instruction set."""

from __future__ import annotations

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import STORED
from dcir.isa import Isa

text_of = templates("halves")

_CONVERT = {
    "avx512": "v[u] = __builtin_ia32_vcvtph2ps512_mask(h, V{}, (unsigned short)-1, 4);",
    "avx2": "v[u] = __builtin_ia32_vcvtph2ps256((short __attribute__((vector_size(16))))h);",
    "generic": text_of.by_bits(),
}


def widening(stored: str, isa: Isa) -> str:
    """``Stored``, the type of elements in memory, and ``widen<NV>(to, from)``: NV vectors of a step of a panel, in f32."""
    text = text_of.bf16() if stored == "bf16" else text_of.f16(convert=_CONVERT[isa.vectors])
    return f"\ntypedef {STORED[stored]} Stored;{text}"
