"""Matrix products by register tiles: the tile's size, what is packed, how jobs divide the result, and the C++.

One job computes a rectangle of one batch element's C. It walks k in blocks and columns in chunks so that a packed chunk of B
stays in the second-level cache, and passes each tile of A (in the first-level cache) over all panels of the chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    Draft,
    Runs,
    Split,
    TileStep,
    ceil_div,
    lanes,
    parts_of,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.cpp.tiles.pack_text import pack_rows, pack_vectors
from dcir.codegen.symbolic import most, moves, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec

text_of = templates("gemm/tiles")

KC = 384
CHUNK_BYTES = 384 << 10
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay


@dataclass(frozen=True)
class Shape:
    """A register tile: MR rows by NV vectors, both at most; sizes are balanced over the extents."""

    rows: Split | Runs
    panels: Split | Runs


def tile_shape(m: int, n: int, width: int, registers: int) -> Shape:
    """The tile that needs the fewest cycles for an m x n result, by counts of multiply-adds and loads."""
    if moves(m, n):
        shape = tile_shape(max(usual(m), 16) if moves(m) else m, max(usual(n), width), width, registers)
        rows = Runs(m, shape.rows.size) if moves(m) else shape.rows
        return Shape(rows, Runs(ceil_div(n, width), shape.panels.size) if moves(n) else shape.panels)
    vectors = ceil_div(n, width)
    candidates = []
    for nv in (1, 2, 3, 4, 8):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > vectors or most < 1 or (nv == 8 and m > 3):
            continue
        rows, panels = Split.at_most(m, most), Split.at_most(vectors, nv)
        mr, pv = m / rows.parts, vectors / panels.parts
        # Two multiply-adds and two loads a cycle; latency 4 wants eight accumulators; a few cycles to start and end.
        cycles = max(mr * pv / 2, 4.0, (mr + pv) / 2 * 1.05) + 0.002 * mr * pv
        candidates.append((rows.parts * panels.parts * cycles, -nv, Shape(rows, panels)))
    return min(candidates, key=lambda c: c[:2])[2]


def aliases(stride: int, element: int) -> bool:
    """Whether rows this far apart fall into few sets of the first-level cache."""
    return stride * element % 1024 == 0 and stride != 0


def tiles_draft(name: str, spec: ContractionSpec, isa: Isa, threads: int, bias: tuple[int, ...] | None) -> Draft:
    """The product by register tiles, any strides; a2, if any, is per row with ``bias`` as its batch strides."""
    width, element = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype]
    am, ak, bk, bn, cm, cn = *spec.a[-2:], *spec.b[-2:], *spec.c[-2:]
    bn, cn = (1, 1) if spec.n == 1 else (bn, cn)
    bk = 1 if spec.k == 1 and bn != 1 else bk
    ak = 1 if spec.k == 1 else ak
    shape = tile_shape(spec.m, spec.n, width, isa.registers)
    rows, panels = shape.rows, shape.panels
    batch = math.prod(spec.batch)
    p, q = _grid(spec, shape, batch, threads, width)
    depth = parts_of(spec.k, KC)
    job_rows = ceil_div(usual(rows.parts), p)
    in_place = (
        bn == 1 and spec.n % width == 0 and (job_rows <= 2 or (job_rows <= 6 and not aliases(usual(bk), element)))
    )
    # The last of panels whose number moves may have fewer vectors.
    in_place = in_place and not moves(spec.n)
    # Rows a multiple of 4 KB apart fall into one set; a copy pays only if several panels use it.
    crowded = usual(am) * element % 4096 == 0 and am != 0 and rows.size > 8 and usual(panels.parts) > 2
    # The places of a tile's rows are constants.
    pack_a = (most(spec.k) > 1 and (ak != 1 or crowded)) or moves(am)
    held = most(panels.parts)
    chunk = max(1, min(ceil_div(held, q), CHUNK_BYTES // (max(1, depth.size) * panels.size * width * element)))
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
    return Draft(name, spec.dtype, text, (TileStep(batch * p * q, "product"),))


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


def _grid(spec: ContractionSpec, shape: Shape, batch: int, threads: int, width: int) -> tuple[int, int]:
    """Jobs per batch element along m and n: the division that takes the least time, repeated packing included."""
    work = usual(batch * spec.m * spec.n * spec.k)
    if work < SERIAL_WORK or threads == 1:
        return 1, 1
    best: tuple[float, int, int] | None = None
    batch, rows, panels = usual(batch), usual(shape.rows.parts), usual(shape.panels.parts)
    for p in range(1, min(rows, threads) + 1):
        for q in range(1, min(panels, ceil_div(threads, p)) + 1):
            r, c = ceil_div(rows, p) * shape.rows.size, ceil_div(panels, q) * shape.panels.size * width
            time = r * c / (2 * width) + c * 1.0 + r * 0.3
            total = ceil_div(batch * p * q, threads) * time * (1 + 0.01 * p * q)
            if best is None or total < best[0]:
                best = (total, p, q)
    assert best is not None
    return best[1], best[2]


def _refusal(form: ProductForm, isa: Isa, threads: int) -> Refusal | None:
    if form.spec.dots or form.spec.rounds:
        return Refusal("numbers are rounded as B is packed")
    if form.epilogue is not None:
        return Refusal("sums wait in C between two blocks of k, where an epilogue would find parts of them")
    return None


def _draft(name: str, form: ProductForm, isa: Isa, threads: int) -> Draft:
    return tiles_draft(name, form.spec, isa, threads, None)


TILES = Method("tiles", _draft, refusal=_refusal, estimate=lambda form, isa: 3.0)
