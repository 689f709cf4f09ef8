"""Products whose B is put into panels by a phase of its own, in every call, and then computed by one of the ways for panels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dcir.codegen.cpp.scalar_ops import cast_expr
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles import half_dots
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    TileStep,
    ceil_div,
    lanes,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.gemm.form import ProductForm, transposed
from dcir.codegen.cpp.tiles.gemm.matrix import MATRIX_OF_PANELS, matrix_refusal
from dcir.codegen.cpp.tiles.gemm.packed import ROUNDED_STEPS, TOGETHER_STEPS, VECTORS_OF_PANELS
from dcir.codegen.cpp.tiles.gemm.tiles_blocking import CHUNK_BYTES
from dcir.codegen.cpp.tiles.method import LAST, Method, Methods, choose
from dcir.codegen.cpp.tiles.pack_text import pack_vectors
from dcir.codegen.symbolic import most
from dcir.isa import Isa
from dcir.ops.library.contraction import MOST_PACKED_BYTES, rows_suit
from dcir.ops.library.packing import pairs_of, panel_width, panels

half_dots_text = templates("half_dots")
text_of = templates("gemm/packed")

PANELS: Methods[ProductForm] = Methods((MATRIX_OF_PANELS, VECTORS_OF_PANELS))
"""The ways to compute a product whose B is in panels, the first that suits first."""

# Of 1500 rows on, packed panels were 1 to 10 % faster than tiles over B as it lies; of two panels they were slower.
MANY_ROWS, LEAST_PANELS = 1024, 4
# AVX2: tiles keep a panel in the first-level cache, and not B as it lies: 128 x 768 x 3072 59 -> 79 GFLOP/s a core
# of Zen 3, 788 x 768 x 3072 53 -> 86, 300 x 64 x 512 75 -> 95; 64 rows of nn.Linear's weights 92 -> 68.
MANY_SHORT_ROWS, LEAST_SHORT_PANELS = 128, 2
LEAST_ROWS = 128  # for which packing takes a small part of the matrix unit's time
TOGETHER_PANELS = 4  # packed side by side, so that memory is read in longer pieces


def packing_draft(name: str, form: ProductForm, isa: Isa, threads: int, product: Callable[..., Draft]) -> Draft:
    """A product whose B is put into panels, in scratch, by a phase of its own; ``product`` makes what follows."""
    spec = form.spec
    width, element = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype]
    panel = panel_width(spec.dtype, isa)
    bk, bn = 1 if spec.k == 1 else spec.b[-2], 1 if spec.n == 1 else spec.b[-1]
    groups = tuple(1 if s == 0 else d for d, s in zip(spec.batch, spec.b, strict=False))
    # Pairs of bf16 are counted as what is as large: numbers of f32.
    count, size = panels(spec.n, panel), (pairs_of(spec.k) if spec.dots else spec.k) * panel
    together = TOGETHER_PANELS if bn == 1 else 1
    jobs = ceil_div(count, together)
    step = TOGETHER_STEPS if together > 1 else max(1, most(spec.k))
    if spec.rounds or spec.dots:
        step = min(step, ROUNDED_STEPS) if not spec.dots or together > 1 else ROUNDED_STEPS
    rounding = ""
    if spec.rounds:
        value = cast_expr(cast_expr("d[i]", "f32", spec.rounds), spec.rounds, "f32")
        rounding = text_of.rounded(panel=panel, value=value)
    text = (half_dots.functions() if spec.dots else "") + pack_vectors("panel_of_b", bn, bk)
    text += (half_dots_text.pack if spec.dots else text_of.pack)(
        parameter=EPILOGUE_PARAMETER.replace(" &e", " &") if form.epilogue is not None else "",
        offsets=unravel("group", groups, {"pb": (0, spec.b[: len(groups)])}), panels=count, panel=panel, jobs=jobs,
        together=together, step=step, rounded=rounding,
        vectors=panel // width, size=f"{size}LL", bk=bk, bn=bn, k=spec.k, n=spec.n,
    )  # fmt: skip
    unit = 2 if spec.dots else 1
    behind = (math.prod(groups[d + 1 :]) for d in range(len(groups)))
    strides = tuple(0 if d == 1 else unit * s * count * size for d, s in zip(groups, behind, strict=True))
    packed = replace(form, spec=replace(spec, b=(*strides, 0, 0), panel=panel, rounds=""))
    draft = product(
        name,
        packed,
        isa,
        threads,
        source="(const T *)scratch + pb",
        scratch=round_up(math.prod(groups) * count * size * element, 64),
    )
    return replace(draft, text=text + draft.text, steps=(TileStep(math.prod(groups) * jobs, "pack"), *draft.steps))


# ------------------------------------------------------------------ method
def _draft(name: str, form: ProductForm, isa: Isa, threads: int) -> Draft:
    method, form = choose(PANELS, [("", form)], isa, threads)
    return packing_draft(name, form, isa, threads, method.draft)


def _estimate(form: ProductForm, isa: Isa) -> float:
    """Before all others for a short A that is the smaller one to pack; else behind dot products, and before tiles if it pays."""
    if form.swapped and rows_suit(transposed(form).spec, isa):
        return 1.0
    return 2.5 if form.epilogue is not None or _pays(form, isa) else LAST


def _pays(form: ProductForm, isa: Isa) -> bool:
    """Whether all of B should be packed before, for many rows; or else rows of A would be packed anew for every chunk of B."""
    spec = form.spec
    if spec.batch:
        return False
    if spec.m >= LEAST_ROWS and matrix_refusal(spec, isa) is None:
        return True
    if spec.a[-1] == 1:
        wide = isa.vectors == "avx512"
        rows, count = (MANY_ROWS, LEAST_PANELS) if wide else (MANY_SHORT_ROWS, LEAST_SHORT_PANELS)
        return spec.m >= rows and spec.n >= count * panel_width(spec.dtype, isa)
    return spec.m >= 64 and spec.n * spec.k * ELEMENT_BYTES[spec.dtype] > CHUNK_BYTES


def _offered(form: ProductForm) -> bool:
    return form.spec.dots or form.epilogue is not None or form.packed_bytes <= MOST_PACKED_BYTES


PACKING = Method("packing", _draft, estimate=_estimate, offered=_offered)
