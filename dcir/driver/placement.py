"""What a forward and its backward must agree on: how results are laid out, which buffers they share, which blocks they lie in."""

from __future__ import annotations

from typing import Any

from dcir.frontends.torch.importer import Imported
from dcir.ir.memory_plan import BufferPart, Placement
from dcir.ir.network import Network
from dcir.ir.types import itemsize
from dcir.runtime.backward_blocks import BackwardBlocks


def buffer_numbers(net: Network) -> dict[str, int]:
    """Result containers that a call allocates, in order."""
    names = (name for name, c in net.containers.items() if c.role == "result" and name not in net.updates)
    return {name: number for number, name in enumerate(names)}


def buffer_parts(done: Imported) -> dict[int, BufferPart]:
    """Where in which buffer the outputs lie that lie in one."""
    net = done.network
    buffers = buffer_numbers(net)
    found = {}
    for number, (kind, value) in enumerate(done.outputs):
        if kind == "result" and (r := net.results[value]).data in buffers:
            size = net.containers[r.data].nbytes
            found[number] = BufferPart(buffers[r.data], r.offset * itemsize(r.dtype), size)
    return found


def chosen_strides(done: Imported) -> tuple[tuple[int, ...] | None, ...]:
    """Per output, its strides if passes were free to choose them."""
    net = done.network
    return tuple(
        net.results[value].strides if kind == "result" and value in net.free else None for kind, value in done.outputs
    )


def saved_bytes(done: Imported, results: int) -> int:
    """Bytes that a forward keeps for its backward, beyond its inputs and the first ``results`` of its results."""
    net = done.network

    def containers(outputs: list[tuple[str, Any]]) -> set[str]:
        return {net.results[value].data for kind, value in outputs if kind == "result"}

    kept = containers(done.outputs[results:]) - containers(done.outputs[:results])
    return sum(net.containers[name].nbytes for name in kept if net.containers[name].role == "result")


def backward_blocks(net: Network) -> BackwardBlocks | None:
    """The blocks that a backward's arguments lie in; None if there are none."""
    inputs = _placed_inputs(net)
    if not inputs:
        return None
    used = {place.block for place in inputs.values()}
    sizes = {block: nbytes for block, nbytes in net.memory.shared().items() if block in used}
    number = {block: i for i, block in enumerate(sizes)}
    arguments = {net.inputs.index(name): (number[block], offset) for name, (block, offset) in inputs.items()}
    donated = net.memory.donated
    buffers = {
        donated[name].buffer: (number[block], offset - donated[name].offset) for name, (block, offset) in inputs.items()
    }
    return BackwardBlocks(list(sizes.values()), arguments, buffers)


def shared_with_arguments(net: Network, number: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """Results that lie at the beginning of a block, each with an argument that lies there too.

    Args:
        net: a backward's network.
        number: of the buffers of its results.
    """
    inside = {place.block: net.inputs.index(name) for name, place in _placed_inputs(net).items()}
    placed = net.memory.placements.items()
    return tuple((number[n], inside[block]) for n, (block, _) in placed if n in number and block in inside)


def _placed_inputs(net: Network) -> dict[str, Placement]:
    return {name: place for name, place in net.memory.placements.items() if net.containers[name].role == "input"}
