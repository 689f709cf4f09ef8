"""Batched matrix products: the table of methods, and the plan.

A method is declared at the end of the file that makes its kernel: what it refuses, where it ranks, its draft. To add one is to write such a
file and to name it in ``PRODUCTS``, or, if its B has to lie in panels, in ``packing.PANELS``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.asked import asked, asking
from dcir.codegen.choices import Choice, deciding
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import (
    HALF,
    Draft,
    TileOperand,
    TileStep,
    assemble,
    assemble_half,
    lanes,
    unravel,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import supports_epilogue
from dcir.codegen.cpp.tiles.gemm.dot import DOT, dot_refusal
from dcir.codegen.cpp.tiles.gemm.form import ProductForm, normal_form, transposed
from dcir.codegen.cpp.tiles.gemm.matrix import MATRIX
from dcir.codegen.cpp.tiles.gemm.packing import PACKING, PANELS
from dcir.codegen.cpp.tiles.gemm.tiles import TILES, tiles_draft
from dcir.codegen.cpp.tiles.method import Method, Methods, choose, drafted
from dcir.codegen.plan import KernelPlan, Phase
from dcir.codegen.symbolic import least, moves, usually
from dcir.ir.schedule import OPEN, Schedule
from dcir.ir.types import FLOATS
from dcir.isa import ISAS, Isa
from dcir.ops.library.contraction import ContractionSpec, pairs_pay, rows_suit
from dcir.ops.library.operand_types import alike

PRODUCTS: Methods[ProductForm] = Methods((MATRIX, DOT, TILES, PACKING), decision="method")
"""The ways to compute a product: on the processor's matrix unit, B where it lies; by dot products over k, for few rows; by register tiles
of A times vectors of B, whatever the strides; from panels that B is put into first."""


# Rows from which the matrix unit is faster where they move: 512 x 512, us on the unit and with multiply-adds, float32 8 rows 248 : 46,
# 24 110 : 109, 48 151 : 255, numbers of bf16 8 rows 72 : 49, 12 40 : 50, 32 75 : 131.
ENOUGH, ENOUGH_HALVES = 32, 12
_SWAPPED = {"m": "n", "n": "m", "A": "B", "B": "A"}


def supports_product(spec: ContractionSpec) -> bool:
    """Whether there is a kernel for the product; else it is a loop nest."""
    if spec.dtype in HALF:
        return not spec.panel and spec.epilogue is None
    if spec.dtype not in FLOATS or spec.scales is not None:
        return False
    return spec.epilogue is None or supports_epilogue(spec.epilogue, spec.dtype)


def plan_gemm(spec: ContractionSpec, isa: Isa, threads: int) -> KernelPlan:
    """The kernel of C[b,m,n] = sum_k A[b,m,k] B[b,k,n]; inputs a0 = A, a1 = B and the epilogue's, outputs C or the epilogue's."""
    if spec.dtype not in HALF:
        made = assemble(gemm_draft(spec, isa, threads), isa, 2, casts=bool(spec.stored))
        rows = normal_form(spec).spec.m
        enough = ENOUGH_HALVES if spec.halves else ENOUGH
        if not isa.matrix_unit or not moves(rows) or least(rows) >= enough or "tdpbf16ps" not in made.globals:
            return made
        # A schedule, and a tuner's choice, are those of the kernel for many rows.
        with asking(OPEN), deciding(Choice()):
            few = plan_gemm(replace(spec, halves=False), replace(ISAS["avx512"], slow_fills=isa.slow_fills), threads)
        return _either(few, made, rows, enough)
    a = TileOperand((*spec.batch, spec.m, spec.k), spec.a)
    b = TileOperand((*spec.batch, spec.k, spec.n), spec.b)
    c = TileOperand((*spec.batch, spec.m, spec.n), spec.c)
    dense = replace(spec, types=alike("f32"), a=a.dense().strides, b=b.dense().strides, c=c.dense().strides)
    return assemble_half(gemm_draft(dense, isa, threads), isa, spec.dtype, (a, b), c, threads)


def _either(few: KernelPlan, many: KernelPlan, rows: int, enough: int) -> KernelPlan:
    """One of two kernels, by how many rows there are when it runs."""
    phases = [
        Phase(p.jobs, f"if ({rows} < {enough}) {{ {p.code.replace('dcir_tile', 'dcir_few')} }}") for p in few.phases
    ]
    phases += [Phase(p.jobs, f"if ({rows} >= {enough}) {{ {p.code} }}") for p in many.phases]
    return replace(
        many, globals=few.globals.replace("dcir_tile", "dcir_few") + many.globals, phases=tuple(phases),
        scratch=max(few.scratch, many.scratch),
    )  # fmt: skip


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
    # Steps whose number moves may leave one without a partner.
    form = normal_form(spec)
    if not (spec.panel or (isa.dots and not moves(spec.k) and (spec.rounds or pairs_pay(usually(form.spec))))):
        form = normal_form(replace(spec, dots=False))
    if not spec.panel and spec.k == 0 and form.epilogue is None:
        return _zeros(name, form.spec)
    method, form = _chosen(form, isa, threads)
    if not form.swapped:
        return drafted(method, name, form, isa, threads)
    # A schedule has the names of the product as it is, an emitter those of the one that it computes.
    with asking(replace(asked().renamed(_SWAPPED), method="")):
        draft = method.draft(name, form, isa, threads)
    schedule = replace((draft.schedule or Schedule()).renamed(_SWAPPED), method=f"{method.name} swapped")
    return replace(draft, swapped=True, schedule=schedule)


def _chosen(form: ProductForm, isa: Isa, threads: int) -> tuple[Method[ProductForm], ProductForm]:
    """The method, and the form of the product that it takes: for sizes that move those of the usual ones."""
    spec = form.spec
    if spec.panel:
        return choose(PANELS, [("", form)], isa, threads)
    if not moves(*spec.batch, spec.m, spec.n, spec.k, *spec.a, *spec.b, *spec.c):
        return choose(PRODUCTS, _turns(form, isa), isa, threads)
    method, taken = choose(PRODUCTS, _turns(usually(form), isa), isa, threads)
    if taken.swapped != form.swapped:
        form = transposed(form)
    if method not in (TILES, PACKING) and (
        method is not MATRIX or MATRIX.refusal(form, isa, threads)
    ):  # made of constants
        method = PACKING if TILES.refusal(form, isa, threads) else TILES
    return method, form


def _turns(form: ProductForm, isa: Isa) -> list[tuple[str, ProductForm]]:
    """The product and its transpose, the better one first."""
    turns = [("", form), (" swapped", transposed(form))]
    if form.spec.rounds:  # B is what is rounded
        return turns[:1]
    swap = rows_suit(form.spec, isa) or (not form.spec.dots and _swap_suits(form, isa))
    return turns[::-1] if swap else turns


def _swap_suits(form: ProductForm, isa: Isa) -> bool:
    """Whether the product is better computed as its transpose."""
    spec, other = form.spec, transposed(form)
    width = lanes(isa, spec.dtype)
    dots, other_dots = (dot_refusal(f, isa) is None for f in (form, other))
    if dots != other_dots:
        return other_dots
    if spec.n * 2 <= width <= spec.m:
        return True
    if spec.m * 2 <= width <= spec.n:
        return False
    return (spec.m == 1 or form.along(-2)) and not (spec.n == 1 or form.along(-1))


def _zeros(name: str, spec: ContractionSpec) -> Draft:
    rows = math.prod(spec.batch) * spec.m
    text = templates("gemm/zeros").zero(
        offset=unravel("j", (*spec.batch, spec.m), {"p": (0, spec.c[:-1])}), n=spec.n, step=spec.c[-1]
    )
    return Draft(name, spec.dtype, text, (TileStep(rows, "zero"),))
