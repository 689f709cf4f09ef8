"""Tells torch's profiler of calls and of their kernels, while it is on.

The driver's side is ``codegen/cpp/driver_marks.py``: it begins and ends an event around each step by two functions of torch's stable C
interface, whose addresses and names a ``Recorder`` hands over.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dcir.errors import OptionError

_FUNCTIONS = ("aoti_record_function_start", "aoti_record_function_end")


class _Fields(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("names", ctypes.c_void_p))


class Recorder:
    """What a driver needs to tell of its steps.

    Args:
        names: of the events, in the order of the steps.

    Attributes:
        address: of the structure that the driver reads; it lives as long as this.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # Torch reads names up to the first zero; what no UTF-8 can say, a lone surrogate in a path, is replaced.
        self._names = [name.replace("\0", " ").encode("utf-8", "replace") for name in names]
        self._array = (ctypes.c_char_p * max(len(names), 1))(*self._names)
        self._fields = _Fields(*functions(), ctypes.addressof(self._array))
        self.address = ctypes.addressof(self._fields)


@functools.cache
def functions() -> tuple[int, int]:
    """Addresses of the functions that begin and end an event.

    Raises:
        OptionError: this torch has none.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = [getattr(ctypes.CDLL(str(library)), name) for name in _FUNCTIONS]
    except (OSError, AttributeError) as e:
        raise OptionError(
            f"torch {torch.__version__} has no functions to record kernels with", where="record_function=True",
            hint="leave the option out; fast.dcir.profile(inputs) measures kernels without torch's profiler",
        ) from e  # fmt: skip
    begin, end = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found)
    return begin, end


def declare(library: ctypes.CDLL, parts: int) -> None:
    """Say what the functions of a library take that run and record."""
    names = ["dcir_run", *["dcir_part"] * (parts > 1)]
    for name in names:
        plain, run = getattr(library, name), getattr(library, f"{name}_recorded")
        run.restype, run.argtypes = ctypes.c_int, [*plain.argtypes, ctypes.c_void_p]


def recorded(library: ctypes.CDLL, name: str, recorder: Recorder | None) -> tuple[Callable[..., int], tuple[int, ...]]:
    """The function of a library that runs and records, and its last arguments; the one that only runs where there is no other."""
    if recorder is None:
        return getattr(library, name), ()
    return getattr(library, f"{name}_recorded"), (recorder.address,)
