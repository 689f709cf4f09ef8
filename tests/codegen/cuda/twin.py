"""Runs CUDA plans on the CPU: kernels compiled by g++ behind the twin of the prelude, over NumPy arrays whose ends the twin knows."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcir.cache import key_of
from dcir.codegen.cuda.launch import CudaPlan, Launch
from dcir.codegen.cuda.prelude import twin_text

Array = np.ndarray[Any, np.dtype[Any]]

FLAGS = ("-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-ffp-contract=off", "-ftrivial-auto-var-init=pattern")
_HARNESS = """
extern "C" const char* twin_fault() { return dcir_twin::fault(); }
extern "C" void twin_forget() { dcir_twin::forget_fault(); dcir_twin::forget_buffers(); }
extern "C" void twin_buffer(void* p, unsigned long n, int result) { dcir_twin::buffer(p, n, result != 0, result > 1); }
extern "C" unsigned long twin_unwritten() { return dcir_twin::unwritten(); }
extern "C" void twin_bytes(unsigned long long* n) {
  n[0] = dcir_twin::state().bytes_loaded; n[1] = dcir_twin::state().bytes_stored;
  n[2] = dcir_twin::state().bank_conflicts;
  dcir_twin::state().bytes_loaded = dcir_twin::state().bytes_stored = dcir_twin::state().bank_conflicts = 0;
}
"""


class TwinFault(Exception):
    """What the twin found wrong."""


def entry_text(launch: Launch) -> str:
    """C++ of a function that starts a kernel from a table of pointers."""
    name = launch.kernel
    found = re.search(rf"{name}\((.*?)\) \{{", launch.text)
    assert found is not None
    types = [p.rsplit("*", 1)[0] + "*" for p in found[1].split(",")] if found[1] else []
    given = ", ".join(f"({t})p[{i}]" for i, t in enumerate(types))
    return (
        f'extern "C" int run_{name}(void** p, const unsigned* n) {{\n'
        f"  return dcir_twin::launch({{n[0], n[1], n[2]}}, {{n[3], n[4], n[5]}}, n[6], [&] {{ {name}({given}); }}, "
        f'"{name}");\n}}\n'
    )


class Twin:
    """A library of kernels.

    Attributes:
        bytes_loaded, bytes_stored: of the last run.
        unwritten: bytes of its results, and of scratch, that it did not write.
        bank_conflicts: lines of matrices that waited for another in their bank, in the last run.
    """

    def __init__(
        self, launches: Iterable[Launch], folder: Path, flags: Sequence[str] = (), prelude: str | None = None
    ) -> None:
        distinct = {launch.kernel: launch for launch in launches}
        text = "".join("#line 1\n" + launch.text + entry_text(launch) for launch in distinct.values())
        source = folder / "kernels.cpp"
        source.write_text((prelude or twin_text()) + text + _HARNESS)
        path = (
            folder / f"{key_of(text, prelude or '')[:16]}.so"
        )  # a library that is loaded already is found by its path
        done = subprocess.run(["g++", *FLAGS, *flags, str(source), "-o", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self._library = ctypes.CDLL(str(path))
        self._library.twin_fault.restype = ctypes.c_char_p
        self._library.twin_unwritten.restype = ctypes.c_ulong
        self.bytes_loaded = self.bytes_stored = self.unwritten = self.bank_conflicts = 0

    def run(
        self,
        plan: CudaPlan,
        ins: Sequence[Array],
        outs: Sequence[Array],
        starts: Sequence[int] = (),
        out_starts: Sequence[int] = (),
    ) -> bool:
        """Run a plan over 1-D buffers, results in ``outs``; whether a bad index was met.

        Raises:
            TwinFault: what the twin found.
        """
        scratch = _aligned(max(plan.workspace, 1), 256)
        scratch[:] = 0xFF
        status = np.zeros(1, np.int32)
        library = self._library
        library.twin_forget()
        # Memory that an operand in place shares with a result counts as known.
        shared = [any(np.shares_memory(a, o) for o in outs) for a in ins]
        for a, both in zip(ins, shared, strict=True):
            if not both:
                library.twin_buffer(ctypes.c_void_p(a.ctypes.data), ctypes.c_ulong(a.nbytes), 0)
        for o in {o.ctypes.data: o for o in outs}.values():
            kind = 2 if any(np.shares_memory(a, o) for a in ins) else 1
            library.twin_buffer(ctypes.c_void_p(o.ctypes.data), ctypes.c_ulong(o.nbytes), kind)
        if plan.workspace:
            library.twin_buffer(ctypes.c_void_p(scratch.ctypes.data), ctypes.c_ulong(scratch.nbytes), 1)
        pointers = {"scratch": scratch.ctypes.data, "status": status.ctypes.data}
        for letter, arrays, begin in (("a", ins, starts), ("o", outs, out_starts)):
            for k, a in enumerate(arrays):
                pointers[f"{letter}{k}"] = a.ctypes.data + (begin[k] if begin else 0) * a.itemsize
        for launch in plan.launches:
            table = (ctypes.c_void_p * max(len(launch.arguments), 1))(*(pointers[n] for n in launch.arguments))
            sizes = (ctypes.c_uint * 7)(*launch.grid, *launch.block, launch.shared_bytes)
            if getattr(library, f"run_{launch.kernel}")(table, sizes):
                raise TwinFault(library.twin_fault().decode())
        self.unwritten = library.twin_unwritten()
        counts = (ctypes.c_ulonglong * 3)()
        library.twin_bytes(counts)
        self.bytes_loaded, self.bytes_stored, self.bank_conflicts = counts
        return bool(status[0])


def _aligned(nbytes: int, to: int) -> Array:
    room = np.empty(nbytes + to, np.uint8)
    start = -room.ctypes.data % to
    return room[start : start + nbytes]


def aligned_like(a: Array, fill: int | None = None) -> Array:
    """A copy at a multiple of 256 bytes, as torch's allocators give them; or as many bytes of one value."""
    room = _aligned(max(a.nbytes, 1), 256)[: a.nbytes]
    room[:] = np.ascontiguousarray(a).view(np.uint8).reshape(-1) if fill is None else fill
    return room.view(a.dtype)
