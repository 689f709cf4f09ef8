"""Which dimensions of a container are channels: seen at convolutions, and carried on by the loops of other operators.

A convolution says by its strides which dimensions of its operands it sums over. A loop that walks them in one operand of a
program walks the channels of its other operands too. So a transposed, joined or shuffled tensor needs no naming convention.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from dcir.ir.dace.nodes import Op
from dcir.ir.loop_nest import LoopNest, stored_by
from dcir.ir.network import Container, Network, Operand
from dcir.ir.statements import Access, Index, Load, Read, Statement, Store
from dcir.ops.library.convolution import ConvolutionSpec
from dcir.ops.library.scatter import ScatterSpec
from dcir.transforms.tier3_layout.layout.relayout import BoundOperator


@dataclass(frozen=True)
class ContainerAccess:
    """One statement of a program that reads or writes a container.

    Attributes:
        operand: where it begins.
        number, stmt: the statement and its number in the program.
        moving: loops that a gather's indices depend on.
    """

    operand: Operand
    number: int
    stmt: Access
    moving: frozenset[int] = frozenset()

    @property
    def strides(self) -> tuple[int, ...]:
        """Over the program's loops."""
        return self.stmt.strides


class Snapshot:
    """A network's operators with their operands, read once: DaCe's edges are slow to walk."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.ops: dict[Op, BoundOperator] = {
            op: BoundOperator(op.spec, tuple(net.ins(op)), tuple(net.outs(op))) for op in net.ops()
        }
        self.readers: dict[str, list[Op]] = defaultdict(list)
        self.writers: dict[str, list[Op]] = defaultdict(list)
        for op, w in self.ops.items():
            for operands, table in ((w.ins, self.readers), (w.outs, self.writers)):
                for data in dict.fromkeys(o.data for o in operands):
                    table[data].append(op)
        self._accesses: dict[Op, list[ContainerAccess]] = {}

    def program(self, op: Op) -> LoopNest | None:
        """The loop nest of an operator, or that of its epilogue; of a scatter one that walks what it reads and writes."""
        spec = self.ops[op].spec
        return _points(spec) if isinstance(spec, ScatterSpec) else stored_by(spec)

    def accesses(self, op: Op) -> list[ContainerAccess]:
        """What that program loads and stores."""
        if op not in self._accesses:
            self._accesses[op] = list(self._walk(op))
        return self._accesses[op]

    def _walk(self, op: Op) -> Iterator[ContainerAccess]:
        p, w = self.program(op), self.ops[op]
        if p is None:
            return
        if isinstance(w.spec, ScatterSpec):
            placed = frozenset(k for strides in w.spec.indices for k, step in enumerate(strides) if step)
            for i, s in enumerate(p.body):
                if isinstance(s, Store):
                    yield ContainerAccess(w.outs[0], i, s, placed)
                elif isinstance(s, Load):
                    yield ContainerAccess(w.ins[s.operand], i, s, frozenset() if s.operand == w.spec.first else placed)
            return
        ins = list(w.ins)
        if not isinstance(w.spec, LoopNest):
            ins = [Operand(""), *ins[len(ins) - len(p.inputs) + 1 :]]
        moving = dependence(p)
        for i, s in enumerate(p.body):
            if isinstance(s, Store):
                yield ContainerAccess(w.outs[s.operand], i, s)
            elif isinstance(s, Read) and ins[s.operand].data:
                yield ContainerAccess(ins[s.operand], i, s, frozenset().union(*(moving[a] for a in s.indices)))


def _points(spec: ScatterSpec) -> LoopNest:
    """A scatter's points, without their indices; and of its base the elements that they come to, where loops walk its dimensions."""
    body: list[Statement] = [Load(spec.first, spec.source, spec.dtype), Store(0, spec.to, spec.dtype, (0,))]
    same = dict(zip(spec.out, spec.base or (), strict=False)) | {0: 0}
    if spec.base is not None and all(step in same for step in spec.to):
        body.append(Load(0, tuple(same[step] for step in spec.to), spec.dtype))
    return LoopNest(spec.dims, (), (spec.dtype,) * (spec.first + 1), (spec.dtype,), tuple(body))


@functools.lru_cache(maxsize=4096)
def dependence(p: LoopNest) -> tuple[frozenset[int], ...]:
    """For every statement the loops its value depends on (those of a reduction included)."""
    found: list[frozenset[int]] = []
    for s in p.body:
        loops = frozenset().union(*(found[a] for a in s.args))
        if isinstance(s, Index):
            loops |= {s.dim}
        elif isinstance(s, Access):
            loops |= {k for k, st in enumerate(s.strides) if st}
        found.append(loops)
    return tuple(found)


def digits(c: Container, stride: int, extent: int) -> dict[int, int] | None:
    """What one loop walks: the container's dimensions and its step in each.

    Returns:
        None if the loop runs over the end of a dimension in the midst of it.
    """
    rest = abs(stride)
    result: dict[int, int] = {}
    if extent == 1 or not stride:
        return result
    order = sorted((d for d, n in enumerate(c.shape) if n > 1), key=lambda d: c.strides[d], reverse=True)
    for place, d in enumerate(order):
        if not c.strides[d]:
            return None
        step, rest = divmod(rest, c.strides[d])
        if not step:
            continue
        result[d] = step
        reach, above = step * (extent - 1), place
        while reach >= c.shape[order[above]]:  # the next dimension counts on, if this one is walked to its end
            n = c.shape[order[above]]
            if step != 1 or not above or c.strides[order[above - 1]] != c.strides[order[above]] * n:
                return None
            above -= 1
            result.setdefault(order[above], 0)
            reach //= n
    return None if rest else result


def channel_dimensions(shot: Snapshot, fixed: set[str]) -> dict[str, frozenset[int]]:
    """The channel dimensions of every container that convolutions or their neighbours tell of; none of ``fixed``."""
    found: dict[str, frozenset[int]] = {}
    queue: deque[str] = deque()

    def note(data: str, dims: frozenset[int]) -> None:
        c = shot.net.containers[data]
        if (
            dims
            and data not in found
            and data not in fixed
            and any(n > 1 for d, n in enumerate(c.shape) if d not in dims)
        ):
            found[data] = dims
            queue.append(data)

    def walked(data: str, stride: int, extent: int) -> frozenset[int]:
        return frozenset(digits(shot.net.containers[data], stride, extent) or ())

    for op, w in shot.ops.items():
        for operand, shape, strides in image_windows(w):
            note(operand.data, walked(operand.data, strides[1], shape[1]))
        if isinstance(w.spec, ConvolutionSpec) and w.spec.epilogue is not None:
            for a in shot.accesses(op):
                if isinstance(a.stmt, Store) and a.strides[1]:
                    note(a.operand.data, walked(a.operand.data, a.strides[1], w.spec.epilogue.dims[1]))
    while queue:
        data = queue.popleft()
        for op in (*shot.readers[data], *shot.writers[data]):
            loops = channel_loops(shot, op, data, found[data])
            if not loops:
                continue
            p = shot.program(op)
            assert p is not None
            for a in shot.accesses(op):
                if a.operand.data not in found:
                    ways = [walked(a.operand.data, a.strides[k], p.dims[k]) for k in loops if a.strides[k]]
                    if all(ways):
                        note(a.operand.data, frozenset().union(*ways))
    return found


def channel_loops(shot: Snapshot, op: Op, data: str, channels: frozenset[int]) -> list[int]:
    """The loops of an operator's program that walk nothing but a container's channels."""
    p, c = shot.program(op), shot.net.containers[data]
    if p is None:
        return []
    loops: dict[int, None] = {}
    for a in shot.accesses(op):
        if a.operand.data == data:
            for k, (stride, n) in enumerate(zip(a.strides, p.dims, strict=True)):
                if digits(c, stride, n) and set(digits(c, stride, n) or ()) <= channels:
                    loops[k] = None
    return list(loops)


def image_windows(w: BoundOperator) -> list[tuple[Operand, tuple[int, ...], tuple[int, ...]]]:
    """A convolution's operands that are images: where they begin, shapes and strides over (n, channel, *space)."""
    spec = w.spec
    if not isinstance(spec, ConvolutionSpec):
        return []
    ins, outs = spec.windows()
    if spec.epilogue is not None:
        outs = []  # the epilogue's stores say it
    pairs = [*zip(w.ins, ins, strict=False), *zip(w.outs, outs, strict=False)]
    return [(o, v.shape, v.strides) for o, v in pairs if v is not None and v.field in ("x", "y")]
