"""The cases of the GPU day about running, through the twin: what they ask for holds, but for what only a device has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu import running
from tests.rotation import taken

CASES = [
    *(functools.partial(running.decoded, dtype, positions=70) for dtype in (torch.bfloat16, torch.float32)),
    running.replayed, running.replayed_training, running.autocast, running.profiled, running.bad_index,
]  # fmt: skip


@pytest.mark.parametrize("run", taken(CASES, 2))
def test_a_case_passes_in_the_twin(run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCIR_CUDA", "twin")
    assert run(device="cpu")
