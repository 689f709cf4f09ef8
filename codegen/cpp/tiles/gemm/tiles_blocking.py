"""How a product by register tiles is divided: its tile, its jobs, blocks of steps and columns, and what is packed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.asked import asked, check_near, grid_of_jobs, listed, register_tile, wish
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Runs, Split, ceil_div, lanes, parts_of
from dcir.codegen.symbolic import most, moves, usual
from dcir.errors import InvalidSchedule
from dcir.ir.schedule import Schedule
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec

KC = 384
CHUNK_BYTES = 384 << 10
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay


@dataclass(frozen=True)
class Shape:
    """A register tile: MR rows by NV vectors, both at most; sizes are balanced over the extents."""

    rows: Split | Runs
    panels: Split | Runs


@dataclass(frozen=True)
class TilesBlocking:
    """How the work is divided.

    Attributes:
        shape: the register tile, and how many there are.
        p, q: jobs per batch element along the rows and the columns.
        depth: steps of k in blocks, between which sums wait in C.
        chunk: panels of columns that a job passes all its rows over.
        in_place: whether B is read where it lies, else packed by chunks.
        pack_a: whether rows of A are packed, a tile at a time.
    """

    shape: Shape
    p: int
    q: int
    depth: Split | Runs
    chunk: int
    in_place: bool
    pack_a: bool

    def schedule(self, spec: ContractionSpec, width: int) -> Schedule:
        """The same as a schedule."""
        panel = self.shape.panels.size * width
        tiles = {}
        if most(self.depth.parts) > 1:
            tiles["k"] = self.depth.size
        if self.chunk < most(ceil_div(self.shape.panels.parts, self.q)):
            tiles["n"] = self.chunk * panel
        return Schedule(
            loops=loops_of(spec), order=("k", "n", "m"), parallel=parallel_of(spec, self.p, self.q), tiles=listed(**tiles),
            registers=listed(m=self.shape.rows.size, n=panel), vector="n",
            packed=("A",) * self.pack_a + ("B",) * (not self.in_place), near=(),
        )  # fmt: skip


def loops_of(spec: ContractionSpec) -> tuple[tuple[str, int], ...]:
    """The loops of a product: its batch as one."""
    batch = math.prod(spec.batch)
    return (*(listed(b=batch) if usual(batch) > 1 else ()), *listed(m=spec.m, n=spec.n, k=spec.k))


def parallel_of(spec: ContractionSpec, p: int, q: int) -> tuple[tuple[str, int], ...]:
    """The loops of a product that are dealt to jobs."""
    found = listed(b=math.prod(spec.batch), m=p, n=q)
    return tuple((loop, parts) for loop, parts in found if parts > 1)


def tiles_blocking(spec: ContractionSpec, isa: Isa, threads: int) -> TilesBlocking:
    """The division by the cost model, or as it is asked for.

    Raises:
        InvalidSchedule: the product cannot be divided as asked.
    """
    width, element = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype]
    am, ak, bk, bn = *spec.a[-2:], *spec.b[-2:]
    bn = 1 if spec.n == 1 else bn
    bk = 1 if spec.k == 1 and bn != 1 else bk
    ak = 1 if spec.k == 1 else ak
    shape = _asked_shape(spec, width, isa.registers) or tile_shape(spec.m, spec.n, width, isa.registers)
    rows, panels = shape.rows, shape.panels
    p, q = grid_of_jobs(rows.parts, panels.parts) or _grid(spec, shape, math.prod(spec.batch), threads, width)
    depth = parts_of(spec.k, wish("tiles", "k") or (KC if asked().tiles is None else max(1, most(spec.k))))
    job_rows = ceil_div(usual(rows.parts), p)
    # The last of panels whose number moves may have fewer vectors.
    can = bn == 1 and spec.n % width == 0 and not moves(spec.n)
    in_place = can and (job_rows <= 2 or (job_rows <= 6 and not aliases(usual(bk), element)))
    # Rows a multiple of 4 KB apart fall into one set; a copy pays only if several panels use it.
    crowded = usual(am) * element % 4096 == 0 and am != 0 and rows.size > 8 and usual(panels.parts) > 2
    # The places of a tile's rows are constants.
    pack_a = (most(spec.k) > 1 and (ak != 1 or crowded)) or moves(am)
    if asked().packed is not None:
        in_place, pack_a = "B" not in asked().packed, "A" in asked().packed  # type: ignore[operator]  # it is not None
        if in_place and not can:
            raise InvalidSchedule(
                "B is packed where its columns are not neighbours, or are no whole vectors", hint="packed=['B']"
            )
        if not pack_a and moves(am):
            raise InvalidSchedule("rows of A are packed where the steps between them move", hint="packed=['A', 'B']")
    held = ceil_div(most(panels.parts), q)
    chunk = max(1, min(held, CHUNK_BYTES // (max(1, depth.size) * panels.size * width * element)))
    if (columns := wish("tiles", "n")) is not None:
        chunk = min(held, max(1, columns // (panels.size * width))) if columns else held
    size = 0 if in_place else chunk * panels.size * width * depth.size
    size += rows.size * depth.size if pack_a else 0
    check_near("what is packed of a block", size * element, "smaller tiles of k and n")
    return TilesBlocking(shape, p, q, depth, chunk, in_place, pack_a)


def _asked_shape(spec: ContractionSpec, width: int, registers: int) -> Shape | None:
    tile = register_tile("m", "n", width, registers)
    if tile is None:
        return None
    rows, vectors = tile
    vectors = min(vectors, most(ceil_div(spec.n, width)))
    return Shape(parts_of(spec.m, rows), parts_of(ceil_div(spec.n, width), vectors))


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
