"""What both forward kernels of attention are printed from: queries dealt to blocks, where operands lie, and the C++ they have in common."""

from __future__ import annotations

from collections.abc import Iterable

from dcir.codegen.cpp.kernels.attention_backward import place_function
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import STORED, Runs, Split, ceil_div
from dcir.codegen.symbolic import Symbolic, most
from dcir.ops.library.attention import AttentionSpec

text_of = templates("attention/attention")


def dealt(queries: int, lanes: int, block: int) -> Split | Runs:
    """Vectors of queries dealt to blocks of at most ``block`` queries."""
    vectors, whole = ceil_div(queries, lanes), max(1, block // lanes)
    if isinstance(queries, Symbolic):
        return Runs(vectors, min(whole, most(vectors)))
    return Split.at_most(vectors, whole)


def common_text(
    spec: AttentionSpec, queries: Split | Runs, nb: int, dp: int, rows: Iterable[str], tile: tuple[int, int] = (1, 1)
) -> str:
    """C++ behind the core.

    Args:
        spec: the attention.
        queries: vectors of queries, dealt to blocks.
        nb, dp: keys in a block, and elements of a padded head.
        rows: lines that say how rows of keys and values are read.
        tile: accumulators of a register tile, and vectors of its widest row.
    """
    none = (0, 0, 0, 0)
    k2, v2 = spec.more or (none, none)
    places = {"q": spec.q, "k": spec.k, "v": spec.v, "k2": k2, "v2": v2, "o": spec.o}
    lines = [
        place_function(name, st, "b", "h", "i", "e", group=spec.group if name[0] in "kv" else 1)
        for name, st in places.items()
    ]
    lines.append(place_function("lse", spec.lse, "b", "h", "i"))
    lines.append(place_function("mask", spec.mask or none, "b", "h", "i", "c"))
    uneven = isinstance(queries, Split) and queries.larger < queries.parts
    return text_of.numbers() + text_of.common(
        S=STORED[spec.dtype], acc=tile[0], wide=tile[1], bv=queries.size, nb=nb, d=spec.d, dp=dp,
        m=spec.m, n=spec.n, first=spec.first, heads=spec.heads, qblocks=queries.parts, larger=queries.larger, uneven=int(uneven),
        scale=repr(float(spec.scale)), causal=int(spec.causal), masked=int(bool(spec.mask)),
        flat=int(not spec.mask or spec.mask[2] == 0), selects=int(spec.mask_dtype == "bool"), strict=int(spec.strict),
        places="\n".join([*lines, *rows]),
    )  # fmt: skip


def hidden_text(spec: AttentionSpec) -> tuple[str, str]:
    """C++ of what a mask of numbers needs besides, and of whether it hides a block of keys.

    A mask of bools becomes zeros and minus infinity: no other number hides anything.
    """
    if spec.mask and spec.mask_dtype != "bool":
        return text_of.least(), "hidden<W>(add, cols, high)"
    return "", "hidden<W>(add, cols)"
