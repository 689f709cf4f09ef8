"""Weight gradients of 1x1 convolutions in channels-last on a matrix unit: products over positions, whose parts are made meanwhile.

    dw[o, i] = sum_p x[p, i] dy[p, o]

Positions are many and channels few, so both operands are put in parts (``gemm/matrix.py`` says what they are) about as long as they are
multiplied: a block of positions is made, in small pieces, while the unit multiplies the one before. The operand of fewer channels makes
the rows, whose parts take a transposition. Blocks are short, so their sums are added apart; shares of the blocks are added by a second
phase in fixed order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import Draft, Split, TileStep, ceil_div, exchanges, render, round_up
from dcir.codegen.cpp.tiles.gemm.unit import ANYTHING, parts_of_number, unit_support, unit_tile
from dcir.codegen.cpp.tiles.gemm.unit_blocking import PART_BYTES
from dcir.codegen.cpp.tiles.method import ON_UNIT, Method
from dcir.cost.cpu import MATRIX_UNIT
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/weight_pointwise")

LEAST_WORK = 1 << 22  # multiply-adds below which nothing is gained
BLOCK_BYTES = 1152 << 10  # of a job's two blocks in the second-level cache, beside its sums
MOST_STEPS, LEAST_STEPS = 24, 3  # of 32 positions, of a block
GAIN = 0.8  # of the time of multiply-adds that the model must stay below
# Cycles of a core, fitted to 14 layers measured: of making a step of a channel, which is as fast as memory, of multiplying a step of a tile
# meanwhile, or of that alone, of adding a tile to the sums, and of adding the shares' sums up.
CHANNEL_CYCLES, TILE_CYCLES, ALONE_CYCLES, SUMS_CYCLES, FINISH_CYCLES = 34, 440, 825, 500, 2000
HALVES_SHARE = 0.3  # of a tile's cycles, of numbers of one part

# What is done with a row of a tile, and after its rows: columns side by side in w, rows side by side, or neither.
ALONG = ("store_part(to + i * ${wr}LL, v, width);", "")
ACROSS = ("store(t + i * 16, v);", "transpose_block(t, 16, rows, width, V{}, to, ${wc}LL, rows);")
APART = (
    "store(t + i * 16, v);",
    "for (int i = 0; i < rows; i++)\n                for (int l = 0; l < width; l++) to[i * ${wr}LL + l * ${wc}LL] = t[i * 16 + l];",
)


@dataclass(frozen=True)
class _Division:
    """How the work is divided: shares of the positions, parts of the columns, steps of 32 positions of a block."""

    shares: int
    parts: int
    steps: int
    cycles: float


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if p.dtype != "f32" or (p.groups, p.taps) != (1, 1):
        return Refusal("several taps or groups, or numbers of another type")
    if p.work < LEAST_WORK:
        return Refusal("too little work")
    if p.xs[2] != 1 or p.ys[2] != 1 or (p.inp[0], p.out[0]) != (1, 1):
        return Refusal("images that are not in channels-last, or three dimensions")
    if p.y0 or p.w0 or any(p.base):
        return Refusal("an offset of the image, or a part of a result")
    found = _divisions(p, threads)
    if not found:
        return Refusal("two blocks and the sums do not fit into the second-level cache")
    fast = found[0].cycles <= GAIN * p.work / MATRIX_UNIT.multiply_adds / threads
    return None if fast else Refusal("multiply-adds are faster by the model")


def weight_pointwise_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    found: dict[tuple[int, ...], _Division] = {(d.shares, d.parts): d for d in _divisions(p, threads)}
    division = found[decide("division", list(found))]
    turned = p.co < p.ci
    height, width = min(p.ci, p.co), max(p.ci, p.co)
    (xn, xh, xw), (yn, yh, yw) = pitches(p)
    rows, columns = ((yn, yh, yw), (xn, xh, xw)) if turned else ((xn, xh, xw), (yn, yh, yw))
    wr, wc = (p.ws[1], p.ws[2]) if turned else (p.ws[2], p.ws[1])
    _, oh, ow = p.out
    positions = p.n * oh * ow
    steps, strips, panels = division.steps, ceil_div(height, 32), ceil_div(width, 32)
    if one_walk(p):
        oh, ow = 1, positions
    wide = ceil_div(panels, division.parts)
    half_bytes = (strips + wide) * steps * PART_BYTES * parts_of_number(p.halves)
    share_size = strips * panels * 1024
    at = round_up(division.shares * share_size * 4, 64)
    jobs = division.shares * division.parts
    put, place = ALONG if wc == 1 else ACROSS if wr == 1 else APART
    cut = width % 32 != 0
    tile = "matrix_tile<%d>(r + t * STEPS * STEP, c + g * STEPS * STEP, made, steps, meanwhile, ahead, [] {});"
    tiles, vectors = tile % 2, "64"
    if 0 < height % 32 <= 16:
        tiles, vectors = f"if (t < STRIPS - 1) {tile % 2} else {tile % 1}", "(t < STRIPS - 1 ? 64 : 32)"
    text = unit_support(halves=p.halves) + unit_tile(1, ANYTHING, halves=p.halves)
    text += text_of.positions(
        steps=steps, strips=strips, most=round_up(width, 32), positions=positions, ow=ow, oh=oh,
        plane=oh * ow, rn=rows[0], rh=rows[1], rw=rows[2], cn=columns[0], ch=columns[1], cw=columns[2],
    )  # fmt: skip
    value = "load_part(p[{}] + at, count)" if height % 16 else "load(p[{}] + at)"
    text += text_of.turn(
        exchanges=exchanges(16, value.format, lambda v, i: f"store(to + {i} * 32, {v})")
    )  # fmt: skip
    split = text_of.cut_panels() if cut else text_of.whole_panels()
    text += text_of.make({"height": height}, width=", width" if cut else "", split=split)
    text += text_of.run(
        parts=division.parts, shares=division.shares, panels=panels, share_size=share_size, at=at,
        job_bytes=2 * half_bytes, half_bytes=half_bytes, blocks=ceil_div(positions, steps * 32), positions=positions,
        pauses=parts_of_number(p.halves),
        rows="a1" if turned else "a0", columns="a0" if turned else "a1", height=height, columns_all=width, tile=tiles, vectors=vectors,
        width=f"m.width = {width} - g0 * 32;" if cut else "", wr=wr, wc=wc, put=render(put, {"wr": wr}),
        place=render(place, {"wr": wr, "wc": wc}),
    )  # fmt: skip
    work = (TileStep(jobs, "partial"), TileStep(panels, "finish"))
    return Draft(name, p.dtype, text, work, at + jobs * round_up(2 * half_bytes, 64))


def pitches(p: ConvolutionProblem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Of x and of y, from a result to that of the next image, row and column."""
    x = (p.xs[0], p.xs[4] * p.stride[1], p.xs[5] * p.stride[2])
    return x, (p.ys[0], p.ys[4], p.ys[5])


def one_walk(p: ConvolutionProblem) -> bool:
    """Whether all positions lie one pitch apart in both operands."""
    _, h, w = p.out
    return all(
        (h == 1 or row == w * column) and (p.n == 1 or image == h * w * column) for image, row, column in pitches(p)
    )


def _divisions(p: ConvolutionProblem, threads: int) -> list[_Division]:
    """The ways to divide the work that fit into the second-level cache, the best by the model first."""
    strips, panels = sorted((ceil_div(p.ci, 32), ceil_div(p.co, 32)))
    steps = ceil_div(p.n * math.prod(p.out), 32)
    found = []
    for shares, parts in dict.fromkeys(((threads, 1), (1, threads), (1, 1))):
        wide = ceil_div(panels, parts)
        most = BLOCK_BYTES // (2 * (strips + wide) * PART_BYTES * parts_of_number(p.halves))
        if parts > panels or shares * LEAST_STEPS > steps or most < LEAST_STEPS:
            continue
        block = Split.at_most(ceil_div(steps, shares), min(most, MOST_STEPS)).size
        if ceil_div(steps, block) < shares:
            continue  # a share without a block would leave its sums as they are
        blocks = ceil_div(ceil_div(steps, block), shares)
        tiles = strips * wide
        making = (strips + wide) * 32 * CHANNEL_CYCLES
        share = HALVES_SHARE if p.halves else 1.0
        step = max(tiles * share * ALONE_CYCLES, making + tiles * share * TILE_CYCLES)
        adding = blocks * tiles * SUMS_CYCLES + shares * panels * strips * FINISH_CYCLES / threads
        cycles = (blocks * step + making) * block + adding
        found.append(_Division(shares, parts, block, cycles))
    return sorted(found, key=lambda d: d.cycles)


WEIGHT_POINTWISE = Method("pointwise", weight_pointwise_draft, refusal=_refusal, asked=ON_UNIT)
