"""Depthwise convolutions and their weight gradients, vectorised along rows of the image.

A channel's plane is copied into a buffer with its padding, split by the position's remainder modulo the stride, so that every tap
reads consecutive elements at a constant offset. Narrow planes are treated as one long row: the columns between rows are
computed and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, ceil
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, EPILOGUE_PARAMETER, Draft, TileStep, lanes, render, round_up
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.method import Method
from dcir.ir.refusal import Refusal
from dcir.isa import Isa

text_of = templates("conv/depthwise")

MOST_TAPS = 49
STACK_BYTES = 512 << 10
NARROW = 0.8  # share of useful lanes below which a plane is treated as one row
SERIAL_WORK = 1 << 15


@dataclass(frozen=True)
class Plane:
    """A channel's copy: stride phases, each of ``rows`` x ``pitch``, and where each tap reads from."""

    rows: int
    pitch: int
    size: int
    offsets: tuple[int, ...]


def depthwise_refusal(p: ConvolutionProblem) -> Refusal | None:
    """Why a problem is not depthwise: one input channel per group, at most two spatial dimensions."""
    if p.ci != 1:
        return Refusal("several input channels in a group")
    if p.ker[0] != 1 or p.out[0] != 1 or p.stride[0] != 1 or p.base[0] != 0:
        return Refusal("three dimensions")
    return None


def planes_refusal(p: ConvolutionProblem) -> Refusal | None:
    """Why a problem is not computed plane by plane, by code that names each tap."""
    return Refusal(f"more than {MOST_TAPS} taps") if p.taps > MOST_TAPS else depthwise_refusal(p)


def _plane(p: ConvolutionProblem, width: int) -> Plane:
    rows = p.out[1] + (p.ker[1] - 1) * p.dil[1] // p.stride[1]
    pitch = p.out[2] + (p.ker[2] - 1) * p.dil[2] // p.stride[2]
    offsets = []
    for kh in range(p.ker[1]):
        for kw in range(p.ker[2]):
            h, w = kh * p.dil[1], kw * p.dil[2]
            phase = h % p.stride[1] * p.stride[2] + w % p.stride[2]
            offsets.append(phase * rows * pitch + h // p.stride[1] * pitch + w // p.stride[2])
    size = p.stride[1] * p.stride[2] * rows * pitch
    return Plane(rows, pitch, round_up(size + 2 * width, width), tuple(offsets))


def _copies(p: ConvolutionProblem, plane: Plane) -> str:
    """Straight copies of every phase's part of the input; what they leave out stays zero."""
    lines = []
    for phase in range(p.stride[1] * p.stride[2]):
        ranges = []
        for d, part, extent in ((1, phase // p.stride[2], plane.rows), (2, phase % p.stride[2], plane.pitch)):
            start = part + p.base[d]
            low = max(0, ceil(-start, p.stride[d]))
            ranges.append((low, max(low, min(extent, ceil(p.inp[d] - start, p.stride[d]))), start + low * p.stride[d]))
        (a0, a1, iy), (b0, b1, ix) = ranges
        if a0 == a1 or b0 == b1:
            continue
        step = p.stride[2] * p.xs[5]
        to, source = phase * plane.rows * plane.pitch + a0 * plane.pitch + b0, iy * p.xs[4] + ix * p.xs[5]
        row = (
            f"__builtin_memcpy(d, q, {b1 - b0} * sizeof(T));" if step == 1
            else f"for (L c = 0; c < {b1 - b0}; c++) d[c] = q[c * {step}LL];"
        )  # fmt: skip
        lines.append(
            f"    for (L r = 0; r < {a1 - a0}; r++) {{ T *d = x + {to} + r * {plane.pitch}; "
            f"const T *q = s + {source}LL + r * {p.stride[1] * p.xs[4]}LL; {row} }}"
        )
    return "\n".join(lines)


def _rows(tall: int, plane: Plane, tail: int) -> str:
    """A function that computes one vector in each of ``tall`` rows; every input vector is loaded once for all of them."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for row in range(tall):
        for tap, offset in enumerate(plane.offsets):
            uses.setdefault(offset + row * plane.pitch, []).append((row, tap))
    body = [f"    V y{r} = V{{}} + bias;" for r in range(tall)]
    for offset, pairs in sorted(uses.items()):
        adds = " ".join(f"y{row} += w[{tap}] * v;" for row, tap in pairs)
        body.append(f"    {{ const V v = load(x + {offset}); {adds} }}")
    whole = " ".join(f"store(y + {r} * pitch, y{r});" for r in range(tall))
    part = " ".join(f"store_part(y + {r} * pitch, y{r}, {tail});" for r in range(tall))
    end = f"    if (last) {{ {part} return; }}\n    {whole}" if tail else f"    {whole}"
    head = f"void rows{tall}(const T *x, const T *w, T bias, T *y, L pitch, bool last)"
    return render("$inline $head {\n$body\n$end\n}\n", head=head, body="\n".join(body), end=end)


def _buffers(sizes: dict[str, int], element: int) -> tuple[dict[str, str], int]:
    """Declarations of local buffers, on the stack or all in the job's part of scratch, and that part's bytes."""
    if sum(sizes.values()) * element <= STACK_BYTES:
        return {k: f"alignas(64) T {k}[{n}];" for k, n in sizes.items()}, 0
    total = sum(round_up(n * element, 64) for n in sizes.values())
    texts, at = {}, 0
    for k, n in sizes.items():
        texts[k] = f"T *{k} = (T *)(scratch + j * {total}LL + {at});"
        at += round_up(n * element, 64)
    return texts, total


def _values(p: ConvolutionProblem, plane: Plane) -> dict[str, object]:
    return {
        "groups": p.groups, "co": p.co, "taps": p.taps, "khw": p.ker[1] * p.ker[2], "kh": p.ker[1], "kw": p.ker[2],
        "xn": p.xs[0], "xg": p.xs[1], "yn": p.ys[0], "yg": p.ys[1], "yc": p.ys[2], "yh": p.ys[4], "yw": p.ys[5],
        "wg": p.ws[0], "wo": p.ws[1], "wd": p.ws[3], "wh": p.ws[4], "ww": p.ws[5], "oh": p.out[1], "ow": p.out[2],
        "pitch": plane.pitch, "copies": _copies(p, plane), "x_size": plane.size,
    }  # fmt: skip


def depthwise_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """A depthwise problem, not empty."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    plane = _plane(p, width)
    planes = p.n * p.groups
    jobs = 1 if p.work < SERIAL_WORK else min(planes, threads)
    vectors = ceil(p.out[2], width)
    flat_vectors = ceil((p.out[1] - 1) * plane.pitch + p.out[2], width)
    direct = p.epilogue is None and p.ys[5] == 1 and p.out[2] >= NARROW * vectors * width
    tall = min(4, p.out[1])
    values = _values(p, plane)
    sizes = {"x": plane.size} | ({} if direct else {"t": flat_vectors * width})
    buffers, scratch = _buffers(sizes, element)
    if direct:
        out = text_of.direct_out(tall=tall, rows=p.out[1], vectors=vectors, pitch=plane.pitch, yh=p.ys[4])
        blocks = "".join(_rows(t, plane, p.out[2] % width) for t in sorted({1, tall}))
    elif p.epilogue is not None:
        out = text_of.finished_out(values, t_buffer=buffers["t"], flat_vectors=flat_vectors)
        blocks = _rows(1, plane, 0)
    else:
        out = text_of.buffered_out(values, t_buffer=buffers["t"], flat_vectors=flat_vectors)
        blocks = _rows(1, plane, 0)
    text = text_of.forward(
        values, parameter=EPILOGUE_PARAMETER if p.epilogue is not None else "", out=out,
        blocks=blocks, planes=planes, jobs=jobs, w0=p.w0, y0=p.y0, x_buffer=buffers["x"],
        bias=f"a2[g * {p.co} + o]" if p.bias else "0",
    )  # fmt: skip
    epilogue = Epilogue(p.epilogue, p.dtype, 2, 5) if p.epilogue is not None else None
    return Draft(name, p.dtype, text, (TileStep(0, ""), TileStep(jobs, "run")), scratch * jobs, epilogue=epilogue)


def depthwise_weight_draft(name: str, p: ConvolutionProblem, isa: Isa, threads: int) -> Draft:
    """The weight gradient of a depthwise problem: sums over rows in registers, all taps side by side."""
    width, element = lanes(isa, p.dtype), ELEMENT_BYTES[p.dtype]
    plane = _plane(p, width)
    flat_vectors = ceil((p.out[1] - 1) * plane.pitch + p.out[2], width)
    planes = p.groups * p.co
    jobs = 1 if p.work < SERIAL_WORK else min(planes, threads)
    buffers, scratch = _buffers({"x": plane.size, "t": flat_vectors * width}, element)
    chunks = []
    most = isa.registers - 4
    for first in range(0, p.taps, most):
        count = min(most, p.taps - first)
        lines = [
            f"                    acc[{k}] += b * load(x + v * VL + {plane.offsets[first + k]});" for k in range(count)
        ]
        chunks.append(
            text_of.chunk(first=first, count=count, flat_vectors=flat_vectors, lines="\n".join(lines))
        )  # fmt: skip
    text = text_of.weight(
        _values(p, plane), x_buffer=buffers["x"], t_buffer=buffers["t"],
        t_size=flat_vectors * width, planes=planes, jobs=jobs, n=p.n, chunks="\n".join(chunks), dh=p.dil[1], dw=p.dil[2],
        bh=p.base[1], bw=p.base[2], sh=p.stride[1], sw=p.stride[2], ih=p.inp[1], iw=p.inp[2], xh=p.xs[4], xw=p.xs[5],
    )  # fmt: skip
    return Draft(name, p.dtype, text, (TileStep(jobs, "run"),), scratch * jobs)


def _refusal(p: ConvolutionProblem, isa: Isa, threads: int) -> Refusal | None:
    if p.moves:
        return Refusal("copies of planes are of a constant size")
    return Refusal("packed weights") if p.panel else planes_refusal(p)


DEPTHWISE = Method("depthwise", depthwise_draft, refusal=_refusal)
DEPTHWISE_WEIGHT = Method("depthwise", depthwise_weight_draft, refusal=lambda p, isa, threads: planes_refusal(p))
