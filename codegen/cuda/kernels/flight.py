"""How many loads a thread of a reduction has under way, and over how many blocks rows or columns are dealt.

Memory answers after some 600 to 800 ns, so that a multiprocessor's share of an H200's bandwidth, 32 bytes a ns, takes 20 to 25 KB under way
at all times (Little, 1961); blocks that begin, that join their results and that end have none, so several times as much is asked for.
"""

from __future__ import annotations

from dcir.codegen.cuda.device import MULTIPROCESSORS, RESIDENT_THREADS, ceil_div
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Gather, Load, Reduce
from dcir.ir.types import itemsize

BYTES = 128
"""That a thread waits for at once; with ``RESIDENT_THREADS`` 128 KB a multiprocessor."""
MOST_PIECES = 16
WORDS = 44
"""Of 4 bytes, that a thread waits for and has partial results in, for all to fit into 64 registers."""
# Statements that are printed once for every piece, from which on fewer pieces do.
LONG_TEXT = 256


def at_once(p: LoopNest, width: int, along: int | None) -> int:
    """Pieces of ``width`` points that a thread loads together: a power of two, at most 16."""
    loaded = partial = 0
    for s, (_, full) in zip(p.body, p.levels(), strict=True):
        if isinstance(s, Reduce):
            partial += width * ceil_div(itemsize(s.dtype) + 8 * s.is_place, 4)
        elif full and isinstance(s, Load | Gather):
            lanes = width if along is not None and s.strides[along] else 1
            loaded += itemsize(p.inputs[s.operand]) * lanes
    times = MOST_PIECES
    while times > 1 and (times * loaded > BYTES or times * loaded // 4 + partial > WORDS):
        times //= 2
    while times > 4 and times * len(p.body) > LONG_TEXT:
        times //= 2
    return max(times, 2)


def parts_of_a_wave(blocks: int, threads: int) -> int:
    """Into how many parts each of some blocks' work can be divided, for all parts to be under way together."""
    return MULTIPROCESSORS * (RESIDENT_THREADS // threads) // max(blocks, 1)
