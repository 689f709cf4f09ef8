"""Depthwise convolutions in channels-last: vectors of channels, tiles of neighbouring pixels of a row.

A tile holds a vector of channels for some pixels in registers. Row by row of the kernel it loads each input vector once and adds it to
every pixel it belongs to. Where the image ends is known when the code is made, so a tile at an edge is a function of its own that
leaves out the taps that fall outside, and no tile has a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.depthwise import depthwise_refusal
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    Runs,
    Split,
    TileStep,
    ceil_div,
    lanes,
    round_up,
)
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import most, moves
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/depthwise_nhwc")

SERIAL_WORK = 1 << 15
HELD_TAPS = 7  # of a row of the kernel, whose weights stay in registers beside a tile
AHEAD = 4  # vectors of channels, that what sums read is asked for before
MOVING_ROWS = 4  # of a job, where images are of any size
_REST = (8, 4, 2, 1)  # pixels of the tiles that do what is left of a row of any length
ROW_BYTES = 128 << 10  # a row of results waits on the stack for an epilogue that wants long runs


@dataclass(frozen=True)
class DepthwiseTile:
    """A tile of ``pixels`` outputs; relative to its first input column, columns from ``low`` to ``high`` exist.

    Of an ``edge`` of a moving image, which is one pixel, the taps are told when it runs.
    """

    pixels: int
    low: int
    high: int
    edge: bool = False

    @property
    def name(self) -> str:
        """The function's name."""
        return "edge" if self.edge else f"tile_{self.pixels}_{self.low}_{self.high}"

    def uses(self, p: ConvolutionProblem, taps: Iterable[int] | None = None) -> dict[int, list[tuple[int, int]]]:
        """Per column of the input that exists, the pixels and the columns of the kernel, of those given, that meet there."""
        columns = range(p.ker[2]) if taps is None else list(taps)
        found: dict[int, list[tuple[int, int]]] = {}
        for i in range(self.pixels):
            for kw in columns:
                column = i * p.stride[2] + kw * p.dil[2]
                if self.low <= column < self.high:
                    found.setdefault(column, []).append((i, kw))
        return found

    def steps(self, p: ConvolutionProblem) -> tuple[list[list[int]], range]:
        """The columns of the kernel in steps of few; and where steps begin that all pixels have and one loop does."""
        whole = [
            kw
            for kw in range(p.ker[2])
            if self.low <= kw * p.dil[2] and (self.pixels - 1) * p.stride[2] + kw * p.dil[2] < self.high
        ]
        rounds = len(whole) // HELD_TAPS
        looped = range(whole[0], whole[0] + rounds * HELD_TAPS, HELD_TAPS) if rounds > 1 else range(0)
        met = {kw for pairs in self.uses(p).values() for _, kw in pairs}
        left = sorted(met - set(range(looped.start, looped.stop)))
        return [left[k : k + HELD_TAPS] for k in range(0, len(left), HELD_TAPS)], looped


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
    longest = max(1, min(14, isa.registers - 1 - min(p.ker[2], HELD_TAPS)))
    epilogue = Epilogue(p.epilogue, p.dtype, 2, 1, 5) if p.epilogue is not None else None
    # Results of a row wait in a buffer where the epilogue is a call that should do many of them.
    row_bytes = most(p.out[2]) * padded * element
    in_tile = epilogue is None or epilogue.in_registers or (epilogue.grouped and not partial)
    waits = not in_tile and row_bytes <= ROW_BYTES
    sums = epilogue is not None and epilogue.sums > 0
    # What the vector before has finished is not finished again where an epilogue may read what it has stored there.
    again = epilogue is not None and not waits and not partial and p.groups % width > 0 and epilogue.may_update
    made: dict[str, str] = {}

    def call(t: DepthwiseTile, column: str, more: str = "") -> str:
        """C++ that runs a tile from a column on for all channels, neighbouring lines one after the other."""
        if t.name not in made:
            made[t.name] = _tile_text(p, t, wh, ww, epilogue, padded=padded, partial=partial, waits=waits, again=again)
        to = f"y + g + {scaled(column, p.ys[5])}"
        if epilogue is not None:
            to = f"e, n, g, r, {column}{', v * VL - g' if sums or again else ''}"
        to = f"row + {column} * {padded} + g" if waits else to
        first = scaled(column, p.stride[2] * p.xs[5], p.base[2] * p.xs[5])
        return (
            f"        for (L v = 0; v < {vectors}; v++) {{ const L g = {group}; "
            f"{t.name}(x + g + ({first}), w + g, {to}, kh0, kh1{more}); }}"
        )

    if moves(p.out[2]):
        tiles = moving_tiles(p, longest, call)
    else:
        columns = columns_of(Split.at_most(p.out[2], longest))
        tiles = "\n".join(call(tile_at(p, c0, n), str(c0)) for c0, n in columns)
    rows: Split | Runs = Runs(p.out[1], MOVING_ROWS) if p.moves else Split(p.out[1], _row_blocks(p, threads))
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
        buffer=f"alignas(64) T row[{most(p.out[2]) * padded}];" if waits else "",
        tiles=tiles, finish=finish,
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


def scaled(column: str, step: int, start: int = 0) -> str:
    """C++ of so many steps from a start: a number where the column is one."""
    return f"{int(column) * step + start}LL" if column.isdigit() else f"{column} * {step}LL + {start}LL"


def moving_tiles(p: ConvolutionProblem, longest: int, call: Callable[..., str]) -> str:
    """C++ of the tiles of a row that is as long as the sizes have it: the first, all whole ones, smaller ones, pixels at the edges.

    What a pixel at an edge leaves out is known when the kernel runs.
    """
    reach = (p.ker[2] - 1) * p.dil[2]
    left = max(0, ceil_div(-p.base[2], p.stride[2]))  # pixels that have taps left of the image
    whole = [(n, whole_tile(p, n)) for n in (longest, *_REST) if n <= longest]
    first = ""
    if 0 < left <= longest:
        clipped = DepthwiseTile(longest, -p.base[2], (longest - 1) * p.stride[2] + reach + 1)
        first = text_of.first_tile(size=longest, call=call(clipped, "0"))
    tiles = "\n".join(text_of.whole_tiles(size=n, call=call(t, "c")) for n, t in dict(whole).items())
    edge = text_of.edge_pixel(
        sw=p.stride[2],
        bw=p.base[2],
        dw=p.dil[2],
        kw=p.ker[2],
        iw=p.inp[2],
        call=call(DepthwiseTile(1, 0, 0, edge=True), "c", ", kw0, kw1"),
    )
    last = p.inp[2] - 1 - p.base[2] - reach
    return text_of.moving_tiles(
        left=left, width=p.out[2], last=last, sw=p.stride[2], first=first, tiles=tiles, edge=edge
    )


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


def whole_tile(p: ConvolutionProblem, pixels: int) -> DepthwiseTile:
    """The tile of so many pixels that have all taps."""
    return DepthwiseTile(pixels, 0, (pixels - 1) * p.stride[2] + (p.ker[2] - 1) * p.dil[2] + 1)


def _row_blocks(p: ConvolutionProblem, threads: int) -> int:
    """Blocks of rows per image: few, so that a block's rows meet in the cache, but as many as keep the threads even."""
    if p.work < SERIAL_WORK:
        return 1
    for blocks in range(1, min(p.out[1], 4 * threads) + 1):
        if p.n * blocks % threads == 0 and p.out[1] / blocks / ceil_div(p.out[1], blocks) > 0.93:
            return blocks
    return min(p.out[1], 4 * threads)


def _tile_text(
    p: ConvolutionProblem, t: DepthwiseTile, wh: int, ww: int, epilogue: Epilogue | None, *, padded: int, partial: bool, waits: bool,
    again: bool,
) -> str:  # fmt: skip
    lanes_of = p.groups if partial else 0
    get = f"load_part({{}}, {lanes_of})" if partial else "load({})"
    if t.edge:
        kernel, image = get.format(f"q + kw * {ww}LL"), get.format(f"p + kw * {p.dil[2] * p.xs[5]}LL")
        told = [text_of.edge_taps(get_w=kernel, get_x=image)]
        return _finished_tile(p, t, wh, epilogue, told, padded=padded, partial=partial, waits=waits, again=again)
    steps, looped = t.steps(p)
    told = [_step_text(p, t, taps, get, ww) for taps in steps]
    if looped:
        body = _step_text(p, whole_tile(p, t.pixels), list(range(HELD_TAPS)), get, ww)
        told.append(
            text_of.loop(
                first=looped.start, end=looped.stop, held=HELD_TAPS, pixel=p.dil[2] * p.xs[5], ww=ww, step=body
            )
        )
    return _finished_tile(p, t, wh, epilogue, told, padded=padded, partial=partial, waits=waits, again=again)


def _step_text(p: ConvolutionProblem, t: DepthwiseTile, taps: list[int], get: str, ww: int) -> str:
    """C++ that adds some columns of the kernel; ``get`` loads a vector."""
    uses = t.uses(p, taps)
    weights = [f"const V w{kw} = {get.format(f'q + {kw * ww}LL')};" for kw in taps]
    adds = [
        f"{{ const V s = {get.format(f'p + {column * p.xs[5]}LL')}; {' '.join(f'y{i} += w{kw} * s;' for i, kw in pairs)} }}"
        for column, pairs in sorted(uses.items())
    ]
    return "        {\n" + "\n".join(f"            {line}" for line in [*weights, *adds]) + "\n        }"


def _finished_tile(
    p: ConvolutionProblem, t: DepthwiseTile, wh: int, epilogue: Epilogue | None, taps: list[str], *,
    padded: int, partial: bool, waits: bool, again: bool,
) -> str:  # fmt: skip
    """The function of a tile: sums over rows of the kernel, and what is done with them."""
    lanes_of = p.groups if partial else 0
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
        stored = [
            f"    alignas(64) T t[{t.pixels} * VL];",
            *(f"    store(t + {i} * VL, y{i});" for i in range(t.pixels)),
        ]
        if again:
            rest = f"for (L i = 0; i < {t.pixels}; i++) finish(e, n, g + done, 0, 0, r, c + i, t + i * VL + done, VL - done);"
            stop = [
                "    if (done == 0) {",
                *stop,
                "    } else {",
                *([] if epilogue.sums else stored),
                f"    {rest}",
                "    }",
            ]
        if epilogue.sums:
            stop = [*stored, *stop]
        if epilogue.sums or again:
            to += ", L done"
        if epilogue.sums:
            stop.append(f"    add_sums(e, n, g, 0, 0, r, c, t, VL, {t.pixels}, done, {valid});")
    else:
        put = f"store_part(y + {{}}LL, y{{}}, {lanes_of});" if partial else "store(y + {}LL, y{});"
        to, stop = "T *y", ["    " + put.format(i * p.ys[5], i) for i in range(t.pixels)]
    clear = "\n".join(f"    V y{i} = V{{}};" for i in range(t.pixels))
    return text_of.tile(
        more=", L kw0, L kw1" if t.edge else "", name=t.name, to=to, ahead=ahead, clear=clear,
        row=p.dil[1] * p.xs[4], wh=wh, taps="\n".join(taps), stop="\n".join(stop),
    )  # fmt: skip


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return Refusal("packed weights") if p.panel else channels_refusal(p)


DEPTHWISE_NHWC = Method("depthwise nhwc", channels_draft, refusal=_refusal)
