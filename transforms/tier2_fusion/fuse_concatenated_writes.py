"""Operators that write short parts of the same rows run in one nest, row after row.

    y[:, 0:16] = a[i]; y[:, 16:32] = b[j]; ...    -->    for every row: its parts, one after the other

Each by itself writes a line or two of memory, leaps over the rest of the row, and waits for the next line; together they write, and read
indices that lie side by side, in order. Saves no bytes, but the waiting: 26 embeddings of 16 numbers each took 2.6 ms on one
thread, and 1.0 so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dcir.ir.cost_answers import pays
from dcir.ir.dace.nodes import Op
from dcir.ir.fuse import side_by_side
from dcir.ir.loop_forms import drop_unit_loops
from dcir.ir.loop_nest import LoopNest
from dcir.ir.network import Network
from dcir.ir.statements import Store
from dcir.ir.types import itemsize
from dcir.transforms.base import Pass, PassResult


class _Part(NamedTuple):
    """A program that writes one part of every row of one container."""

    op: Op
    program: LoopNest
    begin: int
    end: int  # of the part, in elements from the first row's beginning


@dataclass(frozen=True)
class FuseConcatenatedWrites(Pass):
    """Horizontal fusion of programs that write parts of the same rows.

    Attributes:
        most_bytes: length of a part beyond which it is worth a nest of its own.
        least_rows: below as many rows a kernel call is all there is to save.
        most_parts: most parts of one kernel.
        most_statements: most statements of one kernel.
    """

    tier: ClassVar[int] = 2
    most_bytes: int = 512
    least_rows: int = 64
    most_parts: int = 32
    most_statements: int = 160

    def apply(self, net: Network) -> PassResult:
        """Visit every container that several programs write."""
        outcome = PassResult.of(net)
        position = {op: i for i, op in enumerate(net.ops())}
        static = net.preparable()
        for data in list(net.containers):
            writers = sorted((w for w in net.writers(data) if w not in static), key=position.__getitem__)
            kinds: dict[tuple[tuple[int, ...], tuple[int, ...]], list[_Part]] = {}
            for op in writers if len(writers) > 1 else ():
                part = self._part(net, op)
                if part is not None:
                    store = next(s for s in part.program.body if isinstance(s, Store))
                    kinds.setdefault((part.program.dims, store.strides), []).append(part)
            readers = [position[r] for r in net.readers(data)]
            for parts in kinds.values():
                for group in self._groups(parts, position, readers):
                    ops = [part.op for part in group]
                    if len(group) > 1 and outcome.allowed(self, net, *ops):
                        self._join(net, group, position)
                        outcome.passed(ops)
        return outcome

    def _part(self, net: Network, op: Op) -> _Part | None:
        if not isinstance(op.spec, LoopNest) or op.spec.inner or len(net.outs(op)) != 1:
            return None
        p = drop_unit_loops(op.spec)
        stores = [s for s in p.body if isinstance(s, Store)]
        if len(stores) != 1 or len(p.dims) < 2 or pays("few rows to write", p.dims[0] < self.least_rows):
            return None
        (out,), strides = net.outs(op), stores[0].strides
        span = sum((n - 1) * s for n, s in zip(p.dims[1:], strides[1:], strict=True)) + 1
        begin = out.offset % strides[0] if strides[0] > 0 else -1
        if min(strides) <= 0 or begin + span > strides[0] or out.offset >= strides[0]:
            return None
        short = pays("short parts", span * itemsize(p.outputs[0]) <= self.most_bytes)
        return _Part(op, p, begin, begin + span) if short else None

    def _groups(self, parts: list[_Part], position: dict[Op, int], readers: list[int]) -> Iterator[list[_Part]]:
        """Parts in order of execution, a new group where somebody reads the rows in between or a kernel would be too long."""
        group: list[_Part] = []
        for part in parts:
            first = position[group[0].op] if group else 0
            full = len(group) == self.most_parts or self._statements([*group, part]) > self.most_statements
            if group and (full or any(first < r <= position[part.op] for r in readers)):
                yield group
                group = []
            group.append(part)
        yield group

    def _statements(self, group: list[_Part]) -> int:
        return sum(len(part.program.body) for part in group)

    def _join(self, net: Network, group: list[_Part], position: dict[Op, int]) -> None:
        """One operator at the place of the last; the parts in the order in which they lie in a row."""
        last = group[-1].op
        ordered = sorted(group, key=lambda part: part.begin)
        made = side_by_side([(part.program, net.ins(part.op), net.outs(part.op)) for part in ordered])
        ops = [last, *(part.op for part in ordered)]
        new = net.add_op(made.program, made.ins, made.outs, came_from=ops, made_by=self.name, before=last)
        position[new] = position[last]
        for part in group:
            net.remove_op(part.op, into=new)
            del position[part.op]
