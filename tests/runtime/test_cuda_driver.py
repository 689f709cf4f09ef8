"""NVIDIA's driver through ctypes, with a library of the test's in its place: what is asked of it, in which order, and its errors."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from dcir.codegen.cpp.toolchain import find_compiler
from dcir.errors import ArtefactInvalid, CompilerNotFound
from dcir.runtime import cuda_driver
from dcir.runtime.cuda_driver import CudaDriver

_FAKE = r"""
#include <cstdio>
#include <cstring>
static char text[4096];
static void* context;
#define SAY(...) (void)snprintf(text + strlen(text), sizeof text - strlen(text), __VA_ARGS__)
extern "C" {
const char* told() { return text; }
int cuInit(unsigned) { return 0; }
int cuGetErrorName(int code, const char** name) { *name = code == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR"; return 0; }
int cuCtxGetCurrent(void** c) { *c = context; return 0; }
int cuDevicePrimaryCtxRetain(void** c, int device) { *c = (void*)(0x100l + device); SAY("retain %d\n", device); return 0; }
int cuCtxSetCurrent(void* c) { context = c; SAY("current %lx\n", (long)c); return 0; }
int cuLibraryLoadData(void** l, const void* image, void*, void*, unsigned, void*, void*, unsigned) {
  if (!strncmp((const char*)image, "bad", 3)) return 209;
  *l = (void*)0x200; SAY("load %.3s\n", (const char*)image); return 0;
}
int cuLibraryGetKernel(void** k, void* l, const char* name) { *k = (void*)0x300; SAY("kernel %s of %lx\n", name, (long)l); return 0; }
int cuKernelGetFunction(void** f, void* k) { *f = k; SAY("function of %lx\n", (long)k); return 0; }
int cuKernelSetAttribute(int which, int value, void* k, int device) {
  SAY("attribute %d %d of %lx on %d\n", which, value, (long)k, device); return 0;
}
int cuLibraryUnload(void* l) { SAY("unload %lx\n", (long)l); return 0; }
int cuLaunchKernel() { return 0; }
int cuMemcpyDtoHAsync_v2() { return 0; }
int cuMemcpyDtoDAsync_v2() { return 0; }
int cuStreamSynchronize() { return 0; }
int cuEventRecord() { return 0; }
}
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaDriver:
    source, library = tmp_path / "fake.cpp", tmp_path / "libcuda.so.1"
    source.write_text(_FAKE)
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    monkeypatch.setattr(cuda_driver, "_LIBRARY", str(library))
    return CudaDriver()


def told(driver: CudaDriver) -> list[str]:
    driver._library.told.restype = ctypes.c_char_p
    return driver._library.told().decode().splitlines()


def test_kernels_are_loaded_once_for_all_devices_and_go_with_their_object(driver: CudaDriver) -> None:
    kernels = driver.load([("k_1", b"one", 0), ("k_2", b"two", 100 << 10)], 0)
    assert list(kernels.table) == [0x300, 0x300]
    first = told(driver)
    assert first == [
        "retain 0", "current 100", "load one", "kernel k_1 of 200", "load two", "kernel k_2 of 200", "function of 300",
        "function of 300", f"attribute 8 {100 << 10} of 300 on 0",
    ]  # fmt: skip
    kernels.ready(0)
    assert told(driver) == first
    del kernels
    assert told(driver)[len(first) :] == ["unload 200", "unload 200"]


def test_a_thread_that_has_a_context_keeps_it(driver: CudaDriver) -> None:
    driver._library.cuCtxSetCurrent(0x500)
    driver.enter(0)
    assert told(driver) == ["current 500"]


def test_code_that_the_device_does_not_take_is_told(driver: CudaDriver) -> None:
    with pytest.raises(ArtefactInvalid, match="CUDA_ERROR_NO_BINARY_FOR_GPU") as failed:
        driver.load([("k_1", b"bad", 0)], 0)
    assert "loading k_1" in str(failed.value)


def test_the_functions_that_a_library_is_bound_to_are_there(driver: CudaDriver) -> None:
    assert all(f.value for f in (driver.launch, driver.copy, driver.move, driver.wait, driver.record))


def test_a_machine_without_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", str(tmp_path / "libcuda.so.1"))
    with pytest.raises(CompilerNotFound, match="no driver of NVIDIA's"):
        CudaDriver()
