"""Where containers and the kernels' own memory lie at run time, whatever the target: slots of a table and offsets in blocks."""

from __future__ import annotations

from collections.abc import Iterable

from dcir.codegen.steps import Place
from dcir.ir.memory_plan import ARENA, aligned
from dcir.ir.network import Network, Operand
from dcir.ir.types import itemsize


class ScratchMemory:
    """Memory for the kernels' own use: that of one kernel, or of one in each lane of a stream."""

    def __init__(self, net: Network) -> None:
        self._lanes = [s.lanes for s in net.streams]
        self._alone, self._in_lane, self._most_lanes = 0, 0, 0

    def add(self, nbytes: int, stream: int) -> None:
        """A kernel that wants ``nbytes``, in a stream if its number is not negative."""
        if stream < 0:
            self._alone = max(self._alone, nbytes)
        else:
            self._in_lane = max(self._in_lane, nbytes)
            self._most_lanes = max(self._most_lanes, self._lanes[stream])

    @property
    def of_lane(self) -> int:
        """Bytes between two lanes."""
        return aligned(self._in_lane)

    @property
    def all(self) -> int:
        """Bytes in all."""
        return max(aligned(self._alone), self.of_lane * self._most_lanes)


class Placement:
    """Where every container lies at run time: its own table slot, or an offset in a block.

    Attributes:
        plan: the network's, with a place for every transient.
        slots: of the table, for inputs, constants and results.
        count: slots of the table.
        end: bytes of the arena, without scratch memory.

    Args:
        net: the network.
        made_anew: containers that the plan has among the prepared values, and that belong to a call: they lie behind the arena's others.
    """

    def __init__(self, net: Network, made_anew: Iterable[str] = ()) -> None:
        self.net = net
        self.plan = net.memory.completed({n: c.nbytes for n, c in net.containers.items() if c.role == "transient"})
        # Slot 0 is the arena, slot 1 the block of prepared values.
        owned = (name for name, c in net.containers.items() if c.role != "transient")
        self.slots: dict[str, int] = {name: slot for slot, name in enumerate(owned, 2)}
        self.count = 2 + len(self.slots)
        self.end = aligned(self.plan.nbytes(ARENA))
        self._anew: dict[str, int] = {}
        for name in made_anew:
            self._anew[name] = self.end
            self.end += aligned(net.containers[name].nbytes)

    def place(self, o: Operand, number: int = -1) -> Place:
        """Of an operand, in a stream if it is an operand there."""
        size = itemsize(self.net.containers[o.data].dtype)
        offset, image = o.offset * size, 0
        if number >= 0:
            stream = self.net.streams[number]
            if o.data in stream.inside:
                return Place(0, self.plan.placements[o.data].offset + offset, 0, stream.lane_bytes)
            image = stream.steps[o.data] * size
        if o.data in self._anew:
            return Place(0, self._anew[o.data] + offset)
        if o.data in self.slots:
            return Place(self.slots[o.data], offset, image)
        if o.data in self.plan.aliases:
            target, start = self.plan.aliases[o.data]
            return Place(self.slots[target], start + offset, image)
        block, start = self.plan.placements[o.data]
        return Place(0 if block == ARENA else 1, start + offset, image)
