"""Every operator page, first sample: library nodes expanded to maps and run by stock DaCe, against eager torch."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dcir.errors import Unsupported
from dcir.frontends.torch.importer import import_graph
from tests.harness import all_samples, check_results, expected, graph_of_calls, run_dace

CASES = [(p, s) for p, s, i in all_samples() if i == 0]
# One build of stock DaCe costs a second, so many operators share one.
GROUP = 40


def _run(first: int, last: int) -> list[Any]:
    """Results of a range of cases, per case, or the error that one of them met."""
    cases = CASES[first:last]
    try:
        gm, tensors = graph_of_calls([(p.overload, s.args, s.kwargs) for p, s in cases])
        flat = iter(run_dace(import_graph(gm), tensors))
        return [[next(flat) for _ in expected(p, s)[0]] for p, s in cases]
    except Exception as e:
        if len(cases) == 1:
            return [e]
        middle = (first + last) // 2
        return _run(first, middle) + _run(middle, last)


@functools.cache
def group_results(group: int) -> list[Any]:
    """Results of one group of cases."""
    return _run(group * GROUP, min((group + 1) * GROUP, len(CASES)))


@pytest.mark.parametrize("number", [pytest.param(n, id=p.name) for n, (p, _) in enumerate(CASES)])
def test_dace(number: int) -> None:
    """Same numbers as eager, by the float64 rule; operators without maps say so by name."""
    page, sample = CASES[number]
    got = group_results(number // GROUP)[number % GROUP]
    if isinstance(got, Unsupported):
        assert "through stock DaCe" in str(got)
        pytest.skip(str(got).splitlines()[0])
    if isinstance(got, Exception):
        raise got
    check_results(page, sample, got)
