"""From an imported graph and its compiled library to a callable program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dcir.codegen.compile import Library
from dcir.driver.placement import buffer_numbers, shared_with_arguments
from dcir.frontends.torch.importer import Imported
from dcir.ir.moving_network import fixed
from dcir.ir.network import Network
from dcir.ir.places import places_of, titled
from dcir.runtime.blocks import Arenas
from dcir.runtime.program import Program
from dcir.runtime.program_info import BufferInfo, ProgramInfo, ResultInfo
from dcir.runtime.torch_calls import call_into_torch


def assemble(done: Imported, library: Library, arenas: Arenas | None = None, *, prepare: str = "version") -> Program:
    """The callable program of a compiled network.

    Args:
        done, library: the network and its code.
        arenas: where its scratch memory is taken from, which others may share.
        prepare: when what depends on parameters alone is computed (``Options.prepare``).
    """
    info = program_info(done, library)
    return Program(library.path, info, list(done.constants.values()), arenas, prepare=prepare)


def program_info(done: Imported, library: Library) -> ProgramInfo:
    """What the program of a compiled network needs besides its library."""
    net = done.network
    number = buffer_numbers(net)
    buffers = [BufferInfo(c.shape, c.strides, c.dtype) for c in (net.containers[name] for name in number)]
    return ProgramInfo(
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
        callbacks=calls_into_torch(library) if library.sizes_slot < 0 else {},
        kept=tuple(done.subgraphs),
        origins=tuple(library.origins),
        shared=shared_with_arguments(net, number),
        sizes_slot=library.sizes_slot,
        parts=library.parts,
        ready=tuple(part_with(net, library, kind, value) for kind, value in done.outputs) if library.parts > 1 else (),
        events=_events(net, library) if library.recorded else (),
    )


def _events(net: Network, library: Library) -> tuple[str, ...]:
    """Names of the steps for a profiler. Where sizes move, one program has the steps of all: then names say no sizes."""
    ops = [net.ops()[number] for _, number in library.steps]
    what = [op.spec.describe() if library.sizes_slot < 0 else op.spec.kind for op in ops]
    return tuple(titled(f"dcir: {w}", places_of(op)) for w, op in zip(what, ops, strict=True))


def calls_into_torch(library: Library, sizes: Mapping[str, int] | None = None) -> dict[int, Callable[[Any], None]]:
    """What a program calls back, by number of the operator; of a network whose sizes move, for some values of them."""

    def at(value: Any) -> Any:
        return value if sizes is None else fixed(value, sizes)

    return {
        n: call_into_torch(at(spec), *([(p.slot, at(p.offset)) for p in side] for side in (ins, outs)))
        for n, (spec, ins, outs) in library.callbacks.items()
    }


def part_with(net: Network, library: Library, kind: str, value: Any) -> int:
    """The part of the library with which an output is complete."""
    return library.ready.get(net.results[value].data, -1) if kind == "result" else -1


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
