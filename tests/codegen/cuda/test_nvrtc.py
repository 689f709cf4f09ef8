"""NVRTC: found, kept by content, what it says of a faulty kernel, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcir.cache import Cache
from dcir.codegen.cuda import nvrtc
from dcir.codegen.cuda.nvrtc import Nvrtc, cubins, find_nvrtc
from dcir.errors import CompilerFailed, CompilerNotFound

KERNEL = 'extern "C" __global__ void k_1(float* a) { a[threadIdx.x] += ONE; }'
PRELUDE = "#define ONE 1.0f\n"


@pytest.fixture
def compiler() -> Nvrtc:
    try:
        return find_nvrtc()
    except CompilerNotFound as e:
        pytest.skip(f"NVRTC is not installed: {e.message}")


def test_machine_code_for_an_architecture(compiler: Nvrtc) -> None:
    for arch in ("sm_80", "sm_90a"):
        image = compiler.compile(PRELUDE + KERNEL, arch)
        assert image.startswith(b"\x7fELF") and b"k_1" in image
    assert compiler.version >= (12, 0)


def test_each_text_is_compiled_once(compiler: Nvrtc, tmp_path: Path) -> None:
    cache, heard = Cache(tmp_path), []
    texts = {"k_1": KERNEL, "k_2": KERNEL.replace("k_1", "k_2")}
    first = cubins(texts, PRELUDE, "sm_90a", cache, lambda *n: heard.append(n))
    again = cubins(texts, PRELUDE, "sm_90a", cache, lambda *n: heard.append(n))
    assert first == again and sorted(heard) == [(1, 2), (2, 2)]
    assert cubins({"k_1": KERNEL}, "#define ONE 2.0f\n", "sm_90a", cache)["k_1"] != first["k_1"]


def test_a_faulty_kernel_is_told_with_the_compiler_s_words(compiler: Nvrtc) -> None:
    with pytest.raises(CompilerFailed) as failed:
        compiler.compile(KERNEL, "sm_90a")
    assert '"ONE" is undefined' in str(failed.value)


def test_a_machine_without_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(nvrtc.SETTING, str(tmp_path / "libnvrtc.so"))
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(CompilerNotFound, match="NVRTC, which compiles kernels") as missing:
            find_nvrtc()
    finally:
        find_nvrtc.cache_clear()
    assert nvrtc.PACKAGE in str(missing.value) and nvrtc.SETTING in str(missing.value)


def test_nothing_to_compile_asks_for_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(nvrtc.SETTING, str(tmp_path / "libnvrtc.so"))
    assert cubins({}, PRELUDE, "sm_90a", Cache(tmp_path)) == {}
