"""Data gradients of depthwise convolutions with stride 2, plane by plane: even and odd columns as two sums, interleaved when stored.

dx[2 i + q][2 j + r] = sum over the taps of q's and r's parity of w[kh][kw] * dy[i + a][j + b]: dense rows of dy, whose plane is copied
once with zeros around it, so that no element is computed twice and nothing that is not a tap's is multiplied.
"""

from __future__ import annotations

from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, Draft, TileStep, ceil_div, lanes, render, round_up, unravel
from dcir.isa import Isa

PLANE_BYTES = 512 << 10
JOBS = 8  # for every thread

_TEXT = """
$noinline void plane(const T *s, const T *w, T *o, T *copy) {
    for (L r = 0; r < $oh; r++)
        for (L c = 0; c < $ow; c++) copy[(r + $above) * $pitch + $before + c] = s[r * ${yh}LL + c];
    T k[$taps];
    for (L h = 0; h < $kh; h++)
        for (L c = 0; c < $kw; c++) k[h * $kw + c] = w[h * ${wh}LL + c * ${ww}LL];
    const T *d = copy + $above * $pitch + $before;
    for (L i = 0; 2 * i < $ih; i++)
        for (L j = 0; 2 * j < $iw; j += VL) {
            V even, odd;
            const L left = $iw - 2 * j;
$rows
        }
}
$noinline void run(L job, const T *a0, const T *a1, const T *, T *o0, unsigned char *scratch) {
    T *copy = (T *)(scratch + job * ${bytes}LL);
    for (L i = 0; i < $size; i++) copy[i] = 0;
    for (L p = job * $planes / $jobs; p < (job + 1) * $planes / $jobs; p++) {
        $offsets
        plane(a0 + y, a1 + w, o0 + x, copy);
    }
}
"""
_ROW = """            if (2 * i + $q < $ih) {
                even = $even;
                odd = $odd;
                T *to = o + (2 * i + $q) * ${xh}LL + 2 * j;
                const V low = __builtin_shuffle(even, odd, (M){$low}), high = __builtin_shuffle(even, odd, (M){$high});
                if (left >= 2 * VL) {
                    store(to, low);
                    store(to + VL, high);
                } else {
                    if (left >= VL) store(to, low);
                    else store_part(to, low, (int)left);
                    if (left > VL) store_part(to + VL, high, (int)(left - VL));
                }
            }"""


def depthwise_data_suits(p: ConvolutionProblem) -> bool:
    """Whether the data gradient of a forward problem has this form."""
    whole = p.ci == p.co == 1 and p.groups > 1 and p.inp[0] == p.out[0] == p.ker[0] == 1 and p.base[0] == 0
    planes = p.xs[5] == p.ys[5] == 1 and p.xs[1] != 1 and p.ys[1] != 1
    return whole and planes and p.stride[1:] == (2, 2) and p.dil[1:] == (1, 1)


def depthwise_data_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft | None:
    """The data gradient of a problem that ``depthwise_data_suits``: reads dy and w, writes dx. None if a plane is too large."""
    width = lanes(isa, p.dtype)
    (_, kh, kw), (_, oh, ow), (_, ih, iw) = p.ker, p.out, p.inp
    rows = [_taps(kh, -p.base[1], q) for q in (0, 1)]
    columns = [_taps(kw, -p.base[2], r) for r in (0, 1)]
    reach = [shift for taps in rows for _, shift in taps]
    above, below = max(0, -min(reach, default=0)), max(0, ceil_div(ih, 2) - 1 + max(reach, default=0) - (oh - 1))
    reach = [shift for taps in columns for _, shift in taps]
    before = max(0, -min(reach, default=0))
    last = round_up(ceil_div(iw, 2), width) - 1 + max(reach, default=0)
    pitch = before + max(ow, last + 1)
    size = (above + max(oh, 0) + below) * pitch
    if size * ELEMENT_BYTES[p.dtype] > PLANE_BYTES:
        return None
    order = [[f"{i // 2 + (width if i % 2 else 0)}" for i in range(first, first + width)] for first in (0, width)]
    text = [
        render(_ROW, q=q, ih=ih, xh=p.xs[4], even=_sum(rows[q], columns[0], kw, pitch), odd=_sum(rows[q], columns[1], kw, pitch),
               low=", ".join(order[0]), high=", ".join(order[1]))
        for q in (0, 1)
    ]  # fmt: skip
    planes, step = p.n * p.groups, round_up(size * ELEMENT_BYTES[p.dtype], 64)
    jobs = min(planes, JOBS * threads) if threads > 1 else 1
    offsets = unravel("p", (p.n, p.groups), {"y": (0, p.ys[:2]), "w": (p.w0, (0, p.ws[0])), "x": (0, p.xs[:2])})
    body = render(
        _TEXT, size=size, bytes=step, oh=oh, ow=ow, above=above, before=before, pitch=pitch, yh=p.ys[4], taps=kh * kw, kh=kh, kw=kw,
        wh=p.ws[4], ww=p.ws[5], ih=ih, iw=iw, rows="\n".join(text), planes=planes, jobs=jobs, offsets=offsets,
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
