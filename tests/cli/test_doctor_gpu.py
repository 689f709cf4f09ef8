"""What the doctor says of a GPU, of its libraries, and of a machine without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dcir.cli import doctor_gpu
from dcir.cli.doctor_gpu import gpu_findings
from dcir.cost.cuda import SETTING, TWIN
from dcir.errors import CompilerNotFound


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch tells of a GPU."""
    said = SimpleNamespace(name="A Card", major=9, minor=0, multi_processor_count=132, total_memory=141 << 30)
    monkeypatch.setenv(SETTING, "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: said)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda: "_BlasBackend.Cublaslt")
    monkeypatch.setattr(doctor_gpu, "find_nvrtc", lambda: SimpleNamespace(version=(13, 0), path="libnvrtc.so.13"))


def test_everything_is_there(gpu: None) -> None:
    found = {item.name: item for item in gpu_findings()}
    assert all(item.ok for item in found.values()) and list(found) == ["gpu 0", "nvrtc", "libraries"]
    assert "A Card, sm_90, 132 multiprocessors, 141 GiB" in found["gpu 0"].found
    assert found["nvrtc"].found.startswith("13.0") and "cuDNN 9.13, products by Cublaslt" in found["libraries"].found


def test_what_is_missing_has_a_package_to_install(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise CompilerNotFound("there is no NVRTC")

    monkeypatch.setattr(doctor_gpu, "find_nvrtc", missing)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    found = {item.name: item for item in gpu_findings() if not item.ok}
    assert "nvidia-cuda-nvrtc" in found["nvrtc"].remedy and "nvidia-cudnn" in found["cudnn"].remedy


@pytest.mark.parametrize("twin", [False, True])
def test_a_machine_without_one_lacks_nothing(twin: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, TWIN if twin else "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = list(gpu_findings())
    assert all(item.ok for item in found) and [item.name for item in found] == ["gpu", "nvrtc"][: 1 + twin]
