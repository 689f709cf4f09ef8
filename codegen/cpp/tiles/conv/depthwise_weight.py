"""Weight gradients of depthwise convolutions in channels-last: vectors of channels, tiles of neighbouring pixels of a row.

A tile keeps a vector of the error's channels for some pixels in registers. Row by row of the kernel it loads each input vector once and
multiplies it with every pixel it belongs to. Where the image ends is known when the code is made, or of images of any size when it runs,
as in the forward kernel. A job takes rows of some images; blocks of rows are summed by themselves and then added, since short chains of
additions round less. Last, the sums of all jobs are added up in their order.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import (
    DepthwiseTile,
    channels_refusal,
    columns_of,
    moving_tiles,
    scaled,
    tile_at,
)
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes, round_up
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import moves, usual
from dcir.isa import Isa

text_of = templates("conv/depthwise_weight")

SERIAL_WORK = 1 << 16
SUMMED = 256  # pixels, about, that are summed by themselves


def channels_weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The weight gradient of a depthwise problem in channels-last."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    padded = round_up(p.groups, width)
    size = p.taps * padded
    whole, rest = divmod(p.groups, width)
    longest = max(1, min(14, isa.registers - 2 - min(p.ker[2], 7)))
    made: dict[str, str] = {}

    def call(t: DepthwiseTile, column: str, more: str = "") -> str:
        """C++ that runs a tile from a column on for all channels."""
        made.setdefault(t.name, _tile_text(p, t, padded))
        first, error = scaled(column, p.stride[2] * p.xs[5], p.base[2] * p.xs[5]), scaled(column, p.ys[5])
        run = f"(x + g + ({first}), y + g + {error}, part + g, kh0, kh1, "
        calls = []
        if whole:
            calls.append(f"for (L g = 0; g < {whole * width}; g += VL) {t.name}<true>{run}VL{more});")
        if rest:
            calls.append(f"{{ const L g = {whole * width}; {t.name}<false>{run}{rest}{more}); }}")
        return "\n".join(" " * 8 + c for c in calls)

    if moves(p.out[2]):
        tiles = moving_tiles(p, longest, call)
    else:
        tiles = "\n".join(call(tile_at(p, c0, n), str(c0)) for c0, n in columns_of(Split.at_most(p.out[2], longest)))
    rows = p.n * p.out[1]
    jobs = 1 if p.work < SERIAL_WORK else threads if moves(rows) else min(rows, threads)
    text = text_of.run(
        tile_texts="".join(made.values()), job=2 * size, size=size, rows=rows, jobs=jobs, oh=p.out[1], sh=p.stride[1],
        bh=p.base[1], dh=p.dil[1], kh=p.ker[1], kw=p.ker[2], ih=p.inp[1], xn=p.xs[0], xh=p.xs[4], yn=p.ys[0], yh=p.ys[4],
        calls=tiles, summed=ceil_div(SUMMED, usual(p.out[2])), padded=padded, groups=p.groups,
        w0=p.w0, wg=p.ws[0], wh=p.ws[4], ww=p.ws[5],
    )  # fmt: skip
    return Draft(name, p.dtype, text, (TileStep(jobs, "run"), TileStep(p.taps, "finish")), jobs * 2 * size * element)


def _tile_text(p: ConvolutionProblem, t: DepthwiseTile, padded: int) -> str:
    errors = [f"    const V y{i} = get<WHOLE>(y + {i * p.ys[5]}LL, n);" for i in range(t.pixels)]
    taps = []
    wanted: set[int] = set()
    if t.edge:
        taps.append(text_of.edge_taps(padded=padded, step=p.dil[2] * p.xs[5]))
    for column, pairs in sorted(t.uses(p).items()) if not t.edge else ():
        adds = " ".join(f"s{kw} += y{i} * v;" for i, kw in pairs)
        wanted |= {kw for _, kw in pairs}
        taps.append(f"        {{ const V v = get<WHOLE>(p + {column * p.xs[5]}LL, n); {adds} }}")
    clear = [f"        V s{kw} = load(q + {kw * padded}LL);" for kw in sorted(wanted)]
    add = [f"        store(q + {kw * padded}LL, s{kw});" for kw in sorted(wanted)]
    return text_of.tile(
        name=t.name, more=", L kw0, L kw1" if t.edge else "", errors="\n".join(errors), row=p.dil[1] * p.xs[4],
        sums=p.ker[2] * padded, clear="\n".join(clear), taps="\n".join(taps), add="\n".join(add),
    )  # fmt: skip


DEPTHWISE_WEIGHT_NHWC = Method(
    "depthwise nhwc", channels_weight_draft, refusal=lambda p, isa, threads: channels_refusal(p)
)
