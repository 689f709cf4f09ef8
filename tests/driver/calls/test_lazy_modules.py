"""A lazy module compiles from its first call on, which makes its parameters as eager's first call does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import dcir
from dcir.errors import NotCompiledWarning


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(4), lambda: nn.LazyBatchNorm1d()], ids=["linear", "norm"])
def test_the_first_call_makes_the_parameters_and_is_compiled(make: Callable[[], nn.Module]) -> None:
    other, fast = make(), dcir.optimize(make())
    x = torch.randn(5, 3)
    results = []
    for m in (other, fast):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", NotCompiledWarning)
            y = m(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad.clone() for p in m.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    report = fast.dcir.explain()
    assert [g.kind for g in report.graphs] == ["forward", "backward"] and not report.uncompiled


def test_both_modules_become_what_they_are_to_be() -> None:
    module = nn.LazyLinear(4)
    fast = dcir.optimize(module)
    fast(torch.randn(5, 3))
    assert type(module) is nn.Linear and isinstance(fast, nn.Linear)
    assert module.in_features == fast.in_features == 3
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), fast(x))
    again = copy.deepcopy(fast)
    torch.testing.assert_close(again(x), fast(x))
    assert again.dcir.explain().graphs


def test_a_state_that_is_loaded_first() -> None:
    fast = dcir.optimize(nn.LazyLinear(4))
    fast.load_state_dict(nn.Linear(3, 4).state_dict())
    assert fast(torch.randn(5, 3)).shape == (5, 4)
    assert fast.dcir.explain().graphs
