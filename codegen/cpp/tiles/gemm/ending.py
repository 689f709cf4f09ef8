"""How the tile of a product ends: results go into C, or through the epilogue, along rows or along columns."""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.symbolic import most

text_of = templates("gemm/ending")


@dataclass(frozen=True)
class Ending:
    """How a tile of MR rows ends.

    Attributes:
        epilogue: what is done before storing, if anything.
        to, arguments: the tile's parameters that say where results go, and what a job gives for them.
        prefetch: C++ for the tile's beginning.
        stop: C++ for its end, from registers ``acc[i][v]`` or, ``on_stack``, from ``t``, where a row has ``vectors`` vectors.
        sums: whether the epilogue's sums are added up.
        ahead: C++ that fetches what row ``i`` of the tile at ``m``, ``n`` reads and writes at its end.
        rows: how many rows are best finished at once.
    """

    epilogue: Epilogue | None
    to: str
    arguments: str
    prefetch: str
    stop: str
    sums: bool
    ahead: str = ""
    rows: int = 4


def ending(
    form: ProductForm,
    vectors: str,
    tail: int,
    *,
    prefetched: bool = True,
    unrolled: bool = False,
    on_stack: bool = False,
    row_at: str = "",
) -> Ending:
    """The end of a product's tiles.

    Args:
        form: the product.
        vectors: vectors in a tile's row, a C++ constant.
        tail: columns of the last tile, 0 if it is whole.
        prefetched: whether the tile may fetch what its epilogue reads.
        unrolled: whether a short epilogue may be finished in registers, for every row anew.
        on_stack: whether results are in ``t``.
        row_at: a C++ function of where in C a row begins, if rows do not lie one step apart; for results on the stack.
    """
    spec = form.spec
    batch = [f"x{d}" for d in range(len(spec.batch))]
    down = form.along(-2) and not form.along(-1) and spec.m != 1
    values = {"vectors": vectors, "tail": tail, "cm": spec.c[-2], "cn": spec.c[-1]}
    values["row"] = f"c + {row_at}(m + i) + n" if row_at else f"c + i * {spec.c[-2]}LL"
    before = ("" if on_stack else text_of.to_stack(values)) + text_of.columns(values)
    if form.epilogue is None:
        plain = spec.c[-1] == 1 or spec.n == 1
        if plain and not on_stack:
            stop = text_of.write_rows(values)
        else:
            stop = before + (text_of.write_stack if plain else text_of.write_columns if down else text_of.write_apart)(
                values
            )
        at = f"c + {row_at}(m + i) + n" if row_at else f"c + (m + i) * {spec.c[-2]}LL + n"
        ahead = text_of.claim(at=at) if plain else ""
        if row_at:
            return Ending(None, "T *c, L m, L n", "c, m, n", "", stop, False, ahead)
        to = f"c + m * {spec.c[-2]}LL + n * {spec.c[-1]}LL"
        return Ending(None, "T *c", to, "", stop, False, ahead, 4 if plain else 16)
    epilogue = Epilogue(form.epilogue, spec.dtype, 2, form.places[-2 if down else -1], form.places[-2])
    sums = epilogue.sums > 0 and not down
    to = "const Operands &operands, " + "".join(f"L {x}, " for x in batch) + "L m, L n"
    indices = form.indices(batch, "m" if down else "m + i", "n + l" if down else "n")
    whole = most(tail) == 0
    values |= {"indices": indices, "grouped": GROUPED, "valid": f"{vectors} * VL" if whole else "valid"}
    prefetch = ""
    if epilogue.streams and prefetched:
        prefetch = (text_of.prefetch_columns if down else text_of.prefetch_rows)(values)
    if unrolled and epilogue.in_registers and not sums and not down:
        stop = text_of.finish_unrolled(values)
    else:
        grouped = epilogue.grouped and not epilogue.in_registers
        stop = before + (text_of.finish_columns if down else text_of.finish_groups if grouped else text_of.finish_rows)(
            values
        )
    if sums:
        stop += text_of.sums(values | {"indices": form.indices(batch, "m", "n")})
    ahead = "" if down else f"prefetch_row<{vectors} * VL>(e, {indices}); claim_row<{vectors} * VL>(e, {indices});"
    return Ending(epilogue, to, ", ".join(["e", *batch, "m", "n"]), prefetch, stop, sums, ahead, 16 if down else 4)
