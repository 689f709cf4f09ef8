"""3 x 3 convolutions in Winograd's form, channels-last: tiles of the image transformed into cache, a product per point, results stored.

A job takes a block of tiles. It transforms their pixels, vectors of channels at a time, into the second-level cache as [point][tile]
[channel]; multiplies, panel of output channels by panel, every point's tiles by its weights; transforms the sums of a panel back in
registers and stores them through the epilogue. Neither the transformed image nor the sums ever exist as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dcir.codegen.choices import decide
from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library import winograd
from dcir.ops.library.epilogue import identity_epilogue
from dcir.ops.library.packing import panels

text_of = templates("conv/winograd")

BLOCK_BYTES = (
    640 << 10
)  # of a block's transformed pixels, and all weights where they are few: they fit the second-level cache
LARGE = 8 << 20  # bytes of weights that leave the caches between two blocks: then twice the pixels pass over them
NEAR = 2048  # bytes fetched ahead in weights that one product reads once; else it asks for the next point's
SOON = 128  # bytes fetched ahead in a tile's channels
# Channels summed by themselves: most of what this form rounds is in these sums, which are larger than what is left of them. Of 128 to 512
# channels the error is 0.75 to 0.4 times that of one sum, for 2 % of the time; chains of 32 would halve it at 64 channels, for 5 %.
CHAIN = 64


def winograd_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A problem of two dimensions whose packed weights are transformed for tiles of ``p.winograd`` results."""
    width, element, tile = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype], p.winograd
    stored = p.epilogue or identity_epilogue((p.n, p.groups, p.co, *p.out), p.dtype, p.ys)
    epilogue = Epilogue(stored, p.dtype, 2, 2, 5)
    nv = 2 if p.panel // width % 2 == 0 else 1
    most = min(15, (isa.registers - 2) // nv - (1 if isa.registers < 32 else 0))
    counts = [ceil_div(o, t) for o, t in zip(p.out[1:], tile, strict=True)]
    tiles = p.n * counts[0] * counts[1]
    points, pitch = winograd.points(tile), p.ci + 64 // element
    parts = threads if tiles < 2 * most * threads else 1
    parts = min(parts, panels(p.co, p.panel))
    shares = min(max(1, threads // parts), tiles)
    share = ceil_div(tiles, shares)
    held = BLOCK_BYTES * (2 if points * p.groups * p.ci * p.co * element > LARGE else 1)
    block = [max(most, held * eighths // (8 * points * pitch * element) // most * most) for eighths in (8, 4, 12, 16)]
    blocks = Split.at_most(share, decide("block", block))
    rows = Split.at_most(blocks.size, most)
    size = rows.size * rows.parts
    image = points * size * pitch * element
    sums = points * size * nv * width * element
    (a_rows, _, b_rows), (a_columns, _, b_columns) = map(winograd.matrices, tile)
    high, wide = (t + winograd.TAPS - 1 for t in tile)
    step = p.ci * p.panel
    chain = min(CHAIN, p.ci)
    count = str(chain) if p.ci % chain == 0 else f"({p.ci} - k < {chain} ? {p.ci} - k : {chain})"
    text = text_of.kernel(
        own="own(operands, j)" if epilogue.sums else "operands", sums_calls=text_of.sums() if epilogue.sums else "",
        points=points, high=high, wide=wide, tile_high=tile[0], tile_wide=tile[1], rows=rows.size, nv=nv,
        pitch=pitch, size=size, ci=p.ci, panel=p.panel, zeros=p.ci, per=max(1, nv // rows.parts),
        ahead=step if rows.parts > 1 else NEAR // element, line=64 // element, soon=SOON // element, chain=chain,
        count=count,
        image_transform=transform_text("d", (high, wide), (b_rows, b_columns), wide),
        result_transform=transform_text("m", (high, wide), (a_rows, a_columns), wide),
        tiles=tiles, shares=shares, parts=parts, groups=p.groups, vectors=p.panel // width // nv,
        panels=panels(p.co, p.panel), point_step=step, panel_step=points * step, co=p.co,
        group_step=points * panels(p.co, p.panel) * step, job=image + sums, sums=image, block=blocks.size,
        across=counts[1], down=counts[0], top=p.base[1], left=p.base[2], ih=p.inp[1], iw=p.inp[2], oh=p.out[1], ow=p.out[2],
        xn=p.xs[0], xg=p.xs[1], xh=p.xs[4], xw=p.xs[5],
    )  # fmt: skip
    return Draft(
        name,
        p.dtype,
        text,
        (TileStep(shares * parts, "run"),),
        shares * parts * (image + sums),
        epilogue=epilogue,
        sums=bool(epilogue.sums),
    )


def transform_text(name: str, extent: Sequence[int], axes: Sequence[Sequence[Sequence[Fraction]]], pitch: int) -> str:
    """C++ that replaces vectors ``name``[row * pitch + column] by M_rows X M_columns^T in place, columns first."""
    by_rows, by_columns = axes
    high, wide = extent
    lines = []
    for r in range(high):
        lines += _line([f"{name}[{r * pitch + c}]" for c in range(max(wide, len(by_columns)))], by_columns)
    for c in range(len(by_columns)):
        lines += _line([f"{name}[{r * pitch + c}]" for r in range(max(high, len(by_rows)))], by_rows)
    return "\n        ".join(lines)


def _line(values: Sequence[str], matrix: Sequence[Sequence[Fraction]]) -> list[str]:
    """values[i] = sum of matrix[i][j] * values[j] for the rows of the matrix.

    Rows that differ in the sign of every other term are a sum and a difference: what the points ±a have in common.
    """
    inside = [f"const V x{j} = {v};" for j, v in enumerate(values[: len(matrix[0])])]
    done: set[int] = set()
    outside: list[str] = []
    for i, row in enumerate(matrix):
        if i in done:
            continue
        mate = next((k for k in range(i + 1, len(matrix)) if _mirrored(row, matrix[k])), None)
        if mate is None:
            outside.append(f"{values[i]} = {_sum(dict(enumerate(row)))};")
            continue
        same = {j: v for j, v in enumerate(row) if v == matrix[mate][j]}
        other = {j: v for j, v in enumerate(row) if v != matrix[mate][j]}
        inside.append(f"const V s{i} = {_sum(same)}, t{i} = {_sum(other)};")
        outside += [f"{values[i]} = s{i} + t{i};", f"{values[mate]} = s{i} - t{i};"]
        done.add(mate)
    return ["{", *("    " + s for s in (*inside, *outside)), "}"]


def _mirrored(a: Sequence[Fraction], b: Sequence[Fraction]) -> bool:
    return (
        all(abs(x) == abs(y) for x, y in zip(a, b, strict=True))
        and any(x == y != 0 for x, y in zip(a, b, strict=True))
        and any(x == -y != 0 for x, y in zip(a, b, strict=True))
    )


def _sum(terms: dict[int, Fraction]) -> str:
    """The sum of factor * x; terms of equal size share a multiplication."""
    by_size: dict[Fraction, list[tuple[int, Fraction]]] = {}
    for j, v in terms.items():
        if v:
            by_size.setdefault(abs(v), []).append((j, v))
    made = []
    for size, members in by_size.items():
        sign = 1 if members[0][1] > 0 else -1
        inner = f"x{members[0][0]}" + "".join(f" {'+' if v * sign > 0 else '-'} x{j}" for j, v in members[1:])
        factor = float(size) * sign
        made.append((f"({inner})" if len(members) > 1 else inner) if factor == 1.0 else f"({inner}) * (S){factor!r}")
    return " + ".join(made) if made else "V{}"


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return None if p.winograd else Refusal("another form was asked for")


WINOGRAD = Method("winograd", winograd_draft, refusal=_refusal)
