"""Which vector instructions the generated code may use: read from the processor, or asked for through DCIR_ISA."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from dcir.errors import OptionError


@dataclass(frozen=True)
class Isa:
    """One instruction set.

    Attributes:
        name: "amx", "avx512bf16", "avx512", "avx2" or "generic".
        vector_bytes: width of a vector register.
        registers: number of vector registers.
        processor: a processor that has it, by GCC's name.
        slow_fills: whether tiles wait for the first-level cache to be filled from the second (``slow_to_fill``).
    """

    name: str
    vector_bytes: int
    registers: int
    processor: str
    slow_fills: bool = False

    @property
    def vectors(self) -> str:
        """The set without the matrix unit: "avx512", "avx2" or "generic"."""
        return self.name if self.name in ("avx2", "generic") else "avx512"

    @property
    def matrix_unit(self) -> bool:
        """Whether there are tile registers and products of bfloat16 matrices (``gemm/matrix.py``)."""
        return self.name == "amx"

    @property
    def dots(self) -> bool:
        """Whether vectors multiply pairs of bfloat16 and add them to f32, and nothing does it faster (``half_dots.py``)."""
        return self.name == "avx512bf16"


ISAS = {
    i.name: i
    for i in (
        Isa("amx", 64, 32, "sapphirerapids"),
        Isa("avx512bf16", 64, 32, "cooperlake"),
        Isa("avx512", 64, 32, "skylake-avx512"),
        Isa("avx2", 32, 16, "haswell"),
        Isa("generic", 16, 16, "x86-64"),
    )
}
"""Instruction sets by name, the widest first; each has what those after it have."""

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@functools.cache
def slow_to_fill() -> bool:
    """Whether tiles wait for the first-level cache to be filled from the second: on Intel's processors, not on AMD's.

    Measured on a Xeon with AMX and 2 MB of second-level cache a core (tile of 14 rows by 2 vectors: 213 GFLOP/s from the first level,
    175 to 185 from the second, with rows packed and everything fetched ahead 188 to 193) and on Zen 5 (94 to 97 % of its peak without).
    """
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@functools.cache
def _may_use_tiles() -> bool:
    """Whether the kernel lets this process use tile registers; it has to be asked once for each process (Linux 5.16 and later)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        system = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    return int(system(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA))) == 0


def host_isa() -> Isa:
    """The widest instruction set of this processor, or the one named by ``DCIR_ISA``.

    Raises:
        OptionError: DCIR_ISA names no known set.
    """
    asked = os.environ.get("DCIR_ISA")
    if asked:
        if asked not in ISAS:
            raise OptionError(f"DCIR_ISA={asked} is unknown", hint="one of " + ", ".join(ISAS))
        return ISAS[asked]
    return ISAS[executable()[0]]


@functools.cache
def executable() -> tuple[str, ...]:
    """Names of the instruction sets that this processor has, the widest first."""
    flags = _processor_flags()
    widest = "generic"
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        widest = "avx512bf16" if "avx512_bf16" in flags else "avx512"
        if {"amx_tile", "amx_bf16"} <= flags and _may_use_tiles():
            widest = "amx"
    elif {"avx2", "fma"} <= flags:
        widest = "avx2"
    names = tuple(ISAS)
    return names[names.index(widest) :]


def require_executable(isa: Isa) -> None:
    """Refuse to make code for an instruction set, which ``DCIR_ISA`` asks for, that this processor would stop at.

    Raises:
        OptionError: the processor lacks the instruction set.
    """
    asked = isa.name
    if asked not in executable():
        raise OptionError(
            f"this processor has no {asked}", where=f"DCIR_ISA={asked}", hint="one of " + ", ".join(executable())
        )
