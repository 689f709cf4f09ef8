"""One native call that looks for changes, fills a program's table and runs it, for calls that are like one before.

The native side is ``codegen/cpp/entry.py``, which every compiled library holds. It is called as the interpreter calls its own functions,
without ctypes, and lets other threads run while the kernels do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dcir.runtime import watch
from dcir.runtime.watch import Watch

# As in codegen/cpp/entry.py.
OTHER_MODES, CHANGED = 1 << 30, (1 << 30) + 1
"""What an entry returns where it ran nothing: the thread's dispatch keys are others; something is not as it was noted."""

_KEYS = b"_ZN3c104impl26raw_local_dispatch_key_setE"
_FASTCALL = 0x80


class _Interpreter(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p), ("number", ctypes.c_void_p), ("release", ctypes.c_void_p), ("take", ctypes.c_void_p),
        ("symbol", ctypes.c_void_p), ("library", ctypes.c_void_p), ("keys", ctypes.c_char_p),
        ("member", ctypes.c_void_p), ("item", ctypes.c_void_p), ("hold", ctypes.c_void_p), ("let_go", ctypes.c_void_p),
    )  # fmt: skip


class EntryRow(ctypes.Structure):
    """What a native entry compares."""

    _fields_ = (
        ("dictionaries", ctypes.c_void_p), ("n", ctypes.c_longlong), ("tensors", ctypes.c_void_p), ("m", ctypes.c_longlong),
        ("functions", ctypes.c_void_p), ("keys", ctypes.c_uint64 * 2), ("count", ctypes.c_longlong), ("slots", ctypes.c_void_p),
        ("compares", ctypes.c_longlong), ("fingerprint", ctypes.c_uint64),
    )  # fmt: skip


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


@functools.cache
def available() -> bool:
    """Whether changes can be watched here, and the dispatch keys of a thread lie where they are looked for."""
    if not watch.available() or _interpreter() is None:
        return False
    # What lies there is torch's own sets but for bits that are always turned.
    outside, shown_outside = keys(), _shown()
    with torch.inference_mode():
        inside, shown_inside = keys(), _shown()
    turned = [a ^ b for a, b in zip(outside, inside, strict=True)]
    return any(turned) and turned == [a ^ b for a, b in zip(shown_outside, shown_inside, strict=True)]


def _shown() -> tuple[int, int]:
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()


def keys() -> tuple[int, int]:
    """The two words of this thread's dispatch keys, where they are ``available``."""
    found = _interpreter()
    symbol = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(found.symbol)
    at = symbol(found.library, _KEYS)
    return tuple((ctypes.c_uint64 * 2).from_address(at)) if at else (0, 0)


@functools.cache
def _interpreter() -> Any:
    """The functions that the native side calls; None where one is missing. Libraries keep its address."""
    api = ctypes.pythonapi
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        functions = (
            api.PyLong_AsVoidPtr, api.PyLong_FromLong, api.PyEval_SaveThread, api.PyEval_RestoreThread, ctypes.CDLL(None).dlsym,
            api.PyTuple_GetItem, api.PyDict_GetItem, api.Py_IncRef, api.Py_DecRef,
        )  # fmt: skip
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    return _Interpreter(*addresses[:5], library._handle, _KEYS, *addresses[5:])


def entry(library: ctypes.CDLL, watched: Watch, slots: Sequence[int], fingerprint: int | None) -> Callable[..., int]:
    """A function that runs a library's program if nothing has changed since this was called.

    Args:
        library: the program's.
        watched: what must be as it was noted; the function keeps it.
        slots: of the table, which it fills in every call.
        fingerprint: of what was prepared from parameters; None if it is not compared.

    Returns:
        A function of the addresses of a table, of a call back, and one for each slot. It returns the program's status,
        ``OTHER_MODES`` or ``CHANGED``. The library must stay loaded as long as it is called.
    """
    rows = (ctypes.c_int * max(len(slots), 1))(*slots)
    row = EntryRow(
        *watched.row, keys(), len(slots), ctypes.addressof(rows), fingerprint is not None, fingerprint or 0
    )  # fmt: skip
    address = ctypes.cast(library.dcir_enter, ctypes.c_void_p).value or 0
    return functools.partial(bound(library, b"enter", address, (row, rows, watched)), ctypes.addressof(row))


def bound(library: ctypes.CDLL, name: bytes, address: int, to: tuple[Any, ...]) -> Callable[..., Any]:
    """A function of a library as one of the interpreter's own, which is given a tuple that begins with ``to``, and keeps it."""
    library.dcir_interpreter(ctypes.byref(_interpreter()))
    method = _Method(name, address, _FASTCALL, None)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ctypes.cast(ctypes.pythonapi.PyCFunction_NewEx, ctypes.c_void_p).value or 0
    )
    # The interpreter frees what a function is bound to after it has looked at the method for the last time.
    function: Callable[..., Any] = new(ctypes.addressof(method), (*to, method), None)
    return function
