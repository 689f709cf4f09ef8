"""How a product with packed B is divided: its tile, its jobs, blocks of rows and of steps, what is copied, and what is fetched ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dcir.codegen.asked import asked, check_near, listed, wish
from dcir.codegen.choices import decide
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Runs, Split, ceil_div, lanes, parts_of, round_up
from dcir.codegen.cpp.tiles.gemm.form import ProductForm
from dcir.codegen.cpp.tiles.gemm.packed_tile import FEW_PANELS, Tiling, grid, tiling
from dcir.codegen.cpp.tiles.gemm.tiles_blocking import loops_of, parallel_of
from dcir.codegen.symbolic import Undecided, most, moves, usual
from dcir.errors import InvalidSchedule
from dcir.ir.schedule import Schedule
from dcir.ir.statements import Load, Store
from dcir.isa import Isa
from dcir.ops.library.contraction import ContractionSpec
from dcir.ops.library.operand_types import alike
from dcir.ops.library.packing import pairs_of

IN_PLACE, COPIED, PACKED = 0, 1, 2  # how rows of A are held for the panels of a job


@dataclass(frozen=True)
class Tuning:
    """What was measured: bytes, or as said."""

    rows: int = (
        384 << 10
    )  # of A in a block; with AVX2 and 512 KB of cache, of A and a panel: 788 x 768 x 3072 3 % faster
    other_rows: tuple[int, ...] = (192 << 10, 768 << 10, 96 << 10)
    # With AVX2, an epilogue's operands are used up a panel's width at a time, so their rows should wait for the next panel in the
    # second-level cache, where all panels have a place as well: 25088 x 256 x 64 with three operands read 24.7 -> 20.6 ms on one core of
    # Zen 3, 15.5 -> 12.6 on two, 6272 x 512 x 128 18.7 -> 15.8; with one operand or with 64 columns the same as without.
    near_operands: int = 128 << 10
    near_panels: int = 256 << 10
    deepest: int = 4096  # steps of k in one go; beyond them a tile of A leaves the second-level cache
    # The same where their number moves, and so how many tiles of rows there is room for: few steps would leave most of it empty.
    deepest_moving: int = 1024
    other_depths: tuple[int, ...] = (1024, 512, 2048)
    # Steps. With AVX2, where a panel and two tiles of rows are more than a block may have (from 3,500 steps on), so that each tile would
    # fetch every panel anew. GFLOP/s of one core of Zen 3: 256 x 768 x 32000 43 -> 77, 512 x 768 x 8192 65 -> 83, 256 x 4096 x 4096
    # 80 -> 83.
    deep_near: int = 1024
    # Steps of k in which a panel stays in the first-level cache for all tiles of a block. Without it AVX2's tiles, which use a panel up in
    # half the time, come to 170 of 208 GFLOP/s on two cores of Zen 3, with it to 190 (512 x 768 x 768 and 49 x 512 x 2048).
    sweeps: tuple[int, ...] = (256, 384, 192)
    short_sweeps: int = (
        1024  # steps up to which a panel passes packed rows in one go: 1 to 2 % faster (768 x 3072 x 788)
    )
    # How far ahead a panel is fetched, and how near. Weights of a large network come from memory in every call, and 128 steps of a tall
    # tile are as long as that takes: 8 to 14 % faster than 8 steps at 128 rows, 40 % at 8; panels in a cache do not mind.
    fetches: tuple[tuple[int, int], ...] = ((16384, 3), (4096, 3), (1024, 3), (32768, 3), (16384, 2))
    # Where caches fill slowly, the distances that do for the first-level cache while the next panel is on its way to the second.
    fetches_near: tuple[tuple[int, int], ...] = ((4096, 3), (2048, 3), (16384, 3), (1024, 3))
    fetches_short: tuple[tuple[int, int], ...] = (
        (4096, 3),
        (1024, 3),
        (16384, 3),
    )  # AVX2, 16 KB are half a cache: 160 -> 185 GFLOP/s
    fetches_of_rows: tuple[tuple[int, int], ...] = (
        (4096, 3),
        (16384, 3),
        (1024, 3),
    )  # one or two rows: loads are all that a tile does
    least_panels: int = 8  # panels per job, for which packing rows pays
    least_tiles: int = 3  # tiles per block, over which the next panel is spread
    least_bytes: int = 1 << 20  # of panels per job, for which they come from beyond the second-level cache


TUNING = Tuning()


@dataclass(frozen=True)
class PackedProduct:
    """A product whose B is in panels.

    Attributes:
        form: the product as given.
        spec: the same in numbers of T, of which a pair of steps is one.
        isa: the instruction set.
    """

    form: ProductForm
    spec: ContractionSpec
    isa: Isa

    @property
    def dots(self) -> bool:
        """Whether steps are multiplied in pairs."""
        return self.form.spec.dots

    @property
    def width(self) -> int:
        """Lanes of a vector."""
        return lanes(self.isa, self.spec.dtype)

    @property
    def wide(self) -> bool:
        """Whether there are 32 registers of 64 bytes."""
        return self.isa.vectors == "avx512"

    @property
    def element(self) -> int:
        """Bytes of an element of A and C."""
        return ELEMENT_BYTES[self.spec.dtype]

    @property
    def kept(self) -> int:
        """Bytes of an element of B."""
        return ELEMENT_BYTES[self.spec.types.b]

    @property
    def widened(self) -> bool:
        """Whether B is kept in a half type."""
        return bool(self.spec.stored)

    @property
    def am(self) -> int:
        """From a row of A to the next one."""
        return self.spec.a[-2]

    @property
    def ak(self) -> int:
        """From a step of A to the next one."""
        return 1 if self.form.spec.k == 1 else self.spec.a[-1]

    @property
    def crowded(self) -> bool:
        """Whether rows of A, along k, share sets of the first-level cache."""
        return not self.dots and self.ak == 1 and usual(self.am) * self.element % 4096 == 0 and self.am != 0

    @property
    def batch(self) -> int:
        """Products in the batch."""
        return math.prod(self.spec.batch)

    @property
    def panel_step(self) -> int:
        """Elements of a panel."""
        return self.spec.k * self.spec.panel


def packed_product(form: ProductForm, isa: Isa) -> PackedProduct:
    """The product that a form is."""
    spec = form.spec
    if spec.dots:  # a pair of steps is as large as one of f32
        assert isa.dots, "panels of pairs are for the processor that multiplies them"
        spec = replace(spec, k=pairs_of(spec.k), b=tuple(s // 2 for s in spec.b), types=alike(spec.dtype))
    return PackedProduct(form, spec, isa)


@dataclass(frozen=True)
class Blocking:
    """How the work is divided.

    Attributes:
        tile: the register tile.
        rows: of C in tiles, so that jobs have even shares.
        p, q: jobs per batch element along the rows and the columns.
        many: whether a job passes many panels over tall tiles.
        depth: steps of k in blocks, between which sums wait in memory.
        inner: steps in sweeps of a panel over a block of rows, if there is one block of steps.
        held: how rows of A are held.
        pitch: elements from one row of A to the next where rows are copied, from one tile of rows to the next where they are packed.
        per_block: tiles of rows in a block.
    """

    tile: Tiling
    rows: Split | Runs
    p: int
    q: int
    many: bool
    depth: Split | Runs
    inner: Split | Runs
    held: int
    pitch: int
    per_block: int

    @property
    def groups(self) -> Split | Runs:
        """Columns of C in groups of units."""
        return self.tile.groups

    @property
    def blocked(self) -> bool:
        """Whether sums wait for the next block of steps."""
        return most(self.depth.parts) > 1

    @property
    def swept(self) -> bool:
        """Whether sums wait for the next sweep."""
        return most(self.inner.parts) > 1

    @property
    def packs(self) -> bool:
        """Whether rows of A are packed."""
        return self.held == PACKED

    @property
    def copies(self) -> bool:
        """Whether rows of A are copied."""
        return self.held == COPIED

    def schedule(self, product: PackedProduct) -> Schedule:
        """The same as a schedule; of a product in pairs in pairs of steps."""
        spec = product.spec
        tiles = {}
        if self.blocked or self.swept:
            tiles["k"] = (self.depth if self.blocked else self.inner).size
        if usual(self.per_block) < ceil_div(
            usual(self.rows.parts), usual(self.p)
        ):  # a report: no size has to decide it
            tiles["m"] = self.per_block * self.rows.size
        return Schedule(
            loops=loops_of(spec), order=("k", "m", "n") if self.blocked else ("m", "n", "k"),
            parallel=parallel_of(spec, self.p, self.q), tiles=listed(**tiles),
            registers=listed(m=self.rows.size, n=self.groups.size * self.tile.vectors * product.width), vector="n",
            packed=("A",) * self.packs + ("B",), near=("A",) * self.copies + ("C",) * (self.blocked or self.swept),
        )  # fmt: skip


def blocking(product: PackedProduct, threads: int) -> Blocking:
    """The division by the cost model, or as decided."""
    spec, width = product.spec, product.width
    tile = tiling(
        spec.m, spec.n, spec.panel, width, product.isa.registers, threads, crowded=product.crowded, widened=product.widened
    )  # fmt: skip
    p, q = grid(spec, tile.rows, tile.groups, product.batch, threads)
    rows = tile.rows
    if not isinstance(rows, Runs):
        even = Split(spec.m, min(spec.m, round_up(rows.parts, p)))
        rows = even if asked().registers is None or even.size == rows.size else rows
    depth = _depth(product, rows, p)
    many = rows.size > 8 and tile.groups.size == 1 and ceil_div(usual(tile.groups.parts), q) >= TUNING.least_panels
    held = _held(product, rows, tile.groups, many)
    inner = parts_of(spec.k, max(1, most(spec.k)))
    if most(depth.parts) == 1:
        sweep = _sweep(product, rows, p, held) if asked().tiles is None else wish("tiles", "k")
        inner = parts_of(spec.k, sweep or max(1, most(spec.k)))
    line = 64 // product.element
    pitch = (round_up(depth.size, line) // line | 1) * line
    tall = rows.size * (pitch if held == COPIED else depth.size)
    if held == PACKED:
        pitch = rows.size * round_up(depth.size, width) + width
        if isinstance(rows, Runs):  # each of the shorter tiles at the end has so much behind it
            pitch = rows.size * (round_up(depth.size, width) + width)
    per_block = _per_block(product, ceil_div(most(rows.parts), p), rows, depth, tall)
    made = Blocking(tile, rows, p, q, many, depth, inner, held, pitch, per_block)
    size = {IN_PLACE: 0, COPIED: per_block * rows.size * pitch, PACKED: per_block * pitch}[held]
    size += per_block * rows.size * tile.groups.size * tile.vectors * width if made.swept else 0
    check_near("what waits of a block of rows", size * product.element, "a smaller tile of m")
    return made


def _depth(product: PackedProduct, rows: Split | Runs, p: int) -> Split | Runs:
    """Steps of k in one go."""
    spec = product.spec
    if asked().tiles is not None:  # in blocks if they are the outermost loop, else at most in sweeps
        size = wish("tiles", "k") if (asked().order or ())[:1] == ("k",) else 0
        if product.dots and moves(spec.k):
            raise Undecided("pairs of steps whose number moves")
        return parts_of(spec.k, size or max(1, most(spec.k)))
    if moves(spec.k):
        if product.dots:
            raise Undecided("pairs of steps whose number moves")
        one = most(spec.k) <= TUNING.deepest_moving * 3 // 2
        return Runs(spec.k, most(spec.k) if one else TUNING.deepest_moving)
    depths = [TUNING.deepest, *(d for d in TUNING.other_depths if 2 * d <= spec.k)]
    long = spec.k * (spec.panel * product.kept + 2 * rows.size * product.element) > TUNING.rows
    if not product.wide and long and ceil_div(usual(rows.parts), p) >= TUNING.least_tiles:
        depths = [TUNING.deep_near, *(d for d in depths if d != TUNING.deep_near)]
    return Split.at_most(spec.k, decide("depth", depths))


def _held(product: PackedProduct, rows: Split | Runs, groups: Split | Runs, many: bool) -> int:
    """How rows of A are held."""
    if product.ak != 1:
        if product.dots and isinstance(rows, Runs):
            raise Undecided("how many rows are packed in pairs")
        _check_held(PACKED, "steps of a row of A are not neighbours")
        return PACKED
    if product.dots or moves(product.am):  # rows become pairs as they are copied, or have a constant between them
        _check_held(COPIED, "rows of A become pairs, or their steps move")
        return COPIED
    copies = product.crowded and rows.size > 8 and usual(groups.parts) > FEW_PANELS
    best = COPIED if copies else IN_PLACE
    if many and product.isa.slow_fills and not isinstance(rows, Runs):
        best = PACKED
    if (held := _asked_held(best)) is not None:
        return held
    return decide("copy", [best, *(c for c in (IN_PLACE, COPIED, PACKED) if c != best)])


def _asked_held(best: int) -> int | None:
    """How rows of A are to be held; None if that is left open."""
    packed, near = asked().packed, asked().near
    if packed is None and near is None:
        return None
    if "A" in (packed or ()) or (packed is None and best == PACKED):
        return PACKED
    if near is None:
        return best if best != PACKED else IN_PLACE
    return COPIED if "A" in near else IN_PLACE


def _check_held(must: int, reason: str) -> None:
    """Refuse another form of A's rows than the one that there is.

    Raises:
        InvalidSchedule: it is asked for.
    """
    held = _asked_held(must)
    if held is not None and held != must:
        word = "packed" if must == PACKED else "near"
        raise InvalidSchedule(f"A is {word} here: {reason}", hint=f"'A' in {word}")


def _sweep(product: PackedProduct, rows: Split | Runs, p: int, held: int) -> int:
    """Steps that a panel passes all rows of a block in; 0 for all."""
    k = usual(product.spec.k)
    sweeps = [s for s in TUNING.sweeps if s * 3 // 2 <= k and usual(rows.parts) > p]
    whole = product.wide or (held == PACKED and k <= TUNING.short_sweeps)
    return decide("sweep", [0, *sweeps] if whole else [*sweeps[:1], 0, *sweeps[1:]])


def _per_block(product: PackedProduct, job_tiles: int, rows: Split | Runs, depth: Split | Runs, tall: int) -> int:
    """Tiles of rows in a block, ``tall`` elements each."""
    if (size := wish("tiles", "m")) is not None:
        return max(1, min(job_tiles, size // rows.size)) if size else max(1, job_tiles)
    spec, element = product.spec, product.element
    room = TUNING.rows if product.wide else TUNING.rows - depth.size * spec.panel * product.kept
    if not product.wide and usual(spec.n) * usual(spec.k) * product.kept <= TUNING.near_panels:
        read = max(1, _row_operands(product.form) * usual(spec.n) * element)
        room = min(room, TUNING.near_operands // read * depth.size * element)
    sizes = (room, *TUNING.other_rows)
    return decide("block", [max(1, min(job_tiles, size // max(1, tall * element))) for size in sizes])


def _row_operands(form: ProductForm) -> int:
    """Operands of the epilogue, results included, that hold a number for every result of the product; 0 if it reads none."""
    body = () if form.epilogue is None else form.epilogue.body
    loads = {s.operand for s in body if isinstance(s, Load) and s.operand != 0 and s.strides[-2] and s.strides[-1]}
    stores = {s.operand for s in body if isinstance(s, Store) and s.strides[-2] and s.strides[-1]}
    return len(loads) + len(stores) if loads else 0


@dataclass(frozen=True)
class Prefetching:
    """What a tile asks for before it needs it.

    Attributes:
        ahead, near: how many bytes ahead a panel is fetched, and to which level, 3 for the nearest.
        spread: whether the next panel comes to the second-level cache while this one passes all tiles of the block, and not when its first
            tile wants it.
    """

    ahead: int
    near: int
    spread: bool


def prefetching(product: PackedProduct, made: Blocking) -> Prefetching:
    """The distances by what was measured, or as decided."""
    spec = product.spec
    spread = made.many and made.tile.per_panel == 1 and not made.blocked and made.per_block >= TUNING.least_tiles
    if spread and usual(spec.n) * usual(spec.k) * product.kept >= TUNING.least_bytes * made.q:
        spread = bool(decide("spread", [1, 0] if product.isa.slow_fills else [0, 1]))
    else:
        spread = False
    fetches: Sequence[tuple[int, int]] = TUNING.fetches if product.wide else TUNING.fetches_short
    if usual(spec.m) <= 2:
        fetches = TUNING.fetches_of_rows
    elif made.many and product.isa.slow_fills:
        fetches = TUNING.fetches_near
    ahead, near = decide("ahead", fetches)
    return Prefetching(ahead, near, spread)
