"""Pointwise loop nests: every thread takes a few vectors of points, those of a block side by side.

    block b, thread t, piece u:   points (b * 256 * U + u * 256 + t) * V … + V - 1

Where operands do not begin at multiples of 16 bytes, and in the last block, the same is done element by element.
"""

from __future__ import annotations

import math

from dcir.codegen.cuda.device import VECTOR_BYTES, WANTED_THREADS, ceil_div
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.kernels.widths import vector_width
from dcir.codegen.cuda.launch import Launch
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Gather, Load, Store
from dcir.ir.types import itemsize

BLOCK = 256
# Bytes that a thread should wait for at once.
BYTES_IN_FLIGHT = 64
# Statements of a piece from which on pieces are not unrolled.
LONG_BODY = 48


def pointwise(p: LoopNest, places: Places) -> Launch:
    """The kernel of a loop nest of outer loops, all of which its stores walk."""
    along = len(p.outer) - 1 if p.outer else None
    single = len(p.outer) == 1
    width = vector_width(p, along, rest=single)
    points = math.prod(p.outer)
    pieces = ceil_div(points, width)
    times = _times(p, width, pieces)
    text = KernelText(p, places, along, width, points + BLOCK * times * width)
    stores = [i for i, s in enumerate(p.body) if isinstance(s, Store)]
    rest = points % width
    text.line(f"const {text.index} first = ({text.index})d_block() * {BLOCK * times} + d_thread();")
    start = len(text.lines)
    count = f"{points} - e < {width} ? (int)({points} - e) : {width}" if rest else ""
    guard = f"whole || e < {points}" if width > 1 else f"e < {points}"
    step = "" if width == 1 else f" * {width}"
    number = f"first + u * {BLOCK}" if times > 1 else "first"
    element = f"({number}){step}"
    text.visit(Visits(times, range(len(p.outer)), element, guard, count), stores)
    text.in_both_ways(start, f"((long long)d_block() + 1) * {BLOCK * times * width}ll <= {points}ll")
    return text.launch((ceil_div(pieces, BLOCK * times), 1, 1), BLOCK)


def _times(p: LoopNest, width: int, pieces: int) -> int:
    """Pieces of a thread: enough to wait for many bytes at once, if all multiprocessors still have work."""
    if len(p.body) > LONG_BODY or any(isinstance(s, Gather) for s in p.body):
        return 1
    loaded = sum(min(itemsize(p.inputs[s.operand]) * width, VECTOR_BYTES) for s in p.body if isinstance(s, Load))
    times = 1
    while times < 4 and loaded * times * 2 <= BYTES_IN_FLIGHT and pieces // (2 * times) >= 2 * WANTED_THREADS:
        times *= 2
    return times
