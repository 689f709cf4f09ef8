"""How a dense convolution in channels-last is divided: tiles, regions of rows, blocks of channels, and which thread does what."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.codegen.asked import asked, listed, register_tile, wish
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, loops_of, usual_problem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Runs, Split, ceil_div, lanes
from dcir.codegen.symbolic import most, moves, usual
from dcir.errors import InvalidSchedule
from dcir.ir.schedule import Schedule
from dcir.isa import Isa

SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay
WEIGHT_BYTES = 512 << 10  # of the weights of a block of vectors: they stay in the second-level cache while it runs
IMAGE_BYTES = 400 << 10  # of the image that several blocks of weights pass over
PARTIAL_BYTES = 192 << 10
# AVX2, in cycles of Zen 3: a tile of all registers (7 pixels by 2 vectors) against one of 6, and a vector of weights that comes from the
# second-level cache; 8 images of 64 channels at 56 x 56 79 -> 90 GFLOP/s a core, 128 at 28 x 28 82 -> 91, at 7 x 7 tiles of 7 stay.
AGAIN, STREAMED, NEAREST = 1.16, 2.75, 24 << 10
MOST_LAYOUTS = 6
L3_BYTES = 16  # a cycle
REGION_PIXELS = 96  # of a region of rows, where images are of any size
LONG = 1680  # pixels of a row that tiles of any size divide: what is left over is not counted against one


@dataclass(frozen=True)
class NhwcLayout:
    """How a problem is divided.

    Attributes:
        wide: pixels of a row in tiles.
        vectors: vectors of output channels in a tile; what a group leaves over is a smaller tile.
        blocks: of vectors in a group.
        inputs, unit: input channels in blocks, in units of so many: a block begins where a cache line does.
        rows, columns: rows and tiles of a row in regions.
        parts, shares: jobs along the blocks of all groups, and along the regions.
        together: regions that a block of weights passes over before the next one.
        step: input channels that are multiplied at once; those of the problem are counted in steps.
    """

    wide: Split | Runs
    vectors: int
    blocks: int
    inputs: Split
    unit: int
    rows: Split | Runs
    columns: Split | Runs
    parts: int
    shares: int
    together: int
    step: int = 1

    @property
    def partial(self) -> int:
        """Vectors of sums of a job that wait for the next block of input channels."""
        if self.inputs.parts == 1:
            return 0
        return self.together * self.rows.size * self.columns.size * self.wide.size * self.vectors

    def schedule(self, p: ConvolutionProblem, width: int, packed: tuple[str, ...] = ()) -> Schedule:
        """The same as a schedule, with the operands that are packed."""
        p = replace(p, ci=p.ci * self.step)
        sizes = {
            "h": (self.rows.size, p.out[1]), "w": (self.columns.size * self.wide.size, p.out[2]),
            "ci": (self.inputs.size * self.unit * self.step, p.ci),
        }  # fmt: skip
        tiles = {loop: size for loop, (size, extent) in sizes.items() if usual(size) < usual(extent)}
        jobs = listed(co=self.parts, pixels=self.shares)
        return Schedule(
            loops=loops_of(p), order=("co", "pixels", "ci"), parallel=tuple(part for part in jobs if part[1] > 1),
            tiles=listed(**tiles), registers=listed(w=self.wide.size, co=self.vectors * width), vector="co",
            packed=packed, near=("y",) * (self.inputs.parts > 1),
        )  # fmt: skip


def _tile(p: ConvolutionProblem, isa: Isa) -> tuple[Split, int]:
    """Pixels in tiles and vectors of a tile: what needs the fewest cycles, or what is asked for."""
    width, registers, wide_set = lanes(isa, p.dtype), isa.registers, isa.vectors == "avx512"
    total, per_panel = ceil_div(p.co, width), p.panel // width
    if (asked_for := register_tile("w", "co", width, registers)) is not None:
        longest, nv = asked_for
        if nv > total or (nv % per_panel and per_panel % nv):
            raise InvalidSchedule(
                f"co {nv * width} of a register tile is no part of a panel of {p.panel} channels and no number of panels",
                hint=f"'co': {min(per_panel, total) * width}",
            )
        return Split.at_most(p.out[2], longest), nv
    found = []
    for nv in (1, 2, 4):
        full = min(16 if nv > 1 else 24, (registers - nv) // nv if nv > 1 else registers - 3)
        for longest in (full,) if wide_set or nv == 1 else (full, full - 1):
            if nv > total or longest < 1 or (nv % per_panel and per_panel % nv):
                continue
            wide = Split.at_most(p.out[2], longest)
            pixels, cycles = p.out[2] / wide.parts, 0.0
            # Only AVX-512 multiplies with a number in memory: without it a tile of all registers loads vectors of weights again.
            again = 1.0 if wide_set or nv * (longest + 1) < registers else AGAIN
            streamed = (
                0.0 if wide_set or p.taps * p.ci * nv * width * ELEMENT_BYTES[p.dtype] <= NEAREST else STREAMED * nv
            )
            for v, times in ((nv, total // nv), (total % nv, 1)):
                if v:
                    step = max(pixels * v / 2 * again, 4.0, (pixels + v) / 2 * 1.05, streamed * v / nv)
                    cycles += times * (step + 0.02 * v)
            found.append((cycles * wide.parts, nv, wide))
    found.sort(key=lambda f: f[:2])
    size, nv = decide("tile", [(wide.size, nv) for _, nv, wide in found])
    return next(wide for _, v, wide in found if (wide.size, v) == (size, nv)), nv


def _input_blocks(p: ConvolutionProblem, per_block: int, element: int) -> tuple[Split, int]:
    """Input channels in blocks, in units of so many, where a block of vectors has weights of so many bytes."""
    unit = next(u for u in (64 // element, 1) if p.ci % u == 0)
    if per_block > WEIGHT_BYTES:
        return Split.at_most(p.ci // unit, max(1, p.ci // unit * WEIGHT_BYTES // per_block)), unit
    return Split(p.ci // unit, 1), unit


def _moving_layout(p: ConvolutionProblem, isa: Isa, threads: int) -> NhwcLayout:
    """The division of images of any size: regions of some rows, which are many in all but the smallest of them.

    Threads share the vectors of channels, which are the same number for every image, where weights are what is read most, and else
    the regions.
    """
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    usually = usual_problem(p)
    rows_long, n = usually.out[2], usually.n * usually.out[0]
    wide, nv = _tile(replace(usually, out=(usually.out[0], usually.out[1], LONG)) if moves(p.out[2]) else usually, isa)
    tiles: Split | Runs = Runs(p.out[2], wide.size) if moves(p.out[2]) else wide
    blocks = ceil_div(ceil_div(p.co, width), nv)
    per_block = p.taps * p.ci * nv * width * element
    inputs, unit = _input_blocks(p, per_block, element)
    rows: Split | Runs = Split(1, 1)
    columns: Split | Runs = Split(tiles.parts, 1)
    if not moves(p.out[1]) and p.out[1] == 1:
        columns = Runs(tiles.parts, max(1, REGION_PIXELS // wide.size))
        pixels = min(rows_long, columns.size * wide.size)
    else:
        rows = Runs(p.out[1], max(1, REGION_PIXELS // rows_long))
        pixels = rows.size * rows_long
    region = pixels * p.stride[1] * p.stride[2] * p.ci * element
    image = n * math.prod(usually.inp) * p.ci * p.groups * element
    threads = 1 if p.work < SERIAL_WORK else threads
    by_channels = p.groups * blocks % threads == 0 and 2 * p.groups * blocks * per_block > image
    parts, shares = (threads, 1) if by_channels else (1, threads)
    together = max(1, IMAGE_BYTES // region)
    if inputs.parts > 1:
        partial = rows.size * most(columns.size) * wide.size * nv * width * element
        together = max(1, min(together, PARTIAL_BYTES // partial))
    return NhwcLayout(tiles, nv, blocks, inputs, unit, rows, columns, parts, shares, together)


def nhwc_layout(p: ConvolutionProblem, isa: Isa, threads: int, step: int = 1) -> NhwcLayout:
    """The division of a problem that costs least by the model of this file, or that is asked for.

    ``step``: input channels that are multiplied at once, which are one of the problem's.

    Raises:
        InvalidSchedule: the convolution cannot be divided as asked.
    """
    made = replace(_model_layout(p, isa, threads), step=step)
    sizes = Schedule(tiles=asked().tiles, parallel=asked().parallel)
    return made if not sizes.missed(made.schedule(p, lanes(isa, p.dtype))) else _asked_layout(p, made, isa)


def _asked_layout(p: ConvolutionProblem, made: NhwcLayout, isa: Isa) -> NhwcLayout:
    """A division with the regions, blocks and jobs that are asked for in place of the model's."""
    if p.moves:
        raise InvalidSchedule("regions and jobs of images of any size are the target's", hint="registers alone")
    element, long = ELEMENT_BYTES[p.dtype], p.out[1] == 1
    if asked().tiles is not None:
        along = (wish("tiles", "w") or p.out[2]) // made.wide.size
        split = (
            Split.at_most(made.wide.parts, max(1, along))
            if long
            else Split.at_most(p.out[1], wish("tiles", "h") or p.out[1])
        )
        rows, columns = (Split(1, 1), split) if long else (split, Split(made.wide.parts, 1))
        channels = (wish("tiles", "ci") or p.ci * made.step) // made.step
        inputs = Split.at_most(p.ci // made.unit, max(1, channels // made.unit))
        made = replace(made, rows=rows, columns=columns, inputs=inputs)
    regions, blocks = p.n * p.out[0] * made.rows.parts * made.columns.parts, p.groups * made.blocks
    parts, shares = made.parts, min(made.shares, regions)
    if asked().parallel is not None:
        parts, shares = (max(1, wish("parallel", loop) or 1) for loop in ("co", "pixels"))
        for loop, n, most_parts in (("co", parts, blocks), ("pixels", shares, regions)):
            if n > most_parts:
                raise InvalidSchedule(
                    f"{loop} has {most_parts} parts, which cannot be dealt to {n} jobs", hint=f"{loop!r}: {most_parts}"
                )
    pixels = made.rows.size * min(p.out[2], made.columns.size * made.wide.size)
    together = max(
        1, min(ceil_div(regions, shares), IMAGE_BYTES // (pixels * p.stride[1] * p.stride[2] * p.ci * element))
    )
    if made.inputs.parts > 1:
        together = max(1, min(together, PARTIAL_BYTES // (pixels * made.vectors * isa.vector_bytes)))
    return replace(made, parts=parts, shares=shares, together=together)


def _model_layout(p: ConvolutionProblem, isa: Isa, threads: int) -> NhwcLayout:
    if p.moves:
        return _moving_layout(p, isa, threads)
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    wide, nv = _tile(p, isa)
    blocks = ceil_div(ceil_div(p.co, width), nv)
    threads = 1 if p.work < SERIAL_WORK else threads
    per_block = p.taps * p.ci * nv * width * element
    inputs, unit = _input_blocks(p, per_block, element)
    found: list[tuple[float, NhwcLayout]] = []
    long = p.out[1] == 1
    extent = wide.parts if long else p.out[1]
    for parts in range(1, min(p.groups * blocks, threads) + 1):
        for size in sorted({ceil_div(extent, k) for k in range(1, min(extent, 32) + 1)}):
            split = Split.at_most(extent, size)
            rows, columns = (Split(1, 1), split) if long else (split, Split(wide.parts, 1))
            regions = p.n * p.out[0] * split.parts
            shares = min(max(1, threads // parts), regions)
            mine, blocks_mine = ceil_div(regions, shares), ceil_div(p.groups * blocks, parts)
            pixels = rows.size * min(p.out[2], columns.size * wide.size)
            compute = mine * pixels * blocks_mine * nv * p.taps * p.ci / 2
            region = pixels * p.stride[1] * p.stride[2] * p.ci * element
            weights, image = blocks_mine * per_block, mine * region
            partial = pixels * nv * width * element if inputs.parts > 1 else 0
            longest = max(1, min(mine, PARTIAL_BYTES // partial)) if partial else mine
            for together in sorted({1, longest, max(1, min(longest, IMAGE_BYTES // region))}):
                passes = ceil_div(mine, together)
                again = blocks_mine if together * region > IMAGE_BYTES else 1
                held = weights <= WEIGHT_BYTES
                moved = image * again + weights * (1 if held else passes) * (2 if weights > 16 << 20 else 1)
                cost = compute + moved / L3_BYTES + 60 * mine * blocks_mine * inputs.parts
                found.append((cost, NhwcLayout(wide, nv, blocks, inputs, unit, rows, columns, parts, shares, together)))
    found.sort(key=lambda f: f[0])
    named: dict[tuple[int, ...], NhwcLayout] = {}
    for _, lay in found:
        named.setdefault((lay.rows.size, lay.columns.size, lay.parts, lay.together), lay)
    return named[decide("layout", list(named)[:MOST_LAYOUTS])]
