"""Opens a .dcir file: a zip with a fixed list of members, each checked before it is used, and never unpickled.

The library in it is machine code. Loading the file runs it, so a .dcir file must be trusted like a program, unlike an
ONNX file. The checks here find files that are damaged, cut, mixed up, or made for another machine; they cannot make
foreign code harmless. The graph (``network.sdfgz``) is a record for people and is not read here, since DaCe evaluates
expressions of an SDFG file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from dcir.cache import Cache
from dcir.errors import ArtefactInvalid
from dcir.ops.torch_types import FROM_NAME
from dcir.runtime import manifest as schema
from dcir.runtime import sized_manifest as sizes
from dcir.runtime.manifest import Constant, FileEntry, Manifest
from dcir.runtime.model import CompiledModel, Loaded, device_of
from dcir.runtime.sized_model import LoadedSizes, SizedModel

MANIFEST = "manifest.json"
LIBRARY = "network.so"
WEIGHTS = "weights.safetensors"
REPORT = "report.json"
HEADER = "dcir.h"
GRAPH = "network.sdfgz"
MEMBERS = (MANIFEST, LIBRARY, HEADER, WEIGHTS, GRAPH, REPORT)
Files = Mapping[str, FileEntry]
ReadReport = Callable[[], Mapping[str, Any]]

_MAX_TEXT = 1 << 28
_MAX_LIBRARY = 1 << 31


_BROKEN = (zipfile.BadZipFile, NotImplementedError, EOFError, OSError)


def _broken(error: Exception, where: str) -> Exception:
    """What to raise of an archive that cannot be read; a file that cannot be, or is not there, stays what it is."""
    if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place before the beginning
        return error
    return ArtefactInvalid("not a .dcir file, or it is cut off", where=where)


def digest_of(data: bytes) -> str:
    """The blake2b digest by which a manifest names a member's content."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def load_artefact(
    path: str | os.PathLike[str], *, identity: str, cache: Cache | None = None, report: Mapping[str, Any] | None = None
) -> CompiledModel:
    """The model of a .dcir file, for one size or for sizes within bounds.

    Args:
        path: the file. Its libraries are copied to the cache under the digests of their contents and loaded from there.
        identity: digest of this processor's abilities, which must be that of the machine that compiled the file.
        cache: where the library is kept.
        report: what the model tells of its compilation, where the file is not to stay; else that is read when it is asked for.

    Raises:
        ArtefactInvalid: the file is broken, or made by another version or for another machine.
    """
    where, source = str(path), Path(path).resolve()
    store = cache or Cache.default()

    def reported() -> Mapping[str, Any]:
        return _report_left(source) if report is None else report

    try:
        with _open(path) as file, zipfile.ZipFile(file) as archive:
            programs = _check_members(archive)
            load = _sized_model if programs else _model
            return load(archive, programs, identity, store, reported)
    except ArtefactInvalid as error:
        error.where = error.where or where
        raise
    except _BROKEN as error:
        raise _broken(error, where) from error


def _model(archive: zipfile.ZipFile, programs: int, identity: str, cache: Cache, report: ReadReport) -> CompiledModel:
    manifest = schema.read(_json(_read(archive, MANIFEST, _MAX_TEXT), MANIFEST))
    if set(manifest.files) != set(MEMBERS) - {MANIFEST}:
        raise ArtefactInvalid("the manifest lists other members than the file has")
    _check_machine(manifest, identity)
    library = _library(archive, manifest.files, LIBRARY, cache)
    stored = _weights(_checked(archive, manifest.files, WEIGHTS, schema.MAX_BYTES))
    tensors = _tensors(manifest.constants, stored, device_of(manifest))
    return CompiledModel(Loaded(manifest, library, report), [tensors[c.tensor] for c in manifest.constants])


def _sized_model(
    archive: zipfile.ZipFile, programs: int, identity: str, cache: Cache, report: ReadReport
) -> CompiledModel:
    document = sizes.read(_json(_read(archive, MANIFEST, _MAX_TEXT), MANIFEST), programs)
    if set(document.files) != set(sizes.members(programs)) - {MANIFEST}:
        raise ArtefactInvalid("the manifest lists other members than the file has")
    manifests, libraries = [], []
    for number in range(programs):
        name = sizes.member(number, MANIFEST)
        manifests.append(schema.read(_json(_checked(archive, document.files, name, _MAX_TEXT), name)))
        if manifests[-1].gpu is not None:
            raise schema.broken(name, "the manifest of a program for CPUs")
        _check_machine(manifests[-1], identity)
    sizes.check_programs(document, manifests)
    for number in range(programs):
        libraries.append(_library(archive, document.files, sizes.member(number, LIBRARY), cache))
    stored = _weights(_checked(archive, document.files, WEIGHTS, schema.MAX_BYTES))
    constants = [c for manifest in manifests for c in manifest.constants]
    return SizedModel(LoadedSizes(document, manifests, libraries, report), _tensors(constants, stored))


def _check_machine(manifest: Manifest, identity: str) -> None:
    if manifest.gpu is not None:  # what of it runs on the CPU is made for any of its kind
        from dcir.runtime.gpu_model import check_gpu

        check_gpu(manifest, manifest.gpu)
        return
    if manifest.machine.identity != identity:
        raise ArtefactInvalid(
            "the file was compiled for another processor",
            details=[("compiled", f"{manifest.machine.architecture} {manifest.machine.isa}")],
            hint="compile again on this machine",
        )


def _library(archive: zipfile.ZipFile, files: Files, name: str, cache: Cache) -> Path:
    code = _checked(archive, files, name, _MAX_LIBRARY)

    def keep(draft: Path) -> None:
        draft.write_bytes(code)

    return cache.get_or_build("artefact", files[name].digest, ".so", keep)


def read_report(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The report in a .dcir file; nothing else of it is read.

    Raises:
        ArtefactInvalid: the file is broken.
    """
    try:
        with _open(path) as file, zipfile.ZipFile(file) as archive:
            _check_members(archive)
            report = _json(_read(archive, REPORT, _MAX_TEXT), REPORT)
    except _BROKEN as error:
        raise _broken(error, str(path)) from error
    if not isinstance(report, dict):
        raise ArtefactInvalid("the report is broken", where=str(path))
    return report


def _report_left(path: Path) -> Mapping[str, Any]:
    """The report of a model that was loaded from a file, which need not be there any more."""
    try:
        return read_report(path)
    except OSError as error:
        raise ArtefactInvalid(
            "the report stands in the file that the model was loaded from, which cannot be read any more", where=str(path),
            details=[("system", str(error))], hint="read model.dcir.report before the file goes, or keep the file",
        ) from error  # fmt: skip


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ArtefactInvalid("not an ordinary file", where=str(path))
    return file


def _check_members(archive: zipfile.ZipFile) -> int:
    """How many programs the file has for sizes within bounds; 0 for a file for one size."""
    items = archive.infolist()
    names = sorted(item.filename for item in items)
    programs = 0 if names == sorted(MEMBERS) else sizes.programs_in(len(names))
    if programs and not (programs <= sizes.MAX_PROGRAMS and names == sorted(sizes.members(programs))):
        raise ArtefactInvalid("the file does not hold exactly the members of a .dcir file")
    if not programs and names != sorted(MEMBERS):
        raise ArtefactInvalid("the file does not hold exactly the members of a .dcir file")
    for item in items:
        # Stored, not deflated: what a member takes in memory is bounded by what it takes in the file.
        if item.compress_type != zipfile.ZIP_STORED or item.file_size != item.compress_size or item.flag_bits & 1:
            raise ArtefactInvalid(f"member {item.filename} is compressed or encrypted")
    return programs


def _read(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > limit:
        raise ArtefactInvalid(f"member {name} is too large")
    with archive.open(name) as member:
        data = member.read(size + 1)
    if len(data) != size:
        raise ArtefactInvalid(f"member {name} is cut off")
    return data


def _checked(archive: zipfile.ZipFile, files: Files, name: str, limit: int) -> bytes:
    data = _read(archive, name, limit)
    entry = files[name]
    if len(data) != entry.size or digest_of(data) != entry.digest:
        raise ArtefactInvalid(f"member {name} is not the one that the manifest describes")
    return data


def _json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtefactInvalid(f"member {name} is not JSON") from error


def _weights(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors in the file of weights, flat."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        stored: dict[str, torch.Tensor] = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ArtefactInvalid("the weights are broken", details=[("safetensors", str(error))]) from error
    return stored


def _tensors(
    constants: Sequence[Constant], stored: Mapping[str, torch.Tensor], device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """One tensor per weight, laid out and aligned as the code reads it; constants of several programs may name the same."""
    if set(stored) != {c.tensor for c in constants}:
        raise ArtefactInvalid("the weights are not those that the manifest lists")
    made: dict[str, tuple[Constant, torch.Tensor]] = {}
    for c in constants:
        like, _ = made.get(c.tensor) or made.setdefault(c.tensor, (c, _placed(c, stored[c.tensor], device)))
        if (like.shape, like.strides, like.dtype, like.names) != (c.shape, c.strides, c.dtype, c.names):
            raise ArtefactInvalid(f"the programs disagree on the weight {c.tensor!r}")
    return {name: tensor for name, (_, tensor) in made.items()}


def _placed(constant: Constant, flat: torch.Tensor, device: str) -> torch.Tensor:
    """The constant's elements are stored from the first to the last, whatever their strides."""
    dtype = FROM_NAME[constant.dtype]
    size = schema.extent(constant.shape, constant.strides)
    words = 2 if dtype.is_complex else 1
    if flat.dtype != (dtype.to_real() if dtype.is_complex else dtype) or flat.numel() != size * words:
        raise ArtefactInvalid(f"the weight {constant.tensor!r} has another type or size than the manifest says")
    tensor = torch.empty_strided(constant.shape, constant.strides, dtype=dtype, device=device)
    memory = torch.as_strided(tensor, (size,), (1,))
    (torch.view_as_real(memory) if dtype.is_complex else memory).view(-1).copy_(flat.reshape(-1))
    return tensor
