"""Weight gradients of depthwise and grouped convolutions in channels-last: vectors of output channels, tiles of pixels of a row.

A tile keeps a vector of the error's channels for some pixels in registers. Row by row of the kernel it loads each input vector once and
multiplies it with every pixel it belongs to. Lanes may belong to several groups, whose inputs ``conv/grouped.py`` puts side by side. With
a single output channel lanes are inputs, and the error is the same for all. Where the image ends is known when the code is made, or of
images of any size when it runs, as in the forward kernel. A job takes rows of some images, block by block of the channels, so that a
block's sums stay in the cache; blocks of rows are summed by themselves and then added, since short chains of additions round less. Last,
the sums of all jobs are added up in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.depthwise import planes_refusal
from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import (
    HELD_TAPS,
    DepthwiseTile,
    channels_refusal,
    columns_of,
    moving_tiles,
    scaled,
    tile_at,
    whole_tile,
)
from dcir.codegen.cpp.tiles.conv.grouped import Lanes, lanes_of, spread_text
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import moves, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/depthwise_weight")

SERIAL_WORK = 1 << 16
SUMMED = 256  # pixels, about, that are summed by themselves
SUMS_BYTES = 64 << 10  # of a block of channels, twice: those of some rows, and of all
FEW_CHANNELS = (
    8  # outputs of all groups; of 1 to 4 planes were up to three times as fast (28 x 28, 3x3), with AVX2 seven times
)
MOST_STEPS = 48  # inputs of a group times taps of a row, whose code is apart
# Of an output channel: of one group with 768 (3 -> 192, 16x16 with stride 16) copies of the image in planes were faster, 165 GFLOP/s and 90
# (a Xeon with AMX); with 147 (3 -> 64, 7x7) 110 and 175.
DENSE_SUMS = 512
FEW_INPUTS = 8  # of a group, with which tiles of inputs would be filled by taps only
# Of a group's outputs, up to which 16 registers hold no better tiles of inputs by vectors of outputs: with 8 to 32 (16 groups, 14 x 14,
# 3x3) 57 -> 80 GFLOP/s of AVX2, with 48 to 48 (1x1) 77 -> 64. With 32 registers one is: 16 to 16 89 -> 136, 32 to 32 (1x1) 104 -> 92.
FEW_VECTORS = 4


@dataclass(frozen=True)
class _Kind:
    """What a vector's lanes belong to, and how many there are."""

    lanes: Lanes
    valid: int


def channels_weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The weight gradient of a problem in channels-last."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    if shared := p.groups == p.co == 1 and p.ci > 1:
        p = replace(p, groups=p.ci, ci=1, ws=(p.ws[2], 0, 0, *p.ws[3:]))
    channels = p.groups * p.co
    vectors, sums = ceil_div(channels, width), p.taps * p.ci
    blocks = ceil_div(vectors, max(1, SUMS_BYTES // (2 * sums * width * element)))
    per_block = ceil_div(vectors, blocks)
    pitch = per_block * width
    size = sums * pitch
    longest = max(1, min(14, isa.registers - 2 - min(p.ker[2], HELD_TAPS)))
    kinds = [
        _Kind(lanes_of(p, width, first, masks=isa.vectors == "avx512"), min(width, channels - first))
        for first in range(0, channels, width)
    ]
    distinct = list(dict.fromkeys(kinds))
    made: dict[tuple[DepthwiseTile, int], str] = {}

    def call(t: DepthwiseTile, column: str, more: str = "") -> str:
        """C++ that runs a tile from a column on for all channels."""
        first, error = scaled(column, p.stride[2] * p.xs[5], p.base[2] * p.xs[5]), scaled(column, p.ys[5])
        error = error if shared else f"v * VL + {error}"
        calls = []
        for number, kind in enumerate(distinct):
            made.setdefault((t, number), _tile_text(p, t, number, kind, pitch, width, shared=shared))
            calls.append(f"{t.name}_{number}(x + i + ({first}), y + {error}, d + (v - v0) * VL, kh0, kh1{more});")
        cases = " ".join(f"case {number}: {called} break;" for number, called in enumerate(calls))
        run = calls[0] if len(calls) == 1 else f"switch (kinds[v]) {{ {cases} }}"
        return f"            for (L v = v0; v < v1; v++) {{ const L i = v * VL / {p.co} * {p.ci}; {run} }}"

    if moves(p.out[2]):
        tiles = moving_tiles(p, longest, call)
    else:
        tiles = "\n".join(call(tile_at(p, c0, n), str(c0)) for c0, n in columns_of(Split.at_most(p.out[2], longest)))
    rows = p.n * p.out[0] * p.out[1]
    jobs = 1 if p.work < SERIAL_WORK else threads if moves(rows) else min(rows, threads)
    table = ""
    if len(distinct) > 1:
        constant = "constexpr" if p.moves else "static const"
        table = f"{constant} unsigned char kinds[] = {{{', '.join(str(distinct.index(kind)) for kind in kinds)}}};\n"
    text = text_of.run(
        support=spread_text(width) + table, tile_texts="".join(made.values()), job=(blocks + 1) * size, size=size, rows=rows,
        jobs=jobs, oh=p.out[1],
        od=p.out[0], sd=p.stride[0], bd=p.base[0], dd=p.dil[0], kd=p.ker[0], id=p.inp[0], xd=p.xs[3], yd=p.ys[3],
        sh=p.stride[1], bh=p.base[1], dh=p.dil[1], kh=p.ker[1], ih=p.inp[1], xn=p.xs[0], xh=p.xs[4], yn=p.ys[0], yh=p.ys[4],
        calls=tiles, summed=ceil_div(SUMMED, usual(p.out[2])), blocks=blocks, per_block=per_block, vectors=vectors,
        plane=p.ker[1] * p.ci * p.ker[2] * pitch,
    )  # fmt: skip
    text += text_of.finish(
        job=(blocks + 1) * size, size=size, jobs=jobs, pitch=pitch, per_block=per_block, vectors=vectors, channels=channels,
        kh=p.ker[1], kw=p.ker[2], ci=p.ci, co=p.co, w0=p.w0, wg=p.ws[0], wo=p.ws[1], wi=p.ws[2], wd=p.ws[3], wh=p.ws[4],
        ww=p.ws[5],
    )  # fmt: skip
    steps = (TileStep(jobs, "run"), TileStep(sums, "finish"))
    return Draft(name, p.dtype, text, steps, jobs * (blocks + 1) * size * element)


def _tile_text(
    p: ConvolutionProblem, t: DepthwiseTile, number: int, kind: _Kind, pitch: int, width: int, *, shared: bool
) -> str:
    get = "load({})" if kind.valid == width else f"load_part({{}}, {kind.valid})"
    get = "spread(*({}))" if shared else get
    errors = [f"    const V y{i} = {get.format(f'y + {i * p.ys[5]}LL')};" for i in range(t.pixels)]
    taps = []
    column = p.dil[2] * p.xs[5]
    steps, looped = t.steps(p)
    for i in range(p.ci):
        at = i * p.ker[2] * pitch
        if t.edge:
            taps.append(text_of.edge_taps(at=at, pitch=pitch, column=column, value=kind.lanes.value(p, 0, i)))
            continue
        taps += [_step_text(p, t, kind, step, i, pitch, at) for step in steps]
        if looped:
            step = _step_text(p, whole_tile(p, t.pixels), kind, list(range(HELD_TAPS)), i, pitch, at)
            taps.append(
                text_of.loop(first=looped.start, end=looped.stop, held=HELD_TAPS, column=column, pitch=pitch, step=step)
            )
    return text_of.tile(
        name=f"{t.name}_{number}", more=", L kw0, L kw1" if t.edge else "", errors="\n".join(errors), row=p.dil[1] * p.xs[4],
        sums=p.ci * p.ker[2] * pitch, taps="\n".join(taps),
    )  # fmt: skip


def _step_text(
    p: ConvolutionProblem, t: DepthwiseTile, kind: _Kind, taps: list[int], i: int, pitch: int, at: int
) -> str:
    """C++ that adds to the sums of some columns of the kernel, of the groups' inputs ``i``."""
    value = "T" if kind.lanes.uniform else "V"
    lines = [f"V s{kw} = load(q + {at + kw * pitch}LL);" for kw in taps]
    for column, pairs in sorted(t.uses(p, taps).items()):
        adds = " ".join(f"s{kw} += y{pixel} * v;" for pixel, kw in pairs)
        lines.append(f"{{ const {value} v = {kind.lanes.value(p, column * p.xs[5], i)}; {adds} }}")
    lines += [f"store(q + {at + kw * pitch}LL, s{kw});" for kw in taps]
    return "        {\n" + "\n".join(f"            {line}" for line in lines) + "\n        }"


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    refused = channels_refusal(p)
    if p.moves:
        return refused
    if p.ci == 1 and p.groups * p.co < FEW_CHANNELS and planes_refusal(p) is None:
        return Refusal("few channels, of which planes fill more lanes")
    if refused is None:
        return None
    if any(strides[2] != 1 and p.groups * c > 1 for strides, c in ((p.xs, p.ci), (p.ys, p.co))):
        return Refusal("images that are not in channels-last")
    if p.groups == p.co == 1:
        return None
    if p.ci >= FEW_INPUTS and (
        p.groups == 1 or p.co > lanes(isa, p.dtype) * (1 if isa.registers > 16 else FEW_VECTORS)
    ):
        return Refusal("tiles of inputs by vectors of outputs, which are filled")
    if p.groups == 1 and p.taps * p.ci > DENSE_SUMS:
        return Refusal("one group, and more sums than stay in the first-level cache")
    long = p.ci * p.ker[2] > MOST_STEPS
    return Refusal("code of every input and tap would be long") if long else None


DEPTHWISE_WEIGHT_NHWC = Method("depthwise nhwc", channels_weight_draft, refusal=_refusal)
