"""NVRTC for tests that compile, where it is installed."""

import pytest

from dcir.codegen.cuda.nvrtc import Nvrtc, find_nvrtc
from dcir.errors import CompilerNotFound


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    try:
        return find_nvrtc()
    except CompilerNotFound:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
