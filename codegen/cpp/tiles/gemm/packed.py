"""Products with packed B: register tiles that stream B from its panels and keep their sums in registers over all of k.

A job takes rows of A in blocks that stay in the second-level cache, and passes every panel over all tiles of the block. Rows of A
are read in place; where they share cache sets they are copied, where k is not contiguous they are packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dcir.codegen.choices import decide
from dcir.codegen.cpp.scalar_ops import cast_expr
from dcir.codegen.cpp.tiles import half_dots
from dcir.codegen.cpp.tiles.emit import (
    ELEMENT_BYTES,
    EPILOGUE_PARAMETER,
    Draft,
    Split,
    TileStep,
    ceil_div,
    lanes,
    render,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.gemm import packed_text as text_of
from dcir.codegen.cpp.tiles.gemm.ending import ending
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.tiles import choose
from dcir.codegen.cpp.tiles.halves import widening
from dcir.codegen.cpp.tiles.pack_text import pack_rows, pack_vectors
from dcir.ir.network import contiguous
from dcir.ir.statements import Load, Store
from dcir.isa import Isa, slow_to_fill
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pairs_of, panel_width, panels

ROWS_BYTES = 384 << 10  # of A in a block; with AVX2 and 512 KB of cache, of A and a panel: 788 x 768 x 3072 3 % faster
# With AVX2, an epilogue's operands are used up a panel's width at a time, so their rows should wait for the next panel in the second-level
# cache, where all panels have a place as well: 25088 x 256 x 64 with three operands read 24.7 -> 20.6 ms on one core of Zen 3, 15.5 ->
# 12.6 on two, 6272 x 512 x 128 18.7 -> 15.8; with one operand or with 64 columns the same as without.
NEAR_OPERANDS_BYTES = 128 << 10
NEAR_PANELS_BYTES = 256 << 10
OTHER_ROWS_BYTES = (192 << 10, 768 << 10, 96 << 10)
DEEPEST = 4096  # steps of k in one go; beyond them a tile of A leaves the second-level cache
OTHER_DEPTHS = (1024, 512, 2048)
# With AVX2, where a panel and two tiles of rows are more than a block may have (from 3,500 steps on), so that each tile would fetch every
# panel anew. GFLOP/s of one core of Zen 3: 256 x 768 x 32000 43 -> 77, 512 x 768 x 8192 65 -> 83, 256 x 4096 x 4096 80 -> 83.
DEEP_NEAR = 1024
# Steps of k in which a panel stays in the first-level cache for all tiles of a block. Without it AVX2's tiles, which use a panel up in half
# the time, come to 170 of 208 GFLOP/s on two cores of Zen 3, with it to 190 (512 x 768 x 768 and 49 x 512 x 2048).
SWEEPS = (256, 384, 192)
SHORT_SWEEPS = 1024  # steps up to which a panel passes packed rows in one go: 1 to 2 % faster (768 x 3072 x 788)
SUMMED = 256  # about so many steps are summed in one go: as exact as MKL, for 1 % of the time
SHORT = 256  # a product of fewer steps finishes its rows in registers; for others that is not worth compiling
# How far ahead a panel is fetched, in bytes, and how near. Weights of a large network come from memory in every call, and 128 steps
# of a tall tile are as long as that takes: 8 to 14 % faster than 8 steps at 128 rows, 40 % at 8; panels in a cache do not mind.
FETCHES = ((16384, 3), (4096, 3), (1024, 3), (32768, 3), (16384, 2))
# Where caches fill slowly, the distances that do for the first-level cache while the next panel is on its way to the second (below).
FETCHES_NEAR = ((4096, 3), (2048, 3), (16384, 3), (1024, 3))
ROWS_AHEAD = 2048  # bytes of packed rows, with AVX-512; AVX2's tiles were 1 to 5 % slower with it (768 x 3072 x 788)
FETCHES_SHORT = ((4096, 3), (1024, 3), (16384, 3))  # where 16 KB are half of the first-level cache: 160 -> 185 GFLOP/s
FETCHES_OF_ROWS = ((4096, 3), (16384, 3), (1024, 3))  # of one or two rows: loads are all that such a tile does
IN_PLACE, COPIED, PACKED = 0, 1, 2  # how rows of A are held for the panels of a job
FEW_PANELS = 3
MOST_GRIDS = 4
TOGETHER_PANELS, TOGETHER_STEPS = 4, 16  # packed side by side, so that memory is read in longer pieces
ROUNDED_STEPS = 64  # packed and then rounded: they are still in the first-level cache
LEAST_PANELS = 8  # per job, for which packing rows pays
LEAST_TILES = 3  # per block, over which the next panel is spread
LEAST_BYTES = 1 << 20  # of panels per job, for which they come from beyond the second-level cache
SERIAL_WORK = 1 << 16  # multiply-adds below which a second thread does not pay


@dataclass(frozen=True)
class Tiling:
    """How a packed product is tiled: rows by ``groups`` of units; a unit is ``vectors`` vectors of a panel."""

    rows: Split
    groups: Split
    vectors: int
    per_panel: int  # units in a panel
    narrow: bool  # the last panel holds columns for one vector only, and is computed as such


def tiling(
    m: int, n: int, panel: int, width: int, registers: int, threads: int,
    *, crowded: bool = False, widened: bool = False,
) -> Tiling:  # fmt: skip
    """The tile that keeps the multipliers busy: tall by one panel, or for few rows several panels at once.

    Rows that are ``crowded`` into a set of the first-level cache are fewer than its ways, if they are too soon used up to be copied.
    """
    count = panels(n, panel)
    vectors = min(panel // width, ceil_div(n, width)) if m <= 2 or n <= width else min(2, panel // width)
    while panel // width % vectors:
        vectors += 1
    per_panel = panel // (width * vectors)
    most = min(16, max(1, (registers - 1 - vectors) // vectors))
    rows = Split.at_most(m, most)
    # Tiles of one size are compiled once; a few rows less keep the multipliers as busy.
    even = next((size for size in range(most, most * 3 // 4, -1) if m % size == 0), 0)
    rows = Split(m, m // even) if even else rows
    units = ceil_div(n, vectors * width)
    together = 1
    if per_panel == 1 and crowded and count <= FEW_PANELS and rows.size > 8:
        together = min(2, count)
        rows = Split.at_most(m, min(8, (registers - 8) // (vectors * together)))
    elif per_panel == 1 and rows.parts == 1:
        together = max(1, min(count // threads, 8 // vectors, (registers - 8) // (vectors * rows.size)))
    chosen = (rows.size, vectors, together)
    others = _other_tiles(m, n, panel, width, registers)
    # The vectors of a panel that is widened come together.
    taken = decide("tile", [chosen, *(t for t in others if not widened or t[1] == vectors)])
    if taken != chosen:
        vectors, together = taken[1:]
        rows, units, per_panel = Split.at_most(m, taken[0]), ceil_div(n, vectors * width), panel // (width * vectors)
    narrow = per_panel == 1 and together == 1 and vectors == 2 and 0 < n % panel <= width and count <= 8
    return Tiling(rows, Split.at_most(units, together), vectors, per_panel, narrow)


def _other_tiles(m: int, n: int, panel: int, width: int, registers: int) -> list[tuple[int, ...]]:
    """Tiles of other sizes that keep the multipliers busy, (rows, vectors, panels together), the largest first."""
    found = []
    for vectors in (v for v in range(1, panel // width + 1) if panel // width % v == 0):
        for together in (1, 2) if vectors * width == panel else (1,):
            if together > panels(n, panel):
                continue
            wide = vectors * together
            most = min(24 if wide == 1 else 16, m, (registers - 1 - wide) // wide)
            sizes = {Split.at_most(m, size).size for size in range(max(1, most * 2 // 3), most + 1)}
            found += [(size, vectors, together) for size in sizes]
    # Loads per multiply-add decide, as long as there are enough sums to hide the latency.
    return sorted(found, key=lambda t: (t[0] * t[1] * t[2] < 8, (t[0] + t[1] * t[2]) / (t[0] * t[1] * t[2]), t))


def packed_draft(
    name: str, form: ProductForm, isa: Isa, threads: int, *, source: str = "a1 + pb", scratch: int = 0
) -> Draft:
    """The product of A and a packed B; ``source`` is where the panels lie, ``scratch`` how much is taken."""
    spec, dots = form.spec, form.spec.dots
    if dots:  # a pair of steps is as large as one of f32
        assert isa.dots, "panels of pairs are for the processor that multiplies them"
        spec = replace(spec, k=pairs_of(spec.k), b=tuple(s // 2 for s in spec.b), types=alike(spec.dtype))
        source = source.replace("a1", "(const T *)a1")
    width, element, kept = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype], ELEMENT_BYTES[spec.types.b]
    stored, widened = ("Stored", True) if spec.stored else ("T", False)
    source = source.replace("a1", "(const Stored *)a1") if widened else source
    am, ak = spec.a[-2], 1 if form.spec.k == 1 else spec.a[-1]
    crowded = not dots and ak == 1 and am * element % 4096 == 0 and am != 0
    tile = tiling(spec.m, spec.n, spec.panel, width, isa.registers, threads, crowded=crowded, widened=widened)
    rows, groups = tile.rows, tile.groups
    batch = math.prod(spec.batch)
    p, q = grid(spec, rows, groups, batch, threads)
    rows = Split(spec.m, min(spec.m, round_up(rows.parts, p)))
    wide = isa.vectors == "avx512"
    depths = [DEEPEST, *(d for d in OTHER_DEPTHS if 2 * d <= spec.k)]
    long = spec.k * (spec.panel * kept + 2 * rows.size * element) > ROWS_BYTES
    if not wide and long and ceil_div(rows.parts, p) >= LEAST_TILES:
        depths = [DEEP_NEAR, *(d for d in depths if d != DEEP_NEAR)]
    depth = Split.at_most(spec.k, decide("depth", depths))
    unit = tile.vectors * width
    packs, copies = ak != 1, crowded and rows.size > 8 and groups.parts > FEW_PANELS
    many = rows.size > 8 and groups.size == 1 and ceil_div(groups.parts, q) >= LEAST_PANELS
    if dots:  # rows become pairs as they are copied
        packs, copies = ak != 1, ak == 1
    elif ak == 1:
        usual = PACKED if many and slow_to_fill() else int(copies)
        held = decide("copy", [usual, *(c for c in (IN_PLACE, COPIED, PACKED) if c != usual)])
        packs, copies = held == PACKED, held == COPIED
    sweep = 0
    if depth.parts == 1:
        sweeps = [s for s in SWEEPS if s * 3 // 2 <= spec.k and rows.parts > p]
        short = packs and spec.k <= SHORT_SWEEPS
        sweep = decide("sweep", [0, *sweeps] if wide or short else [*sweeps[:1], 0, *sweeps[1:]])
    inner = Split.at_most(spec.k, sweep or max(1, spec.k))
    pitch = (round_up(depth.size, 64 // element) // (64 // element) | 1) * (64 // element)
    tall = rows.size * (pitch if copies else depth.size)
    room = ROWS_BYTES if wide else ROWS_BYTES - depth.size * spec.panel * kept
    if not wide and spec.n * spec.k * kept <= NEAR_PANELS_BYTES:
        room = min(room, NEAR_OPERANDS_BYTES // max(1, _row_operands(form) * spec.n * element) * depth.size * element)
    per_block = decide(
        "block",
        [max(1, min(ceil_div(rows.parts, p), b // max(1, tall * element))) for b in (room, *OTHER_ROWS_BYTES)],
    )
    blocked = depth.parts > 1
    # The next panel comes to the second-level cache while this one passes all tiles of the block, not when its first tile wants it.
    spread = (
        many and tile.per_panel == 1 and not blocked and per_block >= LEAST_TILES
        and spec.n * spec.k * kept >= LEAST_BYTES * q
    )  # fmt: skip
    if spread:
        spread = bool(decide("spread", [1, 0] if slow_to_fill() else [0, 1]))
    parted = blocked or inner.parts > 1
    body = form.epilogue is not None
    tail = spec.n % unit

    batch_names = [f"x{d}" for d in range(len(spec.batch))]
    end_of = ending(form, "(NP * NV)", tail, prefetched=not parted, unrolled=spec.k < SHORT)

    fetches: Sequence[tuple[int, int]] = FETCHES if wide else FETCHES_SHORT
    if spec.m <= 2:
        fetches = FETCHES_OF_ROWS
    elif many and slow_to_fill():
        fetches = FETCHES_NEAR
    ahead, into = decide("ahead", fetches)
    fetch = f"\n        __builtin_prefetch(a + {ROWS_AHEAD // element}, 0, 3);" if packs and wide else ""
    advance, following, next_arguments = "", "", ""
    if spread:
        fetch += "\n        __builtin_prefetch(next, 0, 2);"
        advance = ", next += pace"
        line = tile.vectors * width * kept
        following = f"""
            const L pace = ({line} + s1 - s0 - 1) / (s1 - s0), after = g + 1 < g1 ? g + 1 : g0;
            const char *next = (const char *)(b + {groups.start("after")} * {spec.k * spec.panel}LL + k0 * {spec.panel});"""
        next_arguments = ", next + (t - s0) * depth * pace, pace"
    steps = inner.size if depth.parts == 1 else depth.size
    parts = ceil_div(steps, SUMMED) if steps > SUMMED * 3 // 2 else 1
    end = f"depth * (part + 1) / {parts}" if parted else f"(part + 1) * {spec.k}LL / {parts}"
    start, add = (render(text_of.SUM_PARTS, parts=parts, end=end), text_of.ADD_PARTS) if parts > 1 else ("", "")
    text = widening(spec.stored, isa) if widened else ""
    text += half_dots.functions() if dots and not scratch else ""
    text += pack_rows("rows_of_a", am, ak) if packs else ""
    read = render(
        text_of.READ_WIDENED if widened else text_of.READ, stride=f"{spec.k * spec.panel}LL", bytes=element,
        ahead=ahead // kept, into=into,
    )  # fmt: skip
    text += render(
        text_of.TILE, held=stored, read=read, to=end_of.to,
        partial_parameters=", L depth, bool first, bool last, T *partial" if parted else "",
        prefetch=end_of.prefetch, start=start + "    clear(acc);", depth="end - begin" if parts > 1 else "depth" if parted else spec.k,
        ak="MR" if packs else "1", ai="1" if packs else f"{pitch if copies else am}LL", panel=spec.panel,
        fetch=fetch, advance=advance,
        next_parameters=", const char *next, L pace" if spread else "",
        stop=add + (text_of.PARTIAL_STOP if parted else "") + end_of.stop,
        multiply="acc[i][v] = dot(acc[i][v], s, bv[v])" if dots else "acc[i][v] += s * bv[v]",
    )  # fmt: skip
    partial = rows.size * groups.size * unit
    job_groups = ceil_div(groups.parts, q)
    more = ""
    if blocked:
        at = f"partials + ((g - g0) * {per_block} + t - s0) * {partial}LL"
        more = f", depth, kb == 0, kb == {depth.parts - 1}, {at}"
    elif inner.parts > 1:
        more = f", depth, kb == 0, kb == {inner.parts - 1}, partials + (t - s0) * {partial}LL"
    call = f"tile<#, $, {tile.vectors}>(ta, pb, {end_of.arguments}, {spec.n} - n{more}{next_arguments});"
    calls = choose(groups, "g", call)
    if tile.narrow:
        calls = (
            f"if (g == {groups.parts - 1}) {call.replace('$', '1').replace(f' {tile.vectors}>', ' 1>')} else {calls}"
        )
    row_calls = " else ".join(
        f"{f'if (t < {rows.larger}) ' if i + 1 < len(rows.sizes) else ''}{{ {calls.replace('#', str(size))} }}"
        for i, size in enumerate(rows.sizes)
    )
    buffer, fill, row_source = "", "", f"a + m * {am}LL + k0"
    if copies:
        fill = render(
            half_dots.COPY_ROWS if dots else text_of.COPY_ROWS,
            first_row=rows.start("m0"), end_row=rows.start("m1"), am=am, pitch=pitch, k=form.spec.k,
        )  # fmt: skip
        row_source = f"buffer + (m - {rows.start('s0')}) * {pitch}" + " + k0" * (inner.parts > 1)
        buffer = f"    alignas(64) T buffer[{per_block * rows.size * pitch}];"
    elif packs:
        pitch = rows.size * round_up(depth.size, width) + width
        few = TOGETHER_STEPS if am == 1 else ROUNDED_STEPS if dots else max(1, depth.size)
        fill = render(
            half_dots.PACK_ROWS if dots else text_of.PACK_ROWS,
            m_start=rows.start("t"), am=am, ak=ak, pitch=pitch, step=few, k=form.spec.k,
            pack_calls=choose(rows, "t", f"{'pairs' if dots else 'rows'}_of_a<$>(d + k * $, s, {'left' if dots else 'count'});"),
        )  # fmt: skip
        text += render(half_dots.ROWS, step=few) if dots else ""
        row_source = f"buffer + (t - s0) * {pitch}"
        if inner.parts > 1:
            row_source += f" + k0 * {_choose_size(rows, 't')}"
        buffer = f"    alignas(64) T buffer[{per_block * pitch}];"
    partials = round_up(per_block * job_groups * partial * element, 64) if blocked else 0
    if blocked:
        buffer += f"\n    T *partials = (T *)(scratch + {scratch}LL + j * {partials}LL);"
    elif inner.parts > 1:
        buffer += f"\n    alignas(64) T partials[{per_block * partial}];"
    start, end = f"const L k0 = 0, depth = {spec.k};", ""
    if blocked:
        start = f"for (L kb = 0; kb < {depth.parts}; kb++) {{ const L k0 = {depth.start('kb')}, depth = {depth.start('kb + 1')} - k0;"
        end = "}"
    if tile.per_panel == 1:
        offset = f"u * {spec.k * spec.panel}LL + k0 * {spec.panel}"
    else:
        offset = f"u / {tile.per_panel} * {spec.k * spec.panel}LL + u % {tile.per_panel} * {unit} + k0 * {spec.panel}"
    sweep_loop = ""
    if inner.parts > 1:
        first, next_one = inner.start("kb"), inner.start("kb + 1")
        sweep_loop = f"for (L kb = 0; kb < {inner.parts}; kb++) {{ const L k0 = {first}, depth = {next_one} - k0;"
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[: len(spec.batch)])}
    offsets = unravel(f"j / {p * q}", spec.batch, sums, batch_names if body else ())
    if not body:
        offsets = unravel(f"j / {p * q}", spec.batch, sums | {"pc": (0, spec.c[:-2])}) + "\n    T *c = o0 + pc;"
    text += render(
        text_of.PRODUCT, held=stored, parameter=EPILOGUE_PARAMETER.replace("&e", "&given" if end_of.sums else "&e") if body else "",
        own="const Operands e = own(given, j);" if end_of.sums else "", offsets=offsets, source=source, p=p, q=q,
        m_tiles=rows.parts, n_groups=groups.parts, per_block=per_block, buffer=buffer, k_loop=start, fill=fill,
        group_start=groups.start("g"), unit=unit, group_offset=offset, m_start=rows.start("t"), row_source=row_source,
        calls=row_calls, next=following, k_end=end, sweep=sweep_loop, sweep_end="}" if sweep_loop else "",
    )  # fmt: skip
    jobs = batch * p * q
    return Draft(
        name,
        spec.dtype,
        text,
        (TileStep(jobs, "product"),),
        scratch + jobs * partials,
        epilogue=end_of.epilogue,
        sums=end_of.sums,
    )


def packing_draft(name: str, form: ProductForm, isa: Isa, threads: int, product: Callable[..., Draft]) -> Draft:
    """A product whose B is put into panels, in scratch, by a phase of its own; ``product`` makes what follows."""
    spec = form.spec
    width, element = lanes(isa, spec.dtype), ELEMENT_BYTES[spec.dtype]
    panel = panel_width(spec.dtype, isa)
    bk, bn = 1 if spec.k == 1 else spec.b[-2], 1 if spec.n == 1 else spec.b[-1]
    groups = tuple(1 if s == 0 else d for d, s in zip(spec.batch, spec.b, strict=False))
    # Pairs of bf16 are counted as what is as large: numbers of f32.
    count, size = panels(spec.n, panel), (pairs_of(spec.k) if spec.dots else spec.k) * panel
    together = TOGETHER_PANELS if bn == 1 else 1
    jobs = ceil_div(count, together)
    step = TOGETHER_STEPS if together > 1 else max(1, spec.k)
    if spec.rounds or spec.dots:
        step = min(step, ROUNDED_STEPS) if not spec.dots or together > 1 else ROUNDED_STEPS
    rounding = ""
    if spec.rounds:
        value = cast_expr(cast_expr("d[i]", "f32", spec.rounds), spec.rounds, "f32")
        rounding = render(text_of.ROUNDED, panel=panel, value=value)
    text = (half_dots.functions() if spec.dots else "") + pack_vectors("panel_of_b", bn, bk)
    text += render(
        half_dots.PACK if spec.dots else text_of.PACK,
        parameter=EPILOGUE_PARAMETER.replace(" &e", " &") if form.epilogue is not None else "",
        offsets=unravel("group", groups, {"pb": (0, spec.b[: len(groups)])}), panels=count, panel=panel, jobs=jobs,
        together=together, step=step, rounded=rounding,
        vectors=panel // width, size=f"{size}LL", bk=bk, bn=bn, k=spec.k, n=spec.n,
    )  # fmt: skip
    unit = 2 if spec.dots else 1
    strides = tuple(0 if d == 1 else unit * s * count * size for d, s in zip(groups, contiguous(groups), strict=True))
    packed = replace(form, spec=replace(spec, b=(*strides, 0, 0), panel=panel, rounds=""))
    draft = product(
        name,
        packed,
        isa,
        threads,
        source="(const T *)scratch + pb",
        scratch=round_up(math.prod(groups) * count * size * element, 64),
    )
    return replace(draft, text=text + draft.text, steps=(TileStep(math.prod(groups) * jobs, "pack"), *draft.steps))


def _row_operands(form: ProductForm) -> int:
    """Operands of the epilogue, results included, that hold a number for every result of the product; 0 if it reads none."""
    body = () if form.epilogue is None else form.epilogue.body
    loads = {s.operand for s in body if isinstance(s, Load) and s.operand != 0 and s.strides[-2] and s.strides[-1]}
    stores = {s.operand for s in body if isinstance(s, Store) and s.strides[-2] and s.strides[-1]}
    return len(loads) + len(stores) if loads else 0


def _choose_size(split: Split, index: str) -> str:
    return f"({index} < {split.larger} ? {split.size} : {split.size - 1})" if len(split.sizes) == 2 else str(split.size)


def grid(spec: ContractionSpec, rows: Split, groups: Split, batch: int, threads: int) -> tuple[int, int]:
    """Jobs per batch element along m and n: even shares of the tiles, then few repeated reads."""
    if batch * spec.m * spec.n * spec.k < SERIAL_WORK or threads == 1 or batch % threads == 0:
        return 1, 1
    found = []
    for p in range(1, min(rows.parts, threads) + 1):
        for q in range(1, min(groups.parts, ceil_div(threads, p)) + 1):
            # Rows are dealt again in a multiple of p tiles, columns in whole groups.
            tall, wide = ceil_div(spec.m, p), ceil_div(groups.parts, q) * groups.size
            cycles = tall * wide * 1.0 + 3 * wide + 0.1 * tall * q
            total = ceil_div(batch * p * q, threads) * cycles * (1 + 0.001 * p * q)
            found.append((total, p, q))
    p, q = decide("grid", [(p, q) for total, p, q in sorted(found)[:MOST_GRIDS]])
    return p, q
