"""NVRTC, the compiler of CUDA C++ that comes with PyTorch: found, called through its C interface, its results kept by content.

It is called from several threads at once; a call holds no lock of the interpreter. What comes out is machine code for one architecture
(a "cubin"), so that nothing is compiled when it is loaded.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dcir.cache import Cache, key_of
from dcir.cores import usable_threads
from dcir.errors import CompilerFailed, CompilerNotFound

SETTING = "DCIR_NVRTC"
PACKAGE = "nvidia-cuda-nvrtc"
# Each holds some hundred MB while it compiles.
_MOST_AT_ONCE = 8
_OPTIONS = ("--std=c++17", "-default-device", "--minimal")
_SOURCE = "kernel.cu"


class Nvrtc:
    """One loaded compiler.

    Attributes:
        path: of the library.
        version: (major, minor).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # The compiler opens what its built-in functions are in by name, which only finds what is loaded.
        for beside in sorted(path.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    @property
    def identity(self) -> str:
        """What of the compiler decides the code that comes out."""
        state = self.path.stat()
        return key_of("nvrtc", repr(self.version), str(state.st_size), *_OPTIONS)

    def compile(
        self, text: str, arch: str, options: Sequence[str] = (), hear: Callable[[str], None] | None = None
    ) -> bytes:
        """The cubin of a source.

        Args:
            text: CUDA C++ that includes nothing.
            arch: of the device ("sm_90a").
            options: more of the compiler's options.
            hear: is told what the compiler says of a source that it takes.

        Raises:
            CompilerFailed: it refused the source.
        """
        call, program = self._library, ctypes.c_void_p()
        self._check(call.nvrtcCreateProgram(ctypes.byref(program), text.encode(), _SOURCE.encode(), 0, None, None))
        try:
            words = [f"-arch={arch}".encode(), *(o.encode() for o in (*_OPTIONS, *options))]
            code = call.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
            if code or hear is not None:
                said = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
            if code:
                raise CompilerFailed(
                    "NVRTC does not compile a kernel", where=f"{self.path.name} {self.version[0]}.{self.version[1]}, {arch}",
                    details=[("compiler", said[-4000:])],
                    hint="report it with the text that debug_dir keeps",
                )  # fmt: skip
            if hear is not None:
                hear(said)
            return self._bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            call.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, size_of)(program, ctypes.byref(size)))
        found = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, get)(program, found))
        return found.raw

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> str:
        return self._bytes(program, size_of, get).rstrip(b"\0").decode(errors="replace")

    def _check(self, code: int) -> None:
        if code:
            raise CompilerFailed(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}", where=str(self.path))


@functools.cache
def find_nvrtc() -> Nvrtc:
    """The compiler that ``DCIR_NVRTC`` names, else PyTorch's own, else the system's.

    Raises:
        CompilerNotFound: there is none, or none that can be loaded.
    """
    tried = []
    for path in _candidates():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError) as e:
            tried.append((path.name, str(e)))
    raise CompilerNotFound(
        "NVRTC, which compiles kernels for GPUs, was not found",
        where="beside PyTorch's CUDA libraries, and in the system's folders",
        details=tried[:4],
        hint=f"pip install {PACKAGE}, or set {SETTING} to the path of libnvrtc.so",
    )


def _candidates() -> Iterator[Path]:
    setting = os.environ.get(SETTING, "").strip()
    if setting:
        yield Path(setting)
        return
    for folder in _folders():
        # The newest, and not the alternative build that some packages bring.
        yield from sorted((p for p in folder.glob("libnvrtc.so*") if ".alt." not in p.name), reverse=True)


def _folders() -> Iterator[Path]:
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        yield from sorted(Path(root).glob("cu[0-9]*/lib"), reverse=True)
        yield Path(root) / "cuda_nvrtc" / "lib"
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        yield Path(torch.origin).parent / "lib"
    yield Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"
    yield Path("/usr/lib/x86_64-linux-gnu")


def cubins(
    texts: Mapping[str, str],
    prelude: str,
    arch: str,
    cache: Cache,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, bytes]:
    """Machine code of kernels, each compiled at most once on this machine.

    Args:
        texts: of one kernel each, by its name.
        prelude: what stands before each.
        arch: of the device.
        cache: where it is kept.
        progress: called with (finished, all) after each that is compiled now, from the compiling threads.

    Raises:
        CompilerNotFound: there is no NVRTC.
        CompilerFailed: it refused a kernel.
    """
    if not texts:
        return {}
    nvrtc = find_nvrtc()
    keys = {name: key_of(nvrtc.identity, arch, prelude, text) for name, text in texts.items()}
    by_key = {key: texts[name] for name, key in keys.items()}

    def build(missing: dict[str, Path]) -> None:
        finished, count = 0, threading.Lock()

        def one(key: str) -> None:
            nonlocal finished
            missing[key].write_bytes(nvrtc.compile(prelude + by_key[key], arch))
            with count:
                finished += 1
                if progress is not None:
                    progress(finished, len(missing))

        workers = max(1, min(usable_threads(), _MOST_AT_ONCE, len(missing)))
        with ThreadPoolExecutor(workers, thread_name_prefix="dcir-nvrtc") as pool:
            for future in [pool.submit(one, key) for key in missing]:
                future.result()

    paths = cache.get_or_build_many("cubin", list(by_key), ".cubin", build)
    return {name: paths[key].read_bytes() for name, key in keys.items()}
