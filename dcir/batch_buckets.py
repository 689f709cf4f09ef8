"""Which pieces of a few sizes cover a batch of any size.

    30 images   -->   0:16, 14:30

The last piece may reach back into the one before it, so any batch is covered by pieces of 2, 4, 16 and 64 images: one more
program each time batches become four times as large.
"""

from __future__ import annotations

import functools

SIZES = (2, 4, 16, 64)
_RUN = 1
"""What it costs to begin a run, in images."""


@functools.lru_cache(maxsize=4096)
def cover(images: int, sizes: tuple[int, ...] = SIZES) -> tuple[tuple[int, int], ...]:
    """(start, size) of the pieces of a batch: the cheapest by images computed and runs begun.

    Args:
        images: at least as many as the smallest piece has.
        sizes: of pieces, ascending.
    """
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    small = tuple(s for s in sizes if s <= images)
    whole = max(0, images // small[-1] - 2)  # the greater part of a large batch
    rest = images - whole * small[-1]
    for n in range(1, rest + 1):
        best.append(min((best[max(n - s, 0)][0] + s + _RUN, (*best[max(n - s, 0)][1], s)) for s in small))
    ordered = sorted((*[small[-1]] * whole, *best[rest][1]), reverse=True)
    pieces, at = [], 0
    for size in ordered:
        start = min(at, images - size)
        pieces.append((start, size))
        at = start + size
    return tuple(pieces)
