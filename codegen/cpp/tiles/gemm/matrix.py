"""Products on a matrix unit for bfloat16: every float32 is three bfloat16 numbers, and six products of them are as exact.

    a b = (a0 + a1 + a2)(b0 + b1 + b2) ~ a0 b0 + a0 b1 + a1 b0 + a1 b1 + a0 b2 + a2 b0

Parts have eight bits each, so the parts of a number add up to it, and what is left out is below 2^-24 of the product. Products of
parts are exact, and a tile adds up 32 steps of k before it rounds into its sum: results are nearer to the true ones than those of
multiply-adds. Measured on a Xeon with AMX: 390 to 420 GFLOP/s a core, where multiply-adds reach 170 to 190. Numbers below 2^-110
lose their last bits, as the unit reads denormal parts as zeros: results below 2^-86 are computed again with multiply-adds, as are those
that are not finite. A job splits its rows once, and each panel while the matrix unit multiplies the one before; where columns are few,
its panels once, and each strip of rows meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dcir.codegen.asked import as_known
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import EPILOGUE_PARAMETER, Draft, TileStep, ceil_div, unravel
from dcir.codegen.cpp.tiles.gemm.ending import Ending, ending
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.unit import ANYTHING, parts_of_number, quarters, splitting, unit_support, unit_tile
from dcir.codegen.cpp.tiles.gemm.unit_blocking import Rows, UnitBlocking, unit_blocking
from dcir.codegen.cpp.tiles.method import LAST, ON_UNIT, Method
from dcir.codegen.symbolic import least, most, moves, smaller, usual
from dcir.cost.cpu import HALVES_UNIT, MATRIX_UNIT
from dcir.cost.matrix_unit import COLUMNS, ROWS
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.contraction import MOST_PACKED_BYTES, ContractionSpec

text_of = templates("gemm/matrix")

PIECE = 128  # results that are finished at once
MANY_ROWS = 1024  # for which panels are packed first, as they are for multiply-adds (``gemm/packing.py``)
# Columns; of wider rows each is on a page of its own, and packing them first was 3 to 8 % faster, but for few rows of A up to 15 % slower.
WIDEST, FEW_ROWS = 1536, 256
# Numbers of a B that many rows split again and again; larger ones were 10 % slower than packed first.
SPLIT_OFTEN = 1 << 17


def matrix_refusal(spec: ContractionSpec, isa: Isa) -> Refusal | None:
    """Why the product, once its B is packed, is not better computed on the matrix unit than with multiply-adds."""
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if moves(*spec.batch, spec.n):
        return Refusal("its panels are constants")
    if moves(spec.k) and least(spec.k) < 1:
        return Refusal("nothing may be added up")
    if spec.dtype != "f32":
        return Refusal(f"numbers of {spec.dtype}")
    if spec.panel not in (0, COLUMNS):
        return Refusal(f"panels of {spec.panel} columns")
    if spec.stored and not (spec.halves and spec.stored == "bf16"):
        return Refusal(f"B is kept in {spec.stored}")
    unit = HALVES_UNIT if spec.halves else MATRIX_UNIT
    if not unit.wins(math.prod(spec.batch), usual(spec.m), spec.n, usual(spec.k)):
        return Refusal("multiply-adds are faster by the model")
    return None


@dataclass(frozen=True)
class Columns:
    """How panels of B are split.

    Attributes:
        text: C++ functions that the others call: ``panel_at``, ``columns_at`` and ``split_panel``.
        n: columns of B, if the last panel is cut off there, else 0.
        together: pairs of rows that are split at once.
        halves: whether numbers have one part.
    """

    text: str
    n: int = 0
    together: int = 1
    halves: bool = False

    @property
    def names(self) -> dict[str, object]:
        """Of the parameter that says how many columns are left, if there is one."""
        return {"valid": ", L valid", "pass": ", valid"} if self.n else {"valid": "", "pass": ""}

    def left(self, g: str) -> str:
        """The argument for panel ``g``."""
        return f", {self.n} - ({g}) * {COLUMNS}" if self.n else ""

    def meanwhile(self, ready: bool) -> Mapping[str, object]:
        """What a tile does meanwhile: whatever its caller says, if panels are ``ready``, or splitting the next."""
        return ANYTHING if ready else splitting(self.together, cut=self.n > 0, halves=self.halves)


def _columns(spec: ContractionSpec) -> Columns:
    cut = 0 if spec.panel or spec.n % COLUMNS == 0 else spec.n
    columns = Columns("", cut, 1 if spec.panel or spec.b[-1] == 1 else 8, spec.halves)
    facts: dict[str, object] = {
        "bk": spec.b[-2],
        "bn": spec.b[-1],
        "whole": "valid" if cut else COLUMNS,
        **columns.names,
    }
    if spec.stored:
        text = text_of.packed_halves(panel=spec.k * spec.panel // 2)
    elif spec.panel:
        text = text_of.packed(facts, panel=spec.k * spec.panel) + text_of.split_panel(facts)
    elif spec.b[-1] == 1:
        text = text_of.rows_of_b(facts) + text_of.split_panel(facts)
    else:
        text = text_of.columns_of_b(facts, quarters=quarters())
    return replace(columns, text=text)


def matrix_draft(
    name: str, form: ProductForm, isa: Isa, threads: int, *, source: str = "a1 + pb", scratch: int = 0
) -> Draft:
    """The product of A and a B that is packed, or whose rows or columns are of neighbours.

    ``source`` is where B lies, ``scratch`` how much is taken.
    """
    spec = form.spec
    am, ak = spec.a[-2], 1 if spec.k == 1 else spec.a[-1]
    text = text_of.element(am=am, ak=ak)
    if ak == 1:
        text += text_of.split_rows_along(am=am)
    else:
        fill = (text_of.fill_transposed if am == 1 else text_of.fill_any)({"am": am}, ak=ak)
        text += text_of.split_rows_across(fill=fill)
    rows = Rows(
        text, "a0 + pa", "m", f"split_rows(a + m * {am}LL + k0 * {ak}LL, height, depth, d);", unit=1 if ak == 1 else 16
    )
    return product_draft(name, form, rows, threads, source=source, scratch=scratch)


def product_draft(name: str, form: ProductForm, rows: Rows, threads: int, *, source: str, scratch: int = 0) -> Draft:
    """The product of such rows and such a B, of whose ``form.spec`` A's strides are only added up, to ``pa``."""
    spec = form.spec
    end_of = ending(form, "2", spec.n % COLUMNS, prefetched=False, on_stack=True, row_at=rows.result)
    made = unit_blocking(form, rows, threads, sums=end_of.sums)
    columns = _columns(spec)
    items = math.prod(spec.batch) * made.p * made.q
    jobs = smaller(items, threads)
    names = [f"x{d}" for d in range(len(spec.batch))]
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[: len(spec.batch)])}
    body = form.epilogue is not None
    if not body:
        sums["pc"] = (0, spec.c[:-2])
    offsets = unravel(f"j / {made.p * made.q}", spec.batch, sums, names if body else ())
    if spec.stored:
        source = f"(const T *)((const unsigned short *)({source.removesuffix(' + pb')}) + pb)"
    text = unit_support(halves=spec.halves) + rows.text
    text += columns.text + unit_tile(ROWS // end_of.rows, columns.meanwhile(made.ready), halves=spec.halves)
    text += text_of.finish_tile(to=end_of.to, stop=end_of.stop, k=spec.k)
    text += text_of.product(
        _finish_text(form, made, end_of, rows.row),
        parameter=EPILOGUE_PARAMETER.replace("&e", "&given" if end_of.sums else "&e") if body else "",
        own="const Operands e = own(given, job);" if end_of.sums else "",
        offsets=offsets + ("" if body else "\n    T *c = o0 + pc;"), source=source, p=made.p, q=made.q,
        strips=made.strips, panels=made.panels, per_block=made.per_block, at=scratch, bytes=made.job_bytes,
        row_bytes=made.row_bytes, items=items, jobs=jobs, image=rows.image, m=spec.m,
        start=f"B *kept = columns + {made.kept_at}LL; {rows.start}" if rows.start else "",
        body=_body_text(spec, made, end_of, rows, columns),
    )  # fmt: skip
    return Draft(
        name,
        spec.dtype,
        text,
        (TileStep(jobs, "product"),),
        scratch + most(jobs) * made.job_bytes,
        epilogue=end_of.epilogue,
        sums=end_of.sums,
        schedule=as_known(lambda: made.schedule(spec)),
    )


def _body_text(spec: ContractionSpec, made: UnitBlocking, end_of: Ending, rows: Rows, columns: Columns) -> str:
    """C++ of the blocks of a job."""
    moving = moves(spec.m)
    whole, left = (1, 0) if moving else divmod(spec.m, ROWS)
    sizes = ([ROWS] if whole else []) + ([left] if left else [])
    k_loop, ahead = f"const L k0 = 0, depth = {spec.k};", "" if made.by_rows else end_of.ahead
    parts = add_parts = ""
    if made.blocked:
        k0, k1 = (f"({made.depth.start(part)}) * {made.unit}" for part in ("kb", "kb + 1"))
        k_loop = f"for (L kb = 0; kb < {made.depth.parts}; kb++) {{ const L k0 = {k0}, depth = {k1} - k0;"
        add_parts = text_of.add_parts(last=made.depth.parts - 1)
        parts = text_of.parts(column_bytes=made.column_bytes, per_block=made.per_block)
        ahead = text_of.parts_ahead(last=made.depth.parts - 1, ahead=ahead)
    split = "meanwhile" if made.ready else "next, to, begin, until, depth" + columns.left("g + 1")
    tile = _by_strip(
        (f"matrix_tile<{ceil_div(size, ROWS // 2)}>(ta, cur, c_, steps, {split}, ahead, finish_piece);" for size in sizes),
        whole,
    )  # fmt: skip
    last = [_finished(left, end_of, spec, rows.row)] if left else []
    values = {
        "together": columns.together, "strip": made.strip, "unit": rows.unit, "depth": spec.k, "m": spec.m, "fill": rows.fill,
        "of_first": columns.left("g0"), "of_next": columns.left("g_next"), "tile": tile,
        "finish": text_of.next_of_any(m=spec.m) if moving else _by_strip(([text_of.next()] if whole else []) + last, whole),
        "parts": parts, "pauses": parts_of_number(spec.halves), "add_parts": add_parts,
        "ahead": ahead, "k_loop": k_loop, "k_end": "}" if made.blocked else "",
    }  # fmt: skip
    return (text_of.strips if made.ready else text_of.blocks)(values)


def _finish_text(form: ProductForm, made: UnitBlocking, end_of: Ending, row: str) -> dict[str, str]:
    """C++ that finishes the results of the tile before, while another is computed, and what is left of them at the end."""
    spec = form.spec
    if made.by_rows:
        pitch, at = made.wide * COLUMNS, made.kept_at + made.kept
        names = [f"x{d}" for d in range(len(spec.batch))]
        return {
            "pending": text_of.by_rows(at=at, size=made.sums // 4, pitch=pitch, row=row, n=spec.n),
            "flush": text_of.flush_rows(),
            "rows_left": text_of.rows_left(pitch=pitch, piece=PIECE, indices=form.indices(names, "m", "n")),
            "last_rows": text_of.last_rows(),
        }
    if moves(spec.m):
        tile = _finished(end_of.rows, end_of, spec, row)
        # Rows are looked at by fours, and the last ones of a tile have none behind them.
        row_ = _finished(1, end_of, spec, row, four="sums_[turn ^ 1] + (m - m_left) / 4 * 128")
        pending = text_of.pending_of_any(rows=end_of.rows, finish=tile, finish_row=row_)
        return {"pending": pending, "flush": text_of.flush_of_any(), "rows_left": "", "last_rows": ""}
    if spec.m < ROWS:
        return {"pending": text_of.alone(), "flush": "", "rows_left": "", "last_rows": ""}
    finish = _finished(end_of.rows, end_of, spec, row)
    return {
        "pending": text_of.pending(rows=end_of.rows, finish=finish), "flush": text_of.flush(), "rows_left": "", "last_rows": ""
    }  # fmt: skip


def _finished(rows: int, end_of: Ending, spec: ContractionSpec, row: str, four: str = "c_") -> str:
    """C++ that finishes so many rows from ``c_`` on, if they are sound from ``four`` on."""
    return text_of.finish(mr=rows, arguments=end_of.arguments, n=spec.n, row=row, four=four)


def _by_strip(calls: Iterable[str], whole: int) -> str:
    """The call for whole strips, or for the last one."""
    found = [f"{{ {c} }}" for c in calls]
    return found[0] if len(found) == 1 else f"if (t < {whole}) {found[0]} else {found[1]}"


# ------------------------------------------------------------------ methods
def _in_place_refusal(form: ProductForm, isa: Isa, threads: int) -> Refusal | None:
    if form.spec.dots or form.spec.rounds:
        return Refusal("numbers are rounded as B is packed")
    if 1 not in form.spec.b[-2:]:
        return Refusal("neither rows nor columns of B are of neighbours")
    return matrix_refusal(form.spec, isa)


def _in_place_estimate(form: ProductForm, isa: Isa) -> float:
    """First where panels are better split from where B lies than packed first, or may not be packed."""
    spec = form.spec
    narrow = spec.b[-1] != 1 or spec.n <= WIDEST or spec.m <= FEW_ROWS
    in_place = narrow and (spec.m <= MANY_ROWS or spec.n * spec.k <= SPLIT_OFTEN)
    packable = form.epilogue is not None or form.packed_bytes <= MOST_PACKED_BYTES
    return 0.0 if in_place or not packable else LAST


MATRIX = Method("matrix", matrix_draft, refusal=_in_place_refusal, estimate=_in_place_estimate)
MATRIX_OF_PANELS = Method(
    "matrix", matrix_draft, refusal=lambda form, isa, threads: matrix_refusal(form.spec, isa), asked=ON_UNIT
)
