"""What flows between ONNX operators here: torch tensors, and small host values kept as Python scalars.

A shape that travels through the graph as a tensor (`Shape`, `Gather`, `Concat`, `Reshape` …) would hide its
numbers from every tracer. A `Host` keeps them as Python integers (or symbolic integers while tracing), so that
`Reshape` and its kin see static values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from onnx import TensorProto
from torch import Tensor

from dcir.errors import InvalidModel, TypeMismatch, Unsupported

HOST_LIMIT = 64
"""Integer constants of at most this many elements are host values; larger ones stay tensors."""

SIZE_LIMIT = 1 << 36
"""No tensor that a file asks for by a bare number (fill, expand, range …) may have more elements."""

_T = TensorProto
DTYPES: dict[int, torch.dtype] = {
    _T.FLOAT: torch.float32,
    _T.UINT8: torch.uint8,
    _T.INT8: torch.int8,
    _T.UINT16: torch.uint16,
    _T.INT16: torch.int16,
    _T.INT32: torch.int32,
    _T.INT64: torch.int64,
    _T.BOOL: torch.bool,
    _T.FLOAT16: torch.float16,
    _T.DOUBLE: torch.float64,
    _T.UINT32: torch.uint32,
    _T.UINT64: torch.uint64,
    _T.COMPLEX64: torch.complex64,
    _T.COMPLEX128: torch.complex128,
    _T.BFLOAT16: torch.bfloat16,
    _T.FLOAT8E4M3FN: torch.float8_e4m3fn,
    _T.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    _T.FLOAT8E5M2: torch.float8_e5m2,
    _T.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    _T.FLOAT8E8M0: torch.float8_e8m0fnu,
    # torch cannot compute on these, so each is held unpacked in the smallest type that holds its values
    _T.UINT4: torch.uint8,
    _T.INT4: torch.int8,
    _T.UINT2: torch.uint8,
    _T.INT2: torch.int8,
    _T.FLOAT4E2M1: torch.float32,
}
ONNX_TYPES: dict[torch.dtype, int] = {}
for _code, _dtype in DTYPES.items():
    ONNX_TYPES.setdefault(_dtype, _code)

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores but hardly computes on; operators widen them to int64 and back."""

TEXT = None
"""In place of a torch type: the elements are strings."""

Scalar = Any  # int | float | bool | complex, and while tracing SymInt | SymFloat | SymBool


class Host(NamedTuple):
    """A small tensor as Python scalars in row-major order; `twin` is the same value as a tensor, if one is at hand.

    Strings, which no tensor holds, are always host values; their type is `TEXT`.
    """

    values: tuple[Scalar, ...]
    shape: tuple[int, ...]
    dtype: Any
    twin: Tensor | None = None


def torch_dtype(code: int, where: str | None = None) -> torch.dtype:
    """The torch type in which ONNX element type `code` is held; raises `Unsupported` or `InvalidModel`."""
    if code in DTYPES:
        return DTYPES[code]
    if code == _T.STRING:
        raise Unsupported("tensors of strings are not supported here", where=where)
    raise InvalidModel(f"element type {code} is not one of ONNX's", where=where)


_DIGITS = {torch.float32: (24, -149, 128), torch.float16: (11, -24, 16), torch.bfloat16: (8, -133, 128)}
"""Binary digits of a number, exponents of the smallest one and of the first that is too large."""


def rounded(value: Scalar, dtype: torch.dtype) -> Scalar:
    """A Python number as the element type has it; one that is symbolic stays as it is."""
    if type(value) is not float or dtype not in _DIGITS or value == 0 or not math.isfinite(value):
        return value
    digits, least, most = _DIGITS[dtype]
    unit = 2.0 ** max(math.frexp(value)[1] - digits, least)
    near = round(value / unit) * unit
    return near if abs(near) < 2.0**most else math.copysign(math.inf, value)


def cast_host(value: Host, dtype: Any) -> Any:
    """The numbers in another element type, or `NotImplemented` where only tensors have it."""
    if value.dtype is TEXT or dtype is TEXT:
        return NotImplemented
    plain = [v for v in value.values if isinstance(v, (bool, int, float))]
    if dtype in (torch.int64, torch.int32):
        bound = 2 ** (dtype.itemsize * 8 - 1)
        if not all(-bound <= v < bound for v in plain):  # neither infinities nor NaN
            return NotImplemented
        return Host(tuple(v if type(v) is int else int(v) for v in value.values), value.shape, dtype)
    if dtype in (torch.float64, *_DIGITS):
        return Host(tuple(rounded(float(v), dtype) for v in value.values), value.shape, dtype)
    if dtype == torch.bool:
        return Host(tuple(v != 0 for v in value.values), value.shape, dtype)
    return NotImplemented


def host_vector(values: Sequence[Scalar]) -> Host:
    """A rank-1 int64 host value."""
    return Host(tuple(values), (len(values),), torch.int64)


def host_scalar(value: Scalar, dtype: torch.dtype = torch.int64) -> Host:
    return Host((value,), (), dtype)


def to_host(value: Tensor) -> Host:
    """Read a tensor's numbers; while tracing this is a data-dependent read."""
    flat = value.reshape(-1)
    if flat.dtype in FLOAT8:
        flat = flat.to(torch.float32)
    if flat.dtype == torch.int64 and torch.compiler.is_compiling():
        return Host(tuple(flat[i].item() for i in range(flat.shape[0])), tuple(value.shape), value.dtype)
    return Host(tuple(flat.tolist()), tuple(value.shape), value.dtype)


def to_tensor(value: Tensor | Host, device: torch.device | None = None) -> Tensor:
    """The tensor of a value."""
    if isinstance(value, Tensor):
        return value
    if value.dtype is TEXT:
        raise Unsupported("the operator does not take strings")
    if value.twin is not None:
        return value.twin
    if len(value.shape) == 0:
        return torch.full((), value.values[0], dtype=value.dtype, device=device)
    if len(value.values) == 0:
        return torch.empty(value.shape, dtype=value.dtype, device=device)
    if len(value.values) == 1:
        return torch.full(value.shape, value.values[0], dtype=value.dtype, device=device)
    if all(type(v) in (int, float, bool) for v in value.values):
        return torch.tensor(value.values, dtype=value.dtype, device=device).reshape(value.shape)
    parts = [torch.full((1,), v, dtype=value.dtype, device=device) for v in value.values]
    return torch.cat(parts).reshape(value.shape)


def ints(value: Tensor | Host | Sequence[int] | None) -> list[int]:
    """The integers of a shape-like operand (an attribute, a host value, or at worst a tensor)."""
    if value is None:
        return []
    if isinstance(value, (Tensor, Host)):
        value = _listed(value)
        return [v if not isinstance(v, float) else int(v) for v in value.values]
    return list(value)


def _listed(value: Tensor | Host) -> Host:
    """An operand that is a list of numbers."""
    if len(value.shape) > 1:
        shape = list(value.shape)
        raise TypeMismatch(f"an operand that must be a list of numbers has shape {shape}", hint="a tensor of rank 1")
    return to_host(value) if isinstance(value, Tensor) else value


def floats(value: Tensor | Host | Sequence[float] | None) -> list[float]:
    """The numbers of an operand such as Resize's scales."""
    if value is None:
        return []
    return list(_listed(value).values) if isinstance(value, (Tensor, Host)) else list(value)


def scalar(value: Tensor | Host | float) -> Any:
    """The one number of an operand."""
    if isinstance(value, Tensor):
        value = to_host(value)
    if not isinstance(value, Host):
        return value
    if len(value.values) != 1 or len(value.shape) > 1:
        raise TypeMismatch(f"an operand that must be one number has shape {list(value.shape)}", hint="a scalar")
    return value.values[0]


def operand(value: Tensor | Host, rank: int) -> Any:
    """A one-element host value as a Python scalar where broadcasting allows it, else the tensor."""
    if isinstance(value, Host) and len(value.values) == 1 and len(value.shape) <= rank:
        return value.values[0]
    return to_tensor(value)


def axis_of(axis: int, rank: int) -> int:
    """Normalise a possibly negative axis; raises `InvalidModel` when it is out of range."""
    if not -rank <= axis < rank:
        raise InvalidModel(
            f"attribute or operand 'axis' is {axis}, the rank is {rank}", hint=f"from {-rank} to {rank - 1}"
        )
    return axis + rank if axis < 0 else axis


def axes_of_list(axes: Sequence[int], rank: int) -> list[int]:
    """Normalise axes; raises `InvalidModel` where one is out of range or named twice."""
    found = [axis_of(axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise InvalidModel(
            f"attribute or operand 'axes' is {list(axes)}, which names an axis twice", hint="each axis once"
        )
    return found


def check_count(name: str, count: Any, most: Any) -> None:
    """Raise `InvalidModel` for a count below 0 or beyond what there is."""
    if isinstance(count, int) and isinstance(most, int) and not 0 <= count <= most:
        raise InvalidModel(f"attribute or operand {name!r} is {count}, there are {most}", hint=f"0 to {most}")


def check_size(shape: Sequence[int]) -> None:
    """Refuse a shape that only a hostile or broken file asks for."""
    for d in shape:
        if d < 0:
            raise InvalidModel(f"negative dimension in shape {list(shape)}")
        if isinstance(d, int) and d > SIZE_LIMIT:
            raise InvalidModel(f"shape {list(shape)} has a dimension of more than {SIZE_LIMIT}")
    if math.prod(shape) > SIZE_LIMIT:
        raise InvalidModel(f"shape {list(shape)} has more than {SIZE_LIMIT} elements")
