"""Dense convolutions in channels-last with packed weights: tiles of neighbouring pixels by vectors of output channels, in place.

A tile sums over all taps and inputs in registers and stores through the epilogue. Taps that fall outside the image are left out: rows
of the kernel by the bounds of a loop, columns because a tile at an edge is a function of its own in which a tap's sweep covers only
the pixels that have it. So nothing is copied and no zero is multiplied. Images that are not channels-last are first copied, with
their border, as are rows whose pixels share cache sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.codegen.asked import as_known
from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles import half_dots
from dcir.codegen.cpp.tiles.conv.matrix import matrix_last_draft, matrix_last_refusal
from dcir.codegen.cpp.tiles.conv.nhwc_layout import NhwcLayout, nhwc_layout
from dcir.codegen.cpp.tiles.conv.nhwc_tile import (
    Kind,
    dispatch,
    dispatch_rest,
    in_chains,
    reach,
    rest_kinds,
    tile_text,
)
from dcir.codegen.cpp.tiles.conv.pointwise import rows_refusal
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Runs, Split, TileStep, ceil_div, lanes, round_up
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.method import ON_UNIT, Method
from dcir.codegen.symbolic import least, most, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.convolution import channel_pairs_pay
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.packing import panel_width, panels

text_of = templates("conv/nhwc")

# Pixels; of fewer, tiles of convolutions with packed weights are faster than products row by row: data gradients of 1x1 kernels with
# strides on Zen 3, 1024 -> 2048 at 14 x 14 52 -> 24 ms (8 images, one core), 256 -> 512 at 56 x 56 30 -> 20.
SHORT_ROWS = 32
STACK_BYTES = 256 << 10
MOST_KINDS = 4  # of tiles in a row
NEAR, FARTHER = 1024, (4096, 16384)  # bytes fetched ahead in a panel
WAITING = 128  # pixels of a row that are stored together where results lie in planes


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.bias or p.family or p.y0 or (p.w0 and not p.moves and not p.halves and p.ci > 1):
        return Refusal("a bias that is not the epilogue's, or a part of a result")
    if p.panel:
        return Refusal("panels of another width") if p.panel % lanes(isa, p.dtype) else None
    # Of images of any size other tiles are no faster.
    if (p.epilogue is None and not p.moves) or p.xs[2] != 1 or p.ys[2] != 1:
        return Refusal(
            "weights that are packed in every call, of images that are not in channels-last or without an epilogue"
        )
    return Refusal("one channel") if one_channel(p.ci, p.co, panel_width(p.dtype, isa)) else None


def one_channel(ci: int, co: int, panel: int) -> bool:
    """Whether vectors of output channels would be for one, or for few from one input, which planes of the image are faster for.

    From one input to 2 outputs tiles took 33 us and planes 17 (4 images of 56 x 56, 3x3, a Xeon with AVX-512), to 8 outputs 31 and 103.
    """
    return co == 1 or (ci == 1 and 4 * co < panel)


@dataclass(frozen=True)
class _Weights:
    """Where packed weights lie: in C++, bytes of scratch that they take, and what packs them, if they come as they are."""

    at: str = "a1"
    scratch: int = 0
    text: str = ""
    steps: tuple[TileStep, ...] = ()


def _weights(p: ConvolutionProblem, panel: int, *, paired: bool) -> _Weights:
    if p.panel:
        return _Weights()
    count = p.groups * panels(p.co, panel)
    size = count * p.taps * p.ci * panel * ELEMENT_BYTES[p.dtype]
    steps = (TileStep(count, "pack"),)
    if not paired:
        return _Weights("(const T *)scratch", size, pack_text(replace(p, panel=panel), 0), steps)
    join = text_of.pack_pairs(panel=panel, at=size, size=p.taps * p.ci // 2 * panel)
    text = half_dots.functions() + pack_text(replace(p, panel=panel), 0, behind=join)
    return _Weights(f"(const T *)(scratch + {size}LL)", size + size // 2, text, steps)


def last_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A problem of this form, neither empty nor without taps."""
    along = 2 if p.ys[2] == 1 or p.out[2] == 1 else 5
    stored = p.epilogue or identity_epilogue((p.n, p.groups, p.co, *p.out), p.dtype, p.ys)
    paired = p.pairs or pairs_refusal(p, isa) is None
    weights = _weights(p, panel_width(p.dtype, isa), paired=paired)
    p = p if p.panel else replace(p, panel=panel_width(p.dtype, isa))
    if not p.moves and matrix_last_refusal(p, stored, isa) is None and ON_UNIT.answer():
        draft = matrix_last_draft(name, p, stored, threads, weights=weights.at, scratch=weights.scratch)
    else:
        epilogue = Epilogue(stored, p.dtype, 2, along, 5 if along == 2 else -1)
        draft = _tiles_draft(name, p, epilogue, isa, threads, weights, paired=paired)
    return replace(draft, text=weights.text + draft.text, steps=(*weights.steps, *draft.steps))


def pairs_refusal(p: ConvolutionProblem, isa: Isa) -> Refusal | None:
    """Why the channels of a problem, whose weights are packed in every call or in pairs, are not multiplied two at a time.

    Twice the multiplications a second, for a copy of the image in pairs.
    """
    if not isa.dots or not p.halves:
        return Refusal("no numbers of bf16, or no instruction that multiplies pairs of them")
    if p.panel and not p.pairs:
        return Refusal("weights that are packed one by one")
    if p.groups != 1 or p.ci % 2 or p.xs[2] != 1:
        return Refusal("channels that are no pairs side by side")
    pays = channel_pairs_pay(p.taps * p.co, math.prod(p.stride))
    return None if pays else Refusal("a copy of the image in pairs takes longer")


def _tiles_draft(
    name: str, p: ConvolutionProblem, epilogue: Epilogue, isa: Isa, threads: int, weights: _Weights, *, paired: bool
) -> Draft:
    """The same with multiply-adds, over packed weights."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    whole = p
    if paired:
        p = replace(p, ci=p.ci // 2)
    lay = nhwc_layout(p, isa, threads, 2 if paired else 1)
    before, steps, image, scratch = "", [], "a0", weights.scratch
    copied = paired or _copied(p, lay, element)
    schedule = as_known(lambda: lay.schedule(p, width, ("x",) * copied + ("w",) * bool(weights.steps)))
    if copied:
        before, moved = border(whole, width, element, scratch, bordered=_bordered(p, lay), paired=paired)
        if paired and not weights.text:
            before = half_dots.functions() + before
        steps.append(TileStep(p.n * moved.inp[0] * moved.inp[1], "border"))
        image, scratch = f"(const T *)(scratch + {scratch}LL)", scratch + p.n * moved.xs[0] * element
        p = moved
    kinds = _kinds(p, lay.wide)
    tiles = "".join(
        tile_text(f"tile{i}", p, kind, epilogue, width, vectors=lay.vectors, blocks=lay.blocks, blocked=lay.inputs.parts > 1)
        for i, kind in enumerate(dict.fromkeys(kinds))
    )  # fmt: skip
    near = decide("ahead", [NEAR, *FARTHER]) // element
    sweep = text_of.sweep(
        _images_ahead(p), panel=p.panel, per_panel=p.panel // width, panel_step=p.taps * p.ci * p.panel, near=near,
        pixel=p.stride[2] * p.xs[5], rest=text_of.rest() if in_chains(p) else "",
        multiply="acc[i][v] = dot(acc[i][v], s, b[v])" if paired else "acc[i][v] += s * b[v]",
    )  # fmt: skip
    planes, waiting = _planes_text(lay, epilogue, width)
    jobs = lay.parts * lay.shares
    partial = most(lay.partial) * width
    partials = "T *partials = nullptr;"
    if partial * element > STACK_BYTES:
        partials = f"T *partials = (T *)(scratch + {scratch}LL + j * {partial * element}LL);"
        scratch += jobs * partial * element
    elif partial:
        partials = f"alignas(64) T partials[{partial}];"
    own = "own(operands, j)" if epilogue.sums else "operands"
    region = _region_text(p, lay, kinds, width, near, waiting)
    run = _run_text(p, lay, width, own=own, image=image, weights=weights.at, partials=partials)
    text = "".join([before, sweep, planes[0], tiles, planes[1], region, run])
    sums = bool(epilogue.sums) and epilogue.vector == 2
    steps.append(TileStep(jobs, "run"))
    return Draft(name, p.dtype, text, tuple(steps), scratch, epilogue=epilogue, sums=sums, schedule=schedule)


def _region_text(
    p: ConvolutionProblem, lay: NhwcLayout, kinds: list[Kind], width: int, near: int, waiting: dict[str, str]
) -> str:
    """C++ that runs the tiles of a region."""
    per_plane = lay.rows.parts * lay.columns.parts
    tiles = dispatch(kinds)
    if isinstance(lay.wide, Runs):
        tiles = dispatch_rest(kinds, p.out[2], p.stride[2] * p.xs[5], width if lay.partial else 0)
    return text_of.region(
        waiting, column_blocks=lay.columns.parts, row_blocks=lay.rows.parts, per_plane=per_plane,
        per_image=per_plane * p.out[0], od=p.out[0], sd=p.stride[0], bd=p.base[0], dd=p.dil[0], kd=p.ker[0], id=p.inp[0],
        tile_start=lay.columns.start("cb"), tile_next=f"({lay.columns.start('cb + 1')})", row_start=lay.rows.start("rb"),
        row_next=f"({lay.rows.start('rb + 1')})", sh=p.stride[1], bh=p.base[1], dh=p.dil[1], kh=p.ker[1], ih=p.inp[1],
        xn=p.xs[0], xd=p.xs[3], xh=p.xs[4], xw=p.xs[5], bw=p.base[2], partial=lay.wide.size * width if lay.partial else 0,
        column=lay.wide.start("t"), pixel=p.stride[2] * p.xs[5], tiles=tiles, near=near,
    )  # fmt: skip


def _run_text(
    p: ConvolutionProblem, lay: NhwcLayout, width: int, *, own: str, image: str, weights: str, partials: str
) -> str:
    """C++ of a job: groups of vectors over its regions."""
    total, tile_size = ceil_div(p.co, width), lay.wide.size * width
    step = p.taps * p.ci * p.panel
    where = f"partials + (k - s) * {lay.rows.size * lay.columns.size * tile_size} * NV" if lay.partial else "nullptr"
    call = f"region<NV>(q, a + g * {p.xs[1]}LL, w, {where}, k, number);"
    calls, tail = call.replace("NV", str(lay.vectors)), total % lay.vectors
    if tail:
        calls = f"if (v + {lay.vectors} <= {total}) {calls} else {call.replace('NV', str(tail))}"
    rest = text_of.rest_place(size=tile_size * lay.vectors) if in_chains(p) else ""
    return text_of.run(
        own=own, rest=rest, parts=lay.parts, blocks=p.groups * lay.blocks,
        regions=p.n * p.out[0] * lay.rows.parts * lay.columns.parts, shares=lay.shares, image=image,
        weights=weights, partials=partials, together=lay.together, panel=p.panel, per_group=lay.blocks, vectors=lay.vectors,
        group=panels(p.co, p.panel) * step, co=p.co, in_blocks=lay.inputs.parts,
        in_start=f"({lay.inputs.start('i')}) * {lay.unit}",
        in_next=f"({lay.inputs.start('i + 1')}) * {lay.unit}", regions_calls=calls,
    )  # fmt: skip


def _planes_text(lay: NhwcLayout, epilogue: Epilogue, width: int) -> tuple[tuple[str, str], dict[str, str]]:
    """C++ before and after the tiles, and parts of a region, where results lie in planes: tiles of a row wait for each other."""
    if epilogue.vector != 5:
        return ("", ""), {"rows": "", "from": "", "flush": ""}
    tiles = max(1, WAITING // lay.wide.size)
    lines = ceil_div(tiles * lay.wide.size + width, width)
    flush = text_of.flush_tiles(tiles=tiles, end=f"({lay.wide.start('(t + 1)')})")
    parts = {"rows": text_of.flush_rows(), "from": text_of.flush_from(tiles=tiles), "flush": flush}
    return (text_of.planes(pitch=(lines | 1) * width), text_of.flush()), parts


def _images_ahead(p: ConvolutionProblem) -> dict[str, str]:
    """C++ that asks for the next tile's pixels, one line a step: rows that no other row of results reads come from afar."""
    if usual(p.out[1]) > 1 or p.ker[1] == 1:
        return {"start": "", "next": ""}
    pixel = p.stride[2] * p.xs[5]
    step = (
        f"__builtin_prefetch(x + turn, 0, 2); turn = turn < (2 * TC - 1) * {pixel}LL ? turn + {pixel} : TC * {pixel}LL;"
    )
    return {"start": f"L turn = TC * {pixel}LL;", "next": step}


def _kinds(p: ConvolutionProblem, wide: Split | Runs) -> list[Kind]:
    """The code of every tile of a row; of one whose length moves, of every size of tiles."""
    if isinstance(wide, Runs):
        return rest_kinds(p, wide.size)
    found, first = [], 0
    for t in range(wide.parts):
        pixels = wide.size if t < wide.larger else wide.size - 1
        found.append(Kind(pixels, reach(p, first, pixels)))
        first += pixels
    return found


def inside(p: ConvolutionProblem) -> bool:
    """Whether all taps of a row of the kernel lie in the image, whatever the sizes."""
    last = (p.out[2] - 1) * p.stride[2] + p.base[2] + (p.ker[2] - 1) * p.dil[2]
    return p.base[2] >= 0 and least(p.inp[2] - 1 - last) >= 0


def _bordered(p: ConvolutionProblem, lay: NhwcLayout) -> bool:
    """Whether a copy has a border: many kinds of tiles, few channels, or tiles that move along a row and have all taps."""
    if isinstance(lay.wide, Runs):
        return not inside(p)
    return p.xs[2] != 1 or len(set(_kinds(p, lay.wide))) > MOST_KINDS


def _copied(p: ConvolutionProblem, lay: NhwcLayout, element: int) -> bool:
    if isinstance(lay.wide, Runs) and not inside(p):
        return True
    many = isinstance(lay.wide, Split) and len(set(_kinds(p, lay.wide))) > MOST_KINDS
    if (p.xs[2] != 1 and p.groups * p.ci > 1) or many:
        return True
    step = usual(p.stride[2] * p.xs[5] * element)
    return step % 4096 == 0 and step != 0 and lay.wide.size > 8 and p.groups * lay.blocks * p.taps > 4


def border(
    p: ConvolutionProblem, width: int, element: int, at: int, *, bordered: bool, paired: bool = False
) -> tuple[str, ConvolutionProblem]:
    """The copy, and the problem over it; ``paired``: of one group's channels, two in an element."""
    low, high = (0, 0, 0), (0, 0, 0)
    if bordered:
        reach = [
            (o - 1) * s + b + (k - 1) * d + 1
            for o, s, b, k, d in zip(p.out, p.stride, p.base, p.ker, p.dil, strict=True)
        ]
        low = tuple(max(0, -b) for b in p.base)  # type: ignore[assignment]
        high = tuple(max(0, most(r - i)) for r, i in zip(reach, p.inp, strict=True))  # type: ignore[assignment]
    channels = p.ci // 2 if paired else p.groups * p.ci
    few = channels <= 4 and not paired
    line = 64 // element
    pitch = channels if few else (round_up(channels, line) // line | 1) * line
    d, h, w = (a + i + b for a, i, b in zip(low, p.inp, high, strict=True))
    row = w * pitch
    if paired and p.xs[2] != 1:
        copy = text_of.copy_pairs_of_planes if p.xs[5] == 1 else text_of.copy_pairs_apart
    elif paired:
        copy = text_of.copy_pairs
    elif p.xs[2] == 1 and not few:
        copy = text_of.copy_channels
    else:
        copy = text_of.copy_planes if p.xs[5] == 1 and not few else text_of.copy_few
    body = copy({"iw": p.inp[2], "channels": channels, "pitch": pitch, "xw": p.xs[5], "xc": p.xs[2]})
    text = text_of.border(
        image_at=at, row=row, height=h, depth=d, top=low[1], front=low[0], left=low[2], ih=p.inp[1],
        id=p.inp[0], iw=p.inp[2], pitch=pitch, xn=p.xs[0], xd=p.xs[3], xh=p.xs[4], copy=body,
    )  # fmt: skip
    base = (p.base[0] + low[0], p.base[1] + low[1], p.base[2] + low[2])
    ci = channels // p.groups
    return text, replace(p, ci=ci, inp=(d, h, w), base=base, xs=(d * h * row, ci, 1, h * row, row, pitch))


def pack_text(p: ConvolutionProblem, at: int, *, operands: bool = True, behind: str = "") -> str:
    """The packing of one call, ``panels`` jobs a group, into scratch at ``at``; a step of a kernel with an epilogue has ``operands``.

    ``behind``: what a job does with its panel, which ends before ``d``.
    """
    _, kh, kw = p.ker
    _, wo, wi, wd, wh, ww = p.ws
    offset = f"tap / {kh * kw} * {wd}LL + tap / {kw} % {kh} * {wh}LL + tap % {kw} * {ww}LL"
    dense = all(
        s == step or n == 1 for n, s, step in zip((p.ci, *p.ker), p.ws[2:], (p.taps, kh * kw, kw, 1), strict=True)
    )
    turned = all(s == -step or n == 1 for n, s, step in zip(p.ker, p.ws[3:], (kh * kw, kw, 1), strict=True))
    otherwise = text_of.pack_outputs if wo < wi else text_of.pack_any
    if turned and 0 < p.w0 == p.taps - 1 and wo < wi:
        otherwise = text_of.pack_turned
    loops = text_of.pack_runs if dense else text_of.pack_inputs if wi == 1 else otherwise
    values = {"panel": p.panel, "taps": p.taps, "ci": p.ci, "wo": wo, "wi": wi}
    count = panels(p.co, p.panel)
    return text_of.pack(
        panels=count, source=f"a1 + {p.w0}LL" if p.w0 else "a1", wg=p.ws[0],
        at=at, panel_step=p.taps * p.ci * p.panel, co=p.co, panel=p.panel, wo=wo,
        parameter=", const Operands &" if operands else "", loops=loops({**values, "offset": offset}),
        behind=behind,
    )  # fmt: skip


# ---------------------------------------------------------------------- methods
def _short_rows_refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    """Results in short rows apart from each other, as of a strided convolution's data gradient, would each pack B again as products."""
    refused = rows_refusal(p)
    if refused is not None or isa.vectors == "avx512":
        return refused or Refusal("products pack so few rows as fast")
    if p.moves or p.out[1] == 1 or p.ys[4] == p.out[2] * p.ys[5] or p.out[2] > SHORT_ROWS:
        return Refusal("long rows of results, or rows without gaps between them")
    if p.epilogue is not None or p.panel or min(p.ci, p.co) == 1:
        return Refusal("an epilogue, packed weights or one channel")
    return None


NHWC = Method("nhwc", last_draft, refusal=_refusal)
NHWC_SHORT_ROWS = Method("nhwc", last_draft, refusal=_short_rows_refusal)
