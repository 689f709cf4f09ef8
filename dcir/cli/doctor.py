"""`dcir doctor`: what this machine has of what dcir needs, and what to do about the rest.

What needs PyTorch is imported once it is known to be there.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import click

from dcir.cache import Cache
from dcir.cli import common
from dcir.cli.diagnosis import Diagnosis
from dcir.codegen.cpp.toolchain import Toolchain, Unit, compile_objects, default_flags, link_shared
from dcir.cores import usable_threads
from dcir.errors import DcirError

_OPENMP_TEST = """\
#include <omp.h>
extern "C" __attribute__((visibility("default"))) int dcir_team_size() {
    int size = 0;
    #pragma omp parallel reduction(+ : size)
    size += 1;
    return size;
}
"""


@click.command("doctor", cls=common.Verb)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Check compiler, libraries and cache; exit code 3 if something is missing."""
    findings = list(examine())
    rows = [("ok " if item.ok else "BAD", item.name, item.found) for item in findings]
    lines = common.table(rows).splitlines()
    for number, item in reversed(list(enumerate(findings))):
        if item.remedy:
            lines.insert(number + 1, f"     try {item.remedy}")
    ok = all(item.ok for item in findings)
    common.emit("\n".join(lines), {"ok": ok, "findings": [asdict(item) for item in findings]})
    if not ok:
        ctx.exit(common.ENVIRONMENT)


def examine() -> Iterator[Diagnosis]:
    """All findings in the order in which they build on each other."""
    yield Diagnosis("python", True, f"{platform.python_version()} ({sys.executable})")
    packages = {
        name: _package(name, remedy)
        for name, remedy in (
            ("torch", 'pip install "torch>=2.13,<2.14"'),
            ("dace", "pip install dace==2.0.0b1"),
            ("onnx", 'pip install "onnx>=1.21,<2"'),
        )
    }
    yield from packages.values()
    yield _cache()
    compiler = _guarded("compiler", _compiler)
    yield compiler
    if compiler.ok and packages["torch"].ok:
        yield _guarded("openmp", _openmp)
    if all(package.ok for package in packages.values()):
        from dcir.cli.doctor_gpu import gpu_findings

        yield from gpu_findings()
    yield Diagnosis("processor", True, _instruction_sets())
    yield Diagnosis("cores", True, f"{usable_threads()} of {os.cpu_count()} may be used")


def _package(name: str, remedy: str) -> Diagnosis:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
        return Diagnosis(name, True, version(name))
    except Exception as error:  # a package that does not fit another fails in any way
        return Diagnosis(name, False, str(error).partition("\n")[0] or type(error).__name__, remedy)


def _cache() -> Diagnosis:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cache = Cache.default()
        except DcirError as error:
            return Diagnosis("cache", False, error.message, error.hint or "")
    if cache.temporary:
        reason = str(caught[0].message).partition("\n")[0] if caught else "the usual folder cannot be used"
        return Diagnosis("cache", False, reason, "set DCIR_CACHE_DIR to a folder of your own")
    mode = cache.folder.stat().st_mode & 0o777
    return Diagnosis("cache", True, f"{cache.folder} (mode {mode:o}, writable)")


def _compiler() -> Diagnosis:
    toolchain = Toolchain.find()
    return Diagnosis("compiler", True, f"{toolchain.version} ({toolchain.path})")


def _openmp() -> Diagnosis:
    from dcir.driver.targets.host import host_machine

    cache = Cache.default()
    toolchain = Toolchain.find(cache)
    objects = compile_objects([Unit("", _OPENMP_TEST)], toolchain, default_flags(host_machine().isa), cache)
    library = ctypes.CDLL(str(link_shared(objects, "", toolchain, cache)))
    return Diagnosis("openmp", True, f"a team of {library.dcir_team_size()} threads ran")


def _guarded(name: str, look: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        return look()
    except DcirError as error:
        return Diagnosis(name, False, error.message, error.hint or "")
    except OSError as error:
        return Diagnosis(name, False, str(error), "install the OpenMP run time of the compiler (libgomp1 or libomp)")


def _instruction_sets() -> str:
    known = ("avx512_bf16", "avx512f", "avx2", "fma", "amx_bf16", "sve", "asimd")
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    return " ".join([platform.machine(), *(name for name in known if name in words)])
