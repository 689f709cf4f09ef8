"""How a direct convolution is divided: its register tile, blocks of rows and columns, blocks of inputs, jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.codegen.asked import asked, asking, check_near, listed, register_tile, wish
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, Three, loops_of, usual_problem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Runs, Split, ceil_div, lanes, round_up
from dcir.codegen.symbolic import moves, usual
from dcir.errors import InvalidSchedule
from dcir.ir.schedule import Schedule, Sizes
from dcir.isa import Isa

MOST_LAYOUTS = 6
INPUT_BYTES = 320 << 10
RESULT_BYTES = 96 << 10
SERIAL_WORK = 1 << 16


@dataclass(frozen=True)
class DirectTile:
    """A register tile: ``tall`` rows of at most ``wide.size`` pixels, by vectors of output channels."""

    wide: Split | Runs
    tall: int
    vectors: Split


@dataclass(frozen=True)
class TapCopy:
    """The part of x that a job copies; ``step`` of input positions in the copy, ``stride`` of outputs in it."""

    step: Three
    stride: Three
    channel: int
    plane: int  # kernel depth
    row: int
    pixel: int
    size: int


@dataclass(frozen=True)
class DirectLayout:
    """How a problem is divided."""

    tile: DirectTile
    rows: Split | Runs  # output rows in blocks
    per_block: int  # column tiles in a block
    parts: int  # of the output blocks
    inputs: Split  # input channels in blocks

    @property
    def column_blocks(self) -> int:
        """Blocks along a row."""
        return ceil_div(self.tile.wide.parts, self.per_block)

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of the largest block."""
        wide = self.tile.wide
        columns = self.per_block * wide.size
        return self.rows.size, columns if isinstance(wide, Runs) else min(columns, wide.total)

    def schedule(self, p: ConvolutionProblem, width: int, *, packs: bool) -> Schedule:
        """The same as a schedule. A job copies its part of x, and holds its results until they are written."""
        tile = self.tile
        sizes = {"h": (self.rows.size, p.out[1]), "w": (self.block[1], p.out[2]), "ci": (self.inputs.size, p.ci)}
        tiles = {loop: size for loop, (size, extent) in sizes.items() if usual(size) < usual(extent)}
        jobs = {"n": p.n, "g": p.groups, "d": p.out[0], "h": self.rows.parts, "w": self.column_blocks, "co": self.parts}
        registers = {"h": tile.tall} if tile.tall > 1 else {}
        return Schedule(
            loops=loops_of(p), order=("n", "g", "d", "h", "w", "co", "ci"),
            parallel=tuple(part for part in listed(**jobs) if part[1] > 1), tiles=listed(**tiles),
            registers=listed(**registers, w=tile.wide.size, co=tile.vectors.size * width), vector="co",
            packed=("w",) * packs, near=("x", "y"),
        )  # fmt: skip


def copy_of(p: ConvolutionProblem, rows: int, cols: int, width: int, element: int) -> TapCopy:
    """The copy of x behind a block of outputs."""
    step = tuple(s if k == 1 else 1 for s, k in zip(p.stride, p.ker, strict=True))
    stride = tuple(1 if k == 1 else s for s, k in zip(p.stride, p.ker, strict=True))
    xh = (rows - 1) * stride[1] + (p.ker[1] - 1) * p.dil[1] + 1
    xw = (cols - 1) * stride[2] + (p.ker[2] - 1) * p.dil[2] + 1
    line = 64 // element

    def spread(n: int) -> int:  # an odd number of cache lines: neighbours never share few sets
        lines = ceil_div(n, line)
        return (lines + (lines % 2 == 0)) * line

    if p.xs[2] == 1 and p.ci >= width:
        pixel = spread(p.ci)
        strides = (1, xh * xw * pixel, xw * pixel, pixel, p.ker[0] * xh * xw * pixel)
    else:
        channel = spread(p.ker[0] * xh * xw)
        strides = (channel, xh * xw, xw, 1, p.ci * channel)
    return TapCopy(step, stride, *strides)  # type: ignore[arg-type]


def _moving_layout(p: ConvolutionProblem, isa: Isa, threads: int) -> DirectLayout:
    """The layout of the usual sizes, with blocks of its size for images of any size: what sticks out of the last is not stored."""
    made = direct_layout(usual_problem(p), isa, threads)
    tile, rows = made.tile, made.rows
    per_block = made.per_block
    wide, tall = tile.wide, tile.tall
    if moves(p.out[2]):
        wide, tall = Runs(p.out[2], tile.wide.size), 1
    if moves(p.out[1]):
        rows = Runs(p.out[1], round_up(made.rows.size, tall))
    return DirectLayout(replace(tile, wide=wide, tall=tall), rows, per_block, made.parts, made.inputs)


def direct_layout(p: ConvolutionProblem, isa: Isa, threads: int) -> DirectLayout:
    """The division by the cost model, or as it is asked for.

    Raises:
        InvalidSchedule: the convolution cannot be divided as asked.
    """
    if p.moves:
        return _moving_layout(p, isa, threads)
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    tile = _asked_tile(p, width, isa.registers) or _tile(p, width, isa.registers)
    oh, ow = p.out[1], p.out[2]
    threads = 1 if p.work < SERIAL_WORK else threads
    lanes_of = tile.vectors.size * width * element
    per_input = max(p.ker[0] * p.ker[1] * 2 * 64, 1)
    inputs = Split.at_most(p.ci, max(8, min((28 << 10) // per_input, (160 << 10) // (p.taps * lanes_of))))
    if asked().tiles is not None or asked().registers is not None or asked().parallel is not None:
        return _asked_layout(p, isa, tile, inputs, threads)
    found: list[tuple[float, int, DirectLayout]] = []
    row_parts = sorted({Split.at_most(oh, size).parts for size in range(tile.tall, oh + tile.tall, tile.tall)})
    wide = tile.wide
    widths = sorted({ceil_div(wide.parts, b) for b in range(1, min(wide.parts, 8) + 1)} | {1})
    for parts in range(1, min(tile.vectors.parts, threads) + 1):
        for r in row_parts:
            for per_block in widths:
                lay = DirectLayout(tile, Split(oh, r), per_block, parts, inputs)
                th, tw = lay.block
                x_bytes = copy_of(p, th, tw, width, element).size * element
                over = max(x_bytes / INPUT_BYTES, th * tw * lanes_of / RESULT_BYTES, 1.0)
                jobs = max(1, len(p.family)) * p.n * p.groups * p.out[0] * r * lay.column_blocks * parts
                compute = th * tw * p.ci * p.taps * ceil_div(tile.vectors.parts, parts) * tile.vectors.size / 2
                total = ceil_div(jobs, threads) * (compute + x_bytes / element * 0.4 + 400)
                # Blocks too large for the caches are a last resort.
                found.append((total * (1 if over == 1.0 else 1 + over), jobs, lay))
    found.sort(key=lambda f: f[:2])
    named: dict[tuple[int, ...], DirectLayout] = {}
    for _, _, lay in found:
        named.setdefault((lay.rows.size, lay.per_block, lay.parts), lay)
    del ow
    return named[decide("layout", list(named)[:MOST_LAYOUTS])]


def _asked_tile(p: ConvolutionProblem, width: int, registers: int) -> DirectTile | None:
    """The register tile that is asked for; None if that is left open.

    Raises:
        InvalidSchedule: it has several rows of a part of their pixels, more vectors than the weights of a block, or too many sums.
    """
    tall = (wish("registers", "h") or 1) if asked().registers is not None else 1
    with asking(replace(asked(), registers=_without(asked().registers, "h"))):
        tile = register_tile("w", "co", width, registers)
    if tile is None:
        return None
    pixels, vectors = tile
    wide = Split.at_most(p.out[2], pixels)
    if tall > 1 and (wide.parts > 1 or tall * wide.size * vectors + 2 > registers):
        raise InvalidSchedule(
            f"a register tile of {tall} rows has whole rows of {p.out[2]} pixels, and sums in {registers} registers",
            hint="registers of w and co alone",
        )
    if vectors > (2 if p.panel else 4):
        raise InvalidSchedule(
            f"the weights of {vectors} vectors of output channels do not lie together", hint=f"'co': {2 * width}"
        )
    return DirectTile(wide, min(tall, p.out[1]), Split.at_most(ceil_div(p.co, width), vectors))


def _without(sizes: Sizes | None, loop: str) -> Sizes | None:
    return None if sizes is None else tuple(s for s in sizes if s[0] != loop)


def _asked_layout(p: ConvolutionProblem, isa: Isa, tile: DirectTile, inputs: Split, threads: int) -> DirectLayout:
    """The division with what is asked for in place of the model's: what is left open is that of the same tile without blocks.

    Raises:
        InvalidSchedule: a block's part of x or its results take too much near memory, or there are fewer blocks of channels than parts.
    """
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    parts = min(threads, tile.vectors.parts) if asked().parallel is None else max(1, wish("parallel", "co") or 1)
    if parts > tile.vectors.parts:
        raise InvalidSchedule(
            f"co has {tile.vectors.parts} tiles, which cannot be dealt to {parts} jobs",
            hint=f"'co': {tile.vectors.parts}",
        )
    rows, columns = Split.at_most(p.out[1], wish("tiles", "h") or p.out[1]), wish("tiles", "w") or p.out[2]
    if asked().tiles is None:  # as many blocks of rows as jobs
        rows = Split.at_most(p.out[1], round_up(ceil_div(p.out[1], threads), tile.tall))
    else:
        inputs = Split.at_most(p.ci, wish("tiles", "ci") or p.ci)
    lay = DirectLayout(tile, rows, max(1, columns // tile.wide.size), parts, inputs)
    th, tw = lay.block
    lay = lay if columns < p.out[2] else replace(lay, per_block=tile.wide.parts)
    weights = 0 if p.panel else inputs.size * p.taps * tile.vectors.size * width
    check_near(
        "a block of results", (th * tw * tile.vectors.size * width + weights) * element, "smaller tiles of h, w or ci"
    )
    return lay


def _tile(p: ConvolutionProblem, width: int, registers: int) -> DirectTile:
    vectors = ceil_div(p.co, width)
    oh, ow = p.out[1], p.out[2]
    found: list[tuple[float, int, DirectTile]] = []
    for nv in range(1, 3 if p.panel else 5):  # a block lies in one panel: pairs of vectors do, and the last one
        most = min(16, (registers - 1 - nv) // nv)
        if nv > vectors or most < 1:
            continue
        wide = Split.at_most(ow, most)
        tall = min(oh, max(1, most // ow)) if wide.parts == 1 else 1
        split = Split.at_most(vectors, nv)
        v, pixels = vectors / split.parts, tall * ow / wide.parts
        cycles = max(pixels * v / 2, 4.0, (pixels + v) / 2 * 1.05) + 0.01 * v
        found.append((cycles * split.parts * wide.parts * (oh / tall), -nv, DirectTile(wide, tall, split)))
    return min(found, key=lambda f: f[:2])[2]
