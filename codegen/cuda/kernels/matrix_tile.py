"""A tile of a product of halves, as the text of the kernel that makes it on the matrix units.

    block (r, c):   rows r * 128 …, columns c * C …;   every 32 steps of k: shared <- memory of the next, while this one is multiplied
    then            the tile, rounded, in shared memory; threads walk its rows in vectors of 8, apply the tail and store

Blocks with the same rows are neighbours, so that A is read from memory once. Loads are masked at the edges, whatever the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cuda.device import SHARED_BYTES, WARP, ceil_div
from dcir.codegen.cuda.kernels.pieces import LANES, Pieces
from dcir.codegen.cuda.kernels.text import MOST_SHORT, Lines, Places, finished, reach
from dcir.codegen.cuda.kernels.types import CUDA_TYPE, Join
from dcir.codegen.cuda.launch import Launch
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Load, Reduce, Store
from dcir.ir.types import itemsize
from dcir.ops.library.fused_product import FusedProduct, along

BLOCK = 256
WARPS = BLOCK // WARP
STEPS = 32
# Blocks of a multiprocessor: while one waits for memory another multiplies.
RESIDENT = 2
# Vectors of the tail's operands that a thread waits for at once.
WAITING = 4


@dataclass(frozen=True)
class Tile:
    """How a block's tile is dealt to warps.

    Attributes:
        rows, columns: of the tile.
        down: warps that share its rows; the others share its columns.
    """

    rows: int
    columns: int
    down: int

    @property
    def own(self) -> tuple[int, int]:
        """Rows and columns of a warp."""
        return self.rows // self.down, self.columns * self.down // WARPS

    @property
    def stage(self) -> int:
        """Halves of both operands' tiles."""
        return (self.rows + self.columns) * STEPS


def tile_of(n: int, sums: int = 0, *, short: bool = False) -> Tile:
    """The tile for so many columns: as wide as they need, that A is read once.

    Args:
        n: columns of the product.
        sums: bytes that sums of a column take, which have to fit beside it.
        short: whether rows are fewer, since a prologue wants registers.
    """
    rows = 64 if short else 128
    if n <= 32:
        return Tile(rows, 32, rows // 16)
    narrow = n <= 64 or (ceil_div(n, 64) % 2 and n < 256)
    wide = Tile(rows, 128, rows // 32)
    if narrow or 4 * wide.stage + WARPS * wide.columns * sums > SHARED_BYTES:
        return Tile(rows, 64, 4)
    return wide


def sum_bytes(tail: LoopNest) -> int:
    """Bytes of a column's sums."""
    return sum(itemsize(x.dtype) for x in tail.body if isinstance(x, Reduce))


class MatrixTile:
    """The text of a kernel of which a block makes a tile.

    Args:
        spec: the product.
        tail: its tail, over the operator's operands, behind which is the product's value.
        places: where partial results are.
        parts: blocks that share the steps of a tile.
    """

    def __init__(self, spec: FusedProduct, tail: LoopNest, places: Places, parts: int = 1) -> None:
        self.spec, self.s, self.tail, self.places = spec, spec.product, tail, places
        self.tile = tile_of(self.s.n, sum_bytes(tail), short=spec.prologue is not None)
        self.across = ceil_div(self.s.n, self.tile.columns)
        nests = [tail, *([spec.prologue] if spec.prologue is not None else [])]
        s = self.s
        far = max(s.m * s.a[0] + s.k * s.a[1], s.k * s.b[0] + s.n * s.b[1], *(reach(p) for p in nests))
        self.index = "int" if far + self.tile.rows * max(*s.a, *s.b) < MOST_SHORT else "long long"
        self.text = Lines(self.index)
        self.half, self.parts = CUDA_TYPE[s.types.c], parts
        self.a_turned, self.b_turned = s.a[1] != 1, s.b[1] == 1
        self.b = f"a{spec.heads}"

    def launched(self) -> Launch:
        """The kernel."""
        text, s, tile = self.text, self.s, self.tile
        rows, columns = tile.own
        stages = min(2, ceil_div(s.k, STEPS))
        text.line(f"D_SHARED_TILE(tile, {max(stages * tile.stage, self.tile.rows * tile.columns)});")
        text.line(f"const int column0 = d_block() % {self.across} * {tile.columns}, warp = d_thread() / {WARP};")
        text.line(f"const {self.index} row0 = ({self.index})(d_block() / {self.across}) * {self.tile.rows};")
        text.line(f"const int own_row = warp % {tile.down} * {rows}, own_column = warp / {tile.down} * {columns};")
        text.line(f"float c[{rows // 16}][{columns // 8}][4] = {{}};")
        self._declare()
        start, end = "0", str(s.k)
        if self.parts > 1:
            each = ceil_div(ceil_div(s.k, self.parts), STEPS) * STEPS
            text.line(f"const int first = d_part() * {each}, last = first + {each} < {s.k} ? first + {each} : {s.k};")
            start, end = "first", "last"
        self._fetch(start, "0")
        self._lay(start, "0")
        text.line("d_copies_wait();")
        text.line("d_barrier();")
        turned = ("true" if self.a_turned else "false", "true" if self.b_turned else "false")
        a_wide, b_wide = self._wide(self.a_turned, self.tile.rows), self._wide(self.b_turned, tile.columns)
        multiply = (
            f"d_multiply<{self.half}, {a_wide}, {turned[0]}, {b_wide}, {turned[1]}, {STEPS}>"
            f"(c, tile, {{now}}, {{now}} + {self.tile.rows * STEPS}, own_row, own_column);"
        )
        if stages == 1:
            text.line(multiply.format(now="0"))
        else:
            text.line("#pragma unroll 1")
            text.open(f"for (int step = {start}; step < {end}; step += {STEPS})")
            text.line(f"const int now = (step - {start}) / {STEPS} % 2 * {tile.stage};")
            text.line(f"const bool more = step + {STEPS} < {end};")
            text.open("if (more)")
            self._fetch(f"step + {STEPS}", f"{tile.stage} - now")
            text.close()
            text.line(multiply.format(now="now"))
            text.open("if (more)")
            self._lay(f"step + {STEPS}", f"{tile.stage} - now")
            text.line("d_copies_wait();")
            text.close()
            text.line("d_barrier();")
            text.close()
        if stages == 1:
            text.line("d_barrier();")
        if self.parts > 1:
            name = f"o{len(self.tail.outputs)}"
            at = f"row0 + own_row, column0 + own_column, ({self.index}){s.m}, {s.n}"
            text.line(f"d_store_sums(c, {name}, {at});")
            before = []
        else:
            text.line(f"d_lay_down<{self.half}, {tile.columns // LANES}>(c, tile, own_row, own_column);")
            text.line("d_barrier();")
            text.open("")
            before = self._tail()
            text.close()
        grid = ceil_div(s.m, self.tile.rows) * self.across, self.parts, 1
        types = {f"a{k}": t for k, t in enumerate(self.tail.inputs)}
        types |= {f"o{k}": t for k, t in enumerate(self.tail.outputs)}
        reduces = [x for x in self.tail.body if isinstance(x, Reduce)]
        behind = ["f32"] if self.parts > 1 else [r.dtype for r in reduces]
        types |= {f"o{len(self.tail.outputs) + k}": t for k, t in enumerate(behind)}
        return finished([*before, *text.lines], types, self.places, grid, BLOCK, resident=RESIDENT)

    # ------------------------------------------------------------------ operands
    def _wide(self, turned: bool, lines: int) -> int:
        """Pieces of a line of an operand's tile."""
        return lines // LANES if turned else STEPS // LANES

    def _pieces_of(self, lines: int) -> int:
        """Pieces of an operand's tile that a thread moves."""
        return max(1, lines * STEPS // LANES // BLOCK)

    def _prologue(self) -> Pieces | None:
        return None if self.spec.prologue is None else Pieces(self.spec.prologue, along(self.s), self.index)

    def _early(self, p: Pieces) -> list[int]:
        """Loads of a prologue that differ from vector to vector: they wait while the step before is multiplied."""
        return [i for i, x in enumerate(p.p.body) if isinstance(x, Load) and p.walks(i, 1 - along(self.s))]

    def _declare(self) -> None:
        """Registers for what the prologue reads of the next step."""
        prologue = self._prologue()
        if prologue is None:
            return
        for i in self._early(prologue):
            self.text.line(f"{prologue.piece_type(i)} w{i}[{self._pieces_of(self.tile.rows)}];")

    def _fetch(self, step: str, start: str) -> None:
        """Both operands' pieces of a step on their way to a stage of shared memory, or into registers for the prologue."""
        s, text = self.s, self.text
        prologue = self._prologue()
        self._piece(step, self.tile.rows, "row0", s.m, turned=self.a_turned)
        if prologue is None:
            self._bring("a0", f"line * {s.a[0]} + k * {s.a[1]}", s.a, start, self._wide(self.a_turned, self.tile.rows))
        else:
            text.line(f"const {self.index} i0 = line, i1 = k;")
            for i in self._early(prologue):
                prologue.fetch(i, f"w{i}[u]")
            self._take(prologue)
        text.close()
        self._piece(step, self.tile.columns, "column0", s.n, turned=self.b_turned)
        wide = self._wide(self.b_turned, self.tile.columns)
        self._bring(self.b, f"line * {s.b[1]} + k * {s.b[0]}", s.b, f"{start} + {self.tile.rows * STEPS}", wide)
        text.close()

    def _bring(self, name: str, at: str, strides: tuple[int, ...], start: str, wide: int) -> None:
        where = f"{start} + d_piece_at<{wide}>(which / {wide}, which % {wide})"
        self.text.line(f"d_bring(tile, {where}, {name}, {at}, count, {self._aligned(name, strides)});")

    def _lay(self, step: str, start: str) -> None:
        """The first operand's pieces into a stage of shared memory by way of the prologue, where there is one."""
        prologue = self._prologue()
        if prologue is None:
            return
        self._piece(step, self.tile.rows, "row0", self.s.m, turned=self.a_turned)
        self.text.line(f"const {self.index} i0 = line, i1 = k;")
        found, wide = self._made(prologue), self._wide(self.a_turned, self.tile.rows)
        where = f"{start} + d_piece_at<{wide}>(which / {wide}, which % {wide})"
        self.text.line(f"d_store_piece(tile, {where}, d_as_piece({found}));")
        self.text.close()

    def _made(self, p: Pieces) -> str:
        """The prologue at a piece; C++ of what it makes."""
        early = self._early(p)
        stores = [i for i, x in enumerate(p.p.body) if isinstance(x, Store)]
        (made,) = (i for i in stores if self._output(p, i) == 0)
        for i, x in enumerate(p.p.body):
            if not isinstance(x, Load):
                continue
            if i not in early:
                p.line(f"{p.piece_type(i)} w{i} = {{}};")
                p.fetch(i, f"w{i}")
            p.given[i] = f"w{i}{'[u]' if i in early else ''}{'.of[l]' if x.strides[along(self.s)] else ''}"
        p.lanes(range(len(p.p.body)), stores, partly=True)
        others = [i for i in stores if i != made]
        if others:
            # Of the blocks that read these rows, the first stores what others want of them.
            p.open("if (column0 == 0)")
            for i in others:
                p.put(i, self._output(p, i) - 1)
            p.close()
        self._take(p)
        return f"r{made}"

    def _output(self, p: Pieces, i: int) -> int:
        x = p.p.body[i]
        assert isinstance(x, Store)
        return x.operand

    def _piece(self, step: str, lines: int, start: str, end: int, *, turned: bool) -> None:
        """Opens a loop over the thread's pieces of an operand: ``which`` of the tile, at ``line`` and ``k``, ``count`` that are there."""
        text, s = self.text, self.s
        pieces = lines * STEPS // LANES
        text.unrolled("u", self._pieces_of(lines))
        text.line(f"const int which = d_thread() + u * {BLOCK};")
        if pieces < BLOCK:
            text.line(f"if (which >= {pieces}) break;")
        wide = self._wide(turned, lines)
        line, k = f"which / {wide}", f"which % {wide} * {LANES}"
        if turned:
            line, k = f"which % {wide} * {LANES}", f"which / {wide}"
        text.line(f"const {self.index} line = {start} + {line}, k = {step} + {k};")
        inside, rest = ("k < {0}", "{1} - line") if turned else ("line < {1}", "{0} - k")
        inside, rest = inside.format(s.k, end), rest.format(s.k, end)
        text.line(f"const int count = {inside} && {rest} > 0 ? ({rest} < {LANES} ? (int)({rest}) : {LANES}) : 0;")

    def _aligned(self, name: str, strides: tuple[int, ...]) -> str:
        return "false" if max(strides) % LANES and max(strides) != 1 else f"d_aligned({name})"

    def _take(self, p: Pieces) -> None:
        """Lines of a part at the place that has been reached."""
        self.text.lines += ["  " * (self.text.depth - 1) + line for line in p.lines]
        p.lines.clear()

    # ------------------------------------------------------------------ what is done with the result
    def _tail(self) -> list[str]:
        """Walks the tile's rows; lines for the kernel's start."""
        p = Pieces(self.tail, 0, self.index)
        s, wide = self.s, self.tile.columns // LANES
        levels = self.tail.levels()
        reduces = [i for i, x in enumerate(self.tail.body) if isinstance(x, Reduce)]
        stores = [i for i, x in enumerate(self.tail.body) if isinstance(x, Store) and levels[i][1]]
        wanted = sorted({*self.tail.needed_by([*stores, *reduces], ()), *stores, *reduces})
        loads = [i for i in wanted if isinstance(self.tail.body[i], Load)]
        values = [i for i in loads if self._operand(i) == len(self.tail.inputs) - 1]
        moving = [i for i in loads if i not in values and p.walks(i, 1)]
        fixed = [i for i in loads if i not in values and i not in moving]
        down = BLOCK // wide
        p.line(f"const int chunk = d_thread() % {wide}, y = d_thread() / {wide};")
        p.line(f"const {self.index} i0 = column0 + chunk * {LANES};")
        p.line(f"const int count = {s.n} - i0 < {LANES} ? (int)({s.n} - i0) : {LANES};")
        p.start_partials(reduces)
        for i in fixed:
            p.line(f"{p.piece_type(i)} w{i} = {{}};")
            p.fetch(i, f"w{i}")
            p.given[i] = f"w{i}{'.of[l]' if p.walks(i, 0) else ''}"
        p.given |= dict.fromkeys(values, f"{self.half}{{value.of[l]}}")
        p.given |= {i: f"w{i}[u]{'.of[l]' if p.walks(i, 0) else ''}" for i in moving}
        times = max(1, min(WAITING // max(len(moving), 1), self.tile.rows // down))
        while self.tile.rows // down % times:
            times -= 1
        # Passes are alike, and a long tail is long to compile.
        p.line("#pragma unroll 1")
        p.open(f"for (int pass = 0; pass < {self.tile.rows // down // times}; pass++)")
        for i in moving:
            p.line(f"{p.piece_type(i)} w{i}[{times}] = {{}};")
        for part in ("fetch", "compute") if moving else ("compute",):
            p.unrolled("u", times)
            p.line(f"const int line = (pass * {times} + u) * {down} + y;")
            p.line(f"const {self.index} i1 = row0 + line;")
            p.open(f"if (i1 < {s.m} && count > 0)")
            if part == "fetch":
                for i in moving:
                    p.fetch(i, f"w{i}[u]")
            else:
                p.line(f"const d_piece value = d_load_piece(tile, d_piece_at<{wide}>(line, chunk));")
                p.lanes(wanted, stores, partly=s.n % LANES != 0)
                for i in stores:
                    p.put(i)
            p.close()
            p.close()
        p.close()
        before = self._sums(p, reduces, wide)
        self._take(p)
        return before

    def _operand(self, i: int) -> int:
        x = self.tail.body[i]
        assert isinstance(x, Load)
        return x.operand

    def _sums(self, p: Pieces, reduces: list[int], wide: int) -> list[str]:
        """Joins the threads' sums of a column, within warps and then over them, and stores the block's."""
        if not reduces:
            return []
        joins = {r: Join(self.tail, r) for r in reduces}
        columns = self.tile.columns
        shared = [f"  D_SHARED({joins[r].type}, s{r}, {WARPS * columns});" for r in reduces]
        for r in reduces:
            join = f"{joins[r].function}::template join<{joins[r].type}>"
            p.line("#pragma unroll")
            p.open(f"for (int mask = {WARP // 2}; mask >= {wide}; mask /= 2)")
            p.unrolled("l", LANES)
            p.line(f"const {joins[r].type} other = d_shuffle_xor(p{r}[l], mask);")
            low, high = f"d_thread() & mask ? other : p{r}[l]", f"d_thread() & mask ? p{r}[l] : other"
            p.line(f"p{r}[l] = {join}({low}, {high});")
            p.close()
            p.close()
        p.open(f"if (d_thread() % {WARP} < {wide})")
        for r in reduces:
            p.unrolled("l", LANES)
            p.line(f"s{r}[warp * {columns} + chunk * {LANES} + l] = p{r}[l];")
            p.close()
        p.close()
        p.line("d_barrier();")
        p.open(f"if (d_thread() < {columns} && column0 + d_thread() < {self.s.n})")
        for k, r in enumerate(reduces):
            join = f"{joins[r].function}::template join<{joins[r].type}>"
            p.line(f"{joins[r].type} all{r} = s{r}[d_thread()];")
            p.line("#pragma unroll 1")
            p.open(f"for (int w = 1; w < {WARPS}; w++)")
            p.line(f"const {joins[r].type} next = s{r}[w * {columns} + d_thread()];")
            p.line(f"all{r} = {join}(all{r}, next);")
            p.close()
            p.line(f"d_store(o{len(self.tail.outputs) + k}, column0 + d_thread(), all{r});")
        p.close()
        return shared
