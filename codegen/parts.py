"""Where a driver may stop, so that results can be handed over before the others are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dcir.codegen.steps import AnyStep, Call
from dcir.ir.network import Network

MOST_PARTS = 16
"""A part costs a team of threads that opens and closes, and whoever waits for it a call."""
LEAST_BYTES = 64 << 10
"""Of results that are worth a part of their own."""


@dataclass(frozen=True)
class Parts:
    """The parts of a driver.

    Attributes:
        stops: numbers of the steps that each part but the first begins with.
        ready: with which part a result container is complete and not read any more, -1 for those that no step writes.
    """

    stops: tuple[int, ...] = ()
    ready: dict[str, int] = field(default_factory=dict)


def parts_of(net: Network, calls: Sequence[AnyStep]) -> Parts:
    """Parts that end when enough of a network's results are complete.

    Args:
        net: what the driver computes.
        calls: its steps.
    """
    streams = _streams(calls)
    used = _last_uses(net, calls, streams)
    results = {r.data: used.get(r.data, -1) for r in net.results if net.containers[r.data].role == "result"}
    bytes_at: dict[int, int] = {}
    for name, step in results.items():
        if step >= 0:
            bytes_at[step] = bytes_at.get(step, 0) + net.containers[name].nbytes
    enough = max(LEAST_BYTES, sum(bytes_at.values()) // MOST_PARTS)
    stops, collected = [], 0
    for end in sorted(bytes_at):
        collected += bytes_at[end]
        stop = end + 1
        if collected >= enough and 0 < bytes_at.get(stop, 0) * 8 < enough:
            continue  # a bias, say, which goes with its weight
        if collected >= enough and stop < len(calls) and not any(a < stop <= b for a, b in streams.values()):
            stops.append(stop)
            collected = 0
    ready = {name: sum(stop <= step for stop in stops) if step >= 0 else -1 for name, step in results.items()}
    return Parts(tuple(stops), ready)


def _streams(calls: Sequence[AnyStep]) -> dict[int, tuple[int, int]]:
    """The first and the last step of each stream."""
    found: dict[int, tuple[int, int]] = {}
    for step, call in enumerate(calls):
        if isinstance(call, Call) and call.stream >= 0:
            found[call.stream] = found.get(call.stream, (step, step))[0], step
    return found


def _last_uses(net: Network, calls: Sequence[AnyStep], streams: Mapping[int, tuple[int, int]]) -> dict[str, int]:
    """The step with which nothing touches each container any more: whoever gets a gradient may write to it, and one that is the
    gradient of a value behind it, too, is read on. All steps of a stream take turns, image by image, and end together."""
    ops, aliases = net.ops(), net.memory.aliases
    used: dict[str, int] = {}
    for step, call in enumerate(calls):
        end = streams[call.stream][1] if isinstance(call, Call) and call.stream >= 0 else step
        op = ops[call.number]
        for operand in (*net.ins(op), *net.outs(op)):
            name = aliases[operand.data].target if operand.data in aliases else operand.data
            used[name] = max(end, used.get(name, -1))
    return used
