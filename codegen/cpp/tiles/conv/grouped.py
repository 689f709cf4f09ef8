"""Grouped convolutions in channels-last: vectors run along the output channels of all groups, tiles along neighbouring pixels of a row.

A vector's lanes may belong to several groups (two of four channels each, say). So what a step multiplies with is not always one number
of the image: it is a vector with, lane by lane, an input channel of the lane's group, made by exchanges of lanes where the groups'
inputs lie within a few vectors, else of one broadcast for every group. It is used for all taps of a row of the kernel that meet there, with
their weights in registers. As in ``conv/nhwc.py`` a tile at an edge is a function of its own that leaves out what falls outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.depthwise_nhwc import DepthwiseTile, channels_refusal, columns_of, tile_at, whole_tile
from dcir.codegen.cpp.tiles.conv.nhwc import border, inside
from dcir.codegen.cpp.tiles.conv.nhwc_layout import LONG
from dcir.codegen.cpp.tiles.conv.nhwc_tile import CHAIN, in_chains, rest_kinds
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, usual_problem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Runs, Split, TileStep, ceil_div, lanes
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.symbolic import moves, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.packing import MOST_TAPS, panel_width, panels, spans_groups

text_of = templates("conv/grouped")
last_text = templates("conv/nhwc")

SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay
# Of all weights: fewer come again for every tile, so that tiles read neighbouring lines; more are passed over by the whole image.
WEIGHT_BYTES = (128 << 10, 512 << 10)
IMAGE_BYTES = 192 << 10  # of the rows that all vectors pass over
UNROLLED = 16  # vectors of a tile that are finished in registers
MOST_FORMS = 6
# Inputs of a group times vectors that their lanes are taken from, with and without AVX-512: code is apart for each, and by more a
# broadcast for each group is as fast. With 8 to 1 (64 groups, 28 x 28, 3x3) exchanges were faster with AVX-512, 770 us and 1400, and slower
# without, 1120 and 840; with 16 to 1 slower with it, too, 590 and 240; with 4 to 1 (32 groups) faster without, 120 and 168.
MOST_EXCHANGES = (64, 24)
MOVING_BLOCKS = 8  # of rows of an image of the usual size, where images are of any size
# AVX2, cycles against those of the multiply-adds alone (Zen 3, images in the second-level cache): numbers used for all taps; tap by tap
# several vectors, and one; and the least that a tap takes, since a pixel's sums wait for each other.
SHARED, PAIRS, SINGLE, CHAINED = 1.1, 1.22, 1.4, 4.6


@dataclass(frozen=True)
class GroupedForm:
    """A tile: so many pixels, vectors of output channels, and whether a number of the image is used for all taps at once."""

    wide: Split | Runs
    vectors: int
    shared: bool


@dataclass(frozen=True)
class Lanes:
    """To which group each lane of a vector belongs, from the first lane's on.

    Attributes:
        groups: of every lane.
        loads: where vectors of inputs begin that together hold those of all lanes, from the first group's inputs on; none of one group, or
            where they would be too many.
        held: inputs of a pixel, if they fill no vector.
    """

    groups: tuple[int, ...]
    loads: tuple[int, ...]
    held: int = 0

    @property
    def uniform(self) -> bool:
        """Whether all lanes are of one group."""
        return self.groups[-1] == 0

    def value(self, p: ConvolutionProblem, at: int, i: int) -> str:
        """C++ of what the lanes multiply with: input ``i`` of their groups at ``at`` from pointer p on."""
        if self.uniform:
            return f"p[{at + i}]"
        if self.loads:
            return self._picked(at, [g * p.ci + i for g in self.groups])
        made = f"spread(p[{at + i}])"
        for g in range(1, self.groups[-1] + 1):
            mask = ", ".join("-1" if lane == g else "0" for lane in self.groups)
            made = f"((M){{{mask}}} ? spread(p[{at + i + g * p.ci}]) : {made})"
        return made

    def _picked(self, at: int, places: list[int]) -> str:
        """C++ of the inputs at these places, lane by lane: by one exchange of lanes from every two vectors."""
        width, made = len(places), ""
        vector = [max(k for k, start in enumerate(self.loads) if start <= place) for place in places]
        for k in range(0, len(self.loads), 2):
            if not any(v // 2 == k // 2 for v in vector):
                continue
            lanes = [v % 2 * width + place - self.loads[v] for v, place in zip(vector, places, strict=True)]
            chosen = ", ".join(str(lane) if v // 2 == k // 2 else "0" for v, lane in zip(vector, lanes, strict=True))
            sources = [self._load(at + start) for start in self.loads[k : k + 2]]
            part = f"__builtin_shuffle({', '.join(sources)}, (M){{{chosen}}})"
            if lanes == list(range(width)) and len(self.loads) == 1:
                part = sources[0]
            mask = ", ".join("-1" if v // 2 == k // 2 else "0" for v in vector)
            made = f"((M){{{mask}}} ? {part} : {made})" if made else part
        return made

    def _load(self, at: int) -> str:
        return f"load_part(p + {at}, {self.held})" if self.held else f"load(p + {at})"


def lanes_of(p: ConvolutionProblem, width: int, first: int, vectors: int = 1, *, masks: bool) -> Lanes:
    """The kind of so many vectors from an output channel of all groups on; with ``masks`` parts of a vector are loaded as fast."""
    channels, group = p.groups * p.co, first // p.co
    last = min(first + width * vectors, channels) - 1
    groups = tuple(min(first + lane, last) // p.co - group for lane in range(width))
    # Of the last pixel of an image nothing behind its channels can be read: a last vector begins so much before.
    before, behind = group * p.ci, (p.groups - group) * p.ci
    held = (groups[-1] + 1) * p.ci
    if masks and groups[-1] > 0 and p.groups * p.ci < width:
        return Lanes(groups, (-before,), p.groups * p.ci)
    starts = tuple(min(k, behind - width) for k in range(0, held, width))
    few = p.ci * len(starts) <= MOST_EXCHANGES[0 if masks else 1]
    readable = groups[-1] > 0 and starts[0] >= -before and few
    return Lanes(groups, starts if readable else ())


def spread_text(width: int) -> str:
    """C++ of the function that ``Lanes.value`` calls: a number in all lanes."""
    return text_of.spread(copies=", ".join("x" * width))


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.groups == 1 or p.taps * p.ci * p.co == 0:
        return Refusal("one group")
    if p.bias or p.family or p.y0:
        return Refusal("a bias that is not the epilogue's, or a part of a result")
    if p.ker[2] > MOST_TAPS:
        return Refusal(f"more than {MOST_TAPS} taps in a row")
    if p.panel:
        if p.panel % lanes(isa, p.dtype):
            return Refusal("panels of another width")
    elif p.xs[2] != 1 or p.ys[2] != 1 or p.epilogue is None:
        return Refusal(
            "weights that are packed in every call, of images that are not in channels-last or without an epilogue"
        )
    elif channels_refusal(p) is None:
        return Refusal("one channel in a group, along which vectors can run")
    packed = p if p.panel else replace(p, panel=panel_width(p.dtype, isa))
    return None if spans(packed) or _better(packed) else Refusal("long sums, as fast for every group apart")


def spans(p: ConvolutionProblem) -> bool:
    """Whether a panel of weights runs on from one group to the next."""
    return spans_groups(p.groups, p.co, p.ker[2], p.panel)


def _better(p: ConvolutionProblem) -> bool:
    return p.taps > 1 and p.taps * p.ci <= CHAIN and p.co % p.panel == 0


def grouped_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A problem of this form, not empty."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    channels = p.groups * p.co
    whole = (p.n, 1, channels, *p.out)
    # Strides over groups and their channels are those over all channels, so the program is the same with one group of them all.
    stored = replace(p.epilogue, outer=whole) if p.epilogue else identity_epilogue(whole, p.dtype, p.ys)
    epilogue = Epilogue(stored, p.dtype, 2, 2, 5)
    steps: list[TileStep] = []
    texts: list[str] = []
    scratch, weights = 0, "a1"
    if not p.panel:
        p = replace(p, panel=panel_width(p.dtype, isa))
        step, count = p.taps * p.ci * p.panel, panels(channels, p.panel)
        texts.append(_pack_text(p, channels))
        steps.append(TileStep(count, "pack"))
        weights, scratch = "(const T *)scratch", count * step * element
    image = "a0"
    if p.xs[2] != 1 or (moves(p.out[2]) and not inside(p)):
        text, moved = border(p, width, element, scratch, bordered=True)
        texts.append(text)
        steps.append(TileStep(p.n * moved.inp[0] * moved.inp[1], "border"))
        image, scratch = f"(const T *)(scratch + {scratch}LL)", scratch + p.n * moved.xs[0] * element
        p = moved
    form = _form(p, isa)
    kinds = _lanes(p, isa, form.vectors)
    columns = [] if isinstance(form.wide, Runs) else columns_of(form.wide)
    tiles = [tile_at(p, c, n) for c, n in columns]
    if isinstance(form.wide, Runs):
        tiles = [whole_tile(p, kind.pixels) for kind in rest_kinds(p, form.wide.size)]
    distinct = list(dict.fromkeys(kinds))
    per_panel, panel_step = p.panel // width, p.taps * p.ci * p.panel
    place = text_of.place(per_panel=per_panel, panel_step=panel_step) + spread_text(width)
    texts.append(place)
    if in_chains(p):
        texts.append(last_text.rest())
    if len(distinct) > 1:
        numbers = ", ".join(str(distinct.index(kind)) for kind in kinds)
        constant = "constexpr" if p.moves else "static const"
        texts.append(f"\n{constant} unsigned char lanes[] = {{{numbers}}};\n")
    for number, kind in enumerate(distinct):
        texts += [_tile_text(p, t, number, kind, form, epilogue, width) for t in dict.fromkeys(tiles)]
    rows, together, parts, shares = _division(p, len(kinds), threads, element)
    texts.append(text_of.region(
        row_blocks=rows.parts, per_image=rows.parts * p.out[0], od=p.out[0], sd=p.stride[0], bd=p.base[0],
        dd=p.dil[0], kd=p.ker[0], id=p.inp[0], row_start=rows.start("rb"), row_next=rows.start("rb + 1"), sh=p.stride[1],
        bh=p.base[1], dh=p.dil[1], kh=p.ker[1], ih=p.inp[1], xn=p.xs[0], xd=p.xs[3], xh=p.xs[4], xw=p.xs[5], bw=p.base[2],
        tiles=_calls(p, tiles, columns, kinds, form, innermost=together == 0),
    ))  # fmt: skip
    own = "own(operands, j)" if epilogue.sums else "operands"
    rest = last_text.rest_place(size=form.wide.size * form.vectors * width) if in_chains(p) else ""
    walk = text_of.by_vectors(together=together) if together else text_of.by_tiles()
    texts.append(text_of.run(
        own=own, rest=rest, parts=parts, blocks=len(kinds), regions=p.n * p.out[0] * rows.parts, shares=shares,
        image=image, weights=weights, walk=walk,
    ))  # fmt: skip
    steps.append(TileStep(parts * shares, "run"))
    return Draft(name, p.dtype, "".join(texts), tuple(steps), scratch, epilogue=epilogue, sums=bool(epilogue.sums))


def _lanes(p: ConvolutionProblem, isa: Isa, vectors: int) -> list[Lanes]:
    """The kind of every block of vectors."""
    width, masks = lanes(isa, p.dtype), isa.vectors == "avx512"
    firsts = range(0, p.groups * p.co, width * vectors)
    return [lanes_of(p, width, first, vectors, masks=masks) for first in firsts]


def _calls(
    p: ConvolutionProblem,
    tiles: list[DepthwiseTile],
    columns: list[tuple[int, int]],
    kinds: list[Lanes],
    form: GroupedForm,
    *,
    innermost: bool,
) -> str:
    """C++ that runs the tiles of a row for some vectors: neighbours of one kind in a loop."""
    distinct = list(dict.fromkeys(kinds))
    runs, start = [], 0
    if moves(p.out[2]):
        runs = [(f"for (; c + {t.pixels} <= {p.out[2]}; c += {t.pixels}) ", t.name) for t in tiles]
    for t in range(1, len(columns) + 1):
        if t < len(tiles) and tiles[t] == tiles[start]:
            continue
        (first, size), (last, _) = columns[start], columns[t - 1]
        runs.append((f"for (L c = {first}; c <= {last}; c += {size}) ", tiles[start].name))
        start = t

    def blocks(part: list[tuple[str, str]]) -> str:
        pixel = p.stride[2] * p.xs[5]
        calls = [
            " ".join(f"{loop}{tile}_{n}(q, x + c * {pixel}LL, w, c);" for loop, tile in part)
            for n in range(len(distinct))
        ]
        if moves(p.out[2]) and not innermost:
            calls = [f"{{ L c = 0; {call} }}" for call in calls]
        cases = " ".join(f"case {n}: {call} break;" for n, call in enumerate(calls))
        text = calls[0] if len(calls) == 1 else f"switch (lanes[b]) {{ {cases} }}"
        return text_of.blocks(vectors=form.vectors, channels=p.groups * p.co, co=p.co, ci=p.ci, calls=text)

    if innermost and moves(p.out[2]):
        return "        L c = 0;\n" + "\n".join(f"        {loop}{blocks([('', tile)])}" for loop, tile in runs)
    if innermost:
        return "\n".join(f"        {loop}{blocks([('', tile)])}" for loop, tile in runs)
    return "        " + blocks(runs)


# ---------------------------------------------------------------------- tiles
def _tile_text(
    p: ConvolutionProblem, t: DepthwiseTile, number: int, kind: Lanes, form: GroupedForm, epilogue: Epilogue, width: int
) -> str:
    channels, nv = p.groups * p.co, form.vectors
    valid = "(L)(NV * VL)" if channels % (nv * width) == 0 else "q.valid"
    if epilogue.grouped:
        stop = last_text.stop_groups({"valid": valid}, grouped=GROUPED)
    else:
        unrolled = t.pixels * nv <= UNROLLED and epilogue.in_registers and not epilogue.sums
        stop = (last_text.stop_unrolled if unrolled else last_text.stop_rows)({"valid": valid})
    if epilogue.sums:
        stop += last_text.stop_sums({"valid": valid})
    chains = in_chains(p)
    step = _shared if form.shared else _by_taps
    line = 64 // ELEMENT_BYTES[p.dtype]
    if kind.uniform or not kind.loads:
        count = "count" if chains else str(p.ci)
        each = ceil_div(t.high - t.low, min(p.ci, line))
        turn = "i" if p.ci <= line else f"i % {line}"
        ahead = [
            f"                __builtin_prefetch(p + {max(p.ci, line) + (t.low + k) * p.xs[5]} + {turn} * {each * p.xs[5]}LL);"
            for k in range(each)
        ]
        steps = text_of.any_input(count=count, panel=p.panel, step="\n".join([*ahead, *step(p, t, kind, nv, 0)]))
    else:
        lines = []
        for i in range(p.ci):
            for column in range(t.low + i, t.high, p.ci):
                lines.append(f"            __builtin_prefetch(p + {line + column * p.xs[5]});")
            lines += step(p, t, kind, nv, i)
        steps = "\n".join(lines)
    if chains:
        chain = max(1, CHAIN // p.ker[2]) if kind.uniform or not kind.loads else p.ci
        steps = text_of.chains(ci=p.ci, chain=chain, steps=steps)
    end = last_text.rest_end() if chains else ""
    return text_of.tile(
        name=f"{t.name}_{number}", pixels=t.pixels, vectors=nv, begin=text_of.rest_begin() if chains else "",
        kds=p.dil[0] * p.xs[3], khs=p.dil[1] * p.xs[4], kh=p.ker[1], row=p.ker[2] * p.ci * p.panel, steps=steps,
        stop=end + stop,
    )  # fmt: skip


def _weights(p: ConvolutionProblem, taps: list[int], nv: int, i: int) -> Iterator[str]:
    for kw in taps:
        for v in range(nv):
            yield f"                const V w{kw}_{v} = load(u + {(kw * p.ci + i) * p.panel} + place_of({v}));"


def _shared(p: ConvolutionProblem, t: DepthwiseTile, kind: Lanes, nv: int, i: int) -> list[str]:
    """C++ of a step in which every column of the image is used for all its taps."""
    uses = t.uses(p)
    lines = ["            {", *_weights(p, sorted({kw for pairs in uses.values() for _, kw in pairs}), nv, i)]
    scalar = "T" if kind.uniform else "V"
    for column, pairs in sorted(uses.items()):
        adds = " ".join(f"acc[{c}][{v}] += s * w{kw}_{v};" for c, kw in pairs for v in range(nv))
        lines.append(f"                {{ const {scalar} s = {kind.value(p, column * p.xs[5], i)}; {adds} }}")
    return [*lines, "            }"]


def _by_taps(p: ConvolutionProblem, t: DepthwiseTile, kind: Lanes, nv: int, i: int) -> list[str]:
    """C++ of a step tap by tap."""
    met: dict[int, list[tuple[int, int]]] = {}
    for column, pairs in sorted(t.uses(p).items()):
        for c, kw in pairs:
            met.setdefault(kw, []).append((c, column))
    lines = []
    scalar = "T" if kind.uniform else "V"
    for kw, places in sorted(met.items()):
        lines += ['            { asm("" ::: "memory");', *_weights(p, [kw], nv, i)]
        for c, column in places:
            adds = " ".join(f"acc[{c}][{v}] += s * w{kw}_{v};" for v in range(nv))
            lines.append(f"                {{ const {scalar} s = {kind.value(p, column * p.xs[5], i)}; {adds} }}")
        lines.append("            }")
    return lines


def _pack_text(p: ConvolutionProblem, channels: int) -> str:
    """The packing of one call, a panel a job."""
    _, kh, kw = p.ker
    wg, wo, wi, wd, wh, ww = p.ws
    offset = f"tap / {kh * kw} * {wd}LL + tap / {kw} % {kh} * {wh}LL + tap % {kw} * {ww}LL"
    return text_of.pack(
        panel_step=p.taps * p.ci * p.panel, panel=p.panel, w0=p.w0, co=p.co, wg=wg, wo=wo, wi=wi, taps=p.taps,
        ci=p.ci, channels=channels, offset=offset,
    )  # fmt: skip


# ---------------------------------------------------------------------- layout
def _form(p: ConvolutionProblem, isa: Isa) -> GroupedForm:
    """What needs the fewest cycles."""
    if moves(p.out[2]):
        usually = usual_problem(p)
        form = _form(replace(usually, out=(*usually.out[:2], LONG)), isa)
        return replace(form, wide=Runs(p.out[2], form.wide.size))
    width, registers = lanes(isa, p.dtype), isa.registers
    kw, reach = p.ker[2], (p.ker[2] - 1) * p.dil[2]
    found: list[tuple[float, GroupedForm]] = []
    for nv in (1, 2, 4):
        if nv > 1 and (p.co % (nv * width) or (nv % (p.panel // width) and (p.panel // width) % nv)):
            continue
        kinds = _lanes(p, isa, nv)
        worst = max(kinds, key=lambda k: k.groups[-1])
        made = 1 if worst.uniform else 1.5 * len(worst.loads) if worst.loads else 1.5 * worst.groups[-1] + 1
        for shared in (True, False) if kw > 1 else (False,):
            held = (kw if shared else 1) * nv + 1
            most = min(14, (registers - held) // nv)
            for size in (most, most - 1):
                if size < 1:
                    continue
                wide = Split.at_most(p.out[2], size)
                pixels = p.out[2] / wide.parts
                columns = min((pixels - 1) * p.stride[2] + reach + 1, pixels * kw) if shared else pixels * kw
                loads = columns * made + kw * nv
                slower = 1.0 if isa.vectors == "avx512" else SHARED if shared else PAIRS if nv > 1 else SINGLE
                cycles = max(pixels * nv * kw / 2 * slower, loads / 2 * 1.05, CHAINED * kw)
                cost = (cycles * p.ci * p.ker[1] * p.ker[0] + 12 + 3 * pixels * nv) * wide.parts / nv
                found.append((cost, GroupedForm(wide, nv, shared)))
    found.sort(key=lambda f: (f[0], f[1].vectors))
    named: dict[tuple[int, ...], GroupedForm] = {}
    for _, form in found:
        named.setdefault((form.wide.size, form.vectors, int(form.shared)), form)
    return named[decide("tile", list(named)[:MOST_FORMS])]


def _division(p: ConvolutionProblem, blocks: int, threads: int, element: int) -> tuple[Split | Runs, int, int, int]:
    """Rows in blocks, blocks that a vector passes over before the next one, jobs along the vectors, and along the blocks."""
    if p.moves:
        rows, together, _, _ = _division(usual_problem(p), blocks, threads, element)
        # Of small images there are few blocks, which threads are to share as well.
        height = max(1, min(rows.size, usual(p.out[1]) // MOVING_BLOCKS))
        return Runs(p.out[1], height), together, 1, 1 if p.work < SERIAL_WORK else threads
    threads = 1 if p.work < SERIAL_WORK else threads
    channels = p.groups * p.co
    weights = channels * p.taps * p.ci * element
    row = p.inp[2] * p.groups * p.ci * element
    planes = p.n * p.out[0]
    most = 1
    for size in range(1, p.out[1] + 1):
        if ((size - 1) * p.stride[1] + (p.ker[1] - 1) * p.dil[1] + 1) * row <= IMAGE_BYTES:
            most = size
    rows = Split.at_most(p.out[1], most)
    if planes * rows.parts % threads and p.out[1] > 1:  # as many for every thread
        rows = next((Split(p.out[1], k) for k in range(rows.parts, p.out[1] + 1) if planes * k % threads == 0), rows)
    regions = planes * rows.parts
    parts = 1 if regions >= threads else min(blocks, threads // regions)
    shares = min(threads // parts, regions)
    mine = ceil_div(regions, shares)
    best = 0 if weights <= WEIGHT_BYTES[0] else 1 if weights <= WEIGHT_BYTES[1] else mine
    together = decide("together", [best, *sorted({0, 1, mine} - {best})])
    return rows, together, max(1, parts), max(1, shares)


GROUPED_NHWC = Method("grouped", grouped_draft, refusal=_refusal)
