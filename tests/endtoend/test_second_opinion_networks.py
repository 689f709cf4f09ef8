"""The networks that dcir is measured with, at small sizes, through stock DaCe after all passes: what generated code says, and float64.

A build of stock DaCe takes seconds, so every commit takes some of them (``tests/rotation.py``); DCIR_TEST_ALL=1 takes all.
"""

from __future__ import annotations

import pytest
import torch

from tests.endtoend.reduced_networks import REDUCED
from tests.endtoend.second_opinion import agree
from tests.rotation import chosen

_AT_ONCE = 4
_CASES = [f"{name} {mode}" for name in REDUCED for mode in ("inference", "training")]


@pytest.mark.parametrize("case", _CASES)
def test_agree(case: str) -> None:
    if case not in chosen(_CASES, _AT_ONCE):
        pytest.skip("networks that have their turn with another commit; DCIR_TEST_ALL=1 runs all")
    name, mode = case.split()
    torch.manual_seed(0)
    agree(*REDUCED[name](), train=mode == "training")
