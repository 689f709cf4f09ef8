"""Opens a .dcir file: a zip with a fixed list of members, each checked before it is used, and never unpickled.

The library in it is machine code. Loading the file runs it, so a .dcir file must be trusted like a program, unlike an
ONNX file. The checks here find files that are damaged, cut, mixed up, or made for another machine; they cannot make
foreign code harmless. The graph (``network.sdfgz``) is a record for people and is not read here, since DaCe evaluates
expressions of an SDFG file.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from dcir.cache import Cache
from dcir.errors import ArtefactInvalid
from dcir.ops.lowering import FROM_NAME
from dcir.runtime import manifest as schema
from dcir.runtime.manifest import Constant, Manifest
from dcir.runtime.model import CompiledModel, Loaded

MANIFEST = "manifest.json"
LIBRARY = "network.so"
WEIGHTS = "weights.safetensors"
REPORT = "report.json"
MEMBERS = (MANIFEST, LIBRARY, "dcir.h", WEIGHTS, "network.sdfgz", REPORT)
_MAX_TEXT = 1 << 28
_MAX_LIBRARY = 1 << 31


def digest_of(data: bytes) -> str:
    """The blake2b digest by which a manifest names a member's content."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def load_artefact(path: str | os.PathLike[str], *, identity: str, cache: Cache | None = None) -> CompiledModel:
    """The model of a .dcir file.

    Args:
        path: the file. Its library is copied to the cache under the digest of its content and loaded from there.
        identity: digest of this processor's abilities, which must be that of the machine that compiled the file.
        cache: where the library is kept.

    Raises:
        ArtefactInvalid: the file is broken, or made by another version or for another machine.
    """
    where = str(path)
    try:
        with _open(path) as file, zipfile.ZipFile(file) as archive:
            _check_members(archive)
            manifest = schema.read(_json(archive, MANIFEST))
            if set(manifest.files) != set(MEMBERS) - {MANIFEST}:
                raise ArtefactInvalid("the manifest lists other members than the file has")
            if manifest.machine.identity != identity:
                raise ArtefactInvalid(
                    "the file was compiled for another processor",
                    details=[("compiled", f"{manifest.machine.architecture} {manifest.machine.isa}")],
                    hint="compile again on this machine",
                )
            code = _checked(archive, manifest, LIBRARY, _MAX_LIBRARY)
            tensors = _tensors(manifest, _checked(archive, manifest, WEIGHTS, schema.MAX_BYTES))
    except ArtefactInvalid as error:
        error.where = error.where or where
        raise
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ArtefactInvalid("not a .dcir file, or it is cut off", where=where) from error

    def keep(draft: Path) -> None:
        draft.write_bytes(code)

    library = (cache or Cache.default()).get_or_build("artefact", manifest.files[LIBRARY].digest, ".so", keep)
    source = Path(path).resolve()
    try:
        return CompiledModel(Loaded(manifest, library, lambda: read_report(source)), tensors)
    except ArtefactInvalid as error:
        error.where = where
        raise


def read_report(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The report in a .dcir file; nothing else of it is read.

    Raises:
        ArtefactInvalid: the file is broken.
    """
    try:
        with _open(path) as file, zipfile.ZipFile(file) as archive:
            _check_members(archive)
            report = _json(archive, REPORT)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ArtefactInvalid("not a .dcir file, or it is cut off", where=str(path)) from error
    if not isinstance(report, dict):
        raise ArtefactInvalid("the report is broken", where=str(path))
    return report


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ArtefactInvalid("not an ordinary file", where=str(path))
    return file


def _check_members(archive: zipfile.ZipFile) -> None:
    items = archive.infolist()
    if sorted(item.filename for item in items) != sorted(MEMBERS):
        raise ArtefactInvalid("the file does not hold exactly the members of a .dcir file")
    for item in items:
        # Stored, not deflated: what a member takes in memory is bounded by what it takes in the file.
        if item.compress_type != zipfile.ZIP_STORED or item.file_size != item.compress_size or item.flag_bits & 1:
            raise ArtefactInvalid(f"member {item.filename} is compressed or encrypted")


def _read(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    size = archive.getinfo(name).file_size
    if size > limit:
        raise ArtefactInvalid(f"member {name} is too large")
    with archive.open(name) as member:
        data = member.read(size + 1)
    if len(data) != size:
        raise ArtefactInvalid(f"member {name} is cut off")
    return data


def _checked(archive: zipfile.ZipFile, manifest: Manifest, name: str, limit: int) -> bytes:
    data = _read(archive, name, limit)
    entry = manifest.files[name]
    if len(data) != entry.size or digest_of(data) != entry.digest:
        raise ArtefactInvalid(f"member {name} is not the one that the manifest describes")
    return data


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    try:
        return json.loads(_read(archive, name, _MAX_TEXT))
    except (ValueError, RecursionError) as error:
        raise ArtefactInvalid(f"member {name} is not JSON") from error


def _tensors(manifest: Manifest, data: bytes) -> list[torch.Tensor]:
    """One tensor per constant, laid out and aligned as the code reads it."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        stored = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ArtefactInvalid("the weights are broken", details=[("safetensors", str(error))]) from error
    if set(stored) != {c.tensor for c in manifest.constants}:
        raise ArtefactInvalid("the weights are not those that the manifest lists")
    return [_placed(c, stored[c.tensor]) for c in manifest.constants]


def _placed(constant: Constant, flat: torch.Tensor) -> torch.Tensor:
    """The constant's elements are stored from the first to the last, whatever their strides."""
    dtype = FROM_NAME[constant.dtype]
    size = schema.extent(constant.shape, constant.strides)
    words = 2 if dtype.is_complex else 1
    if flat.dtype != (dtype.to_real() if dtype.is_complex else dtype) or flat.numel() != size * words:
        raise ArtefactInvalid(f"the weight {constant.tensor!r} has another type or size than the manifest says")
    tensor = torch.empty_strided(constant.shape, constant.strides, dtype=dtype)
    memory = torch.as_strided(tensor, (size,), (1,))
    (torch.view_as_real(memory) if dtype.is_complex else memory).view(-1).copy_(flat.reshape(-1))
    return tensor
