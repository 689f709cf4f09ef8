"""The register tile of a product with packed B, and how jobs share its tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.codegen.asked import grid_of_jobs, register_tile
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import Runs, Split, ceil_div, round_up
from dcir.codegen.symbolic import moves, usual
from dcir.errors import InvalidSchedule
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.packing import panels

FEW_PANELS = 3
MOST_GRIDS = 4
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay


@dataclass(frozen=True)
class Tiling:
    """How a packed product is tiled: rows by ``groups`` of units; a unit is ``vectors`` vectors of a panel."""

    rows: Split | Runs
    groups: Split | Runs
    vectors: int
    per_panel: int  # units in a panel
    narrow: bool  # the last panel holds columns for one vector only, and is computed as such


def tiling(
    m: int, n: int, panel: int, width: int, registers: int, threads: int,
    *, crowded: bool = False, widened: bool = False,
) -> Tiling:  # fmt: skip
    """The tile that keeps the multipliers busy: tall by one panel, or for few rows several panels at once.

    Rows that are ``crowded`` into a set of the first-level cache are fewer than its ways, if they are too soon used up to be copied.
    """
    if moves(m, n):
        return _moving_tiling(m, n, panel, width, registers, threads, crowded=crowded, widened=widened)
    count = panels(n, panel)
    vectors = min(panel // width, ceil_div(n, width)) if m <= 2 or n <= width else min(2, panel // width)
    while panel // width % vectors:
        vectors += 1
    per_panel = panel // (width * vectors)
    most = min(16, max(1, (registers - 1 - vectors) // vectors))
    rows = Split.at_most(m, most)
    # Tiles of one size are compiled once; a few rows less keep the multipliers as busy.
    even = next((size for size in range(most, most * 3 // 4, -1) if m % size == 0), 0)
    rows = Split(m, m // even) if even else rows
    units = ceil_div(n, vectors * width)
    together = 1
    if per_panel == 1 and crowded and count <= FEW_PANELS and rows.size > 8:
        together = min(2, count)
        rows = Split.at_most(m, min(8, (registers - 8) // (vectors * together)))
    elif per_panel == 1 and rows.parts == 1:
        together = max(1, min(count // threads, 8 // vectors, (registers - 8) // (vectors * rows.size)))
    chosen = (rows.size, vectors, together)
    others = _other_tiles(m, n, panel, width, registers)
    # The vectors of a panel that is widened come together.
    taken: tuple[int, ...] | None = asked_tile(n, panel, width, registers)
    if taken is None:
        taken = decide("tile", [chosen, *(t for t in others if not widened or t[1] == vectors)])
    elif widened and taken[1] != vectors:
        hint = f"registers of n {vectors * width} or a multiple"
        raise InvalidSchedule("the vectors of a panel that is widened come together", hint=hint)
    if taken != chosen:
        vectors, together = taken[1:]
        rows, units, per_panel = Split.at_most(m, taken[0]), ceil_div(n, vectors * width), panel // (width * vectors)
    narrow = per_panel == 1 and together == 1 and vectors == 2 and 0 < n % panel <= width and count <= 8
    return Tiling(rows, Split.at_most(units, together), vectors, per_panel, narrow)


def asked_tile(n: int, panel: int, width: int, registers: int) -> tuple[int, int, int] | None:
    """The tile that is asked for, (rows, vectors, panels together); None if that is left open.

    Raises:
        InvalidSchedule: it is no part of a panel and no number of panels, or registers do not hold it.
    """
    tile = register_tile("m", "n", width, registers)
    if tile is None:
        return None
    (rows, along), per_panel = tile, panel // width
    along = min(along, round_up(ceil_div(n, width), per_panel) if along > per_panel else along)
    if per_panel % along and along % per_panel:
        raise InvalidSchedule(
            f"n {along * width} of a register tile is no part of a panel of {panel} columns and no number of panels",
            hint=f"'n': {panel}",
        )
    return rows, min(along, per_panel), max(1, along // per_panel)


def _moving_tiling(
    m: int, n: int, panel: int, width: int, registers: int, threads: int, *, crowded: bool, widened: bool
) -> Tiling:
    """The tile of the usual numbers, as tall as it can be where rows move: what is left of any other number is for shorter ones.

    Columns that move come one unit at a time, as the last group of several would read behind the last panel.
    """
    rows = max(usual(m), 16) if moves(m) else m
    found = tiling(rows, max(usual(n), panel), panel, width, registers, threads, crowded=crowded, widened=widened)
    if moves(m):
        found = replace(found, rows=Runs(m, found.rows.size))
    if moves(n):
        found = replace(found, groups=Runs(ceil_div(n, found.vectors * width), 1), narrow=False)
    return found


def _other_tiles(m: int, n: int, panel: int, width: int, registers: int) -> list[tuple[int, ...]]:
    """Tiles of other sizes that keep the multipliers busy, (rows, vectors, panels together), the largest first."""
    found = []
    for vectors in (v for v in range(1, panel // width + 1) if panel // width % v == 0):
        for together in (1, 2) if vectors * width == panel else (1,):
            if together > panels(n, panel):
                continue
            wide = vectors * together
            most = min(24 if wide == 1 else 16, m, (registers - 1 - wide) // wide)
            sizes = {Split.at_most(m, size).size for size in range(max(1, most * 2 // 3), most + 1)}
            found += [(size, vectors, together) for size in sizes]
    # Loads per multiply-add decide, as long as there are enough sums to hide the latency.
    return sorted(found, key=lambda t: (t[0] * t[1] * t[2] < 8, (t[0] + t[1] * t[2]) / (t[0] * t[1] * t[2]), t))


def grid(spec: ContractionSpec, rows: Split | Runs, groups: Split | Runs, batch: int, threads: int) -> tuple[int, int]:
    """Jobs per batch element along m and n: even shares of the tiles, then few repeated reads."""
    batch, m, tiles, units = usual(batch), usual(spec.m), usual(rows.parts), usual(groups.parts)
    if (asked := grid_of_jobs(tiles, units)) is not None:
        return asked
    if batch * m * usual(spec.n) * usual(spec.k) < SERIAL_WORK or threads == 1 or batch % threads == 0:
        return 1, 1
    found = []
    for p in range(1, min(tiles, threads) + 1):
        for q in range(1, min(units, ceil_div(threads, p)) + 1):
            # Rows are dealt again in a multiple of p tiles, columns in whole groups.
            tall, wide = ceil_div(m, p), ceil_div(units, q) * groups.size
            cycles = tall * wide * 1.0 + 3 * wide + 0.1 * tall * q
            total = ceil_div(batch * p * q, threads) * cycles * (1 + 0.001 * p * q)
            found.append((total, p, q))
    p, q = decide("grid", [(p, q) for total, p, q in sorted(found)[:MOST_GRIDS]])
    return p, q
