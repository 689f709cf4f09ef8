"""The rules of a memory plan: nobody leaves a block, and whoever lies in the same bytes lives at another time."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from dcir.errors import InvalidGraph
from dcir.ir.dace.nodes import Op
from dcir.ir.memory_plan import ARENA, PREPARED, MemoryPlan
from dcir.ir.network import Network
from dcir.ir.types import itemsize


class Stay(NamedTuple):
    """Bytes of a block that somebody has for some time: positions of operators, both included; first byte and end."""

    first: int
    last: int
    low: int
    high: int
    name: str


def verify_memory(net: Network) -> None:
    """Check the places that a network's containers have.

    Raises:
        InvalidGraph: a container leaves its block or begins within an element, an alias's target has no block of its own, an input
            lies in a block without being donated, or two containers share a byte while both are needed.
    """
    plan = net.memory
    if not plan.blocks:
        return
    _check_names(net, plan)
    position = net.positions()
    stays = {block: list[Stay]() for block in plan.blocks}
    used = _used(net, position)
    _arena(net, plan, position, used, stays)
    _shared(net, plan, len(position), used, stays)
    for block, rows in stays.items():
        for row in rows:
            if row.low < 0 or row.high > plan.blocks[block]:
                raise InvalidGraph(f"{row.name} leaves its block of {plan.blocks[block]} bytes")
        _check_apart(rows)


def _check_names(net: Network, plan: MemoryPlan) -> None:
    """Whoever has a place exists, lies in a block there is, and begins where an element may."""
    for name, (target, _) in plan.aliases.items():
        place = plan.placements.get(target)
        if place is None or place.block in (ARENA, PREPARED):
            raise InvalidGraph(f"{name} lies in {target}, which lies in no shared block")
    for name in (*plan.placements, *plan.aliases):
        place = plan.placement(name)
        assert place is not None
        if place.block not in plan.blocks:
            raise InvalidGraph(f"{name} lies in {place.block}, which is no block of the plan")
        if name not in net.containers:
            raise InvalidGraph(f"{name} has a place in {place.block} and is no container")
        if place.offset % itemsize(net.containers[name].dtype):
            raise InvalidGraph(f"{name} lies at byte {place.offset} of {place.block}, within an element")


def _used(net: Network, position: dict[Op, int]) -> dict[str, tuple[int, int]]:
    """Per container the first and the last operator that touches it; one sweep, as asking each container is slow."""
    used: dict[str, tuple[int, int]] = {}
    for op, at in position.items():
        for o in (*net.ins(op), *net.outs(op)):
            first, last = used.get(o.data, (at, at))
            used[o.data] = min(first, at), max(last, at)
    return used


def _arena(
    net: Network,
    plan: MemoryPlan,
    position: dict[Op, int],
    used: dict[str, tuple[int, int]],
    stays: dict[str, list[Stay]],
) -> None:
    """Transients from their first writer to their last reader; prepared values for ever."""
    label = {op.label: i for op, i in position.items()} if net.streams else {}
    streams = [(s, label[s.ops[0]], label[s.ops[-1]]) for s in net.streams]
    inside = {name: number for number, s in enumerate(net.streams) for name in s.inside}
    lanes: list[list[Stay]] = [[] for _ in streams]
    for name, (block, low) in plan.placements.items():
        if block not in (ARENA, PREPARED) or name not in used:
            continue
        first, last = used[name]
        if name in inside:
            image = net.streams[inside[name]].steps[name] * itemsize(net.containers[name].dtype)
            lanes[inside[name]].append(Stay(first, last, low, low + image, name))
            continue
        for s, begin, end in streams:  # its last image begins when the first has long been finished
            if name in s.steps:
                first, last = min(first, begin), max(last, end)
        if block == PREPARED:
            first, last = 0, len(position)
        stays[block].append(Stay(first, last, low, low + net.containers[name].nbytes, name))
    for (s, first, last), rows in zip(streams, lanes, strict=True):
        if any(row.low < s.at or row.high > s.at + s.lane_bytes for row in rows):
            raise InvalidGraph(f"a value of one image leaves its lane of {s.lane_bytes} bytes")
        _check_apart(rows)
        if rows:
            what = f"lanes of {s.ops[0]}"
            stays[ARENA].append(Stay(first, last, s.at, s.at + s.lane_bytes * s.lanes, what))


def _shared(
    net: Network, plan: MemoryPlan, end: int, used: dict[str, tuple[int, int]], stays: dict[str, list[Stay]]
) -> None:
    """Donated inputs until their last reader, with all of their buffer; results for ever from their first writer on; aliases."""
    shared, shown = plan.shared(), net.result_containers()
    buffers: dict[int, tuple[str, Stay]] = {}
    for name in (*plan.placements, *plan.aliases):
        place = plan.placement(name)
        if place is None or place.block not in shared:
            continue
        block, at = place
        c = net.containers[name]
        first, last = used.get(name, (-1, -1))
        last = end if name in shown else last
        if c.role != "input":
            stays[block].append(Stay(first, last, at, at + c.nbytes, name))
            continue
        if name not in plan.donated:
            raise InvalidGraph(f"{name} lies in a shared block and is not donated")
        part = plan.donated[name]
        low = at - part.offset
        before = buffers.get(part.buffer)
        if before is not None:
            if (before[0], before[1].low) != (block, low):
                raise InvalidGraph(f"{name} lies elsewhere than what shares its memory")
            last = max(last, before[1].last)
        buffers[part.buffer] = block, Stay(-1, last, low, low + part.nbytes, name)
    for block, row in buffers.values():
        stays[block].append(row)


def _check_apart(rows: Iterable[Stay]) -> None:
    """Whoever is there at the same time lies in other bytes: those that are there lie apart, so only neighbours are compared."""
    present: list[Stay] = []
    lows: list[int] = []
    ends: list[tuple[int, int]] = []
    for row in sorted(rows):
        if row.high == row.low:
            continue
        while ends and ends[0][0] < row.first:
            at = bisect_left(lows, heapq.heappop(ends)[1])
            del lows[at], present[at]
        at = bisect_left(lows, row.low)
        for near in present[max(at - 1, 0) : at + 1]:
            if near.low < row.high and near.high > row.low:
                raise InvalidGraph(f"{row.name} lies where {near.name} is, which is not free yet")
        lows.insert(at, row.low)
        present.insert(at, row)
        heapq.heappush(ends, (row.last, row.low))
