"""Every kernel of full-size networks is compiled for two generations of GPUs: nothing spills, and enough threads fit."""

from __future__ import annotations

import pytest

from dcir.codegen.cuda.nvrtc import Nvrtc
from tests.codegen.cuda.network_kernels import CASES, kernels_of
from tests.codegen.cuda.resources import lacks_registers, most_registers, resources_of
from tests.rotation import taken

EACH = [(*case, arch) for case in CASES for arch in ("sm_80", "sm_90a")]


@pytest.mark.parametrize(("name", "train", "half", "arch"), taken(EACH, 2))
def test_all_kernels_compile_without_spills(nvrtc: Nvrtc, name: str, train: bool, half: bool, arch: str) -> None:
    launches = kernels_of(name, train=train, half=half)
    assert len(launches) >= 5
    for launch in launches:
        r = resources_of(launch, nvrtc, arch)
        assert not lacks_registers(r, launch), f"{r}\n{launch.text}"
        assert r.registers <= most_registers(launch), f"{r}\n{launch.text}"
