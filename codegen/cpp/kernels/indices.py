"""C++ that finds in a strip of indices those that lie in a range, and whether one leads outside."""

from __future__ import annotations

from dcir.codegen.cpp.template import templates

# Indices of a strip: with what is found of them they stay in the first-level cache.
STRIP = 1024

SLACK = 8
"""Numbers behind those found that ``d_find`` may write."""


def find_function(step: int, extent: int, *, wrap: bool, skip: int | None) -> str:
    """``d_find`` for indices ``step`` elements apart.

    Args:
        step: their distance.
        extent: how many values they may take.
        wrap: whether negative ones count from the end.
        skip: a value that is neither outside nor found.
    """
    several = ", ".join(f"index[(e + {lane}) * {step}LL]" for lane in range(8))
    return templates("kernels/indices").find(
        step=step, extent=extent,
        eight="__builtin_convertvector(*(const AnyIndices*)(index + e), Places)" if step == 1 else f"{{{several}}}",
        wrap=f"k += k < 0 ? {extent}LL : 0;" if wrap else "",
        wrap_eight=f"k += (k >> 63) & {extent}LL;" if wrap else "",
        **_passing(skip),
    )  # fmt: skip


def _passing(skip: int | None) -> dict[str, str]:
    """Lines that make of a value to pass over one that lies inside and is not found."""
    if skip is None:
        return {"pass_one": "", "pass_eight": ""}
    passed = f"k == {skip}LL"
    return {
        "pass_one": f"mine = !({passed}); k = mine ? k : 0; ",
        "pass_eight": f"mine = __builtin_ia32_cmpq512_mask(k, Places{{}} + {skip}LL, 4, mine); k &= ~({passed}); ",
    }
