"""How many neighbouring points of a loop a thread takes at once: as many as one vector load or store moves."""

from __future__ import annotations

from dcir.codegen.cuda.device import VECTOR_BYTES
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Gather, Load, Store
from dcir.ir.types import itemsize


def vector_width(p: LoopNest, along: int | None, *, rest: bool = False) -> int:
    """Lanes along a loop: 1 if its points do not lie side by side, or vectors of them at multiples of their size.

    Args:
        p: the loop nest.
        along: the loop; None: there is none.
        rest: whether there may be points behind the last vector, which only works for a single loop.
    """
    if along is None:
        return 1
    moved = [s for s in p.body if isinstance(s, (Load, Store)) and s.strides[along] == 1]
    if not moved:
        return 1
    sizes = [itemsize((p.outputs if isinstance(s, Store) else p.inputs)[s.operand]) for s in moved]
    width = min(VECTOR_BYTES // min(sizes), 2 * VECTOR_BYTES // max(sizes), 8 if max(sizes) > 1 else 16)
    if any(isinstance(s, Gather) for s in p.body):
        width = min(width, 4)
    while width > 1 and not _fits(p, along, width, rest):
        width //= 2
    return max(width, 1)


def _fits(p: LoopNest, along: int, width: int, rest: bool) -> bool:
    if p.dims[along] % width and not (rest and p.dims[along] >= 4 * width):
        return False
    for s in p.body:
        if isinstance(s, (Load, Store)) and s.strides[along] == 1:
            others = (st for d, st in enumerate(s.strides) if d != along)
            if any(st % width for st in others):
                return False
    return True
