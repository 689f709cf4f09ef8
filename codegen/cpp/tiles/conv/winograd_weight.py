"""Weight gradients of 3 x 3 convolutions in Winograd's form: dw = G^T [sum over tiles of (B^T x B) * (A dy A^T)] G, channels-last.

A job transforms tiles of the image and of the error signal, chunk by chunk, to [point][vector of channels][tile][lane], and adds up every
point's products of channels, which a square tile of registers walks as two streams. Jobs share the output channels, or, where those
are few, the tiles; then each has sums of its own. Another step adds the jobs' sums, transforms them and stores weights.
"""

from __future__ import annotations

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.conv.winograd import transform_text
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, Split, TileStep, ceil_div, lanes
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa
from dcir.ops.library import winograd

text_of = templates("conv/winograd")

CHUNK_BYTES = 10 << 20  # of a job's transformed tiles: they stay in the third-level cache
MOST_TILES = 256  # of a chunk: a vector of channels of all of them stays in the first-level cache
FEW_CHANNELS = 128  # fewer are not divided among threads, because each transforms the whole image


def winograd_weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The gradient of a problem's weights for tiles of ``p.winograd`` results; both channels are whole vectors."""
    width, element, tile = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype], p.winograd
    counts = [ceil_div(o, t) for o, t in zip(p.out[1:], tile, strict=True)]
    tiles, points = p.n * counts[0] * counts[1], winograd.points(tile)
    inputs, outputs = p.ci // width, p.co // width
    parts = min(threads, outputs) if p.co >= FEW_CHANNELS or tiles < 2 * threads else 1
    shares = 1 if parts > 1 else min(threads, tiles)
    mine = ceil_div(outputs, parts)
    most = CHUNK_BYTES // (points * (inputs + mine) * width * element)
    size = Split.at_most(ceil_div(tiles, shares), max(16, min(MOST_TILES, most))).size
    room = size | 1  # an odd number of lines, so that a tile's points do not share cache sets
    image, error = points * inputs * room * width, points * mine * room * width
    sums = points * p.ci * p.co
    (a_rows, g_rows, b_rows), (a_columns, g_columns, b_columns) = map(winograd.matrices, tile)
    high, wide = (t + winograd.TAPS - 1 for t in tile)
    _, wo, wi, _, wh, ww = p.ws
    text = text_of.weight(
        points=points, high=high, wide=wide, tile_high=tile[0], tile_wide=tile[1], size=size, room=room, inputs=inputs,
        outputs=outputs, mine=mine, zeros=max(p.ci, p.co), tiles=tiles, shares=shares, parts=parts,
        image_transform=transform_text("d", (high, wide), (b_rows, b_columns), wide),
        error_transform=transform_text("d", tile, (_transposed(a_rows), _transposed(a_columns)), wide),
        weight_transform=transform_text("u", (high, wide), (_transposed(g_rows), _transposed(g_columns)), wide),
        image=image, job=image + error, sums_at=shares * parts * (image + error) * element, sums=sums,
        across=counts[1], down=counts[0], top=p.base[1], left=p.base[2], ih=p.inp[1], iw=p.inp[2], oh=p.out[1], ow=p.out[2],
        xn=p.xs[0], xh=p.xs[4], xw=p.xs[5], yn=p.ys[0], yh=p.ys[4], yw=p.ys[5],
        store=(text_of.weight_runs if (wi, wh, ww) == (9, 3, 1) else text_of.weight_apart)(
            {"wi": wi, "wh": wh, "ww": ww}, wo=wo
        ),
    )  # fmt: skip
    scratch = (shares * parts * (image + error) + shares * sums) * element
    return Draft(
        name, p.dtype, text, (TileStep(shares * parts, "run"), TileStep(inputs * outputs, "finish_sums")), scratch
    )


def _transposed(matrix: winograd.Matrix) -> winograd.Matrix:
    return tuple(zip(*matrix, strict=True))


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    return None if p.winograd else Refusal("another form was asked for")


WINOGRAD_WEIGHT = Method("winograd", winograd_weight_draft, refusal=_refusal)
