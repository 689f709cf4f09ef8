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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import EPILOGUE_PARAMETER, Draft, Split, TileStep, ceil_div, render, round_up, unravel
from dcir.codegen.cpp.tiles.gemm import matrix_text as text_of
from dcir.codegen.cpp.tiles.gemm.ending import ending
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.ir.statements import Load
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.matrix_unit import COLUMNS, DEPTH, ROWS, matrix_wins

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
ROWS_COST, PANEL_COST = 4.0, 0.65  # of splitting a strip of rows, and a panel for a block of rows, beside a tile


def matrix_suits(spec: ContractionSpec, isa: Isa) -> bool:
    """Whether the product, once its B is packed, is better computed on the matrix unit than with multiply-adds."""
    if not isa.matrix_unit or spec.dtype != "f32" or spec.panel not in (0, COLUMNS):
        return False
    return matrix_wins(math.prod(spec.batch), spec.m, spec.n, spec.k)


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


def matrix_in_place_suits(spec: ContractionSpec, isa: Isa) -> bool:
    """Whether the product is better computed on the matrix unit, B where it lies: rows or columns of neighbours."""
    return 1 in spec.b[-2:] and matrix_suits(spec, isa)


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

    def meanwhile(self, ready: bool) -> dict[str, object]:
        """What a tile does meanwhile: whatever its caller says, if panels are ``ready``, or splitting the next."""
        if ready:
            return dict(text_of.ANYTHING)
        return {k: render(v, together=self.together, **self.names) for k, v in text_of.PANEL.items()}


def _columns(spec: ContractionSpec) -> Columns:
    if spec.panel:
        columns = Columns(text_of.PACKED + text_of.SPLIT_PANEL)
    elif spec.b[-1] == 1:
        columns = Columns(text_of.ROWS_OF_B + text_of.SPLIT_PANEL, spec.n if spec.n % COLUMNS else 0)
    else:
        columns = Columns(text_of.COLUMNS_OF_B, spec.n if spec.n % COLUMNS else 0, 8)
    text = render(
        columns.text, panel=spec.k * spec.panel, bk=spec.b[-2], bn=spec.b[-1], whole="valid" if columns.n else COLUMNS,
        quarters=text_of.quarters(), **columns.names,
    )  # fmt: skip
    return replace(columns, text=text)


def matrix_draft(
    name: str, form: ProductForm, isa: Isa, threads: int, *, source: str = "a1 + pb", scratch: int = 0
) -> Draft:
    """The product of A and a B that is packed, or whose rows or columns are of neighbours.

    ``source`` is where B lies, ``scratch`` how much is taken.
    """
    spec = form.spec
    am, ak = spec.a[-2], 1 if spec.k == 1 else spec.a[-1]
    text = render(text_of.ELEMENT, am=am, ak=ak)
    if ak == 1:
        text += render(text_of.SPLIT_ROWS_ALONG, am=am)
    else:
        fill = render(text_of.FILL_TRANSPOSED if am == 1 else text_of.FILL_ANY, am=am, ak=ak)
        text += render(text_of.SPLIT_ROWS_ACROSS, fill=fill)
    rows = Rows(
        text, "a0 + pa", "m", f"split_rows(a + m * {am}LL + k0 * {ak}LL, height, depth, d);", unit=1 if ak == 1 else 16
    )
    return product_draft(name, form, rows, threads, source=source, scratch=scratch)


def product_draft(name: str, form: ProductForm, rows: Rows, threads: int, *, source: str, scratch: int = 0) -> Draft:
    """The product of such rows and such a B, of whose ``form.spec`` A's strides are only added up, to ``pa``."""
    spec = form.spec
    strips, panels = ceil_div(spec.m, ROWS), ceil_div(spec.n, COLUMNS)
    batch = math.prod(spec.batch)
    unit = DEPTH if rows.even else 1
    depth = Split.at_most(spec.k // unit, DEEPEST // unit)
    strip = ceil_div(depth.size * unit, DEPTH) * STEP_BYTES
    most = max(1, rows.block // strip)
    p, q = _grid(spec, strips, panels, batch, threads, most, rows.cost)
    tall, wide = ceil_div(strips, p), ceil_div(panels, q)
    end_of = ending(form, "2", spec.n % COLUMNS, prefetched=False, on_stack=True, row_at=rows.result)
    by_rows = _by_rows(form) and not end_of.sums
    ready = not by_rows and depth.parts == 1 and wide * strip <= READY_BYTES and tall >= READY_STRIPS
    if by_rows:
        per_block = min(tall, max(LEAST_STRIPS, SUMS_BYTES // (2 * wide * TILE_BYTES)))
    elif ready:
        each = max(1, rows.bytes(LEAST_STRIPS) // LEAST_STRIPS)
        per_block = min(tall, max(LEAST_STRIPS, KEPT_BYTES // each))
    else:
        offered = [max(1, min(tall, max(LEAST_STRIPS, size // strip))) for size in (rows.block, *OTHER_BLOCK_BYTES)]
        per_block = decide("strips", list(dict.fromkeys(offered)))
    blocked = depth.parts > 1
    items = batch * p * q
    jobs = min(items, threads)
    row_bytes, column_bytes = (2 if ready else per_block) * strip, (wide if ready else 2) * strip
    block = per_block * wide * TILE_BYTES
    partials = block if blocked else 0
    kept = round_up(rows.bytes(per_block), 64)
    job_bytes = row_bytes + column_bytes + partials + kept + (2 * block if by_rows else 0)

    text = render(text_of.SUPPORT, least=text_of.LEAST) + rows.text
    columns = _columns(spec)
    text += columns.text + render(text_of.TILE, pieces=ROWS // end_of.rows, **columns.meanwhile(ready))
    text += render(text_of.FINISH_TILE, to=end_of.to, stop=end_of.stop, k=spec.k)

    whole, left = divmod(spec.m, ROWS)
    sizes = ([ROWS] if whole else []) + ([left] if left else [])
    start, end, ahead = f"const L k0 = 0, depth = {spec.k};", "", "" if by_rows else end_of.ahead
    parts = add_parts = ""
    if blocked:
        k0, k1 = (f"({depth.start(part)}) * {unit}" for part in ("kb", "kb + 1"))
        start = f"for (L kb = 0; kb < {depth.parts}; kb++) {{ const L k0 = {k0}, depth = {k1} - k0;"
        end = "}"
        add_parts = render(text_of.ADD_PARTS, last=depth.parts - 1)
        parts = render(text_of.PARTS, column_bytes=column_bytes, per_block=per_block)
        ahead = render(text_of.PARTS_AHEAD, last=depth.parts - 1, ahead=ahead)
    split = "meanwhile" if ready else "next, to, begin, until, depth" + columns.left("g + 1")
    tile = _by_strip(
        (f"matrix_tile<{ceil_div(size, ROWS // 2)}>(ta, cur, c_, steps, {split}, ahead, finish_piece);" for size in sizes),
        whole,
    )  # fmt: skip

    def finish(height: int) -> str:
        return render(text_of.FINISH, mr=height, arguments=end_of.arguments, n=spec.n, row=rows.row)

    each = end_of.rows
    finished = _by_strip(([text_of.NEXT] if whole else []) + ([finish(left)] if left else []), whole)
    pending = render(text_of.PENDING, rows=each, finish=finish(each)) if whole else text_of.ALONE
    flush, rows_left, last_rows = text_of.FLUSH if whole else "", "", ""
    if by_rows:
        pitch = wide * COLUMNS
        pending = render(
            text_of.BY_ROWS, at=column_bytes + partials + kept, size=block // 4, pitch=pitch, row=rows.row, n=spec.n
        )
        names = [f"x{d}" for d in range(len(spec.batch))]
        rows_left = render(text_of.ROWS_LEFT, pitch=pitch, piece=PIECE, indices=form.indices(names, "m", "n"))
        flush, last_rows = text_of.FLUSH_ROWS, text_of.LAST_ROWS
    batch_names = [f"x{d}" for d in range(len(spec.batch))]
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[: len(spec.batch)])}
    body = form.epilogue is not None
    offsets = unravel(f"j / {p * q}", spec.batch, sums, batch_names if body else ())
    if not body:
        offsets = unravel(f"j / {p * q}", spec.batch, sums | {"pc": (0, spec.c[:-2])}) + "\n    T *c = o0 + pc;"
    values: dict[str, object] = {
        "together": columns.together,
        "strip": strip,
        "unit": rows.unit,
        "depth": spec.k,
        "m": spec.m,
        "fill": rows.fill,
    }
    values |= {"of_first": columns.left("g0"), "of_next": columns.left("g_next")}
    values |= {
        "tile": tile,
        "finish": finished,
        "parts": parts,
        "add_parts": add_parts,
        "ahead": ahead,
        "k_loop": start,
        "k_end": end,
    }
    text += render(
        text_of.PRODUCT, parameter=EPILOGUE_PARAMETER.replace("&e", "&given" if end_of.sums else "&e") if body else "",
        own="const Operands e = own(given, job);" if end_of.sums else "", offsets=offsets, source=source, p=p, q=q,
        strips=strips, panels=panels, per_block=per_block, at=scratch, bytes=job_bytes, row_bytes=row_bytes, items=items,
        jobs=jobs, image=rows.image, m=spec.m,
        start=f"B *kept = columns + {column_bytes + partials}LL; {rows.start}" if rows.start else "",
        pending=pending, flush=flush, rows_left=rows_left, last_rows=last_rows,
        body=render(text_of.STRIPS if ready else text_of.BLOCKS, **values),
    )  # fmt: skip
    return Draft(
        name,
        spec.dtype,
        text,
        (TileStep(jobs, "product"),),
        scratch + jobs * job_bytes,
        epilogue=end_of.epilogue,
        sums=end_of.sums,
    )


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
