"""Products with packed B: register tiles that stream B from its panels and keep their sums in registers over all of k.

A job takes rows of A in blocks that stay in the second-level cache, and passes every panel over all tiles of the block. Rows of A
are read in place; where they share cache sets they are copied, where k is not contiguous they are packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.asked import as_known
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles import half_dots
from dcir.codegen.cpp.tiles.emit import (
    EPILOGUE_PARAMETER,
    Draft,
    Runs,
    Split,
    TileStep,
    ceil_div,
    round_up,
    unravel,
)
from dcir.codegen.cpp.tiles.gemm.ending import Ending, ending
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.packed_blocking import (
    Blocking,
    PackedProduct,
    Prefetching,
    blocking,
    packed_product,
    prefetching,
)
from dcir.codegen.cpp.tiles.gemm.tiles import by_heights, choose
from dcir.codegen.cpp.tiles.halves import widening
from dcir.codegen.cpp.tiles.method import Method
from dcir.codegen.cpp.tiles.pack_text import pack_rows
from dcir.codegen.symbolic import most, moves
from dcir.isa import Isa

half_dots_text = templates("half_dots")
text_of = templates("gemm/packed")

SUMMED = 256  # about so many steps are summed in one go: as exact as MKL, for 1 % of the time
SHORT = 256  # a product of fewer steps finishes its rows in registers; for others that is not worth compiling
ROWS_AHEAD = 2048  # bytes of packed rows, with AVX-512; AVX2's tiles were 1 to 5 % slower with it (768 x 3072 x 788)
TOGETHER_STEPS = 16  # packed side by side, so that memory is read in longer pieces
ROUNDED_STEPS = 64  # packed and then rounded: they are still in the first-level cache


def packed_draft(
    name: str, form: ProductForm, isa: Isa, threads: int, *, source: str = "a1 + pb", scratch: int = 0
) -> Draft:
    """The product of A and a packed B; ``source`` is where the panels lie, ``scratch`` how much is taken."""
    product = packed_product(form, isa)
    made = blocking(product, threads)
    ahead = prefetching(product, made)
    parted = made.blocked or made.swept
    unit = made.tile.vectors * product.width
    short = most(product.spec.k) < SHORT
    end_of = ending(form, "(NP * NV)", product.spec.n % unit, prefetched=not parted, unrolled=short)
    partials = _partials(product, made, unit, scratch)
    rows = _rows_text(product, made)
    text = widening(product.spec.stored, isa) if product.widened else ""
    text += half_dots.functions() if product.dots and not scratch else ""
    text += rows.functions + _tile_text(product, made, ahead, end_of) + rows.pairs
    text += _product_text(product, made, ahead, end_of, rows, partials, source)
    jobs = product.batch * made.p * made.q
    return Draft(
        name,
        product.spec.dtype,
        text,
        (TileStep(jobs, "product"),),
        scratch + jobs * partials.job_bytes,
        epilogue=end_of.epilogue,
        sums=end_of.sums,
        schedule=as_known(lambda: made.schedule(product)),
    )


@dataclass(frozen=True)
class _Partials:
    """Where sums wait for the next block or sweep of steps: C++ that declares it and that finds a tile's, and a job's bytes in scratch."""

    declared: str = ""
    argument: str = ""
    job_bytes: int = 0


def _partials(product: PackedProduct, made: Blocking, unit: int, scratch: int) -> _Partials:
    size = made.rows.size * made.groups.size * unit
    if made.blocked:
        groups = most(ceil_div(made.groups.parts, made.q))
        job_bytes = round_up(made.per_block * groups * size * product.element, 64)
        at = f"partials + ((g - g0) * {made.per_block} + t - s0) * {size}LL"
        argument = f", depth, kb == 0, kb == {made.depth.parts - 1}, {at}{_row_of_part(made, unit)}"
        return _Partials(f"\n    T *partials = (T *)(scratch + {scratch}LL + j * {job_bytes}LL);", argument, job_bytes)
    if made.swept:
        argument = (
            f", depth, kb == 0, kb == {made.inner.parts - 1}, partials + (t - s0) * {size}LL{_row_of_part(made, unit)}"
        )
        return _Partials(f"\n    alignas(64) T partials[{made.per_block * size}];", argument)
    return _Partials()


def _row_of_part(made: Blocking, unit: int) -> str:
    """C++ that is added to where the sums of part ``t`` wait, for a tile that begins at a later row."""
    rows = made.rows
    return f" + (m - {rows.start('t')}) * {made.groups.size * unit}" if isinstance(rows, Runs) else ""


@dataclass(frozen=True)
class _Rows:
    """C++ of a block's rows of A: functions, those that need the tile's, the buffer, what fills it, and where a tile's rows are."""

    source: str
    functions: str = ""
    pairs: str = ""
    buffer: str = ""
    fill: str = ""


def _rows_text(product: PackedProduct, made: Blocking) -> _Rows:
    rows, am, ak, dots, k = made.rows, product.am, product.ak, product.dots, product.form.spec.k
    if made.copies:
        fill = (half_dots_text.copy_rows if dots else text_of.copy_rows)(
            {"k": k}, first_row=rows.start("m0"), end_row=rows.start("m1"), am=am, pitch=made.pitch,
        )  # fmt: skip
        source = f"buffer + (m - {rows.start('s0')}) * {made.pitch}" + " + k0" * made.swept
        return _Rows(source, buffer=f"    alignas(64) T buffer[{made.per_block * rows.size * made.pitch}];", fill=fill)
    if not made.packs:
        return _Rows(f"a + m * {am}LL + k0")
    few = TOGETHER_STEPS if am == 1 else ROUNDED_STEPS if dots else max(1, made.depth.size)
    pack = f"{'pairs' if dots else 'rows'}_of_a<$>(d + k * $, s, {'left' if dots else 'count'});"
    calls = _packs_of_runs(rows, am, made.pitch) if isinstance(rows, Runs) else choose(rows, "t", pack)
    fill = (half_dots_text.pack_rows if dots else text_of.pack_rows)(
        {"k": k}, m_start=rows.start("t"), am=am, ak=ak, pitch=made.pitch, step=few, pack_calls=calls,
    )  # fmt: skip
    source = f"buffer + (t - s0) * {made.pitch}"
    if isinstance(rows, Runs):
        source += f" + (m - {rows.start('t')}) * {made.pitch // rows.size}"
    elif made.swept:
        size = f"(t < {rows.larger} ? {rows.size} : {rows.size - 1})" if len(rows.sizes) == 2 else str(rows.size)
        source += f" + k0 * {size}"
    return _Rows(
        source,
        pack_rows("rows_of_a", am, ak),
        half_dots_text.rows(step=few) if dots else "",
        f"    alignas(64) T buffer[{made.per_block * made.pitch}];",
        fill,
    )


def _packs_of_runs(rows: Runs, am: int, pitch: int) -> str:
    """C++ that packs the rows of part ``t``, which at the end are those of several shorter tiles."""
    whole = f"rows_of_a<{rows.size}>(d + k * {rows.size}, s, count);"
    calls = by_heights(rows.size, lambda h: f"rows_of_a<{h}>(to + k * {h}, from, count);", "next_m")
    rest = text_of.pack_rest(total=rows.total, am=am, each=pitch // rows.size, calls=calls) if calls else ""
    return f"if (m + {rows.size} <= {rows.total}) {whole}{rest}"


def _tile_text(product: PackedProduct, made: Blocking, ahead: Prefetching, end_of: Ending) -> str:
    spec, parted = product.spec, made.blocked or made.swept
    steps = made.depth.size if made.blocked else made.inner.size
    parts: int | str = ceil_div(steps, SUMMED) if steps > SUMMED * 3 // 2 else 1
    start, add = "", ""
    if parts != 1:
        if moves(spec.k):  # of few steps there are fewer
            parts = f"(({'depth' if parted else spec.k} + {SUMMED - 1}) / {SUMMED})"
        end = f"depth * (part + 1) / {parts}" if parted else f"(part + 1) * {spec.k}LL / {parts}"
        start, add = text_of.sum_parts(parts=parts, end=end), text_of.add_parts()
    fetch = ""
    if made.packs and product.wide:
        fetch = f"\n        __builtin_prefetch(a + {ROWS_AHEAD // product.element}, 0, 3);"
    if ahead.spread:
        fetch += "\n        __builtin_prefetch(next, 0, 2);"
    read = (text_of.read_widened if product.widened else text_of.read)(
        {"bytes": product.element}, stride=f"{product.panel_step}LL",
        ahead=ahead.ahead // product.kept, into=ahead.near,
    )  # fmt: skip
    return text_of.tile(
        held="Stored" if product.widened else "T", read=read, to=end_of.to,
        partial_parameters=", L depth, bool first, bool last, T *partial" if parted else "",
        prefetch=end_of.prefetch, start=start + "    clear(acc);", depth="end - begin" if parts != 1 else "depth" if parted else spec.k,
        ak="MR" if made.packs else "1", ai="1" if made.packs else f"{made.pitch if made.copies else product.am}LL", panel=spec.panel,
        fetch=fetch, advance=", next += pace" if ahead.spread else "",
        next_parameters=", const char *next, L pace" if ahead.spread else "",
        stop=add + (text_of.partial_stop() if parted else "") + end_of.stop,
        multiply="acc[i][v] = dot(acc[i][v], s, bv[v])" if product.dots else "acc[i][v] += s * bv[v]",
    )  # fmt: skip


def _calls(product: PackedProduct, made: Blocking, more: str, source: str) -> str:
    """C++ that calls the tile of row ``t`` and group ``g``."""
    tile, rows = made.tile, made.rows
    if isinstance(rows, Runs):
        return _calls_of_runs(product, made, rows, more, source)
    call = f"tile<#, $, {tile.vectors}>(ta, pb, {more});"
    calls = choose(made.groups, "g", call)
    if tile.narrow:
        last = call.replace("$", "1").replace(f" {tile.vectors}>", " 1>")
        calls = f"if (g == {made.groups.parts - 1}) {last} else {calls}"
    return " else ".join(
        f"{f'if (t < {rows.larger}) ' if i + 1 < len(rows.sizes) else ''}{{ {calls.replace('#', str(size))} }}"
        for i, size in enumerate(rows.sizes)
    )


def _calls_of_runs(product: PackedProduct, made: Blocking, rows: Runs, more: str, source: str) -> str:
    """C++ that calls the tiles of part ``t``, which at the end is several shorter ones."""
    tile, groups = made.tile, made.groups

    def calls(height: int) -> str:
        # Packed rows of a sweep begin behind those of the sweeps before, of as many rows.
        at = f"ta + k0 * {height}" if made.packs and made.swept else "ta"
        call = f"tile<{height}, $, {tile.vectors}>({at}, pb, {more});"
        some = choose(groups, "g", call)
        if not tile.narrow:
            return some
        last = call.replace("$", "1").replace(f" {tile.vectors}>", " 1>")
        return f"if (g == {groups.parts - 1}) {last} else {some}"

    tails = by_heights(rows.size, calls, "next_m")
    rest = text_of.rest_of_rows(total=rows.total, row_source=source, calls=tails) if tails else ""
    return f"if (m + {rows.size} <= {rows.total}) {{ {calls(rows.size)} }}{rest}"


def _product_text(
    product: PackedProduct,
    made: Blocking,
    ahead: Prefetching,
    end_of: Ending,
    rows: _Rows,
    partials: _Partials,
    source: str,
) -> str:
    spec, tile, groups, step = product.spec, made.tile, made.groups, product.panel_step
    unit, body = tile.vectors * product.width, product.form.epilogue is not None
    if product.dots:
        source = source.replace("a1", "(const T *)a1")
    if product.widened:
        source = source.replace("a1", "(const Stored *)a1")
    following, next_arguments = "", ""
    if ahead.spread:
        following = text_of.next_panel(
            line=unit * product.kept, group_start=groups.start("after"), step=step, panel=spec.panel
        )
        next_arguments = ", next + (t - s0) * depth * pace, pace"
    offset = f"u * {step}LL + k0 * {spec.panel}"
    if tile.per_panel != 1:
        offset = f"u / {tile.per_panel} * {step}LL + u % {tile.per_panel} * {unit} + k0 * {spec.panel}"
    sums = {"pa": (0, spec.a[:-2]), "pb": (0, spec.b[: len(spec.batch)])}
    if not body:
        sums["pc"] = (0, spec.c[:-2])
    names = [f"x{d}" for d in range(len(spec.batch))] if body else ()
    offsets = unravel(f"j / {made.p * made.q}", spec.batch, sums, names) + ("" if body else "\n    T *c = o0 + pc;")
    k_loop = text_of.steps_in_parts(_walk(made.depth)) if made.blocked else f"const L k0 = 0, depth = {spec.k};"
    return text_of.product(
        held="Stored" if product.widened else "T",
        parameter=EPILOGUE_PARAMETER.replace("&e", "&given" if end_of.sums else "&e") if body else "",
        own="const Operands e = own(given, j);" if end_of.sums else "", offsets=offsets, source=source, p=made.p, q=made.q,
        m_tiles=made.rows.parts, n_groups=groups.parts, per_block=made.per_block, buffer=rows.buffer + partials.declared,
        k_loop=k_loop, fill=rows.fill, group_start=groups.start("g"), unit=unit, group_offset=offset, m_start=made.rows.start("t"),
        row_source=rows.source,
        calls=_calls(product, made, f"{end_of.arguments}, {spec.n} - n{partials.argument}{next_arguments}", rows.source),
        next=following, k_end="}" if made.blocked else "",
        sweep=text_of.steps_in_parts(_walk(made.inner)) if made.swept else "", sweep_end="}" if made.swept else "",
    )  # fmt: skip


def _walk(steps: Split | Runs) -> dict[str, object]:
    return {"parts": steps.parts, "start": steps.start("kb"), "next": steps.start("kb + 1")}


VECTORS_OF_PANELS = Method("vector", packed_draft)
