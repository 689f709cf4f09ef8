"""From an imported graph and its compiled library to a callable program."""

from __future__ import annotations

from typing import Any

from dcir.codegen.compile import Library
from dcir.frontends.torch.importer import Imported
from dcir.ir.memory_plan import Placement
from dcir.ir.network import Network
from dcir.runtime.blocks import Arenas
from dcir.runtime.program import Program
from dcir.runtime.program_info import BufferInfo, ProgramInfo, ResultInfo
from dcir.runtime.spaces import Spaces
from dcir.runtime.torch_calls import call_into_torch


def assemble(done: Imported, library: Library, arenas: Arenas | None = None, *, prepare: str = "version") -> Program:
    """The callable program of a compiled network.

    Args:
        done, library: the network and its code.
        arenas: where its scratch memory is taken from, which others may share.
        prepare: when what depends on parameters alone is computed (``Options.prepare``).
    """
    net = done.network
    number = buffer_numbers(net)
    buffers = [BufferInfo(c.shape, c.strides, c.dtype) for c in (net.containers[name] for name in number)]
    info = ProgramInfo(
        table_size=library.table_size,
        arena_bytes=library.arena_bytes,
        updates=tuple((library.slots[new], net.inputs.index(old)) for new, old in net.updates.items()),
        prepared_bytes=library.prepared_bytes,
        static_inputs=tuple(net.inputs.index(n) for n in library.static if n in net.static),
        static_constants=tuple(i for i, n in enumerate(done.constants) if n in library.static),
        input_slots=tuple(library.slots.get(n, -1) if n else -1 for n in net.inputs),
        constant_slots=tuple(library.slots[n] for n in done.constants),
        buffers=tuple(buffers),
        buffer_slots=tuple(library.slots[name] for name in number),
        results=tuple(_result(net, number, kind, value) for kind, value in done.outputs),
        callbacks={
            n: call_into_torch(spec, [(p.slot, p.offset) for p in ins], [(p.slot, p.offset) for p in outs])
            for n, (spec, ins, outs) in library.callbacks.items()
        },
        kept=tuple(done.subgraphs),
        origins=tuple(library.origins),
        shared=_shared(net, number),
    )
    return Program(library.path, info, list(done.constants.values()), arenas, prepare=prepare)


def buffer_numbers(net: Network) -> dict[str, int]:
    """Result containers that a call allocates, in order."""
    names = (name for name, c in net.containers.items() if c.role == "result" and name not in net.updates)
    return {name: number for number, name in enumerate(names)}


def spaces(net: Network) -> Spaces | None:
    """The blocks that a backward's arguments lie in; None if there are none."""
    inputs = _placed_inputs(net)
    if not inputs:
        return None
    used = {place.block for place in inputs.values()}
    sizes = {block: nbytes for block, nbytes in net.memory.shared().items() if block in used}
    number = {block: i for i, block in enumerate(sizes)}
    homes = {net.inputs.index(name): (number[block], offset) for name, (block, offset) in inputs.items()}
    buffers = {
        net.memory.donated[name].buffer: (number[block], offset - net.memory.donated[name].offset)
        for name, (block, offset) in inputs.items()
    }
    return Spaces(list(sizes.values()), homes, buffers)


def _shared(net: Network, number: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """Results that lie at the beginning of a block, each with an argument that lies there too."""
    inside = {place.block: net.inputs.index(name) for name, place in _placed_inputs(net).items()}
    placed = net.memory.placements.items()
    return tuple((number[n], inside[block]) for n, (block, _) in placed if n in number and block in inside)


def _placed_inputs(net: Network) -> dict[str, Placement]:
    return {name: place for name, place in net.memory.placements.items() if net.containers[name].role == "input"}


def _result(net: Network, number: dict[str, int], kind: str, value: Any) -> ResultInfo:
    if kind == "literal":
        return ResultInfo("literal", literal=value)
    if kind == "argument":
        return ResultInfo("input", value)
    r = net.results[value]
    c = net.containers[r.data]
    whole = r.offset == 0 and r.shape == c.shape and r.strides == c.strides
    source, index = ("buffer", number[r.data]) if c.role == "result" else ("input", net.inputs.index(r.data))
    if whole:
        return ResultInfo(source, index)
    return ResultInfo(source, index, r.shape, r.strides, r.offset)
