"""Builds generated C++: finds the compiler, compiles units in parallel, links them, and does neither twice.

The compiler is started directly, as a list of arguments without a shell, from a private folder, with an environment
in which neither the working directory nor relative search paths can put a program or a header in its way.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dcir.cache import Cache, key_of
from dcir.codegen.cpp.bundles import bundle_text, bundles, second_name
from dcir.codegen.cpp.compiler_process import run, which
from dcir.cores import usable_threads
from dcir.errors import CompilerNotFound, OptionError
from dcir.isa import Isa, executable

_LOG = logging.getLogger(__name__)

HEADERS = Path(__file__).resolve().parent / "include"
DEFAULT_FLAGS = (
    "-std=c++17",
    # Loops of constant sizes and vectors written out leave -O3 nothing but a fifth of the compiler's time: no difference on whole
    # networks. -ftree-vectorize brings its cost model back.
    "-O2",
    "-ftree-vectorize",
    # On Intel's processors GCC takes half of a register: products with many error functions in their epilogues took 12 % longer.
    # On AMD's it takes a multiplication and an addition in sums it unrolls: a sum and its twin elsewhere then differ in rounding.
    *(
        ("-mprefer-vector-width=512", "--param=avoid-fma-max-bits=0")
        if platform.machine() in ("x86_64", "AMD64")
        else ()
    ),
    "-fopenmp",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    # A tenth of the compiler's time, in which it finds nothing in code of vectors and constant sizes: no difference on whole networks.
    "-fno-gcse",
    "-fno-thread-jumps",
    "-fno-tree-pre",
    "-fno-tree-slp-vectorize",
    "-fno-tree-vrp",
    "-w",
)
_NAMES = ("c++", "g++")


@dataclass(frozen=True)
class Toolchain:
    """A compiler on this machine: its absolute path and the first line of its version text."""

    path: str
    version: str

    @staticmethod
    def find(cache: Cache | None = None) -> Toolchain:
        """The compiler of `find_compiler`; its version is asked for once and then remembered in the cache.

        Raises:
            CompilerNotFound: There is none, or it is Clang: generated code uses what only GCC has (`__builtin_shuffle`, some flags).
        """
        found = _describe(find_compiler(), cache or Cache.default())
        if "clang" in found.version.lower():
            raise CompilerNotFound(
                "generated code needs GCC, not Clang",
                where=f"{found.path}: {found.version}",
                hint="apt-get install g++, dnf install gcc-c++, or set DCIR_CXX to the path of g++",
            )
        return found

    @property
    def identity(self) -> str:
        """What of the compiler and the processor decides the machine code that comes out."""
        return key_of(self.path, self.version, cpu_identity())


@dataclass(frozen=True)
class Unit:
    """One translation unit.

    Attributes:
        key_text: What tells this unit from others besides its text; often empty.
        text: The C++ source.
        shared: What goes before the text, empty for a unit that is compiled alone. Units in which it is the same may
            stand behind it in one source, each in a namespace of its own; the object of one then holds others too.
    """

    key_text: str
    text: str
    shared: str = ""


def find_compiler() -> str:
    """The absolute path of the C++ compiler: ``DCIR_CXX``, or the first of c++, g++ on the search path.

    Raises:
        CompilerNotFound: There is none, or DCIR_CXX names none.
    """
    setting = os.environ.get("DCIR_CXX", "").strip()
    if not setting:
        for name in _NAMES:
            found = which(name)
            if found is not None:
                return found
        raise CompilerNotFound(
            "no C++ compiler was found",
            where="PATH=" + os.environ.get("PATH", ""),
            hint="apt-get install g++, dnf install gcc-c++, or set DCIR_CXX to the path of a compiler",
        )
    found = setting if os.path.isabs(setting) else which(setting) if os.sep not in setting else None
    if found is None or not os.access(found, os.X_OK) or os.path.isdir(found):
        raise CompilerNotFound(
            "DCIR_CXX names no compiler",
            where=f"DCIR_CXX={setting}",
            hint="an absolute path, or the name of a program on PATH such as g++",
        )
    return found


def default_flags(isa: Isa) -> tuple[str, ...]:
    """The flags of code for an instruction set, with the sanitizers that ``DCIR_SANITIZE`` names.

    Their run-time libraries must be there before Python starts (`sanitizer_environment`). Code for an instruction set that this
    processor lacks, which tests compile and nobody runs here, is compiled for a processor that has it.
    """
    processor = "native" if isa.name in executable() else isa.processor
    flags = (f"-march={processor}", *DEFAULT_FLAGS)
    sanitizers = _sanitize_flags()
    # The last level counts. Instrumented code at -O3 compiles four times as long and finds the same accesses.
    return (*flags, *sanitizers, "-O1") if sanitizers else flags


def sanitizer_environment(names: str = "address,undefined") -> dict[str, str]:
    """What to add to the environment of a process so that the code it generates runs under sanitizers.

    Python and torch stay as they are: their memory counts because the preloaded library stands in for malloc. Leaks are
    not looked for, since both hold memory until they end.

    Raises:
        CompilerNotFound: the compiler has no such libraries.
    """
    files = []
    for name in names.split(","):
        library = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}.get(name, "")
        compiler = find_compiler()
        answer = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=False)
        path = answer.stdout.strip()
        if not library or not os.path.isabs(path):
            raise CompilerNotFound(
                f"{compiler} has no library for -fsanitize={name}",
                where=library or name,
                hint="g++ brings libasan and libubsan",
            )
        files.append(path)
    return {
        "DCIR_SANITIZE": names,
        "LD_PRELOAD": ":".join(files),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def compile_objects(
    units: Sequence[Unit],
    toolchain: Toolchain,
    flags: Sequence[str],
    cache: Cache,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Compile units to object files, each distinct unit at most once on this machine.

    Args:
        units: The sources; the result has the same order.
        toolchain: The compiler.
        flags: Compiler flags, such as `default_flags`; the include folder of the runtime headers is added.
        cache: Where the objects are kept.
        jobs: How many compilers run side by side; as many as there are cores unless given.
        progress: Called with (finished, all) after each compiled unit, from the compiling threads.

    Raises:
        CompilerFailed: The compiler refused a unit; its source is kept.
    """
    common = (toolchain.identity, _headers_identity(), "\0".join(flags))
    keys = [key_of(*common, unit.key_text, unit.shared, unit.text) for unit in units]
    by_key = dict(zip(keys, units, strict=True))

    def build(missing: dict[str, Path]) -> None:
        with tempfile.TemporaryDirectory(prefix="dcir-build-") as folder:
            finished = 0
            count = threading.Lock()

            def compile_one(keys: tuple[str, ...]) -> None:
                nonlocal finished
                source = Path(folder) / f"{keys[0]}.cpp"
                text = bundle_text(by_key[keys[0]].shared, [by_key[key].text for key in keys])
                source.write_text(text, encoding="utf-8")  # whatever the locale is: names in comments are anybody's
                drafts = [missing[key] for key in keys]
                command = [toolchain.path, *flags, f"-I{HEADERS}", "-c", source.name, "-o", str(drafts[0])]
                run(command, Path(folder), "compiles", source, cache, makes=drafts[0])
                for draft in drafts[1:]:
                    second_name(drafts[0], draft)
                with count:
                    finished += len(keys)
                    if progress is not None:
                        progress(finished, len(missing))

            sizes = {key: (by_key[key].shared, len(by_key[key].text)) for key in missing}
            start = time.perf_counter()
            _in_parallel(compile_one, bundles(sizes, _workers(jobs)), jobs)
            _LOG.debug("compiled %d units in %.2f s", len(missing), time.perf_counter() - start)

    paths = cache.get_or_build_many("object", keys, ".o", build)
    return [paths[key] for key in keys]


def link_shared(
    objects: Sequence[Path],
    key: str,
    toolchain: Toolchain,
    cache: Cache,
    flags: Sequence[str] = (),
) -> Path:
    """Link objects to a shared library that uses the OpenMP run time torch has loaded.

    No optimisation flag is passed: gcc would add start-up code that changes the floating-point mode of the process.

    Args:
        objects: Results of `compile_objects`, whose names say their content.
        key: What tells this library from others with the same objects; may be empty.
        toolchain: The compiler.
        cache: Where the library is kept.
        flags: More flags for the linker.
    """
    names = [path.name for path in objects]
    # The units of a bundle have one object under many names.
    once = {(state.st_dev, state.st_ino): path for path, state in ((path, path.stat()) for path in objects)}.values()
    # A missing symbol shall be found here, not when the library is loaded or called. Sanitizers come from outside.
    # Bundles bring units that nobody here calls, which are dropped, and sometimes one that another bundle has too.
    extra = (*flags, "-Wl,-z,muldefs", *(_sanitize_flags() or ("-Wl,--no-undefined", "-Wl,--gc-sections")))
    address = key_of("link", key, toolchain.identity, "\0".join(extra), *names)

    def build(draft: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="dcir-link-") as folder:
            # Hundreds of long paths can exceed what a command line holds, so they go through a file.
            listing = Path(folder) / "objects"
            listing.write_bytes(os.fsencode("".join(f'"{_escaped(path)}"\n' for path in once)))
            command = [toolchain.path, "-shared", "-fopenmp", *extra, f"@{listing}", "-o", str(draft)]
            start = time.perf_counter()
            run(command, Path(folder), "links", None, cache, makes=draft)
            _LOG.debug("linked %d objects in %.2f s", len(once), time.perf_counter() - start)

    return cache.get_or_build("library", address, ".so", build)


@functools.lru_cache(maxsize=1)
def cpu_identity() -> str:
    """A hash of the processor's model and instruction sets, which is what ``-march=native`` stands for."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        import platform

        return key_of(platform.machine(), platform.processor())
    facts = dict(line.partition(":")[::2] for line in first.splitlines())
    named = {name.strip(): value.strip() for name, value in facts.items()}
    return key_of(*(f"{name}={named.get(name, '')}" for name in wanted))


@functools.lru_cache(maxsize=8)
def _describe(path: str, cache: Cache) -> Toolchain:
    state = os.stat(os.path.realpath(path))
    key = key_of(path, os.path.realpath(path), str((state.st_size, state.st_mtime_ns, state.st_ino)))

    def ask(draft: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="dcir-probe-") as folder:
            text = run([path, "--version"], Path(folder), "probes", None, cache)
        draft.write_text(text.partition("\n")[0].strip() + "\n", encoding="utf-8")

    return Toolchain(path, cache.get_or_build("toolchain", key, ".txt", ask).read_text(encoding="utf-8").strip())


def _headers_identity() -> str:
    parts = []
    for path in sorted(HEADERS.glob("**/*.h")):
        parts += [str(path.relative_to(HEADERS)), path.read_text()]
    return key_of(*parts)


def _sanitize_flags() -> tuple[str, ...]:
    names = os.environ.get("DCIR_SANITIZE", "").strip()
    if not names:
        return ()
    if not re.fullmatch(r"[a-z-]+(,[a-z-]+)*", names):
        raise OptionError(
            "DCIR_SANITIZE is a list of sanitizers", where=f"DCIR_SANITIZE={names}", hint="address,undefined"
        )
    return (f"-fsanitize={names}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _workers(jobs: int | None) -> int:
    return jobs or usable_threads()


def _in_parallel(work: Callable[[tuple[str, ...]], None], items: Sequence[tuple[str, ...]], jobs: int | None) -> None:
    workers = max(1, min(_workers(jobs), len(items)))
    if workers == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="dcir-build") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
