"""C++ of products of bf16 in pairs: the instruction, and how rows and panels of f32 that hold numbers of bf16 become pairs of steps.

A pair lies in the 32 bits of one f32, the earlier step in the lower half: what moves f32 moves pairs, and a reduction has half the steps.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

text_of = templates("half_dots")


def functions() -> str:
    """What every kernel of pairs builds on."""
    return text_of.instruction(odd=", ".join(str(i) for i in range(1, 64, 2))) + text_of.join()
