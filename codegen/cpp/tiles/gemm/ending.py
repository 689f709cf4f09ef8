"""How the tile of a product ends: results go into C, or through the epilogue, along rows or along columns."""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.tiles.emit import render
from dcir.codegen.cpp.tiles.epilogue.epilogue import GROUPED, Epilogue
from dcir.codegen.cpp.tiles.gemm.form import ProductForm

WRITE_ROWS = """    if ($tail == 0 || valid >= $vectors * VL) {
#pragma GCC unroll 32
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
            for (int v = 0; v < $vectors; v++) store(c + i * ${cm}LL + v * VL, acc[i][v]);
    } else {
#pragma GCC unroll 32
        for (int v = 0; v < $vectors; v++) {
            const L left = valid - v * VL;
            if (left >= VL)
#pragma GCC unroll 32
                for (int i = 0; i < MR; i++) store(c + i * ${cm}LL + v * VL, acc[i][v]);
            else if (left > 0)
#pragma GCC unroll 32
                for (int i = 0; i < MR; i++) store_part(c + i * ${cm}LL + v * VL, acc[i][v], (int)left);
        }
    }"""
# From registers to t, which the forms below start from.
TO_STACK = """    alignas(64) T t[MR * $vectors * VL];
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 32
        for (int v = 0; v < $vectors; v++) store(t + (i * $vectors + v) * VL, acc[i][v]);
"""
COLUMNS = """    const L columns = valid < $vectors * VL ? valid : $vectors * VL;
"""
# The same from t.
WRITE_STACK = """    for (L i = 0; i < MR; i++)
#pragma GCC unroll 32
        for (int v = 0; v < $vectors; v++) {
            const L left = $tail == 0 ? VL : columns - v * VL;
            T *to = $row + v * VL;
            const V x = load(t + (i * $vectors + v) * VL);
            if (left >= VL) store(to, x);
            else if (left > 0) store_part(to, x, (int)left);
        }"""
WRITE_COLUMNS = """    for (L v = 0; v < columns; v += VL)
        for (int i = 0; i < MR; i += VL) {
            const int rows = MR - i < VL ? MR - i : VL, left = (int)(columns - v < VL ? columns - v : VL);
            transpose_block(t + i * $vectors * VL + v, $vectors * VL, rows, left, V{}, c + i + v * ${cn}LL, ${cn}LL, rows);
        }"""
WRITE_APART = """    for (L i = 0; i < MR; i++)
        for (L l = 0; l < columns; l++) c[i * ${cm}LL + l * ${cn}LL] = t[i * $vectors * VL + l];"""
PREFETCH_ROWS = """    for (int i = 0; i < MR; i++) prefetch_row<$vectors * VL>(operands, $indices);
"""
PREFETCH_COLUMNS = """    for (L l = 0; l < (valid < $vectors * VL ? valid : $vectors * VL); l++) prefetch_row<MR>(operands, $indices);
"""
CLAIM = "__builtin_prefetch($at, 1, 2); __builtin_prefetch($at + 16, 1, 2);"
FINISH_UNROLLED = """    const Operands e = operands;
#pragma GCC unroll 32
    for (int i = 0; i < MR; i++) finish_row<$vectors>(e, $indices, acc[i], $valid);"""
FINISH_ROWS = """    const Operands e = operands;
#pragma GCC unroll 1
    for (L i = 0; i < MR; i++) {
        if constexpr (IN_REGISTERS) {
            V v[$vectors];
#pragma GCC unroll 32
            for (int u = 0; u < $vectors; u++) v[u] = load(t + (i * $vectors + u) * VL);
            finish_row<$vectors>(e, $indices, v, $valid);
        } else
            finish(e, $indices, t + i * $vectors * VL, columns);
    }"""
# Several rows take their chains of steps together.
FINISH_GROUPS = """    const Operands e = operands;
    constexpr int W = $vectors, R = W < $grouped ? $grouped / W : 1;
    L i = 0;
    if (columns == W * VL)
        for (; i + R <= MR; i += R) {
            V x[R * W];
#pragma GCC unroll 16
            for (int u = 0; u < R * W; u++) x[u] = load(t + (i * W + u) * VL);
            finish_group<R, W>(e, $indices, x);
        }
    for (; i < MR; i++) finish(e, $indices, t + i * W * VL, columns);"""
SUMS = """
    add_sums(e, $indices, t, $vectors * VL, MR, 0, columns);"""
FINISH_COLUMNS = """    constexpr int HEIGHT = (MR + VL - 1) / VL * VL;
    alignas(64) T r[$vectors * VL * HEIGHT];
    for (L v = 0; v < columns; v += VL)
        for (int i = 0; i < MR; i += VL)
            transpose_block(t + i * $vectors * VL + v, $vectors * VL, MR - i < VL ? MR - i : VL, VL, V{}, r + i + v * HEIGHT, HEIGHT, VL);
    for (L l = 0; l < columns; l++) finish(operands, $indices, r + l * HEIGHT, MR);"""


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
    down = form.along(-2) and not form.along(-1) and spec.m > 1
    values = {"vectors": vectors, "tail": tail, "cm": spec.c[-2], "cn": spec.c[-1]}
    values["row"] = f"c + {row_at}(m + i) + n" if row_at else f"c + i * {spec.c[-2]}LL"
    before = render(("" if on_stack else TO_STACK) + COLUMNS, **values)
    if form.epilogue is None:
        plain = spec.c[-1] == 1 or spec.n == 1
        if plain and not on_stack:
            stop = render(WRITE_ROWS, **values)
        else:
            stop = before + render(WRITE_STACK if plain else WRITE_COLUMNS if down else WRITE_APART, **values)
        at = f"c + {row_at}(m + i) + n" if row_at else f"c + (m + i) * {spec.c[-2]}LL + n"
        ahead = render(CLAIM, at=at) if plain else ""
        if row_at:
            return Ending(None, "T *c, L m, L n", "c, m, n", "", stop, False, ahead)
        to = f"c + m * {spec.c[-2]}LL + n * {spec.c[-1]}LL"
        return Ending(None, "T *c", to, "", stop, False, ahead, 4 if plain else 16)
    epilogue = Epilogue(form.epilogue, spec.dtype, 2, form.places[-2 if down else -1], form.places[-2])
    sums = epilogue.sums > 0 and not down
    to = "const Operands &operands, " + "".join(f"L {x}, " for x in batch) + "L m, L n"
    indices = form.indices(batch, "m" if down else "m + i", "n + l" if down else "n")
    values |= {"indices": indices, "grouped": GROUPED, "valid": "valid" if tail else f"{vectors} * VL"}
    prefetch = ""
    if epilogue.streams and prefetched:
        prefetch = render(PREFETCH_COLUMNS if down else PREFETCH_ROWS, **values)
    if unrolled and epilogue.in_registers and not sums and not down:
        stop = render(FINISH_UNROLLED, **values)
    else:
        grouped = epilogue.grouped and not epilogue.in_registers
        stop = before + render(FINISH_COLUMNS if down else FINISH_GROUPS if grouped else FINISH_ROWS, **values)
    if sums:
        stop += render(SUMS, **values | {"indices": form.indices(batch, "m", "n")})
    ahead = "" if down else f"prefetch_row<{vectors} * VL>(e, {indices}); claim_row<{vectors} * VL>(e, {indices});"
    return Ending(epilogue, to, ", ".join(["e", *batch, "m", "n"]), prefetch, stop, sums, ahead, 16 if down else 4)
