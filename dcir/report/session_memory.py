"""Memory of a graph for a picture: a rectangle for every value in a block, offset by time, and the fullest moment of the arena."""

from __future__ import annotations

from typing import Any

from dcir.ir.memory_plan import ARENA
from dcir.ir.network import Network


def live_ranges(net: Network) -> dict[str, tuple[int, int]]:
    """First and last operator, by place in the order of execution, at which each container holds something that is wanted.

    Inputs and constants hold it from the start, results and what is prepared for calls to the end.
    """
    at, count = net.positions(), len(net.ops())
    found: dict[str, tuple[int, int]] = {}
    for op, row in at.items():
        for o in (*net.ins(op), *net.outs(op)):
            first, last = found.get(o.data, (row, row))
            found[o.data] = min(first, row), max(last, row)
    results, prepared = net.result_containers(), net.prepared_ops()
    lasting = {o.data for op in at if op not in prepared for o in net.ins(op)} & {
        o.data for op in prepared for o in net.outs(op)
    }
    for name, (first, last) in found.items():
        given = net.containers[name].role in ("input", "constant")
        found[name] = 0 if given else first, count - 1 if name in results | lasting else last
    return found


def memory(net: Network) -> dict[str, Any]:
    """Blocks with their bytes, rectangles in them, and who is in the arena when most of it is taken."""
    ranges = live_ranges(net)
    rectangles = []
    for name, (first, last) in ranges.items():
        place = net.memory.placement(name)
        if place is not None:
            rectangles.append([name, place.block, place.offset, net.containers[name].nbytes, first, last])
    rectangles.sort(key=lambda r: (r[1], r[4], r[2]))
    arena = {name: size for name, size in net.memory.blocks.items() if name == ARENA}
    return {"blocks": arena | dict(net.memory.blocks), "rectangles": rectangles, "peak": _peak(rectangles)}


def _peak(rectangles: list[list[Any]]) -> dict[str, Any] | None:
    """The moment at which values in the arena take most bytes."""
    inside = [r for r in rectangles if r[1] == ARENA]
    if not inside:
        return None
    changes: dict[int, int] = {}
    for *_, nbytes, first, last in inside:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    best, at, now = -1, 0, 0
    for row in sorted(changes):
        now += changes[row]
        if now > best:
            best, at = now, row
    there = sorted((r for r in inside if r[4] <= at <= r[5]), key=lambda r: -r[3])
    return {"at": at, "bytes": best, "values": [r[0] for r in there]}
