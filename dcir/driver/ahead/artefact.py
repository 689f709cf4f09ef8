"""Writes a .dcir file: manifest, library, C header, weights, graph and report in one zip, the same bytes every time.

The parameters are constants of the network: a compiled file computes one function of its inputs. Results that the
model nests in tuples, lists and dicts come back nested the same way.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dcir.codegen.compile import Library
from dcir.cost.target import target_of
from dcir.destination import check_replaced
from dcir.driver.ahead.header import header_text
from dcir.driver.assemble import assemble, program_info
from dcir.driver.targets.host import host_machine
from dcir.errors import Unsupported
from dcir.frontends.torch.export import Exported, Leaf, State
from dcir.frontends.torch.importer import Imported
from dcir.ir.dace.symbols import symbolic_sdfg
from dcir.ir.moving_network import MovingNetwork, fixed
from dcir.ir.serialize import encode
from dcir.ir.sizes import value_at
from dcir.ops.library.torch_call import TorchCall, calls_graphs
from dcir.runtime import artefact as layout
from dcir.runtime import manifest as schema
from dcir.runtime.program_info import ResultInfo
from dcir.version import __version__

_PREFIX = "dcir_state_"
_MOMENT = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Compiled:
    """A network ready to be written to a file or called.

    Attributes:
        exported: the captured forward pass.
        imported: its network after all passes.
        library: the compiled code.
        inputs, outputs: the user's names; outputs of the leaves in order.
        options: level and threads, for the record.
        moving: the network for all sizes, where it is one; ``imported`` is it at the greatest.
    """

    exported: Exported
    imported: Imported
    library: Library
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Mapping[str, int]
    moving: MovingNetwork | None = None


def closed(exported: Exported) -> fx.GraphModule:
    """The captured graph with its state as attributes, which the importer takes for constants."""
    graph = exported.graph
    places = [n for n in graph.graph.nodes if n.op == "placeholder"][: len(exported.state)]
    for number, (node, state) in enumerate(zip(places, exported.state, strict=True)):
        name = f"{_PREFIX}{number}"
        graph.register_buffer(name, state.tensor)
        with graph.graph.inserting_before(node):
            value = graph.graph.get_attr(name)
        value.meta.update(node.meta)
        node.replace_all_uses_with(value)
        graph.graph.erase_node(node)
    graph.recompile()
    return graph


def write_artefact(path: str | os.PathLike[str], compiled: Compiled, report: Mapping[str, Any]) -> None:
    """Write a compiled network to ``path``; the file appears whole or not at all.

    Raises:
        InvalidInput: something other than a file is there.
        Unsupported: the results are nested in something other than tuples, lists and dicts.
        OSError: the file cannot be written.
    """
    manifest, weights = manifest_of(compiled)
    data = pack(weights)
    members = {
        layout.LIBRARY: compiled.library.path.read_bytes(),
        layout.HEADER: header_text(manifest, offsets(data)).encode(),
        layout.WEIGHTS: data,
        layout.GRAPH: graph_record(compiled),
        layout.REPORT: as_json(report),
    }
    document = {**manifest.to_json(), "files": listed(members)}
    members[layout.MANIFEST] = as_json(document)
    write_members(path, {name: members[name] for name in layout.MEMBERS})


def listed(members: Mapping[str, bytes]) -> dict[str, dict[str, int | str]]:
    """What a manifest says of members."""
    return {name: {"size": len(data), "digest": layout.digest_of(data)} for name, data in members.items()}


def write_members(path: str | os.PathLike[str], members: Mapping[str, bytes]) -> None:
    """Write a zip of these members, in this order; the file appears whole or not at all.

    Raises:
        InvalidInput: something other than a file is there.
        OSError: the file cannot be written.
    """
    target = check_replaced(path)
    descriptor, draft = tempfile.mkstemp(prefix=".dcir-", dir=target.parent)  # whose name is as short as any
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(_entry(name), data)
        # mkstemp makes private files; a model is as readable as any other file its owner writes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(draft, 0o666 & ~umask)
        os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _MOMENT)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


def as_json(value: Any) -> bytes:
    """A document, the same bytes for values that were made in the same way: what a model returns in a dict keeps its order."""
    return json.dumps(value, separators=(",", ":")).encode()


def manifest_of(compiled: Compiled) -> tuple[schema.Manifest, dict[str, torch.Tensor]]:
    """The manifest of a network, without a list of files, and its weights by the names that the manifest has for them."""
    done, library = compiled.imported, compiled.library
    gpu = _gpu(compiled)
    if gpu is not None:
        info = program_info(done, library).with_buffers_as_results()
    else:
        info = assemble(done, library).info if compiled.moving is None else program_info(done, library)
    constants, weights = _constants(compiled)
    names = iter(compiled.inputs)
    inputs = []
    for container in done.network.inputs:
        c = done.network.containers[container]
        slot = library.slots.get(container, -1)
        inputs.append(schema.Input(next(names), c.shape, c.strides, c.dtype, slot))
    machine = host_machine(compiled.options["threads"])
    manifest = schema.Manifest(
        format=schema.FORMAT,
        dcir=__version__,
        torch=torch.__version__,
        machine=schema.ManifestMachine(platform.machine(), machine.isa.name, machine.identity),
        level=compiled.options["level"],
        threads=compiled.options["threads"],
        files={},
        table_size=info.table_size,
        arena_bytes=info.arena_bytes,
        prepared_bytes=info.prepared_bytes,
        inputs=tuple(inputs),
        constants=constants,
        buffers=tuple(
            schema.Buffer(b.shape, b.strides, b.dtype, slot)
            for b, slot in zip(info.buffers, info.buffer_slots, strict=True)
        ),
        outputs=(),
        result=None,
        calls_into_torch=_calls(compiled),
        origins=tuple(library.origins),
        kernels=library.kernels,
        calls=library.calls,
        gpu=gpu,
    )
    calls = (spec for spec, _, _ in library.callbacks.values() if isinstance(spec, TorchCall))
    over_graphs = [spec.name for spec in calls if calls_graphs(spec)]
    if over_graphs:
        raise Unsupported.collect(
            [(f"{name} in a compiled file", "") for name in over_graphs],
            hint="dcir.optimize(model) runs it in this process",
        )
    outputs: list[schema.Output] = []
    result = _nest(compiled.exported.result, compiled.outputs, info.results, outputs)
    return replace(manifest, outputs=tuple(outputs), result=result), weights


def _gpu(compiled: Compiled) -> schema.ManifestGpu | None:
    """What the library holds for GPUs, if its kernels run on one."""
    net = compiled.imported.network
    target = target_of(net)
    if target.name != "cuda":
        return None
    from dcir.driver.targets.cuda import CudaTarget, made_by_calls

    assert isinstance(target, CudaTarget)
    made = tuple(made_by_calls(net, compiled.library).items())
    return schema.ManifestGpu(() if target.gpu.twin else target.gpu.architectures, made)


def _calls(compiled: Compiled) -> tuple[schema.TorchEntry, ...]:
    """The calls into torch, of a network for all sizes at the greatest."""
    net = compiled.moving
    sizes = {} if net is None else {name: high for name, (_, high) in net.sizes.items()}
    made = []
    for number, (spec, *sides) in sorted(compiled.library.callbacks.items()):
        ins, outs = (tuple((p.slot, value_at(p.offset, sizes)) for p in side) for side in sides)
        made.append(schema.TorchEntry(number, encode(fixed(spec, sizes)), ins, outs))
    return tuple(made)


def _nest(value: Any, names: Sequence[str], results: Sequence[ResultInfo], outputs: list[schema.Output]) -> Any:
    """The nest of ``value`` with its leaves appended to ``outputs`` and named by their numbers."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise Unsupported("results in a dict whose keys are no strings have no place in a compiled file")
        return {"dict": {key: _nest(item, names, results, outputs) for key, item in value.items()}}
    if isinstance(value, tuple | list):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_nest(item, names, results, outputs) for item in value]}
    number = len(outputs)
    name = names[number] if number < len(names) else f"y{number}"
    if isinstance(value, Leaf):
        r = results[value.index]
        outputs.append(schema.Output(name, r.source, r.index, r.shape, r.strides, r.offset, r.literal))
    elif value is None or isinstance(value, bool | int | float | str):
        outputs.append(schema.Output(name, "literal", 0, None, (), 0, value))
    else:
        raise Unsupported(f"a result of type {type(value).__name__} has no place in a compiled file")
    return number


def _constants(compiled: Compiled) -> tuple[tuple[schema.Constant, ...], dict[str, torch.Tensor]]:
    """The weights of the network, shared ones once, and their elements as stored."""
    done, slots = compiled.imported, compiled.library.slots
    groups: dict[Any, list[tuple[str, State | None]]] = {}
    tensors: dict[Any, torch.Tensor] = {}
    for container, tensor in done.constants.items():
        number = re.fullmatch(_PREFIX + r"(\d+)", done.network.names.get(container, ""))
        state = compiled.exported.state[int(number[1])] if number else None
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else container
        groups.setdefault(key, []).append((container, state))
        tensors[key] = tensor
    constants, weights = [], {}
    taken = {s.name for s in compiled.exported.state}
    for position, (key, members) in enumerate(groups.items()):
        c = done.network.containers[members[0][0]]
        states = [s for _, s in members if s is not None]
        named = tuple(s.name for s in states if s.role != "constant")
        stored = named[0] if named else f"constant.{position}"
        while not named and stored in taken:
            stored += "_"
        role = states[0].role if states else "constant"
        used = tuple(slots[name] for name, _ in members if name in slots)
        constants.append(schema.Constant(named, role, stored, c.shape, c.strides, c.dtype, used))
        weights[stored] = _elements(tensors[key], c.shape, c.strides)
    return tuple(constants), weights


def _elements(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The elements from the first to the last as stored; in the tensor's own shape where that is the same."""
    tensor = tensor.detach().cpu()
    if not tensor.is_contiguous():
        tensor = torch.as_strided(tensor, (schema.extent(shape, strides),), (1,))
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def pack(weights: Mapping[str, torch.Tensor]) -> bytes:
    """The file of weights."""
    from safetensors.torch import save

    data: bytes = save(dict(weights))
    return data


def offsets(data: bytes) -> dict[str, int]:
    """Where each weight begins in the file of weights."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}


def graph_record(compiled: Compiled) -> bytes:
    """The SDFG as DaCe's tools open it, without what changes from run to run; of a network for all sizes with symbols."""
    moving = compiled.moving
    sdfg = compiled.imported.network.sdfg if moving is None else symbolic_sdfg(moving)
    text = json.dumps(_settled(sdfg.to_json(), {}), sort_keys=True)
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.write(text.encode())
    return packed.getvalue()


def _settled(value: Any, seen: dict[str, str]) -> Any:
    """``value`` with its random identifiers numbered in order, and without times."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in ("timestamp", "hash")}
        return {
            k: seen.setdefault(str(v), f"{len(seen)}") if k == "guid" else _settled(v, seen) for k, v in kept.items()
        }
    if isinstance(value, list):
        return [_settled(v, seen) for v in value]
    return value
