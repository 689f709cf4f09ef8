"""Reads a TensorProto into a torch tensor, believing none of its numbers.

Every size is recomputed with Python integers before any byte is touched; external data is only opened through the
onnx library's checked path, below the model's folder, after our own check of the location.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import SparseTensorProto, TensorProto
from onnx.external_data_helper import load_external_data_for_tensor

from dcir.errors import DcirError, InvalidInput, InvalidModel, Unsupported
from dcir.frontends.onnx.values import DTYPES, ONNX_TYPES, TEXT, Host, torch_dtype

MAX_ELEMENTS = 1 << 40
MAX_RANK = 64
MAX_SPARSE_ELEMENTS = 1 << 28
"""A sparse tensor is made dense, so its dense size must not be a decompression bomb."""

_T = TensorProto
NARROW_TYPES = (_T.UINT4, _T.INT4, _T.FLOAT4E2M1, _T.UINT2, _T.INT2)
_BITS: dict[int, int] = {_T.UINT4: 4, _T.INT4: 4, _T.FLOAT4E2M1: 4, _T.UINT2: 2, _T.INT2: 2}
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_NUMPY: dict[int, npt.DTypeLike] = {
    _T.FLOAT: "<f4", _T.UINT8: "u1", _T.INT8: "i1", _T.UINT16: "<u2", _T.INT16: "<i2", _T.INT32: "<i4",
    _T.INT64: "<i8", _T.BOOL: "u1", _T.FLOAT16: "<u2", _T.DOUBLE: "<f8", _T.UINT32: "<u4", _T.UINT64: "<u8",
    _T.COMPLEX64: "<c8", _T.COMPLEX128: "<c16", _T.BFLOAT16: "<u2", _T.FLOAT8E4M3FN: "u1",
    _T.FLOAT8E4M3FNUZ: "u1", _T.FLOAT8E5M2: "u1", _T.FLOAT8E5M2FNUZ: "u1", _T.FLOAT8E8M0: "u1",
}  # fmt: skip
_VIEWED = {
    _T.FLOAT16, _T.BFLOAT16, _T.FLOAT8E4M3FN, _T.FLOAT8E4M3FNUZ, _T.FLOAT8E5M2, _T.FLOAT8E5M2FNUZ, _T.FLOAT8E8M0,
}  # fmt: skip
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD_OF: dict[int, str] = {
    _T.FLOAT: "float_data", _T.COMPLEX64: "float_data", _T.INT64: "int64_data", _T.DOUBLE: "double_data",
    _T.COMPLEX128: "double_data", _T.UINT32: "uint64_data", _T.UINT64: "uint64_data",
}  # fmt: skip


def printable(text: str) -> str:
    """A text without what steers a terminal, or the direction of writing."""
    return "".join(c if c.isprintable() else "?" for c in text)


def show(name: str) -> str:
    """A name from the file, made harmless and short for a message."""
    text = ascii(name)
    return text if len(text) <= 80 else text[:77] + "...'"


def read_tensor(proto: TensorProto, folder: Path | None, where: str | None = None) -> torch.Tensor:
    """The tensor's value; raises `InvalidModel` on any inconsistency and `Unsupported` on types outside torch."""
    where = where or f"tensor {show(proto.name)}"
    code = proto.data_type
    dtype = torch_dtype(code, where)
    dims = _checked_dims(proto.dims, where)
    count = math.prod(dims)
    if proto.HasField("segment"):
        raise Unsupported("tensors stored in segments are not supported", where=where)
    nbytes = (count * _BITS[code] + 7) // 8 if code in _BITS else count * np.dtype(_NUMPY[code]).itemsize
    filled = [name for name in _FIELDS if len(getattr(proto, name))]
    if proto.data_location == TensorProto.EXTERNAL:
        if filled or proto.raw_data:
            raise InvalidModel("a tensor has both external and embedded data", where=where)
        return _decode(_external_bytes(proto, folder, nbytes, where), code, dtype, dims)
    if len(proto.external_data):
        raise InvalidModel("external data is given for a tensor stored in the file", where=where)
    if proto.HasField("raw_data"):
        if filled:
            raise InvalidModel("a tensor has both raw and typed data", where=where)
        if len(proto.raw_data) != nbytes:
            message = f"raw data has {len(proto.raw_data)} bytes, the shape {dims} wants {nbytes}"
            raise InvalidModel(message, where=where)
        return _decode(proto.raw_data, code, dtype, dims)
    return _from_fields(proto, filled, code, dtype, dims, where)


def read_sparse(proto: SparseTensorProto, folder: Path | None) -> torch.Tensor:
    """A sparse initializer as a dense tensor."""
    where = f"sparse tensor {show(proto.values.name)}"
    dims = _checked_dims(proto.dims, where)
    count = math.prod(dims)
    if count > MAX_SPARSE_ELEMENTS:
        raise InvalidModel(f"a sparse tensor of {count} elements is too large to be made dense", where=where)
    values, indices = read_tensor(proto.values, folder, where), read_tensor(proto.indices, folder, where)
    if values.ndim != 1 or indices.dtype != torch.int64 or indices.ndim not in (1, 2):
        raise InvalidModel("values or indices have a wrong rank or type", where=where)
    if indices.shape[0] != values.shape[0] or (indices.ndim == 2 and indices.shape[1] != len(dims)):
        raise InvalidModel("indices do not match the values or the shape", where=where)
    if indices.ndim == 2:
        limit = torch.tensor(dims, dtype=torch.int64)
        if bool(((indices < 0) | (indices >= limit)).any()):
            raise InvalidModel("an index lies outside the shape", where=where)
        strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
        indices = (indices * torch.tensor(strides, dtype=torch.int64)).sum(1)
    if bool(((indices < 0) | (indices >= count)).any()):
        raise InvalidModel("an index lies outside the shape", where=where)
    if torch.unique(indices).numel() != indices.numel():
        raise InvalidModel("an index appears twice", where=where)
    dense = torch.zeros(count, dtype=values.dtype)
    dense[indices] = values
    return dense.reshape(dims)


def _checked_dims(raw: object, where: str) -> list[int]:
    dims = [int(d) for d in raw]  # type: ignore[attr-defined]
    if len(dims) > MAX_RANK or any(d < 0 for d in dims) or math.prod(dims) > MAX_ELEMENTS:
        shown = dims if len(dims) <= MAX_RANK else f"of rank {len(dims)}"
        raise InvalidModel(f"the shape {shown} is not possible", where=where)
    return dims


def _decode(raw: bytes, code: int, dtype: torch.dtype, dims: list[int]) -> torch.Tensor:
    """The tensor, in memory of torch's own: who else may write NumPy's nobody knows, so that it would be compared in every call."""
    count = math.prod(dims)
    if count == 0:
        return torch.empty(dims, dtype=dtype)
    if code in _BITS:
        return _unpack(np.frombuffer(raw, np.uint8), code, count).reshape(dims)
    flat = np.frombuffer(raw, _NUMPY[code])
    if code == _T.BOOL:
        return torch.tensor(flat != 0).reshape(dims)
    tensor = torch.tensor(flat)
    return (tensor.view(dtype) if code in _VIEWED else tensor).reshape(dims)


def _unpack(packed: npt.NDArray[np.uint8], code: int, count: int) -> torch.Tensor:
    bits = _BITS[code]
    mask = (1 << bits) - 1
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    flat = ((packed[:, None] >> shifts) & mask).reshape(-1)[:count]
    if code == _T.FLOAT4E2M1:
        return torch.tensor(_FP4[flat])
    if code in (_T.INT4, _T.INT2):
        half = 1 << (bits - 1)
        return torch.tensor(((flat.astype(np.int16) ^ half) - half).astype(np.int8))
    return torch.tensor(flat.astype(np.uint8))


def _from_fields(
    proto: TensorProto, filled: list[str], code: int, dtype: torch.dtype, dims: list[int], where: str
) -> torch.Tensor:
    field = _FIELD_OF.get(code, "int32_data")
    if any(name != field for name in filled):
        raise InvalidModel(f"data is stored in {', '.join(filled)}, the type wants {field}", where=where)
    count = math.prod(dims)
    stored = getattr(proto, field)
    wanted = 2 * count if code in (_T.COMPLEX64, _T.COMPLEX128) else count
    if code in _BITS:
        wanted = (count * _BITS[code] + 7) // 8
    if len(stored) != wanted:
        raise InvalidModel(f"{field} has {len(stored)} entries, the shape {dims} wants {wanted}", where=where)
    if field in ("float_data", "double_data"):
        data = np.array(stored, np.float32 if field == "float_data" else np.float64)
        return _decode(data.tobytes(), code, dtype, dims)
    storage = np.dtype(np.uint8 if code in _BITS else _NUMPY[code])
    wide = np.array(stored, np.uint64 if field == "uint64_data" else np.int64)
    info = np.iinfo(storage)
    if wide.size and (int(wide.min()) < info.min or int(wide.max()) > info.max):
        raise InvalidModel(f"an entry of {field} does not fit the tensor's type", where=where)
    return _decode(wide.astype(storage).tobytes(), code, dtype, dims)


def _external_bytes(proto: TensorProto, folder: Path | None, nbytes: int, where: str) -> bytes:
    if folder is None:
        hint = "load the model by its path, or embed the data"
        raise InvalidModel("a model given as an object has external data", where=where, hint=hint)
    entries: dict[str, str] = {}
    for entry in proto.external_data:
        if entry.key in entries:
            raise InvalidModel("an external-data key is given twice", where=where)
        entries[entry.key] = entry.value
    location = entries.get("location", "")
    offset, length = _number(entries.get("offset", "0"), where), _number(entries.get("length", str(nbytes)), where)
    if length != nbytes:
        raise InvalidModel(f"external data has {length} bytes, the shape wants {nbytes}", where=where)
    size = _checked_file(location, folder, where)
    if offset > size or length > size - offset:
        raise InvalidModel("external data lies beyond the end of its file", where=where)
    if nbytes == 0:
        return b""
    scratch = TensorProto(name="external", data_type=proto.data_type, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        scratch.external_data.add(key=key, value=value)
    try:
        load_external_data_for_tensor(scratch, str(folder))
    except DcirError:
        raise
    except Exception as error:
        raise InvalidModel(f"external data cannot be read: {show(str(error))}", where=where) from error
    if len(scratch.raw_data) != nbytes:
        raise InvalidModel("external data is shorter than its tensor", where=where)
    return scratch.raw_data


def _number(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidModel("an external-data offset or length is not a number", where=where)
    return int(text)


def _checked_file(location: str, folder: Path, where: str) -> int:
    """The file's size, if `location` names an ordinary file below `folder` reached without any link."""
    parts = location.split("/")
    bad = not location or any(c in location for c in "\0\\:") or any(p in ("", ".", "..") for p in parts)
    if bad or os.path.isabs(location):
        raise InvalidModel(f"external data at {show(location)} is outside the model's folder", where=where)
    path = folder
    for part in parts:
        path = path / part
        try:
            info = os.lstat(path)
        except (OSError, ValueError) as error:
            raise InvalidModel(f"external data file {show(location)} is missing", where=where) from error
        if stat.S_ISLNK(info.st_mode):
            raise InvalidModel(f"external data at {show(location)} goes through a symbolic link", where=where)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        raise InvalidModel(f"external data at {show(location)} is not an ordinary file of its own", where=where)
    return info.st_size


def read_value(proto: TensorProto, folder: Path | None, where: str | None = None) -> torch.Tensor | Host:
    """Like `read_tensor`, but strings too."""
    where = where or f"tensor {show(proto.name)}"
    if proto.data_type != TensorProto.STRING:
        return read_tensor(proto, folder, where)
    dims = _checked_dims(proto.dims, where)
    filled = [name for name in _FIELDS if len(getattr(proto, name))]
    if proto.HasField("raw_data") or proto.data_location == TensorProto.EXTERNAL or filled not in ([], ["string_data"]):
        raise InvalidModel("strings are stored where only numbers can be", where=where)
    if len(proto.string_data) != math.prod(dims):
        message = f"string_data has {len(proto.string_data)} entries, the shape {dims} wants {math.prod(dims)}"
        raise InvalidModel(message, where=where)
    return Host(tuple(read_text(raw, where) for raw in proto.string_data), tuple(dims), TEXT)


def read_text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidModel("a string is not UTF-8", where=where) from error


def from_numpy(array: npt.NDArray[Any]) -> torch.Tensor | Host:
    """An array as a tensor, over the same memory where torch has the type and the array lies in order; or strings."""
    if array.dtype.kind in "OUS":
        words = [word.decode() if isinstance(word, bytes) else word for word in array.reshape(-1).tolist()]
        if not all(isinstance(word, str) for word in words):
            raise InvalidInput("an array of objects must hold strings")
        return Host(tuple(words), array.shape, TEXT)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    return read_tensor(onnx.numpy_helper.from_array(array), None)


def to_numpy(value: torch.Tensor | Host, code: int) -> npt.NDArray[Any]:
    """A result as a numpy array of ONNX element type `code`, including the types that numpy lacks."""
    if isinstance(value, Host):
        return np.array(value.values, object).reshape(value.shape)
    value = value.detach().cpu()
    code = code or ONNX_TYPES[value.dtype]  # a file need not say it
    narrow: dict[int, npt.DTypeLike] = {
        _T.INT4: ml_dtypes.int4, _T.UINT4: ml_dtypes.uint4, _T.INT2: ml_dtypes.int2, _T.UINT2: ml_dtypes.uint2,
        _T.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    }  # fmt: skip
    viewed: dict[int, npt.DTypeLike] = {
        _T.BFLOAT16: ml_dtypes.bfloat16, _T.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
        _T.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz, _T.FLOAT8E5M2: ml_dtypes.float8_e5m2,
        _T.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz, _T.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    }  # fmt: skip
    if code in narrow:
        return value.numpy().astype(narrow[code])
    if code in viewed and value.dtype == DTYPES[code]:
        bits = torch.uint16 if code == _T.BFLOAT16 else torch.uint8
        return value.contiguous().view(bits).numpy().view(viewed[code])
    return np.asarray(value.numpy())
