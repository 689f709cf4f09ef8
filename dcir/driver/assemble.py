"""From an imported graph and its compiled library to a callable program."""

from __future__ import annotations

from typing import Any

from dcir.codegen.compile import Library
from dcir.frontends.torch.importer import Imported
from dcir.ir.network import Network
from dcir.runtime.blocks import Arenas
from dcir.runtime.program import BufferInfo, Program, ProgramInfo, ResultInfo, call_into_torch


def assemble(done: Imported, library: Library, arenas: Arenas | None = None) -> Program:
    """The callable program of a compiled network; its scratch memory is taken from ``arenas``, which others may share."""
    net = done.network
    buffers: list[BufferInfo] = []
    buffer_slots: list[int] = []
    number: dict[str, int] = {}
    for name, c in net.containers.items():
        if c.role == "result" and name not in net.updates:
            number[name] = len(buffers)
            buffers.append(BufferInfo(c.shape, c.strides, c.dtype))
            buffer_slots.append(library.slots[name])
    info = ProgramInfo(
        table_size=library.table_size,
        arena_bytes=library.arena_bytes,
        updates=tuple((library.slots[new], net.inputs.index(old)) for new, old in net.updates.items()),
        prepared_bytes=library.prepared_bytes,
        static_inputs=tuple(net.inputs.index(n) for n in library.static if n in net.static),
        input_slots=tuple(library.slots.get(n, -1) if n else -1 for n in net.inputs),
        constant_slots=tuple(library.slots[n] for n in done.constants),
        buffers=tuple(buffers),
        buffer_slots=tuple(buffer_slots),
        results=tuple(_result(net, done, number, kind, value) for kind, value in done.outputs),
        callbacks={
            n: call_into_torch(spec, [(p.slot, p.offset) for p in ins], [(p.slot, p.offset) for p in outs])
            for n, (spec, ins, outs) in library.callbacks.items()
        },
        origins=tuple(library.origins),
    )
    return Program(library.path, info, list(done.constants.values()), arenas)


def _result(net: Network, done: Imported, number: dict[str, int], kind: str, value: Any) -> ResultInfo:
    if kind == "literal":
        return ResultInfo("literal", literal=value)
    r = net.results[value]
    c = net.containers[r.data]
    whole = r.offset == 0 and r.shape == c.shape and r.strides == c.strides
    source, index = ("buffer", number[r.data]) if c.role == "result" else ("input", net.inputs.index(r.data))
    if whole:
        return ResultInfo(source, index)
    return ResultInfo(source, index, r.shape, r.strides, r.offset)
