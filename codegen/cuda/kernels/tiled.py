"""Pointwise loop nests that read along one loop what they write along another: tiles that turn in shared memory.

block:   loads  T x T points, threads side by side along the loop that is dense in what they read   -->   shared memory
         stores them, threads side by side along the loop that is dense in what they write
"""

from __future__ import annotations

import math

from dcir.codegen.cuda.device import SHARED_BYTES, ceil_div
from dcir.codegen.cuda.kernels.statements import KernelText
from dcir.codegen.cuda.kernels.text import Places
from dcir.codegen.cuda.kernels.types import CUDA_TYPE
from dcir.codegen.cuda.kernels.visits import Visits
from dcir.codegen.cuda.launch import Launch
from dcir.ir.loop_nest import LoopNest
from dcir.ir.statements import Load, Store
from dcir.ir.types import itemsize

BLOCK = 256
# Below so many points all of it is in a cache; a loop of fewer steps fills no tile.
LEAST_POINTS = 4096
LEAST_EXTENT = 8


def turning_loop(p: LoopNest) -> int | None:
    """The loop along which operands are dense that a nest, without inner loops, does not store along; None: there is none."""
    if len(p.outer) < 2 or p.outer[-1] < LEAST_EXTENT or math.prod(p.outer) < LEAST_POINTS:
        return None
    votes: dict[int, int] = {}
    for s in p.body:
        if isinstance(s, Load) and not s.args and s.strides[-1] not in (0, 1):
            for d, step in enumerate(s.strides[:-1]):
                if step == 1 and p.outer[d] >= LEAST_EXTENT:
                    votes[d] = votes.get(d, 0) + 1
    stored = any(isinstance(s, Store) and s.strides[-1] == 1 for s in p.body)
    return max(votes, key=lambda d: votes[d]) if votes and stored else None


def tiled(p: LoopNest, places: Places, turned: int) -> Launch | None:
    """The kernel of a loop nest of outer loops; None where shared memory has no room for its tiles."""
    last = len(p.outer) - 1
    loads = [
        i
        for i, s in enumerate(p.body)
        if isinstance(s, Load) and not s.args and s.strides[turned] == 1 and s.strides[last] not in (0, 1)
    ]
    types = {i: p.inputs[s.operand] for i in loads if isinstance(s := p.body[i], Load)}
    size = 64 if max(map(itemsize, types.values())) <= 2 else 32
    if sum(size * (size + 1) * itemsize(t) for t in types.values()) > SHARED_BYTES:
        return None
    down = BLOCK // size
    others = [d for d in range(last) if d != turned]
    text = KernelText(p, places, last, 1, math.prod(p.outer) + size * size)
    text.given = {i: f"s{i}[x * {size + 1} + e]" for i in loads}
    t, along, across = text.index, ceil_div(p.outer[last], size), ceil_div(p.outer[turned], size)
    text.line("constexpr bool whole = true;")
    text.line(f"const int x = d_thread() % {size}, y = d_thread() / {size};")
    text.line(f"const {t} tile = d_block(), start = tile % {along} * {size}, tiles = tile / {along};")
    text.line(f"const {t} begin = tiles % {across} * {size}, others = tiles / {across};")
    text.decompose("others", others, p.dims)
    text.unrolled("u", size // down)
    text.line(f"const int e = y + u * {down};")
    text.line(f"const {t} i{last} = start + e, i{turned} = begin + x;")
    text.open(f"if (i{last} < {p.outer[last]} && i{turned} < {p.outer[turned]})")
    for i in loads:
        s = p.body[i]
        assert isinstance(s, Load)
        text.line(f"s{i}[e * {size + 1} + x] = d_load(a{s.operand}, {text.address(s.strides, '')});")
    text.close()
    text.close()
    text.line("d_barrier();")
    text.line(f"const {t} i{last} = start + x;")
    guard = f"begin + e < {p.outer[turned]} && i{last} < {p.outer[last]}"
    stores = [i for i, s in enumerate(p.body) if isinstance(s, Store)]
    text.visit(Visits(size // down, (), f"y + u * {down}", guard, variables=[(turned, "begin + e")]), stores)
    before = [f"  D_SHARED({CUDA_TYPE[t]}, s{i}, {size * (size + 1)});" for i, t in types.items()]
    return text.launch((along * across * math.prod(p.outer[d] for d in others), 1, 1), BLOCK, before)
