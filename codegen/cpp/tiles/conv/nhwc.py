"""Dense convolutions in channels-last with packed weights: tiles of neighbouring pixels by vectors of output channels, in place.

A tile sums over all taps and inputs in registers and stores through the epilogue. Taps that fall outside the image are left out: rows
of the kernel by the bounds of a loop, columns because a tile at an edge is a function of its own in which a tap's sweep covers only
the pixels that have it. So nothing is copied and no zero is multiplied. Images that are not channels-last are first copied, with
their border, as are rows whose pixels share cache sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.matrix import matrix_last_draft, matrix_last_refusal
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
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, usual_problem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Runs, Split, TileStep, ceil_div, lanes, round_up
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.method import ON_UNIT, Method
from dcir.codegen.symbolic import least, most, moves, usual
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.packing import panel_width, panels

text_of = templates("conv/nhwc")

# Pixels; of fewer, tiles of convolutions with packed weights are faster than products row by row: data gradients of 1x1 kernels with
# strides on Zen 3, 1024 -> 2048 at 14 x 14 52 -> 24 ms (8 images, one core), 256 -> 512 at 56 x 56 30 -> 20.
SHORT_ROWS = 32
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay
WEIGHT_BYTES = 512 << 10  # of the weights of a block of vectors: they stay in the second-level cache while it runs
IMAGE_BYTES = 400 << 10  # of the image that several blocks of weights pass over
PARTIAL_BYTES = 192 << 10
STACK_BYTES = 256 << 10
# AVX2, in cycles of Zen 3: a tile of all registers (7 pixels by 2 vectors) against one of 6, and a vector of weights that comes from the
# second-level cache; 8 images of 64 channels at 56 x 56 79 -> 90 GFLOP/s a core, 128 at 28 x 28 82 -> 91, at 7 x 7 tiles of 7 stay.
AGAIN, STREAMED, NEAREST = 1.16, 2.75, 24 << 10
MOST_KINDS = 4  # of tiles in a row
NEAR, FARTHER = 1024, (4096, 16384)  # bytes fetched ahead in a panel
MOST_LAYOUTS = 6
L3_BYTES = 16  # a cycle
REGION_PIXELS = 96  # of a region of rows, where images are of any size
LONG = 1680  # pixels of a row that tiles of any size divide: what is left over is not counted against one
WAITING = 128  # pixels of a row that are stored together where results lie in planes


@dataclass(frozen=True)
class NhwcLayout:
    """How a problem is divided.

    Attributes:
        wide: pixels of a row in tiles.
        vectors: vectors of output channels in a tile; what a group leaves over is a smaller tile.
        blocks: of vectors in a group.
        inputs, unit: input channels in blocks, in units of so many: a block begins where a cache line does.
        rows, columns: rows and tiles of a row in regions.
        parts, shares: jobs along the blocks of all groups, and along the regions.
        together: regions that a block of weights passes over before the next one.
    """

    wide: Split | Runs
    vectors: int
    blocks: int
    inputs: Split
    unit: int
    rows: Split | Runs
    columns: Split | Runs
    parts: int
    shares: int
    together: int

    @property
    def partial(self) -> int:
        """Vectors of sums of a job that wait for the next block of input channels."""
        if self.inputs.parts == 1:
            return 0
        return self.together * self.rows.size * self.columns.size * self.wide.size * self.vectors


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.bias or p.family or p.y0 or p.w0:
        return Refusal("a bias that is not the epilogue's, or a part of a result")
    if p.panel:
        return Refusal("panels of another width") if p.panel % lanes(isa, p.dtype) else None
    if p.epilogue is None or p.xs[2] != 1 or p.ys[2] != 1:
        return Refusal(
            "weights that are packed in every call, of images that are not in channels-last or without an epilogue"
        )
    return Refusal("one channel") if p.ci == 1 or p.co == 1 else None


@dataclass(frozen=True)
class _Weights:
    """Where packed weights lie: in C++, bytes of scratch that they take, and what packs them, if they come as they are."""

    at: str = "a1"
    scratch: int = 0
    text: str = ""
    steps: tuple[TileStep, ...] = ()


def _weights(p: ConvolutionProblem, panel: int) -> _Weights:
    if p.panel:
        return _Weights()
    count = p.groups * panels(p.co, panel)
    size = count * p.taps * p.ci * panel * ELEMENT_BYTES[p.dtype]
    return _Weights("(const T *)scratch", size, pack_text(replace(p, panel=panel), 0), (TileStep(count, "pack"),))


def last_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A problem of this form, neither empty nor without taps."""
    along = 2 if p.ys[2] == 1 or p.out[2] == 1 else 5
    stored = p.epilogue or identity_epilogue((p.n, p.groups, p.co, *p.out), p.dtype, p.ys)
    weights = _weights(p, panel_width(p.dtype, isa))
    p = p if p.panel else replace(p, panel=panel_width(p.dtype, isa))
    if not p.moves and matrix_last_refusal(p, stored, isa) is None and ON_UNIT.answer():
        draft = matrix_last_draft(name, p, stored, threads, weights=weights.at, scratch=weights.scratch)
    else:
        epilogue = Epilogue(stored, p.dtype, 2, along, 5 if along == 2 else -1)
        draft = _tiles_draft(name, p, epilogue, isa, threads, weights)
    return replace(draft, text=weights.text + draft.text, steps=(*weights.steps, *draft.steps))


def _tiles_draft(
    name: str, p: ConvolutionProblem, epilogue: Epilogue, isa: Isa, threads: int, weights: _Weights
) -> Draft:
    """The same with multiply-adds, over packed weights."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    lay = _layout(p, isa, threads)
    before, steps, image, scratch = "", [], "a0", weights.scratch
    if _copied(p, lay, element):
        before, moved = border(p, width, element, scratch, bordered=_bordered(p, lay))
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
    return Draft(name, p.dtype, text, (*steps, TileStep(jobs, "run")), scratch, epilogue=epilogue, sums=sums)


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


# ---------------------------------------------------------------------- layout
def _tile(p: ConvolutionProblem, isa: Isa) -> tuple[Split, int]:
    """Pixels in tiles and vectors of a tile: what needs the fewest cycles."""
    width, registers, wide_set = lanes(isa, p.dtype), isa.registers, isa.vectors == "avx512"
    total, per_panel = ceil_div(p.co, width), p.panel // width
    found = []
    for nv in (1, 2, 4):
        full = min(16 if nv > 1 else 24, (registers - nv) // nv if nv > 1 else registers - 3)
        for longest in (full,) if wide_set or nv == 1 else (full, full - 1):
            if nv > total or longest < 1 or (nv % per_panel and per_panel % nv):
                continue
            wide = Split.at_most(p.out[2], longest)
            pixels, cycles = p.out[2] / wide.parts, 0.0
            # Only AVX-512 multiplies with a number in memory: without it a tile of all registers loads vectors of weights again.
            again = 1.0 if wide_set or nv * (longest + 1) < registers else AGAIN
            streamed = (
                0.0 if wide_set or p.taps * p.ci * nv * width * ELEMENT_BYTES[p.dtype] <= NEAREST else STREAMED * nv
            )
            for v, times in ((nv, total // nv), (total % nv, 1)):
                if v:
                    step = max(pixels * v / 2 * again, 4.0, (pixels + v) / 2 * 1.05, streamed * v / nv)
                    cycles += times * (step + 0.02 * v)
            found.append((cycles * wide.parts, nv, wide))
    found.sort(key=lambda f: f[:2])
    size, nv = decide("tile", [(wide.size, nv) for _, nv, wide in found])
    return next(wide for _, v, wide in found if (wide.size, v) == (size, nv)), nv


def _input_blocks(p: ConvolutionProblem, per_block: int, element: int) -> tuple[Split, int]:
    """Input channels in blocks, in units of so many, where a block of vectors has weights of so many bytes."""
    unit = next(u for u in (64 // element, 1) if p.ci % u == 0)
    if per_block > WEIGHT_BYTES:
        return Split.at_most(p.ci // unit, max(1, p.ci // unit * WEIGHT_BYTES // per_block)), unit
    return Split(p.ci // unit, 1), unit


def _moving_layout(p: ConvolutionProblem, isa: Isa, threads: int) -> NhwcLayout:
    """The division of images of any size: regions of some rows, which are many in all but the smallest of them.

    Threads share the vectors of channels, which are the same number for every image, where weights are what is read most, and else
    the regions.
    """
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    usually = usual_problem(p)
    rows_long, n = usually.out[2], usually.n * usually.out[0]
    wide, nv = _tile(replace(usually, out=(usually.out[0], usually.out[1], LONG)) if moves(p.out[2]) else usually, isa)
    tiles: Split | Runs = Runs(p.out[2], wide.size) if moves(p.out[2]) else wide
    blocks = ceil_div(ceil_div(p.co, width), nv)
    per_block = p.taps * p.ci * nv * width * element
    inputs, unit = _input_blocks(p, per_block, element)
    rows: Split | Runs = Split(1, 1)
    columns: Split | Runs = Split(tiles.parts, 1)
    if not moves(p.out[1]) and p.out[1] == 1:
        columns = Runs(tiles.parts, max(1, REGION_PIXELS // wide.size))
        pixels = min(rows_long, columns.size * wide.size)
    else:
        rows = Runs(p.out[1], max(1, REGION_PIXELS // rows_long))
        pixels = rows.size * rows_long
    region = pixels * p.stride[1] * p.stride[2] * p.ci * element
    image = n * math.prod(usually.inp) * p.ci * p.groups * element
    threads = 1 if p.work < SERIAL_WORK else threads
    by_channels = p.groups * blocks % threads == 0 and 2 * p.groups * blocks * per_block > image
    parts, shares = (threads, 1) if by_channels else (1, threads)
    together = max(1, IMAGE_BYTES // region)
    if inputs.parts > 1:
        partial = rows.size * most(columns.size) * wide.size * nv * width * element
        together = max(1, min(together, PARTIAL_BYTES // partial))
    return NhwcLayout(tiles, nv, blocks, inputs, unit, rows, columns, parts, shares, together)


def _layout(p: ConvolutionProblem, isa: Isa, threads: int) -> NhwcLayout:
    if p.moves:
        return _moving_layout(p, isa, threads)
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    wide, nv = _tile(p, isa)
    blocks = ceil_div(ceil_div(p.co, width), nv)
    threads = 1 if p.work < SERIAL_WORK else threads
    per_block = p.taps * p.ci * nv * width * element
    inputs, unit = _input_blocks(p, per_block, element)
    found: list[tuple[float, NhwcLayout]] = []
    long = p.out[1] == 1
    extent = wide.parts if long else p.out[1]
    for parts in range(1, min(p.groups * blocks, threads) + 1):
        for size in sorted({ceil_div(extent, k) for k in range(1, min(extent, 32) + 1)}):
            split = Split.at_most(extent, size)
            rows, columns = (Split(1, 1), split) if long else (split, Split(wide.parts, 1))
            regions = p.n * p.out[0] * split.parts
            shares = min(max(1, threads // parts), regions)
            mine, blocks_mine = ceil_div(regions, shares), ceil_div(p.groups * blocks, parts)
            pixels = rows.size * min(p.out[2], columns.size * wide.size)
            compute = mine * pixels * blocks_mine * nv * p.taps * p.ci / 2
            region = pixels * p.stride[1] * p.stride[2] * p.ci * element
            weights, image = blocks_mine * per_block, mine * region
            partial = pixels * nv * width * element if inputs.parts > 1 else 0
            longest = max(1, min(mine, PARTIAL_BYTES // partial)) if partial else mine
            for together in sorted({1, longest, max(1, min(longest, IMAGE_BYTES // region))}):
                passes = ceil_div(mine, together)
                again = blocks_mine if together * region > IMAGE_BYTES else 1
                held = weights <= WEIGHT_BYTES
                moved = image * again + weights * (1 if held else passes) * (2 if weights > 16 << 20 else 1)
                cost = compute + moved / L3_BYTES + 60 * mine * blocks_mine * inputs.parts
                found.append((cost, NhwcLayout(wide, nv, blocks, inputs, unit, rows, columns, parts, shares, together)))
    found.sort(key=lambda f: f[0])
    named: dict[tuple[int, ...], NhwcLayout] = {}
    for _, lay in found:
        named.setdefault((lay.rows.size, lay.columns.size, lay.parts, lay.together), lay)
    return named[decide("layout", list(named)[:MOST_LAYOUTS])]


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
    p: ConvolutionProblem, width: int, element: int, at: int, *, bordered: bool
) -> tuple[str, ConvolutionProblem]:
    """The copy, and the problem over it."""
    low, high = (0, 0, 0), (0, 0, 0)
    if bordered:
        reach = [
            (o - 1) * s + b + (k - 1) * d + 1
            for o, s, b, k, d in zip(p.out, p.stride, p.base, p.ker, p.dil, strict=True)
        ]
        low = tuple(max(0, -b) for b in p.base)  # type: ignore[assignment]
        high = tuple(max(0, most(r - i)) for r, i in zip(reach, p.inp, strict=True))  # type: ignore[assignment]
    channels = p.groups * p.ci
    few = channels <= 4
    line = 64 // element
    pitch = channels if few else (round_up(channels, line) // line | 1) * line
    d, h, w = (a + i + b for a, i, b in zip(low, p.inp, high, strict=True))
    row = w * pitch
    if p.xs[2] == 1 and not few:
        copy = text_of.copy_channels
    else:
        copy = text_of.copy_planes if p.xs[5] == 1 and not few else text_of.copy_few
    body = copy({"iw": p.inp[2], "channels": channels, "pitch": pitch, "xw": p.xs[5], "xc": p.xs[2]})
    text = text_of.border(
        image_at=at, row=row, height=h, depth=d, top=low[1], front=low[0], left=low[2], ih=p.inp[1],
        id=p.inp[0], iw=p.inp[2], pitch=pitch, xn=p.xs[0], xd=p.xs[3], xh=p.xs[4], copy=body,
    )  # fmt: skip
    base = (p.base[0] + low[0], p.base[1] + low[1], p.base[2] + low[2])
    return text, replace(p, inp=(d, h, w), base=base, xs=(d * h * row, p.ci, 1, h * row, row, pitch))


def pack_text(p: ConvolutionProblem, at: int, *, operands: bool = True) -> str:
    """The packing of one call, ``panels`` jobs a group, into scratch at ``at``; a step of a kernel with an epilogue has ``operands``."""
    _, kh, kw = p.ker
    _, wo, wi, wd, wh, ww = p.ws
    offset = f"tap / {kh * kw} * {wd}LL + tap / {kw} % {kh} * {wh}LL + tap % {kw} * {ww}LL"
    dense = all(
        s == step or n == 1 for n, s, step in zip((p.ci, *p.ker), p.ws[2:], (p.taps, kh * kw, kw, 1), strict=True)
    )
    otherwise = text_of.pack_outputs if wo < wi else text_of.pack_any
    loops = text_of.pack_runs if dense else text_of.pack_inputs if wi == 1 else otherwise
    values = {"panel": p.panel, "taps": p.taps, "ci": p.ci, "wo": wo, "wi": wi}
    count = panels(p.co, p.panel)
    return text_of.pack(
        panels=count, wg=p.ws[0], at=at, panel_step=p.taps * p.ci * p.panel, co=p.co, panel=p.panel, wo=wo,
        parameter=", const Operands &" if operands else "", loops=loops({**values, "offset": offset}),
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
