"""Direct dense convolution: tiles of neighbouring pixels by vectors of output channels.

Phase one packs the weights into panels [output block][input][tap][lanes]. A job of phase two copies its part of x,
padding included, into a buffer without borders, runs every tile over it, and writes the tiles' results, held as [pixel][lanes], in
the layout of y (for NCHW through transposed blocks).
"""

from __future__ import annotations

import math

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.direct_layout import DirectLayout, TapCopy, copy_of, direct_layout
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    TileStep,
    lanes,
    render,
    round_up,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import sizes_in
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.packing import panels

conv_text = templates("conv/direct")

# Where a block's weights are, what makes the next input channels' of them, and what is done once they are used.
# Packed weights of whole output panels lie [tap][input][lanes]; those packed by phase one, [input][tap][lanes].
PANELS = ("    const T *w = s;", "", "w += ($in_next - ($in_start)) * $panel;")
# The weights of an output block: packed by phase one, or packed here, a block of input channels at a time.
PACKED = ("    const T *w = s;", "", "w += ($in_next - ($in_start)) * $taps * NV * VL;")
FUSED = ("    alignas(64) T w[$most * $taps * NV * VL];", "fill<NV>(w, s, end, valid, $in_start, $in_next);", "")

STACK_BYTES = 512 << 10


def direct_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A dense problem with at least one tap and a non-empty result."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    lay = direct_layout(p, isa, threads)
    th, tw = lay.block
    x = copy_of(p, th, tw, width, element)
    vectors = lay.tile.vectors
    members = max(1, len(p.family))
    shape = (members, p.n, p.groups, p.out[0], lay.rows.parts, lay.column_blocks, lay.parts)
    jobs = math.prod(shape)
    once = not p.panel and members * p.n * p.out[0] * lay.rows.parts * lay.column_blocks == 1
    # Of a large kernel the weights of a few inputs fill the stack of a thread.
    fused = once and lay.inputs.size * p.taps * vectors.size * width * element <= STACK_BYTES
    weights = (
        0 if fused or p.panel else round_up(members * p.groups * p.ci * p.taps * vectors.total * width * element, 64)
    )
    x_bytes = round_up(x.size * element, 64)
    on_stack = x_bytes <= STACK_BYTES
    buffer = f"alignas(64) T x[{x.size}];" if on_stack else f"T *x = (T *)(scratch + {weights}LL + j * {x_bytes}LL);"
    clipped = "rows, cols"
    if p.family:  # a member's result may be smaller than the largest
        clipped = "od >= q.od ? 0 : q.oh - r0 < rows ? q.oh - r0 : rows, q.ow - c0 < cols ? q.ow - c0 : cols"
    end = p.w0 + _end_of_weights(p)
    packed = f"(const T *)scratch + (({f'f * {p.groups}' if p.family else '0'} + g) * {vectors.total} + v) * VL * {p.ci * p.taps}LL"
    source = f"a1 + {p.w0}LL + g * {p.ws[0]}LL + v * VL * {p.ws[1]}LL" if fused else packed
    if p.panel:
        per_panel, depth = p.panel // width, p.ci * p.taps * p.panel
        number = f"g * {panels(p.co, p.panel)} + v / {per_panel}"
        source = f"a1 + ({number}) * {depth}LL + v % {per_panel} * VL"
    epilogue = None
    done = f"write<$>(result, {f'a2 + g * {p.co}' if p.bias else 'a2'}, y, {clipped}, v);"
    y0 = "q.y0" if p.family else f"{p.y0}LL"
    target = conv_text.target(y0=y0, yn=p.ys[0], yg=p.ys[1], yd=p.ys[3], yh=p.ys[4], yw=p.ys[5])
    if p.epilogue is not None:
        epilogue = Epilogue(p.epilogue, p.dtype, 2, 2 if p.ys[2] == 1 or p.out[2] == 1 else 5)
        done, target = "finish_block<$>(e, result, n, g, od, r0, c0, rows, cols, v);", ""
    run = conv_text.run(
        weights=source, indices=_indices(("f", "n", "g", "od", "rb", "cb", "part"), shape), per_block=lay.per_block,
        tiles=lay.tile.wide.parts, wide_t0=lay.tile.wide.start("t0"), wide_t1=lay.tile.wide.start("t1"),
        row_start=lay.rows.start("rb"), row_next=lay.rows.start("rb + 1"), result=th * tw * vectors.size * width,
        x_buffer=buffer, xn=p.xs[0], xg=p.xs[1], target=target,
        parameter=EPILOGUE_PARAMETER if epilogue is not None else "",
        blocks=vectors.parts, parts=lay.parts, vector_start=vectors.start("ob"),
        q=", q" if p.family else "",
        member="const Residue &q = residues[f];" if p.family else "",
        block_calls=choose(vectors, "ob", f"{{ block<$>(x, w, result, rows, t0, t1, a1 + {end}LL, {p.co} - v * VL); {done} }}"),
    )  # fmt: skip
    packing = "" if p.panel else _fill_text(p) + ("" if fused else _pack_text(p, lay, epilogue is not None))
    text = _residues(p) + packing + _tile_text(p, lay, x, tw, fused=fused)
    text += copy_text(p, x)
    if epilogue is None:
        text += _write_text(p, lay, tw)
    else:
        form = conv_text.finish_pixels if epilogue.vector == 2 else conv_text.finish_planes
        text += form(co=p.co, tw=tw)
    text += run
    scratch = weights + (0 if on_stack else jobs * x_bytes)
    packs = 0 if fused or p.panel else members * p.groups * vectors.parts
    return Draft(name, p.dtype, text, (TileStep(packs, "pack"), TileStep(jobs, "run")), scratch, epilogue=epilogue,
                 schedule=lay.schedule(p, width, packs=not p.panel))  # fmt: skip


def _residues(p: ConvolutionProblem) -> str:
    if not p.family:
        return ""
    rows = ", ".join(f"{{{', '.join(map(str, (r.w0, r.y0, *r.base, *r.out)))}}}" for r in p.family)
    if sizes_in(rows):
        return conv_text.moving_residues(count=len(p.family), members=rows)
    return conv_text.residues(members=rows)


def _indices(names: tuple[str, ...], extents: tuple[int, ...]) -> str:
    lines, divisor = [], 1
    for name, extent in reversed(list(zip(names, extents, strict=True))):
        lines.append(f"const L {name} = j / {divisor} % {extent};")
        divisor *= extent
    return "\n    ".join(lines)


def _taps_innermost(p: ConvolutionProblem) -> bool:
    return p.ci < p.ker[2]


def _tile_text(p: ConvolutionProblem, lay: DirectLayout, x: TapCopy, tw: int, *, fused: bool) -> str:
    ins = {"in_start": lay.inputs.start("i"), "in_next": lay.inputs.start("i + 1"), "taps": p.taps}
    source = PANELS if p.panel else FUSED if fused else PACKED
    weights, next_weights, used_weights = (
        render(t, {"most": lay.inputs.size, "panel": p.panel, **ins}) for t in source
    )  # fmt: skip
    tap_step, input_step = (f"{p.ci * p.panel}LL", p.panel) if p.panel else ("NV * VL", f"{p.taps} * NV * VL")
    reduce = (conv_text.taps_innermost if _taps_innermost(p) else conv_text.inputs_innermost)(
        ins, tap_step=tap_step, input_step=input_step,
        kd=p.ker[0], kh=p.ker[1], kw=p.ker[2], kds=x.plane, khs=p.dil[1] * x.row, kws=p.dil[2] * x.pixel,
        cs=x.channel,
    )  # fmt: skip
    wide = lay.tile.wide
    return conv_text.tile(
        ins, rs=x.stride[1] * x.row, ps=x.stride[2] * x.pixel, tw=tw, weights=weights,
        next_weights=next_weights, used_weights=used_weights, cs=x.channel, reduce=reduce, in_blocks=lay.inputs.parts,
        tile_calls=choose(wide, "t", "tile<NV, TR, $>(x, w, d, i);"), tall=lay.tile.tall, wide_start=wide.start("t"),
        wide_first=wide.start("t0"),
    )  # fmt: skip


def copy_text(p: ConvolutionProblem, x: TapCopy) -> str:
    """The function ``copy(x, from, od, r0, c0, rows, cols)``."""
    bd, bh, bw = ("q.bd", "q.bh", "q.bw") if p.family else p.base
    loops = (conv_text.copy_pixels if x.channel == 1 and x.pixel != 1 else conv_text.copy_planes)(
        {"cs": x.channel, "ps": x.pixel, "xc": p.xs[2]}, ci=p.ci, kd=p.ker[0],
        sd=p.stride[0], bd=bd, dd=p.dil[0], sh=p.stride[1], bh=bh, step_h=x.step[1], d=p.inp[0], h=p.inp[1],
        kds=x.plane, rs=x.row, xd=p.xs[3], xh=p.xs[4], xw=p.xs[5],
        step_x=x.step[2] * p.xs[5],
    )  # fmt: skip
    return conv_text.copy(
        th=x.stride[1], tw=x.stride[2], reach_h=(p.ker[1] - 1) * p.dil[1],
        reach_w=(p.ker[2] - 1) * p.dil[2], sw=p.stride[2], bw=bw, step_w=x.step[2], w=p.inp[2], loops=loops,
        q_parameter=", const Residue &q" if p.family else "",
    )  # fmt: skip


def _write_text(p: ConvolutionProblem, lay: DirectLayout, tw: int) -> str:
    rows, cols = "rows", "cols"
    if p.ys[5] == 1 or p.out[2] == 1:
        loops = conv_text.write_transposed
        contiguous = p.out[1] == 1 or p.ys[4] == p.out[2]
        if p.ys[5] != 1:
            loops = conv_text.write_pixels if p.ys[2] == 1 else conv_text.write_any
        elif contiguous and not p.family and tw == p.out[2] and lay.column_blocks == 1:
            rows, cols = "1", "rows * cols"
    else:
        loops = conv_text.write_pixels if p.ys[2] == 1 else conv_text.write_any
    values = {"tw": tw, "yh": p.ys[4], "yw": p.ys[5], "yc": p.ys[2], "flat_rows": rows, "flat_cols": f"({cols})"}
    bias = "valid == VL ? load(bias + o) : load_part(bias + o, valid)" if p.bias else "V{}"
    head = conv_text.transpose_pixels(yc=p.ys[2], plain=int(not p.bias)) if loops == conv_text.write_transposed else ""
    return head + conv_text.write(co=p.co, bias=bias, yc=p.ys[2], loops=loops(values))


def _fill_text(p: ConvolutionProblem) -> str:
    """The function ``fill``: weights as the tiles read them."""
    _, wo, wi, *wk = p.ws
    kd, kh, kw = p.ker
    dense = (kd == 1 or abs(wk[0]) == kh * kw) and (kh == 1 or abs(wk[1]) == kw) and (kw == 1 or abs(wk[2]) == 1)
    signs = {w < 0 for w, k in zip(wk, p.ker, strict=True) if k > 1}
    flipped = signs == {True}
    whole = wi == p.taps and not flipped
    lowest = sum((k - 1) * w for w, k in zip(wk, p.ker, strict=True)) if flipped else 0
    offset = " + ".join(
        f"tap / {d} % {k} * {w}LL" for d, k, w in ((kh * kw, kd, wk[0]), (kw, kh, wk[1]), (1, kw, wk[2]))
    )
    if wo == 1 and p.co > 1:
        loops = conv_text.pack_vectors(taps=p.taps, wi=wi, tap_offset=offset)
    elif dense and len(signs) <= 1 and (p.ci if whole else 1) * p.taps > 2 and wo > 0 and wi >= 0:
        tap, sign = (f"{p.taps - 1} - f", "-") if flipped else ("f", "")
        run, step = (f"((c1 - c0) * {p.taps})", "c1 - c0") if whole else (str(p.taps), "1")
        loops = conv_text.pack_runs(
            taps=p.taps, wi=wi, wo=wo, run=run, step=step, lowest=lowest, first_tap=tap, sign=sign
        )  # fmt: skip
    else:
        loops = conv_text.pack_any(taps=p.taps, wi=wi, wo=wo, tap_offset=offset)
    return conv_text.fill(wo=wo, loops=loops)


def _pack_text(p: ConvolutionProblem, lay: DirectLayout, epilogue: bool) -> str:
    """The function ``pack`` of phase one."""
    vectors = lay.tile.vectors
    blocks = p.groups * vectors.parts
    return conv_text.pack(
        parameter=EPILOGUE_PARAMETER.replace(" &e", " &") if epilogue else "",
        wo=p.ws[1], blocks=vectors.parts, vector_start=vectors.start("ob"), vectors=vectors.total,
        per_lane=p.ci * p.taps, w0="q.w0" if p.family else f"{p.w0}LL", wg=p.ws[0], groups=p.groups, co=p.co,
        m=f"j / {blocks} * {p.groups}" if p.family else "0", end=_end_of_weights(p),
        member=f"const Residue &q = residues[j / {blocks}];" if p.family else "", in_blocks=lay.inputs.parts,
        in_start=lay.inputs.start("i"), in_next=lay.inputs.start("i + 1"),
        fill_calls=choose(vectors, "ob", f"fill<$>(d + c0 * {p.taps} * $ * VL, s, end, valid, c0, c1);"),
    )  # fmt: skip


def _end_of_weights(p: ConvolutionProblem) -> int:
    """Where the weights that the problem reads end, from their start."""
    extents = (p.groups, p.co, p.ci, *p.ker)
    return sum((n - 1) * s for n, s in zip(extents, p.ws, strict=True) if s > 0) + 1


def _family_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return None if p.family else Refusal("a problem by itself")


DIRECT_FAMILY = Method("family", direct_draft, refusal=_family_refusal)
DIRECT = Method("direct", direct_draft)
