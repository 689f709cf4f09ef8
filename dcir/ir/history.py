"""What passes leave of a network, one after the other: versions of its operators, and snapshots that are lists of their numbers.

    import          0 1 2 3     convolution, add, relu, product
    fuse-epilogues  4 3         convolution with add and relu (before: 0 1 2), product

A version never changes, and what a pass leaves alone keeps its number: a snapshot costs a look at every operator and an integer for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dcir.ir.dace.nodes import Op
from dcir.ir.network import Network, Operand, sources
from dcir.ir.operator import Operator
from dcir.ir.origins import Numbers
from dcir.ir.schedule import Schedule

IMPORT = -1
"""The place in a pipeline before its first pass."""


class Layout(NamedTuple):
    """Of a container: element type, shape and strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Access(NamedTuple):
    """An operand: container, first element in it, and number of the layout that the container has then."""

    data: str
    offset: int
    layout: int


@dataclass(frozen=True, slots=True)
class Version:
    """An operator as some pass left it.

    Attributes:
        label: its name, which it keeps when it is rewired.
        spec, schedule, origin, made_by: as of ``Op``.
        came_from: the imported operators whose work it does, those of its bodies included.
        reads, writes: its operands.
        moved: distinct bytes that it touches.
        before: versions whose work it has taken over: its own last one, and those that went when it came.
    """

    label: str
    spec: Operator
    schedule: Schedule | None
    origin: str
    made_by: str
    came_from: Numbers
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    moved: int
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two snapshots: versions that went, that are new, operators that changed (old, new), and how many run at another place."""

    removed: tuple[int, ...]
    added: tuple[int, ...]
    changed: tuple[tuple[int, int], ...]
    moved: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A network after a pass.

    Attributes:
        after: number of the pass in the pipeline; ``IMPORT`` before the first.
        order: versions in order of execution.
        bytes, peak: traffic of all operators, and scratch memory, as the runner measures them.
    """

    after: int
    order: tuple[int, ...]
    bytes: int
    peak: int


@dataclass
class History:
    """Versions and snapshots of one network.

    Attributes:
        versions, layouts: by number.
        snapshots: the import, then one for every pass that has changed something.
    """

    versions: list[Version] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    _last: dict[str, int] = field(default_factory=dict)
    _layout_numbers: dict[Layout, int] = field(default_factory=dict)

    def note(self, net: Network, after: int, moved: int, peak: int) -> None:
        """Take a snapshot.

        Args:
            net: the network.
            after: number of the pass that has run.
            moved, peak: of the snapshot, in bytes.
        """
        found, new = dict[str, int](), list[int]()
        for op in net.ops():
            number, is_new = self._version(net, op)
            found[op.label] = number
            if is_new:
                new.append(number)
        gone = [number for label, number in self._last.items() if label not in found]
        self._hand_on(gone, new)
        self._last = found
        self.snapshots.append(Snapshot(after, tuple(found.values()), moved, peak))

    def difference(self, number: int) -> Difference:
        """What became of the snapshot before ``number`` until that one."""
        before, now = self.snapshots[number - 1].order, self.snapshots[number].order
        was, have = set(before), set(now)
        old = {self.versions[v].label: v for v in before if v not in have}
        new = {self.versions[v].label: v for v in now if v not in was}
        changed = tuple((old[label], v) for label, v in new.items() if label in old)
        stayed = [v for v in before if v in have], [v for v in now if v in was]
        return Difference(
            tuple(v for label, v in old.items() if label not in new),
            tuple(v for label, v in new.items() if label not in old),
            changed,
            sum(a != b for a, b in zip(*stayed, strict=True)),
        )

    def _version(self, net: Network, op: Op) -> tuple[int, bool]:
        reads, writes = (tuple(self._access(net, o) for o in side) for side in (net.ins(op), net.outs(op)))
        came_from, last = sources(op), self._last.get(op.label)
        if last is not None:
            old = self.versions[last]
            same = old.spec is op.spec and old.schedule == op.own_schedule and old.made_by == op.made_by
            if same and (old.reads, old.writes, old.came_from) == (reads, writes, came_from):
                return last, False
        before = () if last is None else (last,)
        moved = net.moved_by(op)
        self.versions.append(
            Version(op.label, op.spec, op.own_schedule, op.origin, op.made_by, came_from, reads, writes, moved, before)
        )
        return len(self.versions) - 1, True

    def _access(self, net: Network, o: Operand) -> Access:
        c = net.containers[o.data]
        layout = Layout(c.dtype, c.shape, c.strides)
        if layout not in self._layout_numbers:
            self._layout_numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
        return Access(o.data, o.offset, self._layout_numbers[layout])

    def _hand_on(self, gone: Iterable[int], new: Iterable[int]) -> None:
        """Tell new versions of which ones that went they do the work: of those whose imported operators are all among theirs."""
        by_import: dict[int, list[int]] = {}
        for v in new:
            for number in self.versions[v].came_from:
                by_import.setdefault(number, []).append(v)
        for g in gone:
            numbers = self.versions[g].came_from
            for v in by_import.get(numbers[0], ()) if numbers else ():
                heir = self.versions[v]
                if set(numbers) <= set(heir.came_from):
                    self.versions[v] = replace(heir, before=(*heir.before, g))
