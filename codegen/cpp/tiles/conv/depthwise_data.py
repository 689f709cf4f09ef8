"""Data gradients of depthwise convolutions with stride 2, plane by plane: even and odd columns as two sums, interleaved when stored.

dx[2 i + q][2 j + r] = sum over the taps of q's and r's parity of w[kh][kw] * dy[i + a][j + b]: dense rows of dy, whose plane is copied
once with zeros around it, so that no element is computed twice and nothing that is not a tap's is multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, DataGradient
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, TileStep, ceil_div, lanes, round_up, unravel
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/depthwise_data")

PLANE_BYTES = 512 << 10
JOBS = 8  # for every thread


@dataclass(frozen=True)
class Plane:
    """A copy of a plane of dy with zeros around it, and the taps of each parity of a result's row and column.

    Attributes:
        rows, columns: per parity (tap, shift) of results 2 i + parity, which read position i + shift.
        above, before: rows and columns of zeros before the first element.
        pitch: elements from one row to the next.
        size: elements.
    """

    rows: list[list[tuple[int, int]]]
    columns: list[list[tuple[int, int]]]
    above: int
    before: int
    pitch: int
    size: int


def _plane(p: ConvolutionProblem, width: int) -> Plane:
    (_, kh, kw), (_, oh, ow), (_, ih, iw) = p.ker, p.out, p.inp
    rows = [_taps(kh, -p.base[1], q) for q in (0, 1)]
    columns = [_taps(kw, -p.base[2], r) for r in (0, 1)]
    reach = [shift for taps in rows for _, shift in taps]
    above, below = max(0, -min(reach, default=0)), max(0, ceil_div(ih, 2) - 1 + max(reach, default=0) - (oh - 1))
    reach = [shift for taps in columns for _, shift in taps]
    before = max(0, -min(reach, default=0))
    last = round_up(ceil_div(iw, 2), width) - 1 + max(reach, default=0)
    pitch = before + max(ow, last + 1)
    return Plane(rows, columns, above, before, pitch, (above + max(oh, 0) + below) * pitch)


def depthwise_data_draft(name: str, gradient: DataGradient, isa: Isa, threads: int) -> Draft:
    """The data gradient of a forward problem of this form: reads dy and w, writes dx."""
    p, width = gradient.forward, lanes(isa, gradient.forward.dtype)
    (_, kh, kw), (_, oh, ow), (_, ih, iw) = p.ker, p.out, p.inp
    plane = _plane(p, width)
    rows, columns, pitch, size = plane.rows, plane.columns, plane.pitch, plane.size
    order = [[f"{i // 2 + (width if i % 2 else 0)}" for i in range(first, first + width)] for first in (0, width)]
    text = [
        text_of.row(
            q=q, ih=ih, xh=p.xs[4], even=_sum(rows[q], columns[0], kw, pitch), odd=_sum(rows[q], columns[1], kw, pitch),
               low=", ".join(order[0]), high=", ".join(order[1]))
        for q in (0, 1)
    ]  # fmt: skip
    planes, step = p.n * p.groups, round_up(size * ELEMENT_BYTES[p.dtype], 64)
    jobs = min(planes, JOBS * threads) if threads > 1 else 1
    offsets = unravel("p", (p.n, p.groups), {"y": (0, p.ys[:2]), "w": (p.w0, (0, p.ws[0])), "x": (0, p.xs[:2])})
    body = text_of.kernel(
        size=size, bytes=step, oh=oh, ow=ow, above=plane.above, before=plane.before, pitch=pitch, yh=p.ys[4],
        taps=kh * kw, kh=kh, kw=kw, wh=p.ws[4], ww=p.ws[5], ih=ih, iw=iw, rows="\n".join(text), planes=planes, jobs=jobs, offsets=offsets,
    )  # fmt: skip
    return Draft(name, p.dtype, body, (TileStep(jobs, "run"),), jobs * step)


def _taps(kernel: int, padding: int, parity: int) -> list[tuple[int, int]]:
    """(tap, shift) of results 2 i + parity, which read position i + shift."""
    return [(k, (parity + padding - k) // 2) for k in range(kernel) if (parity + padding - k) % 2 == 0]


def _sum(rows: list[tuple[int, int]], columns: list[tuple[int, int]], kw: int, pitch: int) -> str:
    terms = [
        f"k[{h * kw + c}] * load(d + (i + {a}) * {pitch} + j + {b})".replace("+ -", "- ")
        for h, a in rows
        for c, b in columns
    ]
    return " + ".join(terms) or "V{}"


def _refusal(gradient: DataGradient, isa: Isa, threads: int) -> Refusal | None:
    p = gradient.forward
    if p.moves:
        return Refusal("copies of planes are of a constant size")
    if not p.ci == p.co == 1 or p.groups == 1:
        return Refusal("several channels in a group, or one group")
    if not p.inp[0] == p.out[0] == p.ker[0] == 1 or p.base[0] != 0:
        return Refusal("three dimensions")
    if p.xs[5] != 1 or p.ys[5] != 1 or p.xs[1] == 1 or p.ys[1] == 1:
        return Refusal("images that do not lie plane by plane")
    if p.stride[1:] != (2, 2) or p.dil[1:] != (1, 1):
        return Refusal("strides other than 2, or a dilation")
    if p.n * math.prod(p.inp) * math.prod(p.out) * p.taps == 0:
        return Refusal("nothing to compute")
    if _plane(p, lanes(isa, p.dtype)).size * ELEMENT_BYTES[p.dtype] > PLANE_BYTES:
        return Refusal("a plane does not stay in the second-level cache")
    return None


DEPTHWISE_DATA = Method("depthwise", depthwise_data_draft, refusal=_refusal)
