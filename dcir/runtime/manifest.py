"""What ``manifest.json`` of a .dcir file may say: dataclasses as schema, a strict reader, a check of every number."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from dcir.errors import ArtefactInvalid, InvalidGraph
from dcir.ir.serialize import decode
from dcir.ir.types import TYPES, itemsize
from dcir.kernel_images import is_architecture
from dcir.ops.library.library_call import LibraryCall
from dcir.ops.library.torch_call import TorchCall

FORMAT = 3
MAX_BYTES = 1 << 46
_MAX_SLOTS = 1 << 24
_MAX_RANK = 64
_MAX_NESTING = 32
_AGAIN = "compile the model again"

Place = tuple[int, int]
Literal = None | bool | int | float | str


@dataclass(frozen=True)
class ManifestMachine:
    """What the library was compiled for: architecture, instruction set, and a digest of the processor's abilities."""

    architecture: str
    isa: str
    identity: str


@dataclass(frozen=True)
class FileEntry:
    """Size and blake2b digest of a member of the archive."""

    size: int
    digest: str


@dataclass(frozen=True)
class Input:
    """An argument: its slot in the pointer table (-1: not read) and its layout in elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    slot: int


@dataclass(frozen=True)
class Constant:
    """A weight: all its names in the state dict (several if shared, none if internal), and its key in the weights."""

    names: tuple[str, ...]
    role: str
    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """Memory that every call makes for its results."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    slot: int


@dataclass(frozen=True)
class Output:
    """A result: the whole of a buffer or an argument (shape None), a window of it, or a literal."""

    name: str
    source: str
    index: int
    shape: tuple[int, ...] | None
    strides: tuple[int, ...]
    offset: int
    literal: Literal


@dataclass(frozen=True)
class TorchEntry:
    """A call into torch: the operator's number, its encoded ``TorchCall``, and where its operands lie."""

    number: int
    spec: Any
    ins: tuple[Place, ...]
    outs: tuple[Place, ...]


@dataclass(frozen=True)
class ManifestGpu:
    """What the library holds for GPUs.

    Attributes:
        architectures: those with machine code ("sm_90a"); none where the kernels run on the CPU, as tests have them.
        made: calls into torch, by number, that make the tensor of a whole result, and its slot.
    """

    architectures: tuple[str, ...]
    made: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Manifest:
    """Everything needed to call the library.

    Attributes:
        gpu: of a library whose kernels run on one; None: on the CPU.
        result: how the outputs are nested: an output's number, {"list": [...]}, {"tuple": [...]} or {"dict": {...}}.
        origins: per operator number, its place in the user's model.
    """

    format: int
    dcir: str
    torch: str
    machine: ManifestMachine
    level: int
    threads: int
    files: dict[str, FileEntry]
    table_size: int
    arena_bytes: int
    prepared_bytes: int
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    buffers: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    result: Any
    calls_into_torch: tuple[TorchEntry, ...]
    origins: tuple[str, ...]
    kernels: int
    calls: int
    gpu: ManifestGpu | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``read`` takes back."""
        return dataclasses.asdict(self)


def read(data: Any) -> Manifest:
    """A checked manifest.

    Raises:
        ArtefactInvalid: a field is missing, unknown, of another type, or holds a number that cannot be.
    """
    version = data.get("format") if isinstance(data, dict) else None
    if version != FORMAT:
        raise ArtefactInvalid(f"the file has format {version!r}, this dcir reads {FORMAT}", hint=_AGAIN)
    manifest = _read(Manifest, data, "manifest")
    assert isinstance(manifest, Manifest)
    _check(manifest)
    return manifest


def _read(kind: Any, data: Any, where: str) -> Any:
    """``data`` as ``kind``: a dataclass, tuple, dict, union or plain type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return read_record(kind, data, where)
    if origin is tuple:
        if not isinstance(data, list) or (args[-1] is not ... and len(data) != len(args)):
            raise broken(where, "a list")
        kinds = [args[0]] * len(data) if args[-1] is ... else args
        return tuple(_read(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, data, strict=True)))
    if origin is dict:
        if not isinstance(data, dict):
            raise broken(where, "an object")
        return {k: _read(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        plain = [a for a in args if type(data) is a]
        structured = [a for a in args if (dataclasses.is_dataclass(a) and type(data) is dict) or (
            typing.get_origin(a) is not None and type(data) is not dict
        )]  # fmt: skip
        return _read((plain or structured or [args[0]])[0], data, where)
    if type(data) is not kind:
        raise broken(where, f"of type {kind.__name__}")
    return data


def read_record(kind: Any, data: Any, where: str) -> Any:
    """``data`` as a dataclass, with exactly its fields; ``where`` is for errors."""
    names = {f.name for f in dataclasses.fields(kind)}
    if not isinstance(data, dict) or set(data) != names:
        raise broken(where, "an object with the fields " + ", ".join(sorted(names)))
    hints = typing.get_type_hints(kind)
    return kind(**{name: _read(hints[name], data[name], f"{where}.{name}") for name in sorted(names)})


def broken(where: str, wanted: str) -> ArtefactInvalid:
    """The error of a manifest in which something is not what it must be."""
    return ArtefactInvalid(f"the manifest is broken: {where} must be {wanted}", hint=_AGAIN)


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last of a strided window; 0 if it is empty."""
    return 0 if 0 in shape else 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))


def _size(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, where: str) -> int:
    """Bytes a layout spans, after checking that it is one."""
    if dtype not in TYPES:
        raise broken(f"{where}.dtype", "an element type")
    if len(shape) != len(strides) or len(shape) > _MAX_RANK:
        raise broken(f"{where}.strides", "one number per dimension")
    if any(d < 0 for d in (*shape, *strides)) or math.prod(shape) > MAX_BYTES:
        raise broken(f"{where}.shape", "a possible shape")
    size = extent(shape, strides) * itemsize(dtype)
    if size > MAX_BYTES:
        raise broken(f"{where}.shape", "a possible shape")
    return size


def check_layouts(m: Manifest) -> None:
    """Whether the sizes of inputs, buffers and results, and what is called in torch, fit each other in a manifest that was read.

    Raises:
        ArtefactInvalid: they do not.
    """
    if m.calls_into_torch:
        _check(m)
        return
    for i, x in enumerate(m.inputs):
        _size(x.shape, x.strides, x.dtype, f"inputs[{i}]")
    for i, b in enumerate(m.buffers):
        _size(b.shape, b.strides, b.dtype, f"buffers[{i}]")
    for i, out in enumerate(m.outputs):
        _check_output(m, out, f"outputs[{i}]")


def _check(m: Manifest) -> None:
    if not 2 <= m.table_size <= _MAX_SLOTS:
        raise broken("table_size", "a possible size")
    if not 0 <= m.arena_bytes <= MAX_BYTES:
        raise broken("arena_bytes", "a possible size")
    if not 0 <= m.prepared_bytes <= MAX_BYTES:
        raise broken("prepared_bytes", "a possible size")
    sizes = {0: m.arena_bytes, 1: m.prepared_bytes}

    def claim(slot: int, size: int, where: str) -> None:
        if not 2 <= slot < m.table_size or slot in sizes:
            raise broken(f"{where}.slot", "a free slot of the table")
        sizes[slot] = size

    for i, x in enumerate(m.inputs):
        size = _size(x.shape, x.strides, x.dtype, f"inputs[{i}]")
        if x.slot != -1:
            claim(x.slot, size, f"inputs[{i}]")
    for i, c in enumerate(m.constants):
        size = _size(c.shape, c.strides, c.dtype, f"constants[{i}]")
        for slot in c.slots:
            claim(slot, size, f"constants[{i}]")
        if c.role not in ("parameter", "buffer", "constant"):
            raise broken(f"constants[{i}].role", "parameter, buffer or constant")
    for i, b in enumerate(m.buffers):
        claim(b.slot, _size(b.shape, b.strides, b.dtype, f"buffers[{i}]"), f"buffers[{i}]")
    _check_names([x.name for x in m.inputs], "inputs")
    _check_names([n for c in m.constants for n in c.names], "constants")
    for i, out in enumerate(m.outputs):
        _check_output(m, out, f"outputs[{i}]")
    if sorted(_numbers(m.result, 0)) != list(range(len(m.outputs))):
        raise broken("result", "a nest of all outputs")
    for i, entry in enumerate(m.calls_into_torch):
        _check_call(m, entry, sizes, f"calls_into_torch[{i}]")
    if m.gpu is not None:
        _check_gpu(m, m.gpu)


def _check_gpu(m: Manifest, gpu: ManifestGpu) -> None:
    if not all(map(is_architecture, gpu.architectures)):
        raise broken("gpu.architectures", "names of architectures")
    outs = {entry.number: entry.outs for entry in m.calls_into_torch}
    slots = {b.slot for b in m.buffers}
    for number, slot in gpu.made:
        if slot not in slots or outs.get(number) != ((slot, 0),):
            raise broken("gpu.made", "calls whose result is a whole buffer")


def _check_names(names: list[str], where: str) -> None:
    if len(set(names)) != len(names) or not all(names):
        raise broken(where, "named differently")


def _check_output(m: Manifest, out: Output, where: str) -> None:
    if out.source == "literal":
        return
    whole: Any = {"buffer": m.buffers, "input": m.inputs}.get(out.source)
    if whole is None or not 0 <= out.index < len(whole):
        raise broken(where, "a buffer, an input or a literal")
    base = whole[out.index]
    if out.shape is None:
        return
    need = _size(out.shape, out.strides, base.dtype, where)
    have = extent(base.shape, base.strides) * itemsize(base.dtype)
    if out.offset < 0 or (need and out.offset * itemsize(base.dtype) + need > have):
        raise broken(where, "a window inside its memory")


def _numbers(node: Any, depth: int) -> list[int]:
    if type(node) is int:
        return [node]
    if depth > _MAX_NESTING or not isinstance(node, dict) or len(node) != 1:
        raise broken("result", "a nest of all outputs")
    kind, content = next(iter(node.items()))
    fits = isinstance(content, dict) if kind == "dict" else isinstance(content, list) and kind in ("list", "tuple")
    if not fits:
        raise broken("result", "a nest of all outputs")
    items = content.values() if kind == "dict" else content
    return [n for item in items for n in _numbers(item, depth + 1)]


def _check_call(m: Manifest, entry: TorchEntry, sizes: dict[int, int], where: str) -> None:
    spec = torch_call(entry, where, on_gpu=m.gpu is not None)
    if not 0 <= entry.number < len(m.origins):
        raise broken(f"{where}.number", "the number of an operator")
    for places, windows in ((entry.ins, spec.ins), (entry.outs, spec.outs)):
        if len(places) != len(windows):
            raise broken(where, "one place per operand")
        for (slot, offset), (shape, strides, dtype) in zip(places, windows, strict=True):
            need = _size(shape, strides, dtype, where)
            if offset < 0 or slot not in sizes or (need and offset + need > sizes[slot]):
                raise broken(where, "operands inside their memory")


_WINDOWS = tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]


def torch_call(entry: TorchEntry, where: str = "calls_into_torch", *, on_gpu: bool = False) -> TorchCall | LibraryCall:
    """The decoded call of an entry, which on a GPU may be one of a library.

    Raises:
        ArtefactInvalid: it is no call of an operator that this torch has.
    """
    from dcir.ops.registry import overload

    try:
        spec = decode(entry.spec)
    except (InvalidGraph, KeyError, TypeError, ValueError, AttributeError) as e:
        raise broken(f"{where}.spec", "a call into torch") from e
    if on_gpu and isinstance(spec, LibraryCall):
        return _library_call(spec, where)
    if not isinstance(spec, TorchCall) or not isinstance(spec.name, str) or spec.name.count(".") != 2:
        raise broken(f"{where}.spec", "a call into torch")
    for side in (spec.ins, spec.outs):
        _read(_WINDOWS, _listed(side), where)
    if spec.places is not None and not (
        isinstance(spec.places, tuple)
        and len(spec.places) == len(spec.outs)
        and all(type(p) is int for p in spec.places)
    ):
        raise broken(f"{where}.spec", "a call into torch")
    if overload(spec.name) is None:
        raise ArtefactInvalid(f"this torch has no operator {spec.name}", hint=_AGAIN)
    return spec


def _library_call(spec: LibraryCall, where: str) -> LibraryCall:
    """A call of a library, once its operands have turned out to be some."""
    try:
        sides = spec.ins, spec.outs
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise broken(f"{where}.spec", "a call of a library") from e
    for side in sides:
        _read(_WINDOWS, _listed(side), where)
    return spec


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, tuple) else value
