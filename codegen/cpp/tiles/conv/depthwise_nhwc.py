"""Depthwise convolutions in channels-last: vectors of channels, tiles of neighbouring pixels of a row.

A tile holds a vector of channels for some pixels in registers. Row by row of the kernel it loads each input vector once and adds it to
every pixel it belongs to. Where the image ends is known when the code is made, so a tile at an edge is a function of its own that
leaves out the taps that fall outside, and no tile has a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.depthwise import depthwise_refusal
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    Split,
    TileStep,
    ceil_div,
    lanes,
    round_up,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/depthwise_nhwc")

SERIAL_WORK = 1 << 15
AHEAD = 4  # vectors of channels, that what sums read is asked for before
ROW_BYTES = 128 << 10  # a row of results waits on the stack for an epilogue that wants long runs


@dataclass(frozen=True)
class DepthwiseTile:
    """A tile of ``pixels`` outputs; relative to its first input column, columns from ``low`` to ``high`` exist."""

    pixels: int
    low: int
    high: int

    @property
    def name(self) -> str:
        """The function's name."""
        return f"tile_{self.pixels}_{self.low}_{self.high}"

    def uses(self, p: ConvolutionProblem) -> dict[int, list[tuple[int, int]]]:
        """Per column of the input that exists, the pixels and the columns of the kernel that meet there."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i in range(self.pixels):
            for kw in range(p.ker[2]):
                column = i * p.stride[2] + kw * p.dil[2]
                if self.low <= column < self.high:
                    found.setdefault(column, []).append((i, kw))
        return found


def channels_refusal(p: ConvolutionProblem) -> Refusal | None:
    """Why vectors cannot run along the channels of a depthwise problem."""
    if p.co != 1 or p.groups == 1:
        return Refusal("several output channels in a group, or one group")
    if p.xs[1] != 1 or p.ys[1] != 1:
        return Refusal("images that are not in channels-last")
    return Refusal("a bias that is not the epilogue's") if p.bias else depthwise_refusal(p)


def channels_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A depthwise problem whose channels are contiguous in x and y."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    in_place = p.ws[0] == 1
    padded = round_up(p.groups, width)
    wh, ww = (p.ws[4], p.ws[5]) if in_place else (p.ker[2] * padded, padded)
    # A last vector that would stick out goes back over channels that are done already; fewer channels than lanes are partial.
    partial = p.groups < width
    vectors = ceil_div(p.groups, width)
    group = "v * VL" if partial or p.groups % width == 0 else f"v + 1 < {vectors} ? v * VL : {p.groups} - VL"
    most = max(1, min(14, isa.registers - 1 - min(p.ker[2], 7)))
    split = Split.at_most(p.out[2], most)
    tiles = [tile_at(p, c0, n) for c0, n in columns_of(split)]
    epilogue = Epilogue(p.epilogue, p.dtype, 2, 1, 5) if p.epilogue is not None else None
    # Results of a row wait in a buffer where the epilogue is a call that should do many of them.
    row_bytes = p.out[2] * padded * element
    in_tile = epilogue is None or epilogue.in_registers or (epilogue.grouped and not partial)
    waits = not in_tile and row_bytes <= ROW_BYTES
    sums = epilogue is not None and epilogue.sums > 0
    made: dict[str, str] = {}
    for t in tiles:
        made.setdefault(t.name, _tile_text(p, t, wh, ww, epilogue, padded=padded, partial=partial, waits=waits))
    calls = []
    for t, (c0, _) in zip(tiles, columns_of(split), strict=True):
        first = c0 * p.stride[2] + p.base[2]
        to = (
            f"e, n, g, r, {c0}{', v * VL - g' if sums else ''}" if epilogue is not None else f"y + g + {c0 * p.ys[5]}LL"
        )
        to = f"row + {c0} * {padded} + g" if waits else to
        # Channels innermost: neighbouring lines are read one after the other.
        calls.append(
            f"        for (L v = 0; v < {vectors}; v++) {{ const L g = {group}; "
            f"{t.name}(x + g + ({first * p.xs[5]}LL), w + g, {to}, kh0, kh1); }}"
        )
    rows = Split(p.out[1], _row_blocks(p, threads))
    target = f"T *y = o0 + {p.y0}LL + n * {p.ys[0]}LL + r * {p.ys[4]}LL;" if epilogue is None else ""
    finish = ""
    if waits:
        finish = f"for (L c = 0; c < {p.out[2]}; c++) finish(e, n, 0, 0, 0, r, c, row + c * {padded}, {p.groups});"
        if sums:
            finish += f"\n        add_sums(e, n, 0, 0, 0, r, 0, row, {padded}, {p.out[2]}, 0, {p.groups});"
    parameter = EPILOGUE_PARAMETER if epilogue is not None else ""
    own = f"const Operands e = {'own(operands, j)' if sums else 'operands'};" if epilogue else ""
    text = "".join(made.values()) + text_of.run(
        parameter=parameter.replace("&e", "&operands"), copy=own,
        blocks=rows.parts, row_start=rows.start("block"), row_next=rows.start("block + 1"), sh=p.stride[1], bh=p.base[1],
        dh=p.dil[1], ih=p.inp[1], kh=p.ker[1], xn=p.xs[0], xh=p.xs[4],
        weights=f"a1 + {p.w0}LL" if in_place else "(const T *)scratch", target=target,
        buffer=f"alignas(64) T row[{p.out[2] * padded}];" if waits else "",
        tiles="\n".join(calls), finish=finish,
    )  # fmt: skip
    steps: tuple[TileStep, ...] = (TileStep(p.n * rows.parts, "run"),)
    scratch = 0
    if not in_place:
        text = text + text_of.pack(
            parameter=parameter.replace(" &e", " &"), w0=p.w0, kw=p.ker[2], wh=p.ws[4], ww=p.ws[5],
            wg=p.ws[0], groups=p.groups, padded=padded,
        )  # fmt: skip
        steps, scratch = (TileStep(p.taps, "pack"), *steps), p.taps * padded * element
    return Draft(name, p.dtype, text, steps, scratch, epilogue=epilogue, sums=sums)


def columns_of(split: Split) -> list[tuple[int, int]]:
    """First column and width of every tile."""
    found, at = [], 0
    for part in range(split.parts):
        size = split.sizes[0] if part < split.larger else split.sizes[-1]
        found.append((at, size))
        at += size
    return found


def tile_at(p: ConvolutionProblem, c0: int, pixels: int) -> DepthwiseTile:
    """The tile of so many pixels from column ``c0`` on."""
    first = c0 * p.stride[2] + p.base[2]
    reach = (pixels - 1) * p.stride[2] + (p.ker[2] - 1) * p.dil[2] + 1
    return DepthwiseTile(pixels, max(0, -first), max(0, min(reach, p.inp[2] - first)))


def _row_blocks(p: ConvolutionProblem, threads: int) -> int:
    """Blocks of rows per image: few, so that a block's rows meet in the cache, but as many as keep the threads even."""
    if p.work < SERIAL_WORK:
        return 1
    for blocks in range(1, min(p.out[1], 4 * threads) + 1):
        if p.n * blocks % threads == 0 and p.out[1] / blocks / ceil_div(p.out[1], blocks) > 0.93:
            return blocks
    return min(p.out[1], 4 * threads)


def _tile_text(
    p: ConvolutionProblem, t: DepthwiseTile, wh: int, ww: int, epilogue: Epilogue | None, *, padded: int, partial: bool, waits: bool
) -> str:  # fmt: skip
    lanes_of = p.groups if partial else 0
    get = f"load_part({{}}, {lanes_of})" if partial else "load({})"
    uses = t.uses(p)
    wanted = sorted({kw for pairs in uses.values() for _, kw in pairs})
    weights = [f"        const V w{kw} = {get.format(f'q + {kw * ww}LL')};" for kw in wanted]
    taps = []
    for column, pairs in sorted(uses.items()):
        adds = " ".join(f"y{i} += w{kw} * s;" for i, kw in pairs)
        taps.append(f"        {{ const V s = {get.format(f'p + {column * p.xs[5]}LL')}; {adds} }}")
    valid = str(p.groups) if partial else "VL"
    ahead = ""
    if epilogue is not None and epilogue.sums and epilogue.streams and not waits:
        ahead = f"    for (L i = 0; i < {t.pixels}; i++) prefetch_row<VL>(e, n, g + {AHEAD} * VL, 0, 0, r, c + i);\n"
    if waits:
        to, stop = "T *d", [f"    store(d + {i * padded}LL, y{i});" for i in range(t.pixels)]
    elif epilogue is not None:
        to = "const Operands &e, L n, L g, L r, L c"
        stop = []
        for i in range(0, t.pixels, GROUPED if epilogue.grouped and not partial else 1):
            row = [f"y{k}" for k in range(i, min(i + GROUPED, t.pixels))]
            if epilogue.grouped and not partial:
                place = f"e, n, g, 0, 0, r, c + {i}"
                stop.append(f"    {{ const V v[] = {{{', '.join(row)}}}; finish_group<{len(row)}, 1>({place}, v); }}")
            else:
                stop.append(f"    finish_row<1>(e, n, g, 0, 0, r, c + {i}, &y{i}, {valid});")
        if epilogue.sums:
            to += ", L done"
            stop.append(f"    alignas(64) T t[{t.pixels} * VL];")
            stop += [f"    store(t + {i} * VL, y{i});" for i in range(t.pixels)]
            stop.append(f"    add_sums(e, n, g, 0, 0, r, c, t, VL, {t.pixels}, done, {valid});")
    else:
        put = f"store_part(y + {{}}LL, y{{}}, {lanes_of});" if partial else "store(y + {}LL, y{});"
        to, stop = "T *y", ["    " + put.format(i * p.ys[5], i) for i in range(t.pixels)]
    return text_of.tile(
        name=t.name, to=to, ahead=ahead, clear="\n".join(f"    V y{i} = V{{}};" for i in range(t.pixels)),
        row=p.dil[1] * p.xs[4], wh=wh, weights="\n".join(weights), taps="\n".join(taps), stop="\n".join(stop),
    )  # fmt: skip


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return Refusal("packed weights") if p.panel else channels_refusal(p)


DEPTHWISE_NHWC = Method("depthwise nhwc", channels_draft, refusal=_refusal)
