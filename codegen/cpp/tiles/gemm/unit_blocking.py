"""How a product on a matrix unit is divided: strips of rows by panels of columns, jobs, blocks of both, and what is ready before."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dcir.codegen.asked import asked, grid_of_jobs, listed, wish
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import Runs, Split, ceil_div, round_up
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.tiles_blocking import loops_of, parallel_of
from dcir.codegen.cpp.tiles.gemm.unit import parts_of_number
from dcir.codegen.symbolic import moves, smaller, usual
from dcir.cost.matrix_unit import COLUMNS, DEPTH, ROWS
from dcir.ir.schedule import Schedule
from dcir.ir.statements import Load
from dcir.ops.library.contraction import ContractionSpec

PART_BYTES = 2 * ROWS * DEPTH  # of a step of either operand
STEP_BYTES = 3 * PART_BYTES  # of its parts
BLOCK_BYTES = 768 << 10  # of rows in parts, beside two panels, in the second-level cache
OTHER_BLOCK_BYTES = (512 << 10, 1152 << 10)
LEAST_STRIPS = 4  # in a block, however long
READY_STRIPS = 8  # of a job, for which all its panels are split before
KEPT_BYTES = 256 << 10  # of the image in parts, where panels stay
READY_BYTES = 512 << 10  # of all panels of a job, for which they stay there too
DEEPEST, DEEPEST_HALVES = 768, 3072  # steps of k that are summed in one go
TILE_BYTES = 4 * ROWS * COLUMNS
SUMS_BYTES = 1 << 20  # of two blocks of sums
STREAMS, STREAMED_BYTES = 2, 1 << 20  # matrices, and of how many bytes, that are read in the order of memory
SERIAL_WORK = 1 << 18  # multiply-adds below which a second thread does not pay
ROWS_COST, PANEL_COST = 4.0, 0.65  # of splitting a strip of rows, and a panel for a block of rows, beside a tile


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
    depth: Split | Runs
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
        return moves(self.depth.parts) or self.depth.parts > 1

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

    def schedule(self, spec: ContractionSpec) -> Schedule:
        """The same as a schedule. Tiles are the unit's; both operands are split into parts, near the unit."""
        tiles = {"k": self.depth.size * self.unit} if self.blocked else {}
        if self.per_block < ceil_div(self.strips, self.p):
            tiles["m"] = self.per_block * ROWS
        return Schedule(
            loops=loops_of(spec), order=("k", "m", "n") if self.blocked else ("m", "n", "k"),
            parallel=parallel_of(spec, self.p, self.q), tiles=listed(**tiles), registers=listed(m=ROWS, n=COLUMNS),
            vector="n", packed=("A", "B"), near=("C",) * (self.blocked or self.by_rows),
        )  # fmt: skip


def unit_blocking(form: ProductForm, rows: Rows, threads: int, *, sums: bool) -> UnitBlocking:
    """The division by the cost model, or as decided; ``sums``, if the epilogue adds up."""
    spec = form.spec
    strips, panels = ceil_div(spec.m, ROWS), ceil_div(spec.n, COLUMNS)
    unit = DEPTH if rows.even else 1
    deepest = (DEEPEST_HALVES if spec.halves else DEEPEST) // unit
    depth = Runs(spec.k // unit, deepest) if moves(spec.k) else Split.at_most(spec.k // unit, deepest)
    strip = ceil_div(depth.size * unit, DEPTH) * PART_BYTES * parts_of_number(spec.halves)
    moving = moves(strips)
    if moving:  # shares of as many strips as there are when it runs
        p, q = smaller(strips, threads), 1
    else:
        p, q = _grid(spec, strips, panels, math.prod(spec.batch), threads, max(1, rows.block // strip), rows.cost)
    tall, wide = usual(ceil_div(strips, p)), ceil_div(panels, q)
    by_rows = not moving and _by_rows(form) and not sums
    ready = not moving and not by_rows and depth.parts == 1 and wide * strip <= READY_BYTES and tall >= READY_STRIPS
    if by_rows:
        per_block = min(tall, max(LEAST_STRIPS, SUMS_BYTES // (2 * wide * TILE_BYTES)))
    elif ready:
        each = max(1, rows.bytes(LEAST_STRIPS) // LEAST_STRIPS)
        per_block = min(tall, max(LEAST_STRIPS, KEPT_BYTES // each))
    else:
        tall = max(tall, LEAST_STRIPS) if moving else tall
        offered = [max(1, min(tall, max(LEAST_STRIPS, size // strip))) for size in (rows.block, *OTHER_BLOCK_BYTES)]
        per_block = decide("strips", list(dict.fromkeys(offered)))
    if asked().tiles is not None:
        per_block = max(1, min(tall, (wish("tiles", "m") or tall * ROWS) // ROWS))
    kept = round_up(rows.bytes(per_block), 64)
    return UnitBlocking(strips, panels, depth, unit, strip, p, q, by_rows, ready, per_block, kept)


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


def _grid(
    spec: ContractionSpec, strips: int, panels: int, batch: int, threads: int, most: int, rows: float
) -> tuple[int, int]:
    """Jobs per batch element along m and n: even shares of the tiles, then little split twice."""
    if (parts := grid_of_jobs(strips, panels)) is not None:
        return parts
    if batch * spec.m * spec.n * usual(spec.k) < SERIAL_WORK or threads == 1 or batch % threads == 0:
        return 1, 1
    found = []
    for p in range(1, min(strips, threads) + 1):
        for q in range(1, min(panels, ceil_div(threads, p)) + 1):
            tall, wide = ceil_div(strips, p), ceil_div(panels, q)
            cost = tall * wide + rows * tall + PANEL_COST * wide * ceil_div(tall, most)
            found.append((ceil_div(batch * p * q, threads) * cost * (1 + 0.001 * p * q), p, q))
    p, q = decide("grid", [(p, q) for _, p, q in sorted(found)[:4]])
    return p, q
