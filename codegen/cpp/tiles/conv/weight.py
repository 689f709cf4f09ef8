"""Weight gradients: tiles of (input channel, tap) by vectors of output channels, summed over the batch and all positions.

A job owns some output blocks and a consecutive share of the (image, row block) list. Per row block it copies x without borders,
packs the output's gradient as [output block][position][lanes], and adds to its own partial sums in scratch. A second phase adds the
shares in their fixed order and writes w, so the bits depend on the division only, never on timing.
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.direct import copy_text
from dcir.codegen.cpp.tiles.conv.direct_layout import copy_of
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes, round_up
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.cpp.tiles.pack_text import pack_vectors
from dcir.isa import Isa

text_of = templates("conv/weight")

BLOCK_BYTES = 256 << 10
STACK_BYTES = 640 << 10
SERIAL_WORK = 1 << 16


def weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    vectors, ins, taps = _tile(p, width, isa.registers)
    oh, ow = p.out[1], p.out[2]
    rows = oh
    while rows > 1 and _block_bytes(p, rows, vectors.size * width, width, element) > BLOCK_BYTES:
        rows -= 1
    row_split, column_split = Split.at_most(oh, rows), Split(ow, 1)
    if rows == 1:
        column_split = Split.at_most(ow, _columns(p, vectors.size * width, width, element))
    listed = p.n * p.out[0] * row_split.parts * column_split.parts
    shares, parts = _division(p, vectors, listed, 1 if p.work < SERIAL_WORK else threads)
    x = copy_of(p, row_split.size, column_split.size, width, element)
    per_lane = p.ci * p.taps
    group_size = vectors.total * width * per_lane
    share_size = p.groups * group_size
    sums = round_up(shares * share_size * element, 64)
    jobs = shares * p.groups * parts
    x_bytes = round_up(x.size * element, 64)
    y_size = row_split.size * column_split.size * vectors.size * width
    on_stack = x_bytes + y_size * element <= STACK_BYTES
    buffer = f"alignas(64) T x[{x.size}];" if on_stack else f"T *x = (T *)(scratch + {sums}LL + j * {x_bytes}LL);"
    end = f"({vectors.start('b1')})"
    valid = f"{p.co} - v * VL < $ * VL ? {p.co} - v * VL : $ * VL"
    # Columns are counted at run time where there are blocks of them.
    cols, given, pass_on, columns = str(ow), "", "", ""
    if column_split.parts > 1:
        cols, given, pass_on = "cols", ", L cols", ", cols"
        columns = f"const L cols = {column_split.start('cb + 1')} - c0;"
    text = text_of.kernel(
        cs=x.channel, kws=p.dil[2] * x.pixel, khs=p.dil[1] * x.row, kds=x.plane, taps=p.taps,
        rs=x.stride[1] * x.row, ps=x.stride[2] * x.pixel, cols=cols, given=given, kd=p.ker[0], kh=p.ker[1], kw=p.ker[2],
        tap_tiles=taps.parts, tap_start=taps.start("t"), tap_calls=choose(taps, "t", f"tile<NV, TI, $>(p, y, q, rows{pass_on});"),
        in_tiles=ins.parts, in_start=ins.start("t"),
        in_calls=choose(ins, "t", f"taps<NV, $>(x + c * {x.channel}LL, y, d + c * {p.taps} * NV * VL, rows{pass_on});"),
        copy=copy_text(p, x), pack_y=pack_vectors("panel_of_y", p.ys[2], p.ys[5]), yh=p.ys[4], yn=p.ys[0], yg=p.ys[1],
        yd=p.ys[3], yc=p.ys[2], per_share=p.groups * parts, parts=parts, groups=p.groups, blocks=vectors.parts,
        share_size=share_size, group_size=group_size, vector_first=vectors.start("b0"), vector_end=end,
        per_lane=per_lane, x_buffer=buffer, y_size=y_size, list=listed, shares=shares, row_blocks=row_split.parts,
        column_blocks=column_split.parts, per_plane=row_split.parts * column_split.parts, columns=columns,
        column_start=column_split.start("cb"), yw=p.ys[5], od=p.out[0], row_start=row_split.start("rb"),
        row_next=row_split.start("rb + 1"), xn=p.xs[0], xg=p.xs[1], vector_start=vectors.start("ob"),
        block_calls=choose(vectors, "ob", f"{{ gather<$>(y, s, rows{pass_on}, {valid}); "
                           f"block<$>(x, y, d, rows{pass_on}); }}"),
    )  # fmt: skip
    text += finish_text(p, vectors, shares, share_size, group_size, per_lane)
    steps = (TileStep(jobs, "partial"), TileStep(p.groups * vectors.parts, "finish"))
    return Draft(name, p.dtype, text, steps, sums + (0 if on_stack else jobs * x_bytes))


def finish_text(
    p: ConvolutionProblem, vectors: Split, shares: int, share_size: int, group_size: int, per_lane: int
) -> str:
    """The function ``finish``, a job per group and output block: sums of shares, [output block][input][tap][lanes], to w."""
    _, kh, kw = p.ker
    contiguous = all(
        s == step or n == 1
        for n, s, step in zip((p.ci, *p.ker), p.ws[2:], (p.taps, kh * kw, kw, 1), strict=True)
    )  # fmt: skip
    place = (text_of.place_runs if contiguous else text_of.place_any)(
        {"wi": p.ws[2], "wd": p.ws[3], "wh": p.ws[4], "ww": p.ws[5], "kw": kw, "kh": kh, "plane": kh * kw, "taps": p.taps}, wo=p.ws[1]
    )  # fmt: skip
    return text_of.finish(
        place=place, ci=p.ci, taps=p.taps, shares=shares, share_size=share_size, group_size=group_size,
        blocks=vectors.parts, vector_start=vectors.start("ob"), per_lane=per_lane, wo=p.ws[1], wg=p.ws[0],
        spread_calls=choose(vectors, "ob", f"spread<$>(d, s, {p.co} - v * VL < $ * VL ? {p.co} - v * VL : $ * VL);"),
    )  # fmt: skip


def _block_bytes(p: ConvolutionProblem, rows: int, block: int, width: int, element: int) -> int:
    return (copy_of(p, rows, p.out[2], width, element).size + rows * p.out[2] * block) * element


def _columns(p: ConvolutionProblem, block: int, width: int, element: int) -> int:
    """Columns of a row in a block."""
    cols = p.out[2]
    while cols > 32 and (copy_of(p, 1, cols, width, element).size + cols * block) * element > BLOCK_BYTES:
        cols -= 1 if cols < 128 else 16
    return cols


def _tile(p: ConvolutionProblem, width: int, registers: int) -> tuple[Split, Split, Split]:
    """Vectors of output channels, input channels and taps of a kernel row, each divided into tile sizes."""
    total = ceil_div(p.co, width)
    found = []
    for nv in range(1, 5):
        most = min(16, (registers - 1 - nv) // nv)
        if nv > total or most < 1:
            continue
        taps = Split.at_most(p.ker[2], most)
        ins = Split.at_most(p.ci, max(1, most // taps.size))
        vectors = Split.at_most(total, nv)
        v, rows = total / vectors.parts, p.ci * p.ker[2] / (ins.parts * taps.parts)
        cycles = max(rows * v / 2, 4.0, (rows + v) / 2 * 1.05) + 0.01 * v
        found.append((cycles * vectors.parts * ins.parts * taps.parts, -nv, (vectors, ins, taps)))
    return min(found, key=lambda f: f[:2])[2]


def _division(p: ConvolutionProblem, vectors: Split, listed: int, threads: int) -> tuple[int, int]:
    """Shares of the positions and parts of the output blocks; shares cost partial sums, parts cost repeated copies."""
    best: tuple[float, int, int] | None = None
    for shares in range(1, min(listed, threads) + 1):
        for parts in range(1, min(vectors.parts, threads) + 1):
            jobs = shares * parts * p.groups
            compute = p.work / p.groups / 32 * (ceil_div(listed, shares) / listed) * (
                ceil_div(vectors.parts, parts) / vectors.parts
            )  # fmt: skip
            copies = p.n * math.prod(p.inp) * p.ci * 0.5 / shares
            sums = p.groups * p.ci * p.co * p.taps * 0.2 * (shares - 1)
            total = ceil_div(jobs, threads) * (compute + copies) + sums
            if best is None or total < best[0]:
                best = (total, shares, parts)
    assert best is not None
    return best[1], best[2]


WEIGHT = Method("planes", weight_draft)
