"""Batched matrix products: the choice of method, and the plan.

``matrix``: on the processor's matrix unit, B where it lies. ``packed``: B lies in panels, or is put into panels by a phase of its own.
``dot``: few rows against an operand that is contiguous along k (nn.Linear at small batch): dot products, nothing is packed. ``tiles``:
register tiles of broadcast A times vectors of B, both packed per job into stack buffers where their layout asks for it, which takes any
strides at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    HALF,
    Draft,
    TileOperand,
    TileStep,
    assemble,
    assemble_half,
    lanes,
    render,
    unravel,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import epilogue_suits
from dcir.codegen.cpp.tiles.gemm.dot import dot_draft, dot_suits
from dcir.codegen.cpp.tiles.gemm.form import ProductForm, normal_form, transposed
from dcir.codegen.cpp.tiles.gemm.matrix import matrix_draft, matrix_in_place_suits, matrix_suits
from dcir.codegen.cpp.tiles.gemm.packed import packed_draft, packing_draft
from dcir.codegen.cpp.tiles.gemm.tiles import CHUNK_BYTES, tiles_draft
from dcir.codegen.plan import KernelPlan
from dcir.ir.types import FLOATS
from dcir.isa import Isa
from dcir.ops.library.contraction import MOST_PACKED_BYTES, ContractionSpec, pairs_pay, rows_suit
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import panel_width

# Of 1500 rows on, packed panels were 1 to 10 % faster than tiles over B as it lies; of two panels they were slower.
MANY_ROWS, LEAST_PANELS = 1024, 4
# AVX2: tiles keep a panel in the first-level cache, and not B as it lies: 128 x 768 x 3072 59 -> 79 GFLOP/s a core
# of Zen 3, 788 x 768 x 3072 53 -> 86, 300 x 64 x 512 75 -> 95; 64 rows of nn.Linear's weights 92 -> 68.
MANY_SHORT_ROWS, LEAST_SHORT_PANELS = 128, 2
# Columns; of wider rows each is on a page of its own, and packing them first was 3 to 8 % faster, but for few rows of A up to 15 % slower.
WIDEST, FEW_ROWS = 1536, 256
# Numbers of a B that many rows split again and again; larger ones were 10 % slower than packed first.
SPLIT_OFTEN = 1 << 17
LEAST_ROWS = 128  # for which packing takes a small part of the matrix unit's time
_SWAPPED = " swapped"


def gemm_suits(spec: ContractionSpec) -> bool:
    """Whether there is a kernel for the product; else it is a loop nest."""
    if spec.dtype in HALF:
        return not spec.panel and spec.epilogue is None
    if spec.dtype not in FLOATS or spec.scales is not None:
        return False
    return spec.epilogue is None or epilogue_suits(spec.epilogue, spec.dtype)


def plan_gemm(spec: ContractionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of C[b,m,n] = sum_k A[b,m,k] B[b,k,n]; inputs a0 = A, a1 = B and the epilogue's, outputs C or the epilogue's."""
    if spec.dtype not in HALF:
        return assemble(gemm_draft(spec, isa, threads), isa, 2, casts=bool(spec.stored))
    a = TileOperand((*spec.batch, spec.m, spec.k), spec.a)
    b = TileOperand((*spec.batch, spec.k, spec.n), spec.b)
    c = TileOperand((*spec.batch, spec.m, spec.n), spec.c)
    dense = replace(spec, types=alike("f32"), a=a.dense().strides, b=b.dense().strides, c=c.dense().strides)
    return assemble_half(gemm_draft(dense, isa, threads), isa, spec.dtype, (a, b), c, threads)


def gemm_draft(spec: ContractionSpec, isa: Isa, threads: int, bias: tuple[int, ...] | None = None) -> Draft:
    """The product in f32 or f64; with ``bias`` (batch strides of a2), a2 holds one value per row m, added to C.

    B may be packed, and there may be an epilogue over (*batch, m, n), whose operands follow a1 (``Draft.epilogue``).
    """
    name = f"gemm_{spec.m}x{spec.n}x{spec.k}"
    if math.prod(spec.batch) * spec.m * spec.n == 0:
        return Draft(name, spec.dtype, "", ())
    if bias is not None:
        return tiles_draft(name, spec, isa, threads, bias)
    # What could not be packed before is packed in every call, in pairs only where that pays.
    paired = spec.panel or (isa.dots and (spec.rounds or pairs_pay(spec)))
    form = normal_form(spec if paired else replace(spec, dots=False))
    if spec.panel:
        return _with_panels(form.spec, isa)(name, form, isa, threads)
    if spec.k == 0 and form.epilogue is None:
        return _zeros(name, form.spec)
    method = decide("method", ["packing"] if spec.rounds else _methods(form, isa))
    swapped = method.endswith(_SWAPPED)
    form = transposed(form) if swapped else form
    match method.removesuffix(_SWAPPED):
        case "matrix":
            draft = matrix_draft(name, form, isa, threads)
        case "dot":
            draft = dot_draft(name, form, isa, threads)
        case "packing":
            draft = packing_draft(name, form, isa, threads, _with_panels(form.spec, isa))
        case _:
            draft = tiles_draft(name, form.spec, isa, threads, None)
    return replace(draft, swapped=swapped)


def _with_panels(spec: ContractionSpec, isa: Isa) -> Callable[..., Draft]:
    """How a product is computed once B is in panels."""
    suits = not spec.stored and matrix_suits(spec, isa)
    return matrix_draft if suits and decide("unit", ["matrix", "vector"]) == "matrix" else packed_draft


def _methods(form: ProductForm, isa: Isa) -> list[str]:
    """The ways to compute the product, the best by the model first."""
    if form.spec.dots:
        turns = ["packing", "packing" + _SWAPPED]
        return turns[::-1] if rows_suit(form.spec, isa) else turns
    swapped = rows_suit(form.spec, isa) or _swap_suits(form, isa)
    found = []
    for swap in (swapped, not swapped):
        turned = transposed(form) if swap else form
        spec = turned.spec
        held = math.prod(d for d, s in zip(spec.batch, spec.b, strict=False) if s) * spec.n * spec.k
        ways = {
            "matrix": matrix_in_place_suits(spec, isa),
            "dot": dot_suits(turned, isa),
            "tiles": form.epilogue is None,
            "packing": form.epilogue is not None or held * ELEMENT_BYTES[spec.dtype] <= MOST_PACKED_BYTES,
        }
        first = "tiles"
        if ways["matrix"] and (_in_place_first(spec) or not ways["packing"]):
            first = "matrix"
        elif (swap and rows_suit(form.spec, isa)) or (
            not ways["dot"] and (form.epilogue is not None or _packing_suits(turned, isa))
        ):
            first = "packing"
        elif ways["dot"]:
            first = "dot"
        found += [n + _SWAPPED * swap for n in sorted(ways, key=lambda n: n != first) if ways[n] or n == first]
    return found


def _in_place_first(spec: ContractionSpec) -> bool:
    """Whether panels are better split from where B lies than packed first, if the matrix unit computes the product."""
    narrow = spec.b[-1] != 1 or spec.n <= WIDEST or spec.m <= FEW_ROWS
    return narrow and (spec.m <= MANY_ROWS or spec.n * spec.k <= SPLIT_OFTEN)


def _packing_suits(form: ProductForm, isa: Isa) -> bool:
    """Whether all of B should be packed before, for many rows; or else rows of A would be packed anew for every chunk of B."""
    spec = form.spec
    if spec.batch:
        return False
    if spec.m >= LEAST_ROWS and matrix_suits(spec, isa):
        return True
    if spec.a[-1] == 1:
        wide = isa.vectors == "avx512"
        rows, count = (MANY_ROWS, LEAST_PANELS) if wide else (MANY_SHORT_ROWS, LEAST_SHORT_PANELS)
        return spec.m >= rows and spec.n >= count * panel_width(spec.dtype, isa)
    return spec.m >= 64 and spec.n * spec.k * ELEMENT_BYTES[spec.dtype] > CHUNK_BYTES


def _swap_suits(form: ProductForm, isa: Isa) -> bool:
    """Whether the product is better computed as its transpose."""
    spec, other = form.spec, transposed(form)
    width = lanes(isa, spec.dtype)
    if dot_suits(form, isa) != dot_suits(other, isa):
        return dot_suits(other, isa)
    if spec.n * 2 <= width <= spec.m:
        return True
    if spec.m * 2 <= width <= spec.n:
        return False
    return (spec.m == 1 or form.along(-2)) and not (spec.n == 1 or form.along(-1))


def _zeros(name: str, spec: ContractionSpec) -> Draft:
    rows = math.prod(spec.batch) * spec.m
    text = render(
        """
$noinline void zero(L j, const T *, const T *, const T *, T *o0, unsigned char *) {
    $offset
    for (L i = 0; i < $n; i++) o0[p + i * $step] = 0;
}
""",
        offset=unravel("j", (*spec.batch, spec.m), {"p": (0, spec.c[:-1])}), n=spec.n, step=spec.c[-1],
    )  # fmt: skip
    return Draft(name, spec.dtype, text, (TileStep(rows, "zero"),))
