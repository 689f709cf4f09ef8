"""Every kernel of full-size networks is compiled for two generations of GPUs: nothing spills, and enough threads fit."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest

from dcir.codegen.cuda.nvrtc import Nvrtc, find_nvrtc
from dcir.errors import CompilerNotFound
from tests.codegen.cuda.network_kernels import CASES, kernels_of
from tests.codegen.cuda.resources import most_registers, resources_of
from tests.rotation import taken

ARCHITECTURES = ("sm_80", "sm_90a")


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    try:
        return find_nvrtc()
    except CompilerNotFound:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")


@pytest.mark.parametrize(("name", "train", "half"), taken(CASES, 2))
def test_all_kernels_compile_without_spills(nvrtc: Nvrtc, name: str, train: bool, half: bool) -> None:
    launches = kernels_of(name, train=train, half=half)
    assert len(launches) >= 5
    with ThreadPoolExecutor(2) as pool:
        for arch in ARCHITECTURES:
            found = list(pool.map(functools.partial(resources_of, nvrtc=nvrtc, arch=arch), launches))
            for launch, r in zip(launches, found, strict=True):
                assert not r.spilled, f"{arch}: {r}\n{launch.text}"
                assert r.registers <= most_registers(launch), f"{arch}: {r}\n{launch.text}"
