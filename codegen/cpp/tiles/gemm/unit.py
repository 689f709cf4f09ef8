"""What all kernels on a matrix unit build on: how numbers are put in three parts, and the tile."""

from __future__ import annotations

from collections.abc import Mapping

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import INSIDE, OUTSIDE

text_of = templates("gemm/matrix")
LEAST = f"0x{(127 - 86) << 23:x}u"  # 2^-86: of smaller results the parts have lost bits
ANYTHING: Mapping[str, object] = {
    "type": ", class W", "given": "const W &meanwhile", "before": "", "meanwhile": "meanwhile();"
}  # fmt: skip
"""What a tile does meanwhile: whatever its caller says."""


def unit_registers() -> str:
    """C++ of the tile registers: ``Tiles`` lays them out, macros use them."""
    return f"{OUTSIDE}{text_of.registers()}\n{INSIDE}"


def parts_of_number(halves: bool) -> int:
    """Of bf16's numbers there are as many parts as there are pauses in a step of a tile, in which the processor does something else."""
    return 1 if halves else 3


def unit_support(*, halves: bool = False) -> str:
    """C++ of the registers, and of the parts of a number; ``halves``: of one of bf16."""
    return unit_registers() + (text_of.halves() if halves else text_of.support(least=LEAST))


def unit_tile(pieces: int, meanwhile: Mapping[str, object], *, halves: bool = False) -> str:
    """C++ of the tile.

    Args:
        pieces: pieces of the last results that are finished while a tile is computed.
        meanwhile: what else is done: ANYTHING, or ``splitting``.
        halves: whether numbers have one part.
    """
    products = (text_of.products_of_halves if halves else text_of.products_of_parts)({**meanwhile, "pieces": pieces})
    awake = "if (steps > 8 && s % $ == @) D_KEEP_AWAKE(t);"
    every = 16 if halves else 4  # steps with some hundred products
    return text_of.tile(meanwhile, products=products, awake=awake.replace("$", str(every)).replace("@", str(every - 1)))


def splitting(together: int, *, cut: bool, halves: bool = False) -> Mapping[str, object]:
    """What a tile does meanwhile: pairs of the next panel are split, so many of them in a pause; ``cut``, if some have fewer columns."""
    valid, passed = (", L valid", ", valid") if cut else ("", "")
    call = f"split_panel(next, to, u, u + {together}, depth{passed});"
    return {
        "type": "",
        "given": f"const T *next, B *to, L u, L end, L depth{valid}",
        "before": f"const int pauses = {parts_of_number(halves)} * (int)steps, groups = (int)(end - u) / {together}; int due = 0;",
        "meanwhile": f"for (due += groups; due >= pauses; due -= pauses, u += {together}) {call}",
    }


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
