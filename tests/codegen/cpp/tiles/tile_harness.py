"""Compiles kernel plans without DaCe, many at a time, and calls them through ctypes."""

import ctypes
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from dcir.codegen.cpp.scalar_ops import CPP_TYPE
from dcir.codegen.cpp.tiles.gemm import matrix
from dcir.codegen.cpp.toolchain import HEADERS, default_flags, find_compiler
from dcir.codegen.symbolic import sizes_from
from dcir.cost.cpu import MATRIX_UNIT
from dcir.isa import ISAS, Isa, host_isa
from tests.codegen.cpp.tiles.matrix_unit_twin import HERE, USED, on_twin
from tests.conftest import COMPILED_ONLY, WHY_NOT_RUN

PROCESSOR = host_isa().processor if COMPILED_ONLY else "native"
FLAGS = [
    "-O3", f"-march={PROCESSOR}", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-w",
    *(flag for flag in default_flags(host_isa()) if "sanitize" in flag),
]  # fmt: skip

SOME = 16
"""Of so many kernels for another processor one is compiled: instructions whose operands must be constants show there alone."""
RUNNABLE = [host_isa().name] if COMPILED_ONLY else list(ISAS)[list(ISAS).index(host_isa().name) :]
"""Names of the instruction sets that kernels are made for, the widest first: those that can run here, or the one to compile for."""


needs_unit = pytest.mark.skipif(
    not HERE, reason="this processor has no matrix unit, and no vectors for one in software"
)


def isa_of(name: str) -> Isa:
    """The instruction set of that name, or, where this processor lacks it (and its twin), the widest it has: its code is to run here."""
    return ISAS[name if name in RUNNABLE or (name == "amx" and USED) else RUNNABLE[0]]


@contextmanager
def matrix_everywhere():
    """Plan for the matrix unit whatever it can compute, whether that is faster or not."""
    anything = replace(MATRIX_UNIT, gain=1e9, least_tiles=1)
    with mock.patch.multiple(matrix, MATRIX_UNIT=anything, HALVES_UNIT=anything):
        yield


def wrap(plan, ins, outs, name):
    """A plan as a function over a pointer table (inputs, outputs, scratch) in a namespace of its own.

    ``ins`` are the inputs' element types and ``outs`` the outputs'; or, for operands of one type, the type and how many inputs.
    """
    if isinstance(ins, str):
        ins, outs = (ins,) * outs, (ins,)
    lines = [f"namespace {name} {{", on_twin(plan.globals), f'extern "C" void {name}(void **p) {{']
    lines += [f"const {CPP_TYPE[t]} *a{i} = (const {CPP_TYPE[t]} *)p[{i}];" for i, t in enumerate(ins)]
    lines += [f"{CPP_TYPE[t]} *o{i} = ({CPP_TYPE[t]} *)p[{len(ins) + i}];" for i, t in enumerate(outs)]
    lines.append(f"unsigned char *scratch = (unsigned char *)p[{len(ins) + len(outs)}];")
    for phase in plan.phases:
        lines.append("#pragma omp parallel for schedule(static)")
        jobs = sizes_from(phase.jobs, plan.sizes, f"a{len(ins) - 1}")
        lines.append(f"for (long long j = 0; j < {jobs}; j++) {{\n{phase.code}\n}}")
    return "\n".join([*lines, "}", "}"])


def compile_plans(entries, flags=(), keep=None):
    """Entries are (plan, ins, outs) of ``wrap``; returns one callable per entry, taking tensors and returning nothing.

    Where nothing can be run the callables end the test, all kernels are parsed for that processor, and some compiled.
    """
    folder = Path(tempfile.mkdtemp(prefix="dcir-tiles-"))
    groups = min(len(entries), 2)
    names = [f"kernel{i}" for i in range(len(entries))]

    def build(g, numbers, *more):
        texts = [wrap(*entries[i], names[i]) for i in numbers if i % groups == g]
        source = folder / f"unit{g}.cpp"
        source.write_text("\n".join(['#include "prelude.h"', *texts]))
        library = folder / f"unit{g}.so"
        done = subprocess.run(
            [find_compiler(), *FLAGS, f"-I{HEADERS}", *flags, *more, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{source}\n{done.stderr[:3000]}"
        return library

    every = range(len(entries))
    with ThreadPoolExecutor(2) as pool:
        if COMPILED_ONLY:
            list(pool.map(lambda g: build(g, every, "-fsyntax-only"), range(groups)))
            list(pool.map(lambda g: build(g, every[g::SOME], "-O1"), range(groups)))
            return [lambda *tensors: pytest.skip(WHY_NOT_RUN)] * len(entries)
        libraries = list(pool.map(lambda g: ctypes.CDLL(str(build(g, every))), range(groups)))
    return [caller(libraries[i % groups], names[i], entry[0]) for i, entry in enumerate(entries)]


def caller(library, name, plan):
    import torch

    function = getattr(library, name)
    function.restype = None
    # Every byte of scratch is poisoned: reading what no phase wrote gives NaN.
    scratch = torch.full((plan.scratch + 64,), 0xFF, dtype=torch.uint8)
    start = scratch.data_ptr() + -scratch.data_ptr() % 64

    def call(*tensors):
        table = (ctypes.c_void_p * (len(tensors) + 1))(*(t.data_ptr() for t in tensors), start)
        function(table)

    call.scratch = scratch
    return call
