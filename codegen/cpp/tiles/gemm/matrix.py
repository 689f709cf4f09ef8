"""Products with packed B on a matrix unit for bfloat16: every float32 is three bfloat16 numbers, and six products of them are as exact.

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.emit import EPILOGUE_PARAMETER, Draft, Split, TileStep, ceil_div, round_up, unravel
from dcir.codegen.cpp.tiles.gemm.ending import Ending, ending
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.unit import ANYTHING, quarters, splitting, unit_support, unit_tile
from dcir.codegen.cpp.tiles.method import LAST, ON_UNIT, Method
from dcir.codegen.symbolic import moves
from dcir.cost.cpu import MATRIX_UNIT
from dcir.cost.matrix_unit import COLUMNS, DEPTH, ROWS
from dcir.ir.refusal import Refusal
from dcir.ir.statements import Load
from dcir.isa import Isa
from dcir.ops.library.contraction import MOST_PACKED_BYTES, ContractionSpec

text_of = templates("gemm/matrix")

STEP_BYTES = 6 * ROWS * DEPTH  # of the parts of either operand
BLOCK_BYTES = 768 << 10  # of rows in parts, beside two panels, in the second-level cache
OTHER_BLOCK_BYTES = (512 << 10, 1152 << 10)
LEAST_STRIPS = 4  # in a block, however long
READY_STRIPS = 8  # of a job, for which all its panels are split before
KEPT_BYTES = 256 << 10  # of the image in parts, where panels stay
READY_BYTES = 512 << 10  # of all panels of a job, for which they stay there too
DEEPEST = 768  # steps of k that are summed in one go
TILE_BYTES = 4 * ROWS * COLUMNS
SUMS_BYTES = 1 << 20  # of two blocks of sums
PIECE = 128  # results that are finished at once
STREAMS, STREAMED_BYTES = 2, 1 << 20  # matrices, and of how many bytes, that are read in the order of memory
SERIAL_WORK = 1 << 18  # multiply-adds below which a second thread does not pay
MANY_ROWS = 1024  # for which panels are packed first, as they are for multiply-adds (``gemm/packing.py``)
# Columns; of wider rows each is on a page of its own, and packing them first was 3 to 8 % faster, but for few rows of A up to 15 % slower.
WIDEST, FEW_ROWS = 1536, 256
# Numbers of a B that many rows split again and again; larger ones were 10 % slower than packed first.
SPLIT_OFTEN = 1 << 17
ROWS_COST, PANEL_COST = 4.0, 0.65  # of splitting a strip of rows, and a panel for a block of rows, beside a tile


def matrix_refusal(spec: ContractionSpec, isa: Isa) -> Refusal | None:
    """Why the product, once its B is packed, is not better computed on the matrix unit than with multiply-adds."""
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if moves(*spec.batch, spec.m, spec.n, spec.k):
        return Refusal("its strips are constants")
    if spec.dtype != "f32":
        return Refusal(f"numbers of {spec.dtype}")
    if spec.panel not in (0, COLUMNS):
        return Refusal(f"panels of {spec.panel} columns")
    if spec.stored:
        return Refusal(f"B is kept in {spec.stored}")
    if not MATRIX_UNIT.wins(math.prod(spec.batch), spec.m, spec.n, spec.k):
        return Refusal("multiply-adds are faster by the model")
    return None


@dataclass(frozen=True)
class Rows:
    """Where the rows of A come from.

    Attributes:
        text: C++ functions that the others call, and ``element(a, row, k)``, a pointer to an element, or null for one left out.
        image: an expression for ``a``.
        row: the number of row ``m`` for ``element``.
        fill: statements that split rows ``m`` to ``m + height``, steps ``k0`` to ``k0 + depth``, into ``d``.
        start: statements before that, for rows from ``first`` to ``end``; they may use ``bytes`` (of so many strips) of memory at ``kept``.
        even: whether ``k0`` must be a multiple of DEPTH.
        unit: rows that are best split at once.
        cost: of splitting a strip, in tiles' steps.
        block: bytes of a block of strips.
        result: of ``text``, the function of where in C a row begins, if rows do not lie one step apart there.
    """

    text: str
    image: str
    row: str
    fill: str
    start: str = ""
    bytes: Callable[[int], int] = lambda strips: 0
    even: bool = False
    unit: int = 1
    cost: float = ROWS_COST
    block: int = BLOCK_BYTES
    result: str = ""


@dataclass(frozen=True)
class Columns:
    """How panels of B are split.

    Attributes:
        text: C++ functions that the others call: ``panel_at``, ``columns_at`` and ``split_panel``.
        n: columns of B, if the last panel is cut off there, else 0.
        together: pairs of rows that are split at once.
    """

    text: str
    n: int = 0
    together: int = 1

    @property
    def names(self) -> dict[str, object]:
        """Of the parameter that says how many columns are left, if there is one."""
        return {"valid": ", L valid", "pass": ", valid"} if self.n else {"valid": "", "pass": ""}

    def left(self, g: str) -> str:
        """The argument for panel ``g``."""
        return f", {self.n} - ({g}) * {COLUMNS}" if self.n else ""

    def meanwhile(self, ready: bool) -> Mapping[str, object]:
        """What a tile does meanwhile: whatever its caller says, if panels are ``ready``, or splitting the next."""
        return ANYTHING if ready else splitting(self.together, cut=self.n > 0)


def _columns(spec: ContractionSpec) -> Columns:
    cut = 0 if spec.panel or spec.n % COLUMNS == 0 else spec.n
    columns = Columns("", cut, 1 if spec.panel or spec.b[-1] == 1 else 8)
    facts: dict[str, object] = {
        "bk": spec.b[-2],
        "bn": spec.b[-1],
        "whole": "valid" if cut else COLUMNS,
        **columns.names,
    }
    if spec.panel:
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


@dataclass(frozen=True)
class UnitBlocking:
    """How a product on the unit is divided.

    Attributes:
        strips, panels: of rows and of columns.
        depth: steps of k in blocks, counted in ``unit``.
        unit: steps that stay together.
        strip: bytes of a strip of rows in parts, and of a panel.
        p, q: jobs per batch element along the strips and the panels.
        by_rows: whether results pass through the epilogue in the order of memory.
        ready: whether all panels of a job are split before; else the next one while one is multiplied.
        per_block: strips in a block.
        kept: bytes beside a block for what its rows are made from.
    """

    strips: int
    panels: int
    depth: Split
    unit: int
    strip: int
    p: int
    q: int
    by_rows: bool
    ready: bool
    per_block: int
    kept: int

    @property
    def blocked(self) -> bool:
        """Whether sums wait for the next block of steps."""
        return self.depth.parts > 1

    @property
    def wide(self) -> int:
        """Panels of a job."""
        return ceil_div(self.panels, self.q)

    @property
    def row_bytes(self) -> int:
        """Of strips in parts."""
        return (2 if self.ready else self.per_block) * self.strip

    @property
    def column_bytes(self) -> int:
        """Of panels in parts."""
        return (self.wide if self.ready else 2) * self.strip

    @property
    def sums(self) -> int:
        """Bytes of a block of sums."""
        return self.per_block * self.wide * TILE_BYTES

    @property
    def kept_at(self) -> int:
        """Where, behind the panels, ``kept`` is: behind the sums that wait."""
        return self.column_bytes + (self.sums if self.blocked else 0)

    @property
    def job_bytes(self) -> int:
        """Of a job's scratch."""
        return self.row_bytes + self.kept_at + self.kept + (2 * self.sums if self.by_rows else 0)


def _blocking(form: ProductForm, rows: Rows, threads: int, *, sums: bool) -> UnitBlocking:
    """The division by the cost model, or as decided; ``sums``, if the epilogue adds up."""
    spec = form.spec
    strips, panels = ceil_div(spec.m, ROWS), ceil_div(spec.n, COLUMNS)
    unit = DEPTH if rows.even else 1
    depth = Split.at_most(spec.k // unit, DEEPEST // unit)
    strip = ceil_div(depth.size * unit, DEPTH) * STEP_BYTES
    p, q = _grid(spec, strips, panels, math.prod(spec.batch), threads, max(1, rows.block // strip), rows.cost)
    tall, wide = ceil_div(strips, p), ceil_div(panels, q)
    by_rows = _by_rows(form) and not sums
    ready = not by_rows and depth.parts == 1 and wide * strip <= READY_BYTES and tall >= READY_STRIPS
    if by_rows:
        per_block = min(tall, max(LEAST_STRIPS, SUMS_BYTES // (2 * wide * TILE_BYTES)))
    elif ready:
        each = max(1, rows.bytes(LEAST_STRIPS) // LEAST_STRIPS)
        per_block = min(tall, max(LEAST_STRIPS, KEPT_BYTES // each))
    else:
        offered = [max(1, min(tall, max(LEAST_STRIPS, size // strip))) for size in (rows.block, *OTHER_BLOCK_BYTES)]
        per_block = decide("strips", list(dict.fromkeys(offered)))
    kept = round_up(rows.bytes(per_block), 64)
    return UnitBlocking(strips, panels, depth, unit, strip, p, q, by_rows, ready, per_block, kept)


def product_draft(name: str, form: ProductForm, rows: Rows, threads: int, *, source: str, scratch: int = 0) -> Draft:
    """The product of such rows and such a B, of whose ``form.spec`` A's strides are only added up, to ``pa``."""
    spec = form.spec
    end_of = ending(form, "2", spec.n % COLUMNS, prefetched=False, on_stack=True, row_at=rows.result)
    made = _blocking(form, rows, threads, sums=end_of.sums)
    columns = _columns(spec)
    items = math.prod(spec.batch) * made.p * made.q
    jobs = min(items, threads)
    names = [f"x{d}" for d in range(len(spec.batch))]
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[: len(spec.batch)])}
    body = form.epilogue is not None
    if not body:
        sums["pc"] = (0, spec.c[:-2])
    offsets = unravel(f"j / {made.p * made.q}", spec.batch, sums, names if body else ())
    text = unit_support() + rows.text
    text += columns.text + unit_tile(ROWS // end_of.rows, columns.meanwhile(made.ready))
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
        scratch + jobs * made.job_bytes,
        epilogue=end_of.epilogue,
        sums=end_of.sums,
    )


def _body_text(spec: ContractionSpec, made: UnitBlocking, end_of: Ending, rows: Rows, columns: Columns) -> str:
    """C++ of the blocks of a job."""
    whole, left = divmod(spec.m, ROWS)
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
    last = [text_of.finish(mr=left, arguments=end_of.arguments, n=spec.n, row=rows.row)] if left else []
    values = {
        "together": columns.together, "strip": made.strip, "unit": rows.unit, "depth": spec.k, "m": spec.m, "fill": rows.fill,
        "of_first": columns.left("g0"), "of_next": columns.left("g_next"), "tile": tile,
        "finish": _by_strip(([text_of.next()] if whole else []) + last, whole),
        "parts": parts, "add_parts": add_parts, "ahead": ahead, "k_loop": k_loop, "k_end": "}" if made.blocked else "",
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
    if spec.m < ROWS:
        return {"pending": text_of.alone(), "flush": "", "rows_left": "", "last_rows": ""}
    finish = text_of.finish(mr=end_of.rows, arguments=end_of.arguments, n=spec.n, row=row)
    return {
        "pending": text_of.pending(rows=end_of.rows, finish=finish), "flush": text_of.flush(), "rows_left": "", "last_rows": ""
    }  # fmt: skip


def _by_rows(form: ProductForm) -> bool:
    """Whether results pass through the epilogue in the order of memory, which it reads several matrices of."""
    spec, body = form.spec, form.epilogue
    if body is None or spec.m % ROWS or spec.n % COLUMNS or spec.m * spec.n * 4 < STREAMED_BYTES:
        return False
    if not form.along(-1):
        return False
    row, column = form.places[-2], form.places[-1]
    read = {
        (s.operand, s.strides)
        for s in body.body
        if isinstance(s, Load) and s.operand != 0 and s.strides[column] == 1 and s.strides[row] == spec.n
    }
    return len(read) >= STREAMS


def _by_strip(calls: Iterable[str], whole: int) -> str:
    """The call for whole strips, or for the last one."""
    found = [f"{{ {c} }}" for c in calls]
    return found[0] if len(found) == 1 else f"if (t < {whole}) {found[0]} else {found[1]}"


def _grid(
    spec: ContractionSpec, strips: int, panels: int, batch: int, threads: int, most: int, rows: float
) -> tuple[int, int]:
    """Jobs per batch element along m and n: even shares of the tiles, then little split twice."""
    if batch * spec.m * spec.n * spec.k < SERIAL_WORK or threads == 1 or batch % threads == 0:
        return 1, 1
    found = []
    for p in range(1, min(strips, threads) + 1):
        for q in range(1, min(panels, ceil_div(threads, p)) + 1):
            tall, wide = ceil_div(strips, p), ceil_div(panels, q)
            cost = tall * wide + rows * tall + PANEL_COST * wide * ceil_div(tall, most)
            found.append((ceil_div(batch * p * q, threads) * cost * (1 + 0.001 * p * q), p, q))
    p, q = decide("grid", [(p, q) for _, p, q in sorted(found)[:4]])
    return p, q


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
