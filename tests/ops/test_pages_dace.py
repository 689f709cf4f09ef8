"""Every operator page through stock DaCe, as imported and after all passes, against eager torch: its first sample.

Every commit takes some of the pages (``tests/rotation.py``); DCIR_TEST_ALL=1 takes all of them, and after all passes all samples.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from dcir.frontends.torch.importer import import_graph
from dcir.transforms.pipelines import all_passes
from dcir.transforms.runner import run_passes
from tests.harness import all_samples, check_results, expected, graph_of_calls, run_dace
from tests.on_host import on_host
from tests.rotation import taken

CASES = [(p, s, i) for p, s, i in all_samples() if i == 0 or os.environ.get("DCIR_TEST_ALL")]
FIRST = [case for case in CASES if case[2] == 0]
# One build of stock DaCe costs a second, so many operators share one.
GROUP = 40
_AT_ONCE = 4


def _run(cases: list[Any], rewritten: bool) -> list[Any]:
    """Results of some cases, per case, or the error that one of them met."""
    try:
        gm, tensors = graph_of_calls([(p.overload, s.args, s.kwargs) for p, s, _ in cases])
        done = import_graph(gm)
        if rewritten:
            run_passes(on_host(done.network), all_passes())
        flat = iter(run_dace(done, tensors))
        return [[next(flat) for _ in expected(p, s)[0]] for p, s, _ in cases]
    except Exception as e:
        if len(cases) == 1:
            return [e]
        middle = len(cases) // 2
        return _run(cases[:middle], rewritten) + _run(cases[middle:], rewritten)


@functools.cache
def group_results(group: int, rewritten: bool) -> list[Any]:
    """Results of one group of cases."""
    cases = CASES if rewritten else FIRST
    return _run(cases[group * GROUP : (group + 1) * GROUP], rewritten)


def _check(number: int, *, rewritten: bool) -> None:
    page, sample, i = (CASES if rewritten else FIRST)[number]
    got = group_results(number // GROUP, rewritten)[number % GROUP]
    if isinstance(got, Exception):
        raise got
    # Later samples have dozens of steps of a recurrence, each of which eager rounds once and tasklets, which do not join operations, twice.
    check_results(page, sample, got, units=20 if i and "polynomial" in page.name else 4)


def _numbers(cases: list[Any]) -> list[int]:
    """Of the groups whose turn it is."""
    groups = taken(range(-(-len(cases) // GROUP)), _AT_ONCE)
    return [n for n in range(len(cases)) if n // GROUP in groups]


@pytest.mark.parametrize("number", [pytest.param(n, id=FIRST[n][0].name) for n in _numbers(FIRST)])
def test_dace(number: int) -> None:
    """Same numbers as eager, by the float64 rule."""
    _check(number, rewritten=False)


@pytest.mark.parametrize("number", [pytest.param(n, id=f"{CASES[n][0].name}-{CASES[n][2]}") for n in _numbers(CASES)])
def test_dace_after_all_passes(number: int) -> None:
    _check(number, rewritten=True)
