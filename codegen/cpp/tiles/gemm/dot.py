"""Skinny products as dot products: few rows of A against the rows of B', both contiguous along k.

B is read once, from its own layout, several rows at a time (as many streams for the prefetcher); nothing is packed but A
where its k is not contiguous.
"""

from __future__ import annotations

import math

from dcir.codegen.asked import as_known, grid_of_jobs, listed, register_tile
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    Split,
    TileStep,
    ceil_div,
    lanes,
    unravel,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.tiles_blocking import loops_of, parallel_of
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.ir.schedule import Schedule
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.packing import wants_panels

text_of = templates("gemm/dot")

# Above this many rows, packing B costs less than the dot products' extra loads and sums.
MOST_ROWS = 16
# Steps of k per row below which packing does too, since a dot product ends with a sum over lanes: on Zen 3 the crossing is at 6 to 8
# for 4 to 16 rows (2048 products of 16 x 27 x 27 with three operands: 16.1 -> 3.0 ms on one core).
STEPS_PER_ROW = 8
# The same where an epilogue asks for a packed B of which most would be padding. Zen 3, with a bias, ns, dot products : packing: 6 x 2 x 32
# 161 : 256, 8 x 3 x 24 223 : 249, 16 x 1 x 32 218 : 421, 16 x 3 x 32 431 : 435, 16 x 3 x 24 419 : 380.
STEPS_PER_ROW_FEW_COLUMNS = 2
# Results of a row that wait for the epilogue, which takes whole vectors then: with a bias, on one core, 4 x 128 x 64 7.7 ->
# 12.5 GFLOP/s, 4 x 512 x 256 30 -> 47; 16 x 128 x 128 the same, 24 to 32.
WAITING = 64
# Room for A on the stack when it has to be packed.
PACKED_BYTES = 128 << 10
LARGE_BYTES = 16 << 20
PREFETCH = 512  # elements


def dot_refusal(form: ProductForm, isa: Isa, threads: int = 1) -> Refusal | None:
    """Why the product should not be computed by dot products over k."""
    spec = form.spec
    if spec.dots or spec.rounds:
        return Refusal("numbers are rounded as B is packed")
    if spec.m > MOST_ROWS:
        return Refusal(f"more than {MOST_ROWS} rows")
    few = form.epilogue is not None and not wants_panels(spec.dtype, spec.n, spec.k, isa)
    steps = (STEPS_PER_ROW_FEW_COLUMNS if few else STEPS_PER_ROW) * spec.m
    if spec.k < max(2 * lanes(isa, spec.dtype), steps):
        return Refusal("too few steps for the sums over lanes at their end")
    if spec.b[-2] != 1:
        return Refusal("B is not contiguous along k")
    if spec.a[-1] != 1 and spec.m * spec.k * 8 > PACKED_BYTES:
        return Refusal("A is not contiguous along k, and too large to be packed on the stack")
    return None


def dot_draft(name: str, form: ProductForm, isa: Isa, threads: int) -> Draft:
    """The product of few rows by dot products."""
    spec = form.spec
    m_split, n_split = _tile(spec, isa)
    batch = math.prod(spec.batch)
    work = spec.m * spec.n * spec.k
    if (asked := grid_of_jobs(1, n_split.parts)) is not None:
        parts = asked[1]
    else:
        parts = 1 if batch * work < 1 << 15 else min(n_split.parts, ceil_div(threads, math.gcd(threads, batch)))
    packs = spec.a[-1] != 1
    am = spec.k if packs else spec.a[-2]
    pack = text_of.pack(m=spec.m, k=spec.k, am=spec.a[-2], ak=spec.a[-1]) if packs else ""
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[:-2])}
    parameter, names, epilogue, cm, cn, to = "", [], None, spec.c[-2], spec.c[-1], f"o0 + pc + n * {spec.c[-1]}LL"
    columns = text_of.columns
    if form.epilogue is None:
        sums["pc"] = (0, spec.c[:-2])
    else:
        parameter, names = EPILOGUE_PARAMETER, [f"x{d}" for d in range(len(spec.batch))]
        epilogue = Epilogue(form.epilogue, spec.dtype, 2, form.places[-1])
        columns, cm, cn, to = text_of.columns_wait, WAITING, 1, "t + (n - from)"
    # Operands that come from memory rather than a cache are fetched well ahead.
    large = spec.n * spec.k * ELEMENT_BYTES[spec.dtype] > LARGE_BYTES
    walk = {
        "groups": n_split.parts, "parts": parts, "n_start": n_split.start("g"),
        "n_calls": _calls(n_split, "g", f"rows<$>(a, a1 + pb + n * {spec.b[-1]}LL, {to});"),
    }  # fmt: skip
    if epilogue is not None:
        walk |= {
            "m": spec.m, "waiting": WAITING, "chunk": WAITING // n_split.size, "from": n_split.start("g0"),
            "to": n_split.start("g1"), "indices": form.indices(names, "m", "from"),
        }  # fmt: skip
    text = text_of.kernel(
        prefetch=PREFETCH if large else 0, k=spec.k, am=f"{am}LL", bn=spec.b[-1],
        write=text_of.write(cm=cm, cn=cn), parameter=parameter, m_tiles=m_split.parts, m_start=m_split.start("t"),
        parts=parts, pack=pack, offsets=unravel(f"j / {parts}", spec.batch, sums, names), columns=columns(walk),
        groups=n_split.parts, m_calls=_calls(m_split, "t", f"dots<$, NR>(a + m * {am}LL, b, c + m * {cm}LL);"),
    )  # fmt: skip
    schedule = as_known(lambda: Schedule(
        loops=loops_of(spec), order=("n", "m", "k"), parallel=parallel_of(spec, 1, parts), tiles=(),
        registers=listed(m=m_split.size, n=n_split.size), vector="k", packed=("A",) * packs, near=(),
    ))  # fmt: skip
    step = TileStep(batch * parts, "skinny")
    return Draft(name, spec.dtype, text, (step,), epilogue=epilogue, schedule=schedule)


def _tile(spec: ContractionSpec, isa: Isa) -> tuple[Split, Split]:
    """Rows and columns whose sums are in registers: those of the model, or as asked for."""
    # Sums lie along k, so that a column has a vector for each row.
    if (tile := register_tile("m", "n", 1, isa.registers)) is not None:
        return Split.at_most(spec.m, tile[0]), Split.at_most(spec.n, tile[1])
    m_split = Split.at_most(spec.m, 8 if isa.registers >= 32 else 4)
    return m_split, Split.at_most(spec.n, min(8, max(1, (isa.registers - 1) // (m_split.size + 1))))


def _calls(split: Split, index: str, call: str) -> str:
    first, *rest = (call.replace("$", str(size)) for size in split.sizes)
    return f"if ({index} < {split.larger}) {first} else {rest[0]}" if rest else first


DOT = Method("dot", dot_draft, refusal=dot_refusal, estimate=lambda form, isa: 2.0)
