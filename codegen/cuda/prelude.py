"""What a kernel's text is compiled after: the prelude for NVRTC, and its twin for g++, each as one text without includes of its own.

Comparisons, guarded integers and seldom used functions (polygamma, orthogonal polynomials) are those of the CPU's prelude: their text knows
nothing of a target but how its mathematical library is called.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent / "include"
_SHARED = Path(__file__).resolve().parents[1] / "cpp" / "include"
_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
_INFINITY = re.compile(r"__builtin_inf(f?)\(\)")
_NAN = re.compile(r'__builtin_nan(f?)\(""\)')


@functools.cache
def prelude_text() -> str:
    """CUDA C++ that goes before a kernel for NVRTC."""
    return _joined("prelude.cuh", "")


@functools.cache
def twin_text() -> str:
    """C++ that goes before a kernel for g++."""
    return _joined("twin.h", "__builtin_")


def device_words(text: str) -> str:
    """C++ of the scalar table in words that both compilers know: infinities and NaN are the prelude's."""
    text = _INFINITY.sub(lambda found: "D_INF" if found[1] else "D_INF64", text)
    return _NAN.sub(lambda found: "D_NAN" if found[1] else "D_NAN64", text)


def _joined(name: str, library: str) -> str:
    """A header with those that it includes; ``library`` is put before the names of the mathematical library's functions."""
    own = _FOLDER / name
    text = own.read_text() if own.exists() else _shared(name, library)
    return _INCLUDE.sub(lambda found: _joined(found[1], library), text)


def _shared(name: str, library: str) -> str:
    """A header of the CPU's, in the words of the others."""
    text = device_words((_SHARED / name).read_text()).replace("static inline", "D_INLINE")
    # There the macros name what they define and the library's function; here a function's name is both.
    text = re.sub(r"D_UNARY\(d_(\w+), __builtin_(\w+)\)", r"D_UNARY(\1, \2)", text)
    return text.replace("__builtin_", library)
