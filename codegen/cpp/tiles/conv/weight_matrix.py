"""Weight gradients in channels-last on a matrix unit: products over positions, whose taps are shifts of one copy of the image.

    dw[o, tap, i] = sum_p x[p + tap, i] dy[p, o]

Both operands are put in parts once per block of positions (``gemm/matrix.py`` says what parts are): the gradient as pairs of positions, the
image as one row of positions per channel, with the zeros of its border between its rows. A tap is then an offset into these rows, and
the gradient is zero where a row of the image has no result. With strides, the image is split into its phases (positions that lie a stride
apart), each of them such rows, and an offset begins in one of them. Blocks are short, so their sums are added apart; shares of the blocks
are added by a second phase in fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.conv.weight import finish_text
from dcir.codegen.cpp.tiles.emit import Draft, Split, TileStep, ceil_div, round_up
from dcir.codegen.cpp.tiles.gemm.unit import parts_of_number, unit_support
from dcir.codegen.cpp.tiles.gemm.unit_blocking import PART_BYTES
from dcir.codegen.cpp.tiles.method import ON_UNIT, Method
from dcir.cost.cpu import HALVES_UNIT, MATRIX_UNIT
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/weight_matrix")

DEEPEST = 768  # positions of a block
MOST_PHASES = 4  # of an image: beyond, few taps share what is split
LEAST_WORK = 1 << 22  # multiply-adds below which nothing is gained
GAIN = 0.55  # of the time of multiply-adds that the model must stay below: what it leaves out (tiles come from the second-level cache, sums
# go to memory) doubled the times of 19 layers measured


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if not isa.matrix_unit:
        return Refusal("the processor has no matrix unit")
    if p.dtype != "f32" or p.groups != 1 or p.ci % 32 or p.co % 32:
        return Refusal("channels that fill no tiles, several groups, or numbers of another type")
    if p.work < LEAST_WORK:
        return Refusal("too little work")
    if p.xs[2] != 1 or p.ys[2] != 1 or p.y0 or p.w0:
        return Refusal("images that are not in channels-last")
    if (p.inp[0], p.ker[0], p.out[0]) != (1, 1, 1):
        return Refusal("three dimensions")
    if p.taps > 1 and (max(p.base) > 0 or _wide(p) > DEEPEST or _phases(p) > MOST_PHASES):
        return Refusal("rows too long for a block, or too many phases of the image")
    if p.taps == 1 and any(p.base):
        return Refusal("an offset of the image")
    return (
        None
        if _cycles(p) <= GAIN * p.work / MATRIX_UNIT.multiply_adds
        else Refusal("multiply-adds are faster by the model")
    )


def weight_matrix_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of w for the forward problem ``p``: a0 = x, a1 = gradient of y, o0 = gradient of w."""
    whole, p = p, _merged(p)
    planes, rows, columns = _blocks(p)
    blocks = planes.parts * rows.parts * columns.parts
    strips, panels = p.ci // 32, p.co // 32
    shares, parts = _division(p, blocks, strips, threads)
    wide = columns.size if p.taps == 1 else _wide(p)
    high, broad = _walk(p, 1), _walk(p, 2)
    steps = ceil_div(rows.size * wide, 32)
    segment = round_up(max(steps * 32 + high.halo * wide + broad.halo, (rows.size + high.halo) * wide), 32)
    phase = planes.size * segment
    pitch = ((_phases(p) * phase * 2 + 64) // 64 | 1) * 64
    taps = [
        high.phase(i) * len(broad.phases) * phase + broad.phase(j) * phase + high.shift(i) * wide + broad.shift(j)
        for i in range(p.ker[1]) for j in range(p.ker[2])
    ]  # fmt: skip
    vectors = Split.at_most(p.co // 16, 2)
    per_lane = p.ci * p.taps
    share_size = p.co * per_lane
    job_bytes = parts_of_number(p.halves) * (panels * planes.size * steps * PART_BYTES + 32 * pitch)
    at = round_up(shares * share_size * 4, 64)
    values: dict[str, object] = {
        "sh": p.stride[1], "sw": p.stride[2], "bh": p.base[1], "bw": p.base[2], "dh": p.dil[1], "dw": p.dil[2], "ih": p.inp[1],
        "iw": p.inp[2], "kw": p.ker[2], "taps": p.taps, "xn": p.xs[0], "xh": p.xs[4], "xw": p.xs[5], "yn": p.ys[0],
        "yh": p.ys[4], "yw": p.ys[5], "co": p.co, "halo": high.halo, "lowest": high.lowest, "left": -broad.lowest,
        "segments": planes.size, "per_lane": per_lane, "high": ", ".join(map(str, high.phases)),
        "broad": ", ".join(map(str, broad.phases)), "highs": len(high.phases), "broads": len(broad.phases),
        "offsets": ", ".join(map(str, taps)),
    }  # fmt: skip
    text = unit_support(halves=p.halves)
    text += text_of.blocks(
        values, wide=wide, steps=steps, segment=segment, panels=panels, pitch=pitch, column_blocks=columns.parts,
        row_blocks=rows.parts, per_images=rows.parts * columns.parts, n_start=planes.start("nb"),
        n_next=planes.start("(nb + 1)"), row_start=rows.start("rb"), row_next=rows.start("(rb + 1)"),
        column_start=columns.start("cb"), column_next=columns.start("(cb + 1)"),
    )  # fmt: skip
    text += text_of.gradient(values)
    per_row = "q.c1 - q.c0" if p.taps == 1 else f"({p.inp[2] + p.stride[2] - 1} - g) / {p.stride[2]}"
    line = (text_of.line_of_halves if p.halves else text_of.line_of_parts)(odd=", ".join(map(str, range(1, 64, 2))))
    text += text_of.image(values, columns=per_row, line=line)
    text += text_of.tile({**values, **_products(p)})
    text += text_of.run(
        values, parts=parts, shares=shares, share_size=share_size, at=at, job_bytes=job_bytes, blocks=blocks,
        strips=strips,
    )  # fmt: skip
    text += finish_text(whole, vectors, shares, share_size, share_size, per_lane)
    work = (TileStep(shares * parts, "partial"), TileStep(vectors.parts, "finish"))
    return Draft(name, p.dtype, text, work, at + shares * parts * round_up(job_bytes, 64))


def _products(p: ConvolutionProblem) -> dict[str, str]:
    """C++ of the products of a step, before the sums are fetched and after it."""
    if p.halves:
        return {"first": "D_NEW_ROWS(0)", "rest": ""}
    first = "D_NEW_ROWS(2)\n            D_NEW_ROWS(1)\n            D_NEW_COLUMNS(1)"
    return {"first": first, "rest": "D_NEW_ROWS(0)\n            D_NEW_COLUMNS(2)\n            D_NEW_COLUMNS(0)"}


def _merged(p: ConvolutionProblem) -> ConvolutionProblem:
    """A pointwise problem whose positions all lie one pitch apart, as one row of them."""
    if p.taps > 1 or p.stride != (1, 1, 1):
        return p
    _, h, w = p.out
    if any(n > 1 and s[4] != w * s[5] for n, s in ((h, p.xs), (h, p.ys))):
        return p
    if p.n > 1 and any(s[0] != h * w * s[5] for s in (p.xs, p.ys)):
        return replace(p, inp=(1, 1, h * w), out=(1, 1, h * w))
    return replace(p, n=1, inp=(1, 1, p.n * h * w), out=(1, 1, p.n * h * w))


@dataclass(frozen=True)
class _Walk:
    """How taps walk one dimension of the image: position p of the result meets p * stride + tap * dilation + base.

    Attributes:
        places: of every tap, from the first position of the result on.
        stride: positions of the image from one of the result to the next.
    """

    places: tuple[int, ...]
    stride: int

    @property
    def phases(self) -> list[int]:
        """Places within a stride that some tap meets."""
        return sorted({q % self.stride for q in self.places})

    @property
    def lowest(self) -> int:
        """Strides from the result to the first place of any tap: 0 or less, if that begins in the border."""
        return min(self.places) // self.stride

    @property
    def halo(self) -> int:
        """Positions of a phase beyond those of the result."""
        return max(self.places) // self.stride - self.lowest

    def phase(self, tap: int) -> int:
        """The number of the phase that a tap meets."""
        return self.phases.index(self.places[tap] % self.stride)

    def shift(self, tap: int) -> int:
        """Its first place in it."""
        return self.places[tap] // self.stride - self.lowest


def _walk(p: ConvolutionProblem, d: int) -> _Walk:
    return _Walk(tuple(k * p.dil[d] + p.base[d] for k in range(p.ker[d])), p.stride[d])


def _phases(p: ConvolutionProblem) -> int:
    return len(_walk(p, 1).phases) * len(_walk(p, 2).phases)


def _wide(p: ConvolutionProblem) -> int:
    """Positions from one row of a phase to the next: the zeros after a row are those before the next one."""
    walk = _walk(p, 2)
    most = ceil_div(p.inp[2] - walk.phases[0], walk.stride)
    right = p.out[2] - 1 + walk.lowest + walk.halo - (most - 1)
    return max(most + max(-walk.lowest, right, 0), p.out[2])


def _blocks(p: ConvolutionProblem) -> tuple[Split, Split, Split]:
    """Images, rows and columns of blocks."""
    _, h, w = p.out
    wide = w if p.taps == 1 else _wide(p)
    if wide > DEEPEST:
        return Split(p.n, p.n), Split(h, h), Split.at_most(w, DEEPEST)
    rows = Split.at_most(h, DEEPEST // wide)
    each = round_up(h * wide, 32)
    planes = Split.at_most(p.n, DEEPEST // each) if rows.parts == 1 and each <= DEEPEST else Split(p.n, p.n)
    return planes, rows, Split(w, 1)


def _division(p: ConvolutionProblem, blocks: int, strips: int, threads: int) -> tuple[int, int]:
    """Shares of the blocks, or parts of the input channels where the gradient's splitting is little beside the tiles."""
    if strips % threads == 0 and (p.taps > 1 or blocks < threads):
        return 1, threads
    return min(blocks, threads), 1


def _cycles(p: ConvolutionProblem) -> float:
    """Of one core for everything, as ``cost/matrix_unit.py`` counts them."""
    p = _merged(p)
    planes, rows, columns = _blocks(p)
    wide = columns.size if p.taps == 1 else _wide(p)
    strips, panels = p.ci // 32, p.co // 32
    steps = planes.size * ceil_div(rows.size * wide, 32)
    halo = _phases(p) * (1 + _walk(p, 1).halo / rows.size)
    unit = HALVES_UNIT if p.halves else MATRIX_UNIT
    tiles = strips * panels * p.taps * (steps * unit.step_cycles * 1.15 + unit.tile_cycles)
    splitting = steps * (strips * unit.rows_cycles * halo + panels * unit.panel_cycles * 1.5)
    return planes.parts * rows.parts * columns.parts * (tiles + splitting)


WEIGHT_MATRIX = Method("matrix", weight_matrix_draft, refusal=_refusal, asked=ON_UNIT)
