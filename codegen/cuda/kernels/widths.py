"""How many neighbouring points of a loop a thread takes at once: as many as one vector load or store moves."""

from __future__ import annotations

from collections.abc import Container

from dcir.codegen.cuda.device import VECTOR_BYTES
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Access, Gather, Index, Reduce, Store
from dcir.ir.types import itemsize

# Lanes of a nest with loads that are made lane by lane.
SCATTERED = 4


def vector_width(p: LoopNest, along: int | None, *, rest: bool = False) -> int:
    """Lanes along a loop: 1 if its points do not lie side by side, or vectors of them not at multiples of their size.

    Args:
        p: the loop nest.
        along: the loop; None: there is none.
        rest: whether there may be points behind the last vector, which only works for a single loop.
    """
    if along is None:
        return 1
    moves = _moving(p, along)
    whole = [i for i, s in enumerate(p.body) if _side_by_side(p, i, along, moves)]
    if not whole:
        return 1
    sizes = [_itemsize(p, i) for i in whole]
    width = min(VECTOR_BYTES // min(sizes), 2 * VECTOR_BYTES // max(sizes), 8 if max(sizes) > 1 else 16)
    if any(isinstance(s, Gather) and i not in whole for i, s in enumerate(p.body)):
        width = min(width, SCATTERED)
    while width > 1 and not _fits(p, along, width, whole, rest):
        width //= 2
    return max(width, 1)


def is_vector_gather(p: LoopNest, i: int, along: int | None, width: int, moves: Container[int]) -> bool:
    """Whether a gather's indices are the same for neighbours along a loop that lie side by side."""
    s = p.body[i]
    if not isinstance(s, Gather) or along is None or not _side_by_side(p, i, along, moves):
        return False
    others = (st for d, st in enumerate(s.strides) if d != along)
    return width > 1 and not any(st % width for st in (*others, *s.steps))


def _side_by_side(p: LoopNest, i: int, along: int, moves: Container[int]) -> bool:
    s = p.body[i]
    if not isinstance(s, Access) or s.strides[along] != 1:
        return False
    if isinstance(s, Gather):
        return not s.guard and not any(a in moves for a in s.args)
    return isinstance(s, Store) or not s.args


def _moving(p: LoopNest, along: int) -> set[int]:
    """Values that differ from point to point of a loop."""
    found: set[int] = set()
    for i, s in enumerate(p.body):
        if isinstance(s, Reduce):
            moves = along < len(p.outer) and any(a in found for a in s.args)
        else:
            moves = any(a in found for a in s.args)
        if moves or (isinstance(s, Access) and s.strides[along]) or (isinstance(s, Index) and s.dim == along):
            found.add(i)
    return found


def _itemsize(p: LoopNest, i: int) -> int:
    s = p.body[i]
    assert isinstance(s, Access)
    return itemsize((p.outputs if isinstance(s, Store) else p.inputs)[s.operand])


def _fits(p: LoopNest, along: int, width: int, whole: list[int], rest: bool) -> bool:
    if p.dims[along] % width and not (rest and p.dims[along] >= 4 * width):
        return False
    for i in whole:
        s = p.body[i]
        assert isinstance(s, Access)
        others = [st for d, st in enumerate(s.strides) if d != along]
        if isinstance(s, Gather):
            others += s.steps
        if any(st % width for st in others):
            return False
    return True
