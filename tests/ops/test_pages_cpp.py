"""Every operator page: the generated C++ against eager torch, many operators to a library.

The first sample of every page, and others for each commit (``tests/rotation.py``); DCIR_TEST_ALL=1 takes all of them.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dcir.frontends.torch.importer import import_graph
from tests.harness import all_samples, check_results, expected, graph_of_calls, run_cpp
from tests.rotation import taken

_EVERY = all_samples()
CASES = [*(c for c in _EVERY if c[2] == 0), *taken([c for c in _EVERY if c[2]], 400)]
# As many operators as compile in a second or two; one library each would cost minutes of process starts.
GROUP = 48


@functools.cache
def group_results(group: int) -> list[Any]:
    """Results of one group of samples, per sample."""
    cases = CASES[group * GROUP : (group + 1) * GROUP]
    gm, tensors = graph_of_calls([(p.overload, s.args, s.kwargs) for p, s, _ in cases])
    flat = iter(run_cpp(import_graph(gm), tensors))
    return [[next(flat) for _ in expected(p, s)[0]] for p, s, _ in cases]


@pytest.mark.parametrize("number", [pytest.param(n, id=f"{p.name}-{i}-{s.name}") for n, (p, s, i) in enumerate(CASES)])
def test_cpp(number: int) -> None:
    """Same numbers as eager, by the float64 rule."""
    page, sample, _ = CASES[number]
    check_results(page, sample, group_results(number // GROUP)[number % GROUP])
