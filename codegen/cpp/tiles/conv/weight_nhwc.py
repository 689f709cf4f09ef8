"""Weight gradients in channels-last: tiles of input channels by vectors of output channels, summed over positions in place.

Both operands lie so that a position's channels are neighbours, so nothing is copied or packed: a tile broadcasts input channels and
multiplies them with vectors of the output's gradient, position by position. Where a tap falls outside the image, the rows and columns
that have it are known when the code is made. A block of positions and of input channels stays in the second-level cache while all
output channels pass over it; the first tiles of a block ask for what the next one reads. Blocks of positions are summed by
themselves and then added: short chains of additions round less. Shares of the positions are added by a second phase in fixed order.

Over images of any size, which results have a tap is found when the kernel runs, and an output's gradient in planes is copied first.

Where the processor multiplies pairs of bf16, and both operands hold nothing but its numbers, they are copied in pairs of images: these have
the same taps everywhere.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles import half_dots
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, ceil, usual_problem
from dcir.codegen.cpp.tiles.conv.weight import SERIAL_WORK, finish_text
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Runs, Split, TileStep, ceil_div, lanes, round_up
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import Undecided, most, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/weight_nhwc")

LEAST_INPUTS = 8  # input channels below which tiles need taps to be filled
POSITIONS = 128  # of a block: sums are loaded and stored once for so many; twice as many where there are several taps
PAIRED_WORK = 40  # multiply-adds of an element of both operands, from which on copies in pairs pay
BLOCK_BYTES = 256 << 10  # of the image under a block


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.xs[2] != 1 or p.ys[2] != 1:
        return Refusal("images that are not in channels-last")
    if p.ci < LEAST_INPUTS or p.co == 1:
        return Refusal("few channels")
    if isa.vectors != "avx512" and p.co % lanes(isa, p.dtype):
        return Refusal("a part of a vector, without masks")
    return None


def weight_last_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    vectors, ins = _tile(p, width, isa.registers)
    plain = p
    paired = _pairs_refusal(p, isa) is None
    if paired:
        p = replace(p, n=ceil_div(p.n, 2), xs=_dense(p.groups, p.ci, p.inp), ys=_dense(p.groups, p.co, p.out))
    if turned := p.ys[2] != 1:
        if p.ys[5] != 1:
            raise Undecided("neighbours in the output's gradient")
        p = replace(p, ys=_dense(p.groups, p.co, p.out))
    planes, rows, columns, tiles = _blocks(p, ins, element)
    listed = planes.parts * rows.parts * columns.parts
    shares, parts = _division(usual_problem(p), vectors, usual(listed), 1 if p.work < SERIAL_WORK else threads)
    per_lane = p.ci * p.taps
    group_size = vectors.total * width * per_lane
    share_size = p.groups * group_size
    tail = p.co % width
    block = "block<$, WHOLE>(x, y + v * VL, d, q, t0, t1, ax, ahead_y);"
    whole = choose(vectors, "ob", block.replace("WHOLE", "true"))
    if tail:
        cut = choose(vectors, "ob", block.replace("WHOLE", "false"))
        whole = f"if (ob < {vectors.parts - 1}) {{ {whole} }} else {{ {cut} }}"

    tables, within = _reach_text(p)
    unused = ""
    if p.moves:
        end = f"({vectors.start('b1')})"
        unused = text_of.unused(vector_first=vectors.start("b0"), vector_end=end, per_lane=per_lane)
    sums = round_up(shares * share_size * element, 64)
    channel = "" if p.xs[2] == 1 else f" * {p.xs[2]}LL"
    text, scratch = "", sums
    first: tuple[TileStep, ...] = ()
    image, errors, multiply = "a0", "a1", "acc[i][v] += a * b[v]"
    if turned:
        text, first, scratch = _turn(plain, sums, element)
        errors = f"(const T *)(scratch + {sums}LL)"
    elif paired:
        text, first, (at_x, at_y, scratch) = _pairs(plain, sums, element)
        image, errors = (f"(const T *)(scratch + {at}LL)" for at in (at_x, at_y))
        multiply = "acc[i][v] = dot(acc[i][v], a, b[v])"
    text += text_of.kernel(
        image=image, errors=errors, multiply=multiply, reach=tables, within=within, unused=unused,
        channel=channel, od=p.out[0], sd=p.stride[0], kh=p.ker[1], kw=p.ker[2],
        dd=p.dil[0], bd=p.base[0], id=p.inp[0], sh=p.stride[1], dh=p.dil[1], bh=p.base[1], sw=p.stride[2], dw=p.dil[2],
        bw=p.base[2], xn=p.xs[0], xg=p.xs[1], xd=p.xs[3], xh=p.xs[4], xw=p.xs[5], yn=p.ys[0], yg=p.ys[1], yd=p.ys[3],
        yh=p.ys[4], yw=f"{p.ys[5]}LL", pixel=f"{p.stride[2] * p.xs[5]}LL", tail=tail, taps=p.taps,
        plane=p.ker[1] * p.ker[2], in_start=ins.start("t"),
        in_calls=choose(
            ins, "t", f"tile<NV, $, WHOLE>(x + c{channel}, y, d + (c * {p.taps} + k) * NV * VL, q, kd, kh, kw, ax, ay);"
        ),
        column_blocks=columns.parts, row_blocks=rows.parts, per_plane=rows.parts * columns.parts,
        plane_start=planes.start("pb"), plane_next=f"({planes.start('pb + 1')})", row_start=rows.start("rb"),
        row_next=f"({rows.start('rb + 1')})", column_start=columns.start("cb"),
        column_next=f"({columns.start('cb + 1')})", per_share=p.groups * parts, parts=parts, groups=p.groups,
        blocks=vectors.parts, share_size=share_size, group_size=group_size, list=listed, shares=shares,
        in_blocks=tiles.parts, tile_start=tiles.start("ib"), tile_next=f"({tiles.start('ib + 1')})",
        first_in=f"({ins.start('t0')}){channel}", next_in=f"({ins.start('t1')}){channel}", vector_start=vectors.start("ob"),
        per_lane=per_lane, block_calls=whole,
    )  # fmt: skip
    text += finish_text(p, vectors, shares, share_size, group_size, per_lane)
    jobs = shares * p.groups * parts
    steps = (*first, TileStep(jobs, "partial"), TileStep(p.groups * vectors.parts, "finish"))
    return Draft(name, p.dtype, text, steps, scratch)


def _reach_text(p: ConvolutionProblem) -> tuple[str, str]:
    """C++ of which results of a block have a tap: a table of the taps, where that is known, and what a tile does with it."""
    if p.moves:
        return "", text_of.within_image(
            dh=p.dil[1], bh=p.base[1], sh=p.stride[1], ih=p.inp[1], dw=p.dil[2], bw=p.base[2], sw=p.stride[2], iw=p.inp[2]
        )  # fmt: skip
    rows: dict[int, str] = {}
    for d in (1, 2):
        found = []
        for k in range(p.ker[d]):
            at = p.base[d] + k * p.dil[d]
            found.append(f"{{{max(0, ceil(-at, p.stride[d]))}, {min(p.out[d], ceil(p.inp[d] - at, p.stride[d]))}}}")
        rows[d] = ", ".join(found)
    return text_of.tables(rows=rows[1], columns=rows[2]), text_of.within_tables()


def _dense(groups: int, per_group: int, extents: tuple[int, int, int]) -> tuple[int, ...]:
    """Strides of images without gaps, channels innermost."""
    channels = groups * per_group
    row = extents[2] * channels
    return (extents[0] * extents[1] * row, per_group, 1, extents[1] * row, row, channels)


def _pairs_refusal(p: ConvolutionProblem, isa: Isa) -> Refusal | None:
    """Why a problem's images are not multiplied two at a time."""
    if not isa.dots or not p.halves:
        return Refusal("no numbers of bf16, or no instruction that multiplies pairs of them")
    if p.moves or p.groups != 1 or p.n == 1 or p.xs[2] != 1 or p.ys[2] != 1:
        return Refusal("one image, several groups, or channels that are no neighbours")
    elements = p.n * (math.prod(p.inp) * p.ci + math.prod(p.out) * p.co)
    return None if p.work >= PAIRED_WORK * elements else Refusal("copies in pairs take longer")


def _pairs(p: ConvolutionProblem, at: int, element: int) -> tuple[str, tuple[TileStep, ...], tuple[int, int, int]]:
    """C++ that copies both operands in pairs of images, its steps, and where in scratch the copies lie and end."""
    text, steps, places = half_dots.functions(), list[TileStep](), [at]
    operands = (("pairs_x", "a0", p.ci, p.inp, p.xs), ("pairs_y", "a1", p.co, p.out, p.ys))
    for name, source, channels, (planes, rows, columns), strides in operands:
        text += text_of.pairs(
            name=name, source=source, rows=rows, planes=planes, columns=columns, channels=channels, images=p.n, at=at,
            image=strides[0], plane=strides[3], row=strides[4], pixel=strides[5],
        )  # fmt: skip
        jobs = ceil_div(p.n, 2) * planes * rows
        steps.append(TileStep(jobs, name))
        at += round_up(jobs * columns * channels * element, 64)
        places.append(at)
    return text, tuple(steps), (places[0], places[1], at)


def _turn(p: ConvolutionProblem, at: int, element: int) -> tuple[str, tuple[TileStep, ...], int]:
    """C++ that copies the output's gradient from planes to channels-last, its step, and where in scratch the copy ends.

    A forward for all sizes keeps what its backward reads as PyTorch lays it out, which is in planes.
    """
    channels = p.groups * p.co
    text = text_of.turn(
        oh=p.out[1], ow=p.out[2], od=p.out[0], yn=p.ys[0], yg=p.ys[1], yc=p.ys[2], yd=p.ys[3], yh=p.ys[4], yw=p.ys[5],
        at=at, channels=channels, groups=p.groups, co=p.co,
    )  # fmt: skip
    size = most(p.n * math.prod(p.out)) * channels * element
    return text, (TileStep(p.n * p.out[0] * p.out[1], "turn"),), at + round_up(size, 64)


def _tile(p: ConvolutionProblem, width: int, registers: int) -> tuple[Split, Split]:
    """Vectors of output channels and input channels, each divided into tile sizes: what needs the fewest cycles."""
    total = ceil_div(p.co, width)
    found = []
    for nv in range(1, 5):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > total or most < 1:
            continue
        ins, vectors = Split.at_most(p.ci, most), Split.at_most(total, nv)
        v, rows = total / vectors.parts, p.ci / ins.parts
        cycles = max(rows * v / 2, 4.0, (rows + v) / 2 * 1.05) + 0.01 * v
        found.append((cycles * vectors.parts * ins.parts, -nv, (vectors, ins)))
    return min(found, key=lambda f: f[:2])[2]


Parts = Split | Runs


def _blocks(p: ConvolutionProblem, ins: Split, element: int) -> tuple[Parts, Parts, Parts, Split]:
    """Planes of the batch, rows and columns of a block of positions, and tiles of input channels in its blocks."""
    if p.moves:
        usually = usual_problem(p)
        *blocks, tiles = _blocks(usually, ins, element)
        totals = (p.n * p.out[0], p.out[1], p.out[2])
        most = POSITIONS if p.taps == 1 else 2 * POSITIONS
        # Of columns as many as a block of a wider image has: a row that is a little longer is not two blocks.
        sizes = (blocks[0].size, blocks[1].size, max(blocks[2].size, most))
        moving = [Runs(total, size) for total, size in zip(totals, sizes, strict=True)]
        return moving[0], moving[1], moving[2], tiles
    od, oh, ow = p.out
    most = POSITIONS if p.taps == 1 else 2 * POSITIONS
    planes, rows, columns = Split(p.n * od, p.n * od), Split(oh, 1), Split(ow, 1)
    if oh * ow <= most:
        planes = Split.at_most(p.n * od, max(1, most // (oh * ow)))
    elif ow <= most:
        rows = Split.at_most(oh, most // ow)
    else:
        rows, columns = Split(oh, oh), Split.at_most(ow, most)
    positions = planes.size * rows.size * columns.size * p.stride[0] * p.stride[1] * p.stride[2]
    tiles = Split.at_most(ins.parts, max(1, BLOCK_BYTES // (positions * element * ins.size)))
    return planes, rows, columns, tiles


def _division(p: ConvolutionProblem, vectors: Split, listed: int, threads: int) -> tuple[int, int]:
    """Shares of the positions and parts of the output blocks: shares cost partial sums, parts read the image again."""
    best: tuple[float, int, int] | None = None
    for shares in range(1, min(listed, threads) + 1):
        for parts in range(1, min(vectors.parts, threads) + 1):
            compute = p.work / p.groups / 32 * (ceil_div(listed, shares) / listed) * (
                ceil_div(vectors.parts, parts) / vectors.parts
            )  # fmt: skip
            image = p.n * math.prod(p.inp) * p.ci * 0.1 / shares
            sums = p.groups * p.ci * p.co * p.taps * 0.2 * (shares - 1)
            total = ceil_div(shares * parts * p.groups, threads) * (compute + image) + sums
            if best is None or total < best[0]:
                best = (total, shares, parts)
    assert best is not None
    return best[1], best[2]


WEIGHT_NHWC = Method("nhwc", weight_last_draft, refusal=_refusal)
