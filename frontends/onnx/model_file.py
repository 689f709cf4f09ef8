"""Opens an ONNX file as data: an ordinary file of bounded size, parsed and checked for its outer structure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import FunctionProto, ModelProto

from dcir.errors import InvalidModel, Unsupported
from dcir.frontends.onnx.names import check_names
from dcir.frontends.onnx.tensors import show

MAX_FILE_BYTES = (1 << 31) - 1
"""Protocol buffers cannot hold more; larger models keep their weights in external data."""
MAX_NODES = 200_000
MAX_NESTING = 32
MAX_OPSET = onnx.defs.onnx_opset_version()

FunctionKey = tuple[str, str, str]


def read_model(source: str | os.PathLike[str] | ModelProto) -> tuple[ModelProto, Path | None]:
    """The parsed model and its folder (None for a model given as an object)."""
    if isinstance(source, ModelProto):
        _check_outline(source)
        check_names(source)
        return source, None
    path = Path(source)
    model = ModelProto()
    try:
        model.ParseFromString(_read_bytes(path))
    except DecodeError as error:
        raise InvalidModel("the file is not an ONNX model, or it is cut off", where=show(str(path))) from error
    _check_outline(model)
    check_names(model)
    return model, path.resolve().parent


def _read_bytes(path: Path) -> bytes:
    where = show(str(path))
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise InvalidModel("the file cannot be opened", where=where) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidModel("not an ordinary file", where=where)
        if info.st_size > MAX_FILE_BYTES:
            raise InvalidModel("the file is larger than an ONNX file can be (2 GiB)", where=where)
        if info.st_size == 0:
            raise InvalidModel("the file is empty", where=where)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(info.st_size)
    finally:
        os.close(descriptor)


def domain_of(name: str) -> str:
    """ONNX's own domain has two spellings."""
    return "" if name == "ai.onnx" else name


def opsets_of(imports: object, where: str) -> dict[str, int]:
    """Domain to opset version; raises `InvalidModel` on contradictions."""
    versions: dict[str, int] = {}
    for item in imports:  # type: ignore[attr-defined]
        domain = domain_of(item.domain)
        if versions.setdefault(domain, item.version) != item.version:
            raise InvalidModel(f"two opset versions are imported for domain {show(domain)}", where=where)
        if not 1 <= item.version < 2**31:
            raise InvalidModel(f"opset version {item.version} is not possible", where=where)
        if domain == "" and item.version > MAX_OPSET:
            message = f"opset {item.version} is newer than the onnx package knows (up to {MAX_OPSET})"
            raise Unsupported(message, where=where, hint="install a newer onnx package")
    return versions


def _check_outline(model: ModelProto) -> None:
    if not model.HasField("graph"):
        raise InvalidModel("the file holds no graph")
    if not model.HasField("ir_version") or model.ir_version < 1:
        raise InvalidModel("the file has no IR version")
    if len(model.graph.node) > MAX_NODES:
        raise InvalidModel(f"the graph has more than {MAX_NODES} nodes")
    if not len(model.opset_import) and model.ir_version >= 3:
        raise InvalidModel("the file imports no operator set")


def functions_of(model: ModelProto) -> dict[FunctionKey, FunctionProto]:
    """The model's local functions, refused when calling them would need too many nodes or never end."""
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in model.functions:
        key = (domain_of(function.domain), function.name, function.overload)
        if key in functions:
            raise InvalidModel(f"function {show(function.name)} is defined twice")
        functions[key] = function
    sizes: dict[FunctionKey, int] = {}
    for key in functions:
        _expanded_size(key, functions, sizes, [])
    total = 0
    for node in model.graph.node:
        total += sizes.get((domain_of(node.domain), node.op_type, node.overload), 1)
    if total > MAX_NODES:
        raise InvalidModel(f"the graph has more than {MAX_NODES} nodes once its functions are written out")
    return functions


def _expanded_size(
    key: FunctionKey,
    functions: dict[FunctionKey, FunctionProto],
    sizes: dict[FunctionKey, int],
    chain: list[FunctionKey],
) -> int:
    if key in sizes:
        return sizes[key]
    if key in chain:
        raise InvalidModel(f"function {show(key[1])} calls itself")
    if len(chain) >= MAX_NESTING:
        raise InvalidModel(f"functions are nested deeper than {MAX_NESTING}")
    size = 0
    for node in functions[key].node:
        callee = (domain_of(node.domain), node.op_type, node.overload)
        size += _expanded_size(callee, functions, sizes, [*chain, key]) if callee in functions else 1
    sizes[key] = size
    return size
