"""Whether the device does what dcir wants of it, without dcir: ceilings, NVRTC with the prelude, launches, captures, bandwidths."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tests.gpu.cases import Case, milliseconds, work

ROOT = Path(__file__).resolve().parents[2]
_N = 1 << 26

COPY = """
extern "C" __global__ void k_copy(const float* a, float* o, long long n) {
  for (long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += (long long)gridDim.x * blockDim.x * 4)
    d_store_vector(o, i, d_load_vector<4>(a, i));
}
"""
GELU = """
extern "C" __global__ void k_gelu(const float* a, float* o, long long n) {
  for (long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += (long long)gridDim.x * blockDim.x * 4) {
    d_vector<float, 4> v = d_load_vector<4>(a, i);
    for (int k = 0; k < 4; k++) v.of[k] = v.of[k] * 0.5f * (1.0f + d_erf(v.of[k] * 0.70710678f));
    d_store_vector(o, i, v);
  }
}
"""
ROWS = """
extern "C" __global__ void k_rows(const float* a, float* o, long long n) {
  D_SHARED(float, part, 8);
  float sum = 0;
  for (long long i = threadIdx.x; i < n; i += 256) sum += a[blockIdx.x * n + i];
  for (int mask = 16; mask > 0; mask /= 2) sum += d_shuffle_xor(sum, mask);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  d_barrier();
  if (threadIdx.x == 0) { float all = 0; for (int k = 0; k < 8; k++) all += part[k]; o[blockIdx.x] = all; }
}
"""


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """NVRTC, beside PyTorch's libraries or the system's."""
    folders: list[Path] = []
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        folders += [*sorted(Path(root).glob("cu[0-9]*/lib"), reverse=True), Path(root) / "cuda_nvrtc" / "lib"]
    folders += [Path(torch.__file__).parent / "lib", Path("/usr/local/cuda/lib64")]
    for folder in folders:
        for path in sorted(folder.glob("libnvrtc.so*"), reverse=True):
            for beside in folder.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(beside), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(path))
    raise FileNotFoundError(f"no libnvrtc in {list(map(str, folders))}")


@functools.cache
def prelude() -> str:
    """What stands before every kernel."""
    path = ROOT / "codegen" / "cuda" / "prelude.py"
    spec = importlib.util.spec_from_file_location("cuda_prelude", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    text: str = module.prelude_text()
    return text


def compiled(text: str) -> bytes:
    """The cubin of a kernel behind the prelude."""
    call, program = nvrtc(), ctypes.c_void_p()
    source = (prelude() + text).encode()
    assert call.nvrtcCreateProgram(ctypes.byref(program), source, b"k.cu", 0, None, None) == 0
    major, minor = torch.cuda.get_device_capability()
    options = [
        f"-arch=sm_{major}{minor}{'a' * (major >= 9)}".encode(),
        b"--std=c++17",
        b"-default-device",
        b"--minimal",
    ]
    code = call.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if code:
        call.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        call.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode()[-1500:])
    call.nvrtcGetCUBINSize(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    call.nvrtcGetCUBIN(program, made)
    return made.raw


@functools.cache
def kernel(name: str, text: str) -> ctypes.c_void_p:
    """A loaded kernel."""
    torch.zeros(1, device="cuda")
    cuda, library, found = _cuda(), ctypes.c_void_p(), ctypes.c_void_p()
    image = compiled(text)
    code = cuda.cuLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0)
    assert code == 0, f"cuLibraryLoadData: {code}"
    code = cuda.cuLibraryGetKernel(ctypes.byref(found), library, name.encode())
    assert code == 0, f"cuLibraryGetKernel: {code}"
    return found


@functools.cache
def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def launch(name: str, text: str, blocks: int, a: torch.Tensor, o: torch.Tensor, n: int) -> None:
    """Put a kernel of (a, o, n) on the current stream."""
    values = [ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(o.data_ptr()), ctypes.c_longlong(n)]
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code = _cuda().cuLaunchKernel(kernel(name, text), blocks, 1, 1, 256, 1, 1, 0, stream, pointers, None)
    assert code == 0, f"cuLaunchKernel: {code}"


def facts() -> dict[str, Any]:
    """Device, driver, versions."""
    p = torch.cuda.get_device_properties(0)
    driver, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _cuda().cuDriverGetVersion(ctypes.byref(driver))
    nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return {
        "device": p.name, "multiprocessors": p.multi_processor_count, "l2": p.L2_cache_size, "driver": driver.value,
        "torch": torch.__version__, "python": sys.version.split()[0], "nvrtc": f"{major.value}.{minor.value}",
    }  # fmt: skip


def _rate(call: Callable[[], Any], nbytes: int) -> dict[str, Any]:
    t = milliseconds(call)
    return {"ms": t, "GB/s": nbytes / t * 1e-6}


def torch_copy() -> dict[str, Any]:
    """PyTorch's own copy of 256 MB."""
    a = torch.randn(_N, device="cuda")
    o = torch.empty_like(a)
    return _rate(lambda: o.copy_(a), 8 * _N)


def products(dtype: torch.dtype) -> dict[str, Any]:
    """Of matrices of 8192 rows."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
    t = milliseconds(lambda: a @ b, repeats=7)
    return {"ms": t, "TFLOP/s": 2 * 8192**3 / t * 1e-9}


def copy(blocks: int) -> dict[str, Any]:
    """A copy with vectors of 16 bytes."""
    a = torch.randn(_N, device="cuda")
    o = torch.empty_like(a)
    figures = _rate(lambda: launch("k_copy", COPY, blocks, a, o, _N), 8 * _N)
    assert torch.equal(a, o), "other numbers"
    return figures


def gelu() -> dict[str, Any]:
    """An error function."""
    a = torch.randn(_N, device="cuda")
    o = torch.empty_like(a)
    figures = _rate(lambda: launch("k_gelu", GELU, 132 * 16, a, o, _N), 8 * _N)
    torch.testing.assert_close(o, torch.nn.functional.gelu(a))
    return figures


def rows() -> dict[str, Any]:
    """Sums of rows with shuffles, shared memory and a barrier."""
    a = torch.randn(16384, 4096, device="cuda")
    o = torch.empty(16384, device="cuda")
    figures = _rate(lambda: launch("k_rows", ROWS, 16384, a, o, 4096), 4 * a.numel())
    torch.testing.assert_close(o, a.sum(1), rtol=1e-4, atol=1e-2)
    return figures


def captured() -> dict[str, Any]:
    """A launch inside of a graph of CUDA's, and what a launch costs."""
    a, o = torch.randn(1 << 12, device="cuda"), torch.zeros(1 << 12, device="cuda")
    launch("k_copy", COPY, 4, a, o, 1 << 12)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch("k_copy", COPY, 4, a, o, 1 << 12)
    a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(a, o), "other numbers after a replay"
    return {"ms a launch": milliseconds(lambda: [launch("k_copy", COPY, 4, a, o, 1 << 12) for _ in range(100)]) / 100}


def second_stream() -> dict[str, Any]:
    """A launch on another stream, waited for by an event."""
    a, o = torch.randn(_N, device="cuda"), torch.zeros(_N, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch("k_copy", COPY, 132 * 16, a, o, _N)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(a, o), "other numbers"
    return {}


def imported() -> dict[str, Any]:
    """Whether dcir can be imported, and makes a program for the device."""
    import dcir

    fast = dcir.optimize(lambda x: torch.nn.functional.gelu(x) * 2, target="cuda")
    x = torch.randn(1000, 1000, device="cuda")
    torch.testing.assert_close(fast(x), torch.nn.functional.gelu(x) * 2)
    return {"dcir": dcir.__version__}


def cases() -> Iterable[Case]:
    """The least first."""
    yield "facts", facts
    yield "copy by torch", torch_copy
    yield "product bf16", lambda: products(torch.bfloat16)
    yield "product f32", lambda: products(torch.float32)
    yield "prelude", lambda: {"cubin": len(compiled(COPY))}
    for blocks in (132 * 4, 132 * 16, 132 * 64):
        yield f"copy {blocks} blocks", functools.partial(copy, blocks)
    yield "gelu", gelu
    yield "rows", rows
    yield "captured", captured
    yield "second stream", second_stream
    yield "dcir", imported


if __name__ == "__main__":
    work(cases)
