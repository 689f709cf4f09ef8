"""What `dcir doctor` says of GPUs: device and driver, the compiler of kernels, and the libraries that multiply; nothing without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dcir.cli.diagnosis import Diagnosis
from dcir.codegen.cuda.nvrtc import PACKAGE, find_nvrtc
from dcir.cost.cuda import is_twin
from dcir.errors import DcirError


def gpu_findings() -> Iterator[Diagnosis]:
    """The GPU first; what only code for one needs is looked for where there is one, or where its twin is asked for."""
    twin = is_twin()
    if not torch.cuda.is_available():
        yield Diagnosis("gpu", True, "none that PyTorch can use" + "; kernels for one run on the processor" * twin)
        if not twin:
            return
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield _device(number)
    yield _compiler(needed=not twin)
    if torch.cuda.is_available():
        yield _libraries()


def _device(number: int) -> Diagnosis:
    p = torch.cuda.get_device_properties(number)
    size, arch = p.total_memory / 2**30, f"sm_{p.major}{p.minor}"
    return Diagnosis(
        f"gpu {number}", True, f"{p.name}, {arch}, {p.multi_processor_count} multiprocessors, {size:.0f} GiB; CUDA {torch.version.cuda}"
    )  # fmt: skip


def _compiler(*, needed: bool) -> Diagnosis:
    try:
        found = find_nvrtc()
    except DcirError as error:
        if not needed:
            return Diagnosis("nvrtc", True, "none; the twin needs none")
        return Diagnosis("nvrtc", False, error.message, error.hint or f"pip install {PACKAGE}")
    return Diagnosis("nvrtc", True, f"{found.version[0]}.{found.version[1]} ({found.path})")


def _libraries() -> Diagnosis:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    if version is None:
        return Diagnosis(
            "cudnn", False, "PyTorch finds none: convolutions would be slow", "pip install nvidia-cudnn-cu13"
        )
    blas = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]
    return Diagnosis("libraries", True, f"cuDNN {version // 10000}.{version // 100 % 100}, products by {blas}")
