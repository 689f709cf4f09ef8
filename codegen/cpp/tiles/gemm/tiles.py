"""Matrix products by register tiles: the C++ of what ``tiles_blocking.py`` divides.

One job computes a rectangle of one batch element's C. It walks k in blocks and columns in chunks so that a packed chunk of B
stays in the second-level cache, and passes each tile of A (in the first-level cache) over all panels of the chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dcir.codegen.asked import as_known
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import (
    Draft,
    Runs,
    Split,
    TileStep,
    ceil_div,
    lanes,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.tiles_blocking import tiles_blocking
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.cpp.tiles.pack_text import pack_rows, pack_vectors
from dcir.codegen.symbolic import most, moves
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec

text_of = templates("gemm/tiles")


def tiles_draft(name: str, spec: ContractionSpec, isa: Isa, threads: int, bias: tuple[int, ...] | None) -> Draft:
    """The product by register tiles, any strides; a2, if any, is per row with ``bias`` as its batch strides."""
    width = lanes(isa, spec.dtype)
    am, ak, bk, bn, cm, cn = *spec.a[-2:], *spec.b[-2:], *spec.c[-2:]
    bn, cn = (1, 1) if spec.n == 1 else (bn, cn)
    bk = 1 if spec.k == 1 and bn != 1 else bk
    ak = 1 if spec.k == 1 else ak
    made = tiles_blocking(spec, isa, threads)
    rows, panels, depth, chunk, p, q = made.shape.rows, made.shape.panels, made.depth, made.chunk, made.p, made.q
    in_place, pack_a, held, batch = made.in_place, made.pack_a, most(panels.parts), math.prod(spec.batch)
    tail = spec.n % width
    # Panels whose number moves are filled whole.
    padded = (held * panels.size if moves(spec.n) else ceil_div(spec.n, width)) * width
    valid = f"(int)({spec.n} - n < $ * VL ? {spec.n} - n : $ * VL)"
    argument = ", bias" if bias is not None else ""
    call = f"tile<MR, $>(a, pb, c + n * {cn}LL, depth, first, {valid}{argument});"
    row_bias = ", a2 + pd + m" if bias is not None else ""
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[:-2]), "pc": (0, spec.c[:-2])}
    if bias is not None:
        sums["pd"] = (0, bias)
    if in_place:
        panel_b, fill, buffer, b_step = "b + v * VL", "", "", f"{bk}LL"
        row_b = f"b + k * {bk}LL"
    else:
        panel_b = f"b + (v - {panels.start('p0')}) * VL * depth"
        fill = text_of.fill(
            panel_start=panels.start("p"), chunk_start=panels.start("p0"), bk=bk, bn=bn,
            fill_calls=choose(panels, "p", f"panel_of_b<$>(to, from, depth, {spec.n} - v * VL < $ * VL ? "
                              f"{spec.n} - v * VL : $ * VL);"),
        )  # fmt: skip
        size = min(chunk * panels.size * width, padded) * depth.size
        buffer, b_step, row_b = f"    alignas(64) T buffer[{size}];", "NV * VL", "buffer"
    along = text_of.write_some if moves(spec.n) else text_of.write_rows
    text = text_of.kernel(
        ai=1 if pack_a else am, ak="MR" if pack_a else f"{ak}LL", bk=b_step,
        write=(along if cn == 1 else text_of.write_any)({"cn": cn, "tail": tail}, cm=cm),
        bias=text_of.bias() if bias is not None else "", bias_parameter=", const T *bias" if bias is not None else "",
        pack_a=pack_rows("rows_of_a", am, ak) if pack_a else "",
        pack_b="" if in_place else pack_vectors("panel_of_b", bn, bk),
        use_a=text_of.use_a(kc=round_up(depth.size, width)) if pack_a else "",
        panel_start=panels.start("p"), panel_b=panel_b, panel_calls=choose(panels, "p", call),
        offsets=unravel(f"j / {p * q}", spec.batch, sums), p=p, q=q, m_tiles=rows.parts, n_panels=panels.parts,
        buffer=buffer, k_blocks=depth.parts if spec.k else 1, k_start=depth.start("kb"),
        k_end=f"({depth.start('kb + 1')})", chunk=chunk, fill=fill, m_start=rows.start("t"), am=am, ak_source=ak, cm=cm,
        row_calls=_row_calls(rows, f"row<$>(ta, {row_b}, tc, depth, kb == 0, p0, p1{row_bias});", am, cm),
    )  # fmt: skip
    return Draft(
        name,
        spec.dtype,
        text,
        (TileStep(batch * p * q, "product"),),
        schedule=as_known(lambda: made.schedule(spec, width)),
    )


def choose(split: Split | Runs, index: str, call: str) -> str:
    """C++ that calls with the size of the part number ``index``; ``$`` stands for the size."""
    calls = [call.replace("$", str(size)) for size in split.sizes]
    return f"if ({index} < {split.larger}) {calls[0]} else {calls[1]}" if len(calls) == 2 else calls[0]


SHORTER = (8, 4, 2, 1)
"""Tiles of what is left of rows in whole tiles."""


def by_heights(height: int, call: Callable[[int], str], step: str) -> str:
    """C++ that calls for as many of the rows that are ``left`` as the next shorter tile than ``height`` has, and then steps on."""
    shorter = [h for h in SHORTER if h < height]
    return " else ".join(f"{f'if (left >= {h}) ' if h > 1 else ''}{{ {call(h)} {step} += {h}; }}" for h in shorter)


def _row_calls(rows: Split | Runs, call: str, am: int, cm: int) -> str:
    """C++ that calls for the rows of part ``t``, which at the end are those of several shorter tiles."""
    if isinstance(rows, Split):
        return choose(rows, "t", call)
    whole = call.replace("$", str(rows.size))
    calls = by_heights(rows.size, lambda h: call.replace("$", str(h)), "next_m")
    if not calls:
        return whole
    return f"if (m + {rows.size} <= {rows.total}) {whole}" + text_of.rest_of_rows(
        total=rows.total, am=am, cm=cm, calls=calls
    )


def _refusal(form: ProductForm, isa: Isa, threads: int) -> Refusal | None:
    if form.spec.dots or form.spec.rounds:
        return Refusal("numbers are rounded as B is packed")
    if form.epilogue is not None:
        return Refusal("sums wait in C between two blocks of k, where an epilogue would find parts of them")
    return None


def _draft(name: str, form: ProductForm, isa: Isa, threads: int) -> Draft:
    return tiles_draft(name, form.spec, isa, threads, None)


TILES = Method("tiles", _draft, refusal=_refusal, estimate=lambda form, isa: 3.0)
