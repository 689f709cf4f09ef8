"""One tile of a dense convolution in channels-last: which taps its pixels have, and the chains of products its sums are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dcir.codegen.cpp.template import templates
from dcir.codegen.cpp.tiles.conv.problem import ConvolutionProblem, ceil
from dcir.codegen.cpp.tiles.emit import ELEMENT_BYTES, ceil_div, round_up
from dcir.codegen.cpp.tiles.epilogue.epilogue import Epilogue
from dcir.codegen.cpp.tiles.epilogue.groups import GROUPED

text_of = templates("conv/nhwc")

SHORT = 256  # a tile of fewer steps finishes its rows in registers; for others that is not worth compiling
# Products of a chain, where a sum has more than twice as many: of 4608 products the error is 0.36 times that of one chain. A chain is a
# row of taps, several, or a part of one.
CHAIN = 512

# Pixels of the tiles that do what is left of a row.
_REST = (8, 4, 2, 1)

Reach = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Kind:
    """A tile's code: so many pixels, and the pixels from low to high that have a tap, for every column of the kernel."""

    pixels: int
    reach: Reach

    def sweeps(self) -> Iterator[tuple[int, int, int, int]]:
        """(first tap, taps, low, high) of neighbouring taps with the same pixels."""
        first = 0
        for k in range(1, len(self.reach) + 1):
            if k < len(self.reach) and self.reach[k] == self.reach[first]:
                continue
            low, high = self.reach[first]
            if low < high:
                yield first, k - first, low, high
            first = k


def reach(p: ConvolutionProblem, first: int, pixels: int) -> Reach:
    """Per column of the kernel the pixels, from ``first`` on, whose tap lies in the image."""
    found = []
    for kw in range(p.ker[2]):
        at, s = p.base[2] + kw * p.dil[2], p.stride[2]
        low, high = max(0, ceil(-at, s) - first), min(pixels, ceil(p.inp[2] - at, s) - first)
        found.append((low, high) if low < high else (0, 0))
    return tuple(found)


def dispatch(kinds: list[Kind]) -> str:
    """C++ that calls the code of tile number t."""
    names = {kind: f"tile{i}" for i, kind in enumerate(dict.fromkeys(kinds))}
    parts, start = [], 0
    for t in range(1, len(kinds) + 1):
        if t < len(kinds) and kinds[t] == kinds[start]:
            continue
        call = f"{names[kinds[start]]}<NV>(q, xt, w, partial, c);"
        parts.append(f"if (t < {t}) {call}" if t < len(kinds) else call)
        start = t
    return " else ".join(parts)


def rest_kinds(p: ConvolutionProblem, most: int) -> list[Kind]:
    """The tiles of rows that are as long as the sizes have them, the largest first; all taps lie in the image."""
    sizes = [most, *(n for n in _REST if n < most)]
    return [Kind(n, ((0, n),) * p.ker[2]) for n in sizes]


def dispatch_rest(kinds: list[Kind], total: int, pixel: int, partial: int) -> str:
    """C++ that calls the code of a whole tile, or of smaller ones for what is left of a row.

    Args:
        kinds: from ``rest_kinds``.
        total: pixels of a row.
        pixel: elements from a pixel's input to the next one's.
        partial: elements of a pixel's sums that wait for other inputs, but for the vectors of a tile; 0 if none do.
    """
    whole, *rest = enumerate(kinds)
    steps = "\n".join(
        text_of.rest_tile(name=f"tile{i}", size=kind.pixels, total=total, pixel=pixel, partial=partial)
        for i, kind in rest
    )
    return text_of.rest_tiles(name=f"tile{whole[0]}", size=whole[1].pixels, total=total, steps=steps)


def in_chains(p: ConvolutionProblem) -> bool:
    """Whether a sum is made of several chains."""
    return p.taps * p.ci > 2 * CHAIN


def tile_text(
    name: str,
    p: ConvolutionProblem,
    kind: Kind,
    epilogue: Epilogue,
    width: int,
    *,
    vectors: int,
    blocks: int,
    blocked: bool,
) -> str:
    """C++ of a tile's function.

    Args:
        name: of the function.
        p, kind, epilogue: what it computes.
        width: elements of a vector.
        vectors, blocks: vectors of output channels in a tile, and tiles of a group.
        blocked: whether input channels come in blocks.
    """
    sweeps = _sweeps(p, kind, blocked=blocked)
    rows = in_chains(p) and p.ker[0] * p.ker[1] > 1
    resting = rows or any("rest(" in sweep for sweep in sweeps)
    row = text_of.rest_row(every=max(1, CHAIN // (p.ker[2] * p.ci))) if rows else ""
    # How many channels a group's last block has is known when the code is made, where its tile is not another's.
    total = ceil_div(p.co, width)
    last = total % vectors or (vectors if blocks == 1 else 0)
    valid = f"(NV == {last} ? {p.co - (total - last) * width} : q.valid)"
    if epilogue.vector == 5:
        stop = text_of.stop_planes({"valid": valid})
    elif epilogue.grouped:
        stop = text_of.stop_groups({"valid": valid}, grouped=GROUPED)
    else:
        unrolled = p.ci * p.taps < SHORT and epilogue.in_registers and not epilogue.sums
        stop = (text_of.stop_unrolled if unrolled else text_of.stop_rows)({"valid": valid})
    if epilogue.sums and epilogue.vector == 2:
        stop += text_of.stop_sums({"valid": valid})
    end = (text_of.rest_end() if resting else "") + (text_of.suspend() if blocked else "")
    return text_of.tile(
        name=name, pixels=kind.pixels, panel=p.panel, begin=text_of.rest_begin() if resting else "", row=row,
        kds=p.dil[0] * p.xs[3], khs=p.dil[1] * p.xs[4], kh=p.ker[1], tap_row=p.ker[2] * p.ci * p.panel,
        sweeps="\n".join(sweeps), stop=end + stop,
    )  # fmt: skip


def _sweeps(p: ConvolutionProblem, kind: Kind, *, blocked: bool) -> list[str]:
    """C++ that adds up a row of taps, in chains where there are many products."""
    merged = not blocked and p.xs[5] * p.dil[2] == p.ci
    found, since = [], 0  # since: products of the chain so far, at the most
    for first, n, lo, hi in kind.sweeps():
        whole, length = merged or (n == 1 and not blocked), n * p.ci
        chain = round_up(ceil_div(length, max(1, length // CHAIN)), 64 // ELEMENT_BYTES[p.dtype])
        if in_chains(p) and since >= CHAIN // 2:
            found.append(text_of.rest_sweep())
            since = 0
        text = text_of.sweep_merged if whole else text_of.sweep_taps
        if whole and in_chains(p) and chain < length:
            text, since = text_of.sweep_chains, 0
        count = str(chain) if length % chain == 0 else f"({length} - k < {chain} ? {length} - k : {chain})"
        since += min(chain, length)
        found.append(
            text({
                "first": first, "end": first + n, "taps": n, "lo": lo, "hi": hi, "kws": p.dil[2] * p.xs[5], "tap": p.ci * p.panel,
                "ci": p.ci, "panel": p.panel, "length": length, "chain": chain, "count": count,
            })
        )  # fmt: skip
    return found
