"""Notes the dictionaries, classes and tensors of a module's tree, and tells in one native call whether they are as noted.

A network has hundreds of parameters and dictionaries; asking each of them from Python took as long as a small network, most of
it in a cold cache. The native side is ``codegen/cpp/watch.py``, which every compiled library holds.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

SAME, OTHER_CONTENTS, OTHER_STRUCTURE = 0, 1, 2
"""What ``Watch.changed`` tells: nothing; tensors with other memory or another count of writes; anything else."""

# In the order of codegen/cpp/watch.py.
_FUNCTIONS = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dtype",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "_ZNK2at10TensorBase8_versionEv",
)
_LARGEST_RANK = 6
_VERSION = 24
"""Where a dictionary has its version."""


class _Dictionary(ctypes.Structure):
    _fields_ = (("object", ctypes.c_void_p), ("version", ctypes.c_uint64))


class TensorRow(ctypes.Structure):
    """What is noted of a tensor."""

    _fields_ = (
        ("handle", ctypes.c_void_p),
        ("near", ctypes.c_void_p * 2),
        ("data", ctypes.c_void_p),
        ("version", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * _LARGEST_RANK),
        ("strides", ctypes.c_int64 * _LARGEST_RANK),
        ("keys_at", ctypes.c_void_p),
        ("keys", ctypes.c_uint64),
    )


@functools.cache
def available() -> bool:
    """Whether this interpreter's dictionaries have versions where they are looked for, and torch its functions.

    Python 3.12 took the versions for watchers of its own; there is no second form for it here.
    """
    return sys.version_info[:2] == (3, 11) and sys.implementation.name == "cpython" and _functions() is not None


@functools.cache
def _functions() -> Any:
    """A table of addresses, or None where this torch lacks one of them."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path))
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS]
        from torch._C._aoti import (
            alloc_tensors_by_stealing_from_void_ptrs,  # noqa: F401
            unsafe_alloc_void_ptrs_from_tensors,  # noqa: F401
        )
        from torch._C._dynamo.guards import dict_version  # noqa: F401
    except (OSError, AttributeError, ImportError):
        return None
    return (ctypes.c_void_p * len(found))(*found)


@functools.cache
def field_offsets() -> dict[str, int] | None:
    """Where words lie in an object that say what it is: of any, of a function, of a class; None where one is not found."""
    functions = range(16, _size(FunctionType), 8)
    found = {
        name: only((_one, _other), functions, id, lambda f, name=name: id(getattr(f, name)))  # type: ignore[misc]
        for name in ("__code__", "__defaults__", "__kwdefaults__")
    }
    found["__mro__"] = only((Path, Watch, int), range(16, _size(type), 8), id, lambda c: id(c.__mro__))
    known = {name: at for name, at in found.items() if at is not None}
    return {"__class__": 8, **known} if len(known) == len(found) else None


@functools.cache
def keys_offset() -> int | None:
    """Where what a tensor stands for has its dispatch keys; None where they are not found."""
    plain = torch.empty(2), torch.empty(2, requires_grad=True), torch.empty(2, dtype=torch.complex64).conj()
    with torch.inference_mode():
        others = (torch.empty(2), torch.empty(2, dtype=torch.complex64).conj())
    # The sets end what torch compares of a tensor; nothing is read behind the shortest that one was seen to have.
    tensors = (*plain, *others)
    return only(tensors, range(0, 184, 8), lambda t: t._cdata, lambda t: torch._C._dispatch_keys(t).raw_repr())


def _size(cls: Any) -> int:
    return int(cls.__basicsize__)


def word(address: int) -> int:
    """Eight bytes of memory."""
    return ctypes.c_uint64.from_address(address).value


def only(
    objects: Sequence[Any], offsets: range, where: Callable[[Any], int], wanted: Callable[[Any], int]
) -> int | None:
    """The one offset at which every object has the wanted word."""
    fits = [at for at in offsets if all(word(where(o) + at) == wanted(o) for o in objects)]
    return fits[0] if len(fits) == 1 else None


def _one(x: int = 1, *, y: int = 2) -> int:
    return x + y


def _other(x: int = 3, *, y: int = 4) -> int:
    return x - y


class Watch:
    """Dictionaries, fields of objects and tensors, as they were when this was made. It keeps all of them alive.

    Args:
        library: a compiled library, which must stay loaded as long as this.
        dictionaries: whose items must stay the same objects.
        tensors: which must keep type, sizes, strides, dispatch keys, memory and count of writes. None may be made in inference mode.
        fields: (object, attribute) of those that ``field_offsets`` knows, which must stay the same objects.
    """

    def __init__(
        self, library: ctypes.CDLL, dictionaries: Sequence[dict[Any, Any]], tensors: Sequence[torch.Tensor],
        fields: Sequence[tuple[Any, str]] = (),
    ) -> None:  # fmt: skip
        from torch._C._aoti import alloc_tensors_by_stealing_from_void_ptrs, unsafe_alloc_void_ptrs_from_tensors
        from torch._C._dynamo.guards import dict_version

        self._handles: list[Any] = []
        self._give_back = alloc_tensors_by_stealing_from_void_ptrs
        # Called with the interpreter's lock, so that no other Python code runs in between.
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p, ctypes.c_longlong] * 2, ctypes.c_void_p)
        note, self._changed = (
            kind(ctypes.cast(function, ctypes.c_void_p).value or 0)
            for function in (library.dcir_note, library.dcir_watch)
        )
        self._dictionaries, self.tensors = list(dictionaries), list(tensors)
        offsets = field_offsets() or {}
        known = all(name in offsets for _, name in fields)
        self._fields = [(owner, getattr(owner, name)) for owner, name in fields]
        count = len(dictionaries) + len(fields)
        self._dictionary_rows = (_Dictionary * max(count, 1))()
        # A field is a word like a version, and compared as one.
        places = [id(owner) + offsets.get(name, _VERSION) - _VERSION for owner, name in fields]
        for row, at in zip(self._dictionary_rows, (*map(id, dictionaries), *places), strict=False):
            row.object = at
        self.tensor_rows = (TensorRow * max(len(tensors), 1))()
        self._handles = unsafe_alloc_void_ptrs_from_tensors(self.tensors)
        keys = keys_offset()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        for tensor_row, handle, t in zip(self.tensor_rows, self._handles, self.tensors, strict=False):
            tensor_row.handle = pointer(handle, None)
            # Only asked for ahead of time, never read.
            tensor_row.near = (t._cdata, t.untyped_storage()._cdata)
            tensor_row.keys_at = None if keys is None else t._cdata + keys
        functions = _functions()
        self.row = (
            ctypes.addressof(self._dictionary_rows), count, ctypes.addressof(self.tensor_rows), len(tensors),
            ctypes.addressof(functions),
        )  # fmt: skip
        """What the native functions are told of it."""
        # Complex parameters may become their own conjugates, which shows in the keys alone.
        known = known and (keys is not None or not any(t.is_complex() for t in self.tensors))
        self.valid = known and note(*self.row) == 0
        words = (*map(dict_version, dictionaries), *(0 if value is None else id(value) for _, value in self._fields))
        self.valid = self.valid and all(row.version == w for row, w in zip(self._dictionary_rows, words, strict=False))
        """Whether everything could be noted; ``changed`` must not be asked otherwise."""

    def changed(self) -> int:
        """``SAME``, ``OTHER_CONTENTS`` or ``OTHER_STRUCTURE``."""
        result: int = self._changed(*self.row)
        return result

    def noted(self) -> list[tuple[int, int]]:
        """(address, count of writes) of every tensor."""
        return [(row.data or 0, row.version) for row, _ in zip(self.tensor_rows, self.tensors, strict=False)]

    def __del__(self) -> None:
        if self._handles:
            self._give_back(self._handles)
